"""The promises of the Database port about events: saved with the write, and whoever waits is told."""

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from refract.kernel.errors import Invalid, Unavailable
from refract.kernel.events import LinkEvent, PlatformEvent
from refract.runtime.correlation import correlated
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.messages import Message
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from tests.support.databases import Location
from tests.support.waiting import eventually

OUTBOX = Statement(
    "outbox",
    "Reads the outbox.",
    "SELECT * FROM outbox ORDER BY message_id",
    sqlite='SELECT *, payload AS "payload [PACKED]" FROM outbox ORDER BY message_id',
)
COUNT = Statement("count", "Counts the outbox.", "SELECT count(*) AS number FROM outbox")
NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
LONG = 60.0

ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from refract.runtime.messages import Message
from tests.support.databases import open_database

async def main(location):
    database = await open_database(Path(location) if location.startswith("/") else location)
    print("ready", flush=True)
    sys.stdin.readline()
    enough = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not enough.done():  # a call may be lost where the server is slow to let us in
        async with database.transaction() as tx:
            await tx.post(Message("exchange", "key", b"{}", "from elsewhere"))
        await asyncio.wait([enough], timeout=10)
    await database.close()

asyncio.run(main(sys.argv[1]))
"""


class LampLit(LinkEvent, frozen=True, kw_only=True, tag="lamp.lit"):
    """Somebody lit a lamp."""

    lamp: str


class LampMentioned(PlatformEvent, frozen=True, kw_only=True, tag="lamp.mentioned"):
    """Somebody spoke of a lamp; nobody has to listen."""

    needs_reader: ClassVar[bool] = False
    lamp: str


def message(number: int) -> Message:
    return Message("exchange", "key", b'{"n": %d}' % number, f"message-{number:05}")


async def test_an_event_is_saved_with_its_transaction(database: Database) -> None:
    with correlated("request-1"):
        async with database.transaction() as tx:
            await tx.announce(LampLit(occurred_at=NOW, lamp="green"))
    [row] = await database.fetch(OUTBOX)
    assert row["exchange"] == "url-shortener"
    assert row["event_type"] == "lamp.lit"
    assert row["correlation_id"] == "request-1"
    assert row["mandatory"] is True
    assert (row["published_at"], row["next_attempt_at"], row["last_error"], row["attempts"]) == (None, None, None, 0)
    assert f'"event_id":"{row["message_id"]}"' in row["payload"]
    assert '"correlation_id":"request-1"' in row["payload"]


async def test_an_event_says_whether_it_needs_a_reader(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.announce(LampMentioned(occurred_at=NOW, lamp="green"))
    [row] = await database.fetch(OUTBOX)
    assert row["mandatory"] is False
    assert row["exchange"] == "smap.events"


async def test_a_body_survives_byte_for_byte(database: Database) -> None:
    body = '{ "b":1,\t"a" : "ünïcode 🦊", "b" : 2 }'.encode()
    async with database.transaction() as tx:
        await tx.post(Message("exchange", "key", body, "id"))
    [row] = await database.fetch(OUTBOX)
    assert row["payload"].encode() == body


async def test_nothing_is_announced_by_a_transaction_that_fails(database: Database) -> None:
    await fail_after_announcing(database)
    assert await database.fetch(OUTBOX) == []


@pytest.mark.parametrize("length", [1, 5_000])
async def test_a_body_with_a_nul_is_refused_however_long_it_is(database: Database, length: int) -> None:
    with pytest.raises(Invalid):
        await database.post(Message("exchange", "key", b"\0" * length, "id"))
    assert await database.fetch(OUTBOX) == []


async def test_a_transaction_sees_what_it_announced(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.post(message(1), message(2))
        assert await tx.fetch_one(COUNT) == {"number": 2}
        await tx.post(message(3))
    assert [row["message_id"] for row in await database.fetch(OUTBOX)] == [
        "message-00001",
        "message-00002",
        "message-00003",
    ]


async def test_many_messages_are_one_write(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.post(*map(message, range(2_000)))
    rows = await database.fetch(OUTBOX)
    assert [row["payload"] for row in rows] == [f'{{"n": {number}}}' for number in range(2_000)]
    assert len({row["id"] for row in rows}) == 2_000


async def fail_after_announcing(database: Database) -> None:
    with suppress(ZeroDivisionError):
        async with database.transaction() as tx:
            await tx.announce(LampLit(occurred_at=NOW, lamp="green"))
            assert await tx.fetch_one(COUNT) is not None
            await tx.post(message(1))
            raise ZeroDivisionError


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What PostgreSQL calls to a database that listens. First it is told, with None, that it does."""
    heard: list[str | None] = []
    hear = PostgresDatabase._hear

    def hear_and_note(database: PostgresDatabase, payload: str | None) -> None:
        hear(database, payload)
        heard.append(payload)

    monkeypatch.setattr(PostgresDatabase, "_hear", hear_and_note)
    return heard


async def quiet(database: Database, calls: list[str | None]) -> None:
    """Wait until the database is heard, and then until it has nothing more to say."""
    async with database.transaction() as tx:
        await tx.post(message(0))
    assert await woken(database, LONG)
    if database.dialect == "postgresql":
        await eventually(lambda: None in calls)
    while await woken(database, 0.1):
        pass


async def woken(database: Database, timeout: float) -> bool:
    """Whether it returned before the time was up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await database.announced(timeout)
    return loop.time() - began < timeout - 0.01  # uvloop counts whole milliseconds, and may be early by one


async def test_a_post_is_a_transaction_of_its_own(database: Database) -> None:
    await database.post(message(1))
    await database.post(message(2), message(3))
    await database.post()
    rows = await database.fetch(OUTBOX)
    assert [row["message_id"] for row in rows] == ["message-00001", "message-00002", "message-00003"]
    assert rows[0]["payload"] == '{"n": 1}'
    assert (rows[0]["published_at"], rows[0]["attempts"], rows[0]["mandatory"]) == (None, 0, True)


async def test_of_a_post_that_fails_nothing_is_kept(database: Database) -> None:
    with pytest.raises(Invalid):
        await database.post(message(1), Message("exchange", "key", b"\xff", "message-2"))
    await database.post(message(3))
    assert [row["message_id"] for row in await database.fetch(OUTBOX)] == ["message-00003"]


async def test_posts_and_transactions_take_turns(database: Database) -> None:
    async def write(number: int) -> None:
        async with database.transaction() as tx:
            await tx.post(message(number))

    await asyncio.gather(*(write(n) if n % 2 else database.post(message(n)) for n in range(40)))
    assert [row["message_id"] for row in await database.fetch(OUTBOX)] == [f"message-{n:05}" for n in range(40)]


async def test_a_post_wakes_whoever_waits(database: Database) -> None:
    await database.announced(0.01)  # what was announced before the test
    waiting = asyncio.create_task(database.announced(LONG))
    await asyncio.sleep(0)
    await database.post(message(1))
    async with asyncio.timeout(LONG / 2):
        await waiting


async def test_a_closed_database_takes_no_post(database: Database) -> None:
    await database.close()
    with pytest.raises(Unavailable):
        await database.post(message(1))


async def test_a_commit_wakes_whoever_waits(database: Database, calls: list[str | None]) -> None:
    await quiet(database, calls)
    waiting = asyncio.create_task(woken(database, LONG))
    await asyncio.sleep(0)
    async with database.transaction() as tx:
        await tx.post(message(1))
        await tx.fetch(COUNT)
        assert not waiting.done()
    assert await waiting


async def test_a_commit_before_the_wait_is_not_missed(database: Database, calls: list[str | None]) -> None:
    await quiet(database, calls)
    async with database.transaction() as tx:
        await tx.post(message(1))
    assert await woken(database, LONG)


async def test_who_waits_in_vain_returns_in_time(database: Database, calls: list[str | None]) -> None:
    await quiet(database, calls)
    async with database.transaction() as tx:
        await tx.fetch(COUNT)
    assert not await woken(database, 0.3)


async def test_a_rolled_back_announcement_wakes_nobody(database: Database, calls: list[str | None]) -> None:
    await quiet(database, calls)
    await fail_after_announcing(database)
    assert not await woken(database, 0.3)


async def test_a_commit_of_another_process_wakes_whoever_waits(
    database: Database, database_location: Location, calls: list[str | None]
) -> None:
    await quiet(database, calls)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ELSEWHERE,
        str(database_location),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    waiting = asyncio.create_task(woken(database, LONG))
    await asyncio.sleep(0)
    assert not waiting.done()
    process.stdin.write(b"go\n")
    assert await waiting
    process.stdin.write(b"enough\n")
    assert await process.wait() == 0
    assert "from elsewhere" in {row["message_id"] for row in await database.fetch(OUTBOX)}
