"""Rows of the outbox that commit when younger ones have been sent already: they are sent as well, each of them."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from refract.runtime.messages import Message
from refract.runtime.outbox import pending_in_outbox
from refract.runtime.ports import Database, QueueReader
from refract.runtime.statements import Statement
from tests.support.buses import bodies, drain
from tests.support.databases import open_database
from tests.support.waiting import eventually
from tests.support.worlds import World, noted, running

WRITERS = 24
ROWS = 20_000
ROWS_AT_ONCE = 50
ROW_IDS = Statement(
    "row_ids",
    "Finds the rows of messages.",
    "SELECT id FROM outbox WHERE message_id = ANY(:message_ids) ORDER BY id",
)
PUBLISHED = Statement("published", "Whether a row was published.", "SELECT published_at FROM outbox WHERE id = :id")


# On SQLite there is one writer at a time, and whoever commits later has written later.
@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_a_row_that_commits_when_a_younger_one_was_sent_is_sent_next(world: World, reader: QueueReader) -> None:
    old, young = world.message(noted(1)), world.message(noted(2))
    relay = world.relay()
    async with world.database.transaction() as tx:
        await tx.post(old)
        [row] = await tx.fetch(ROW_IDS, message_ids=[old.message_id])  # from here it has its id
        await world.post(young)
        await relay.drain()
        assert bodies(await drain(reader, 1)) == [young.body]
        assert [found["message_id"] for found in await world.outbox()] == [young.message_id]
    first, second = await world.outbox()
    assert (first["id"], first["published_at"], second["message_id"]) == (row["id"], None, young.message_id)
    await relay.drain()
    assert await world.unpublished() == 0
    assert bodies(await drain(reader, 1)) == [old.body]
    assert world.counted("outbox_published_total", service="test") == 2


async def test_slow_writers_lose_no_row(world: World, reader: QueueReader) -> None:
    """A relay that remembers the last id it saw passes over rows that commit after younger ones.

    Where there can be several writers, each of them keeps its transaction open until the relay has sent, and marked, a
    row that is younger than all of it: so nearly all rows commit late, however quick or slow the relay is.
    """
    databases = [await open_database(world.location) for _ in range(3)]  # ten connections each
    messages = [world.message(noted(number)) for number in range(ROWS)]
    chunks = iter([messages[first : first + ROWS_AT_ONCE] for first in range(0, ROWS, ROWS_AT_ONCE)])
    late: list[str] = []

    async def write(database: Database) -> None:
        for chunk in chunks:
            if database.dialect == "postgresql":
                late.extend(await _write_slowly(database, chunk))
            else:
                async with database.transaction() as tx:
                    await tx.post(*chunk)

    async with running(world.relay().run):
        reading = asyncio.create_task(drain(reader, ROWS))
        await asyncio.gather(*(write(databases[number % 3]) for number in range(WRITERS)))
        await eventually(lambda: _nothing_waits(world), timeout=40)
        received = Counter(message.message_id for message in await asyncio.wait_for(reading, 60))
    for database in databases:
        await database.close()
    assert received == Counter(message.message_id for message in messages)
    if world.database.dialect == "postgresql":
        assert len(late) > ROWS * 0.9, "hardly any row committed late, so this proves nothing"


async def _write_slowly(database: Database, chunk: Sequence[Message]) -> list[str]:
    """Save messages, the last of them apart; the rows that committed below an id that was published already."""
    *old, young = chunk
    async with database.transaction() as tx:
        await tx.post(*old)
        rows = await tx.fetch(ROW_IDS, message_ids=[message.message_id for message in old])  # they have their ids
        [younger] = await database.post(young)
        await eventually(lambda: _is_published(database, younger), timeout=40, interval=0.05)
    return [row["id"] for row in rows if row["id"] < younger]


async def _is_published(database: Database, row_id: str) -> bool:
    row = await database.fetch_one(PUBLISHED, id=row_id)
    return row is not None and row["published_at"] is not None


async def _nothing_waits(world: World) -> bool:
    assert await pending_in_outbox(world.database) == 0
    return True
