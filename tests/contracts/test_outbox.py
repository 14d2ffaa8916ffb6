"""The promises of the outbox: what is announced is sent after its commit, at least once, and nothing else is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from refract.kernel.errors import NotPublished
from refract.kernel.ids import new_event_id
from refract.runtime import outbox
from refract.runtime.correlation import correlated
from refract.runtime.keeping import INBOX_MARGIN, Keeper
from refract.runtime.messages import Message
from refract.runtime.outbox import pending_in_outbox, prune_outbox, replay_outbox
from refract.runtime.ports import Database, EventBus, QueueReader
from refract.runtime.statements import Statement
from refract.runtime.transactions import OUTBOX_COLUMNS
from tests.support.buses import bodies, drain
from tests.support.clocks import ManualClock
from tests.support.databases import Location, open_database
from tests.support.waiting import eventually
from tests.support.worlds import MODES, Noted, World, buses_for, noted, open_world, running

FOREVER = 3600.0
WRITERS = 24
ROWS = 20_000
ROWS_AT_ONCE = 20
ROW_ID = Statement("row_id", "Finds the row of a message.", "SELECT id FROM outbox WHERE message_id = :message_id")


class SomethingWrong(Exception):
    """What a use case may raise."""


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Which twins."""
    mode: str = request.param
    return mode


@pytest.fixture
def location(mode: str, request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where the database is."""
    if mode == "embedded":
        return tmp_path / "test.db"
    dsn: str = request.getfixturevalue("fresh_database")
    return dsn


@pytest.fixture
async def world(
    mode: str, location: Location, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[World]:
    """A database and a bus, without a reader."""
    async with open_world(location, buses_for(mode, request, tmp_path)) as world:
        yield world


@pytest.fixture
async def reader(world: World) -> AsyncIterator[QueueReader]:
    """Somebody who takes what is published."""
    async with world.bus.reader(world.queue) as reader:
        yield reader


def turn(world: World, seconds: float) -> None:
    """Let time pass in a world that has a manual clock."""
    assert isinstance(world.clock, ManualClock)
    world.clock.advance(seconds)


class TestRelay:
    async def test_sends_the_exact_bytes_in_the_order_of_their_rows(self, world: World, reader: QueueReader) -> None:
        sent = [
            Message(world.buses.exchange, "test.noted", body, f"id-{number}", f"correlation-{number}")
            for number, body in enumerate(
                (b'{"b":1,"a":[1.0,1e3]}', b'  {"spaced" : "\xc3\xa9 \xf0\x9f\x9a\x80"}\n', b"not even json", b"")
            )
        ]
        await world.post(*sent)
        await world.relay().move()
        assert await drain(reader, len(sent)) == sent
        assert await world.unpublished() == 0
        assert world.counted("outbox_published_total", service="test") == len(sent)

    async def test_keeps_the_order_over_many_batches(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "BATCH", 7)
        messages = [world.message(noted(number)) for number in range(100)]
        for message in messages:
            await world.post(message)
        await world.relay().drain()
        assert bodies(await drain(reader, 100)) == [message.body for message in messages]

    async def test_never_sends_what_was_rolled_back(self, world: World, reader: QueueReader) -> None:
        with pytest.raises(SomethingWrong):
            async with world.database.transaction() as tx:
                await tx.post(world.message(noted(1)))
                await tx.fetch(ROW_ID, message_id="so that it is written")
                raise SomethingWrong
        kept = world.message(noted(2))
        await world.post(kept)
        await world.relay().drain()
        assert bodies(await drain(reader, 1)) == [kept.body]
        assert len(await world.outbox()) == 1

    async def test_carries_the_correlation_id_of_the_request(self, world: World, reader: QueueReader) -> None:
        class Own(Noted, frozen=True, kw_only=True, tag="test.noted"):
            exchange: ClassVar[str] = world.buses.exchange

        with correlated("request-7"):
            async with world.database.transaction() as tx:
                await tx.announce(Own(occurred_at=datetime.now(UTC), number=1))
        await world.relay().drain()
        [message] = await drain(reader, 1)
        assert message.correlation_id == "request-7"
        assert b'"correlation_id":"request-7"' in message.body
        assert message.message_id.encode() in message.body

    async def test_is_woken_by_a_commit(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "POLL_SECONDS", FOREVER)
        elsewhere = await open_database(world.location)
        async with running(world.relay().run):
            for database in (world.database, elsewhere, world.database):
                message = world.message(noted(1))
                async with database.transaction() as tx:
                    await tx.post(message)
                async with asyncio.timeout(10):
                    assert bodies(await drain(reader, 1)) == [message.body]
        await elsewhere.close()

    async def test_finds_what_nobody_told_it_of(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "POLL_SECONDS", 0.05)
        async with running(world.relay().run):
            async with world.database.transaction() as tx:  # a row that comes without an announcement
                await tx.insert_many("outbox", OUTBOX_COLUMNS, [_row(world, datetime.now(UTC))])
            async with asyncio.timeout(10):
                assert bodies(await drain(reader, 1)) == [b"{}"]

    async def test_drains(self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "BATCH", 10)
        await world.announce(*map(noted, range(95)))
        await world.relay().drain()
        assert await world.unpublished() == 0


class TestUnroutable:
    async def test_stays_until_a_queue_takes_it_while_the_others_leave(self, world: World, reader: QueueReader) -> None:
        lost = replace(world.message(noted(1)), routing_key="test.lost")
        before, after = world.message(noted(2)), world.message(noted(3))
        await world.post(before, lost, after)
        relay = world.relay()
        began = world.clock.now()
        await relay.drain()
        assert bodies(await drain(reader, 2)) == [before.body, after.body]
        [row] = [row for row in await world.outbox() if row["published_at"] is None]
        assert (row["message_id"], row["attempts"]) == (lost.message_id, 1)
        assert row["next_attempt_at"] > began
        assert row["last_error"] == f"no queue takes 'test.lost' from exchange '{world.buses.exchange}'"
        assert world.counted("outbox_failed_total", service="test") == 1
        assert world.counted("outbox_published_total", service="test") == 2

        late = world.buses.queue("late", "test.lost")
        async with world.bus.reader(late) as late_reader:
            await relay.drain()
            assert await world.unpublished() == 1  # it is not due yet
            turn(world, 1)
            await relay.drain()
            assert bodies(await drain(late_reader, 1)) == [lost.body]
        [row] = [row for row in await world.outbox() if row["message_id"] == lost.message_id]
        assert row["published_at"] == world.clock.now()
        assert row["last_error"] is None

    async def test_is_tried_less_and_less_often_and_never_given_up(self, world: World) -> None:
        await world.announce(noted(1))
        relay = world.relay()
        pauses = []
        for _ in range(12):
            await relay.drain()
            [row] = await world.outbox()
            pauses.append((row["next_attempt_at"] - world.clock.now()).total_seconds())
            turn(world, pauses[-1])
        assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30]
        assert (row["attempts"], row["published_at"]) == (12, None)

    async def test_is_done_with_when_it_needs_no_reader(self, world: World) -> None:
        await world.post(world.message(noted(1), mandatory=False))
        await world.relay().drain()
        [row] = await world.outbox()
        assert (row["published_at"], row["attempts"]) == (world.clock.now(), 0)

    async def test_a_heap_of_them_does_not_starve_the_others(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "BATCH", 20)
        monkeypatch.setattr(outbox, "RETRIES", 5)
        relay = world.relay()
        for number in range(60):
            await world.post(replace(world.message(noted(number)), routing_key="test.lost"))
        await relay.drain()
        turn(world, FOREVER)
        message = world.message(noted(1))
        await world.post(message)
        await relay.move()
        async with asyncio.timeout(10):
            assert bodies(await drain(reader, 1)) == [message.body]


class Away(EventBus):
    """A bus between a relay and the real one that can be away, or break its connection for one message."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.away = False
        self.breaker = ""
        self.batches: list[int] = []
