"""What PostgreSQL has acknowledged is on its disk: no connection of ours asks it for less, and its death shows it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.distributed.pool import ConnectionPool
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.statements import Statement
from tests.support.servers import PostgreSQL
from tests.support.waiting import eventually

WRITERS = 8
KILLS = 3
ROWS_BETWEEN = 200

SHOW = "SHOW synchronous_commit"
ASK = Statement("ask", "Asks for a setting.", SHOW)
ASK_STEADILY = Statement("ask_steadily", "Asks for a setting, with one plan.", SHOW, steady=True)
POSTED = Statement("posted", "Reads what was posted.", "SELECT message_id FROM outbox")
HEARD = Statement("heard", "Reads what was in force at each commit.", "SELECT way, setting FROM heard ORDER BY way")
WATCH = (
    Statement("make_heard", "Makes a table.", "CREATE TABLE heard (way TEXT NOT NULL, setting TEXT NOT NULL)"),
    Statement(
        "make_note",
        "Notes what is in force.",
        """
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO heard VALUES (NEW.message_id, current_setting('synchronous_commit'));
            RETURN NULL;
        END $$
        """,
    ),
    # Deferred: it speaks when the commit has been asked for, so that nothing can be set any more after it.
    Statement(
        "watch",
        "Notes it at each commit.",
        """
        CREATE CONSTRAINT TRIGGER note AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION note()
        """,
    ),
)


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A PostgreSQL that a test may kill, as durable as it is shipped."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
async def postgres(server: PostgreSQL) -> AsyncIterator[PostgresDatabase]:
    """The database of a service on it, migrated as it is for users."""
    await migrate("links", server.address)
    database = await PostgresDatabase.open(server.address, service="test")
    yield database
    await database.close()


def message(message_id: str) -> Message:
    return Message("exchange", "key", b"{}", message_id)


async def settings_of(pool: ConnectionPool) -> list[str]:
    """What each of its connections says, of which there is at least one."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(pool.connection()) for _ in range(max(1, pool.size))]
        return [await connection.fetchval(SHOW) for connection in connections]


async def test_no_commit_is_acknowledged_before_it_is_on_the_disk(postgres: PostgresDatabase) -> None:
    async with postgres.transaction() as tx:
        for statement in WATCH:
            await tx.execute(statement)
    pools = [value for value in vars(postgres).values() if isinstance(value, ConnectionPool)]
    assert len(pools) >= 3
    on = [{"synchronous_commit": "on"}]
    for number in range(2):  # the second time on connections that have been used for all of it
        await postgres.post(message(f"{number}: alone"))
        await postgres.post(*(message(f"{number}: together") for _ in range(2)))
        await postgres.post(message(f"{number}: held"), held=0.1)
        async with postgres.transaction() as tx:
            assert await tx.fetch(ASK) == on
            await tx.post(message(f"{number}: in a transaction"))
            assert await tx.fetch(ASK) == on
            await tx.post(message(f"{number}: last in a transaction"))
        assert await postgres.fetch(ASK) == on
        assert await postgres.fetch(ASK_STEADILY) == on
        for pool in pools:
            assert set(await settings_of(pool)) == {"on"}
    ways = Counter((row["way"], row["setting"]) for row in await postgres.fetch(HEARD))
    assert ways == {
        (f"{number}: {way}", "on"): 2 if way == "together" else 1
        for number in range(2)
        for way in ("alone", "together", "held", "in a transaction", "last in a transaction")
    }


async def test_what_was_posted_outlives_the_server(server: PostgreSQL, postgres: PostgresDatabase) -> None:
    attempted: set[str] = set()
    acknowledged: set[str] = set()
    refusals = 0
    numbers = map(str, count())

    async def write() -> None:
        nonlocal refusals
        for number in numbers:
            attempted.add(number)
            try:
                await postgres.post(message(number))
            except Unavailable:
                refusals += 1
                await asyncio.sleep(0.01)
            else:
                acknowledged.add(number)

    async def more_are_acknowledged() -> None:
        before = len(acknowledged)
        await eventually(lambda: len(acknowledged) > before + ROWS_BETWEEN, interval=0.002)

    writers = [asyncio.create_task(write()) for _ in range(WRITERS)]
    for _ in range(KILLS):
        await more_are_acknowledged()
        before = refusals
        await asyncio.to_thread(server.kill)
        await eventually(lambda before=before: refusals > before)  # type: ignore[misc]
        await asyncio.to_thread(server.start)
    await more_are_acknowledged()
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    found = [row["message_id"] for row in await postgres.fetch(POSTED)]
    assert acknowledged - set(found) == set()
    assert set(found) - attempted == set()
    assert len(found) == len(set(found))
