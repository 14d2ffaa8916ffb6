"""The promises of housekeeping: what is over its time goes, what may still be needed stays, and can be sent again."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from refract.runtime import inbox, keeping, outbox
from refract.runtime.inbox import prune_inbox
from refract.runtime.keeping import INBOX_MARGIN, Keeper
from refract.runtime.outbox import pending_in_outbox, prune_outbox, replay_outbox
from refract.runtime.ports import QueueReader
from refract.runtime.transactions import OUTBOX_COLUMNS
from tests.support.buses import drain
from tests.support.waiting import eventually
from tests.support.worlds import World, noted, running


class TestRetention:
    async def test_prunes_what_is_published_and_old_in_batches(self, world: World) -> None:
        now = datetime.now(UTC)
        many = 2 * outbox.PRUNE_BATCH + 10
        await _announced(world, now - timedelta(days=8), many)
        await world.relay().drain()
        await _announced(world, now - timedelta(days=6), 3)
        await world.relay().drain()
        await _announced(world, now - timedelta(days=9), 2)  # old, and not yet published
        assert await prune_outbox(world.database, now - timedelta(days=7)) == many
        kept = await world.outbox()
        assert [row["created_at"] for row in kept] == [now - timedelta(days=9)] * 2 + [now - timedelta(days=6)] * 3
        assert [row["published_at"] is None for row in kept] == [True, True, False, False, False]

    async def test_replays_a_period_and_no_more(self, world: World, reader: QueueReader) -> None:
        now = datetime.now(UTC)
        for days, count in ((3, 2), (2, outbox.REPLAY_BATCH + 5), (1, 3)):
            await _announced(world, now - timedelta(days=days), count)
        await world.relay().drain()
        await drain(reader, outbox.REPLAY_BATCH + 10)
        since, until = now - timedelta(days=2, seconds=1), now - timedelta(days=1, seconds=1)
        assert await replay_outbox(world.database, since, until) == outbox.REPLAY_BATCH + 5
        assert await pending_in_outbox(world.database) == outbox.REPLAY_BATCH + 5
        await world.relay().drain()
        assert len(await drain(reader, outbox.REPLAY_BATCH + 5)) == outbox.REPLAY_BATCH + 5

    async def test_a_replay_ends_though_the_relay_publishes_meanwhile(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "REPLAY_BATCH", 5)
        monkeypatch.setattr(outbox, "POLL_SECONDS", 0.01)
        await world.announce(*map(noted, range(100)))
        await world.relay().drain()
        now = datetime.now(UTC)
        async with running(world.relay().run), asyncio.timeout(90):
            replayed = await replay_outbox(world.database, now - timedelta(hours=1), now + timedelta(hours=1))
            assert replayed == 100
            assert len(await drain(reader, 200)) == 200

    async def test_what_is_replayed_is_handled_once(self, world: World) -> None:
        await world.bus.declare(world.queue)
        async with running(world.relay().run, world.inbox().run):
            await world.announce(*map(noted, range(50)))
            await eventually(lambda: _handled(world, 50))
            await eventually(lambda: _marked(world))  # a reader may be quicker than the relay's commit
            now = datetime.now(UTC)
            assert await replay_outbox(world.database, now - timedelta(hours=1), now + timedelta(hours=1)) == 50
            await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 50)
        assert await world.effects() == list(range(50))


async def _handled(world: World, count: int) -> bool:
    return len(await world.effects()) == count


async def _marked(world: World) -> bool:
    return await world.unpublished() == 0


async def _announced(world: World, moment: datetime, count: int) -> None:
    async with world.database.transaction() as tx:
        await tx.insert_many("outbox", OUTBOX_COLUMNS, [world.row(moment, number) for number in range(count)])


class TestKeeper:
    async def test_measures_what_waits(self, world: World) -> None:
        keeper = _keeper(world)
        await world.announce(*map(noted, range(3)))
        await keeper.measure()
        assert world.counted("outbox_pending", service="test") == 3
        await world.bus.declare(world.queue)
        await world.relay().drain()
        await keeper.measure()
        assert world.counted("outbox_pending", service="test") == 0

    async def test_prunes_by_the_retention(self, world: World) -> None:
        now = datetime.now(UTC)
        await _announced(world, now - timedelta(days=8), 2)
        await _announced(world, now, 1)
        await world.relay().drain()
        await _mark(world, "old", now - timedelta(days=7) - INBOX_MARGIN - timedelta(minutes=1))
        await _mark(world, "young", now - timedelta(days=8))
        await _keeper(world).prune()
        assert len(await world.outbox()) == 1
        assert [row["event_id"] for row in await world.marks()] == ["young"]
        world.turn(timedelta(days=30).total_seconds())
        await _keeper(world).prune()
        assert await world.outbox() == await world.marks() == []

    async def test_keeps_measuring(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeping, "MEASURE_SECONDS", 0.01)
        await world.announce(noted(1))
        async with running(_keeper(world).run):
            await eventually(lambda: world.counted("outbox_pending", service="test") == 1)
            await world.announce(noted(2))
            await eventually(lambda: world.counted("outbox_pending", service="test") == 2)

    async def test_goes_on_while_the_database_is_away(
        self, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(keeping, "MEASURE_SECONDS", 0.01)
        keeper = _keeper(world)
        await world.database.close()
        async with running(keeper.run):
            await eventually(lambda: caplog.messages.count("housekeeping failed; will retry") > 2)


def _keeper(world: World) -> Keeper:
    return Keeper(
        "test",
        database=world.database,
        clock=world.clock,
        metrics=world.metrics,
        outbox_retention=timedelta(days=7),
    )


async def _mark(world: World, event_id: str, moment: datetime) -> None:
    async with world.database.transaction() as tx:
        await tx.insert_many("inbox", ("reader", "event_id", "handled_at"), [("reader", event_id, moment)])


class TestInbox:
    async def test_forgets_old_marks_in_batches(self, world: World) -> None:
        now = datetime.now(UTC)
        old, many = now - timedelta(days=20), 2 * inbox.PRUNE_BATCH + 10
        async with world.database.transaction() as tx:
            marks = [("reader", f"old-{number}", old) for number in range(many)]
            marks += [("reader", f"young-{number}", now) for number in range(3)]
            await tx.insert_many("inbox", ("reader", "event_id", "handled_at"), marks)
            counts = [("reader", "old", 1, old), ("reader", "young", 1, now)]
            await tx.insert_many("inbox_attempts", ("reader", "message_id", "attempts", "updated_at"), counts)
        assert await prune_inbox(world.database, now - timedelta(days=14)) == many
        assert [row["event_id"] for row in await world.marks()] == ["young-0", "young-1", "young-2"]
        assert [row["message_id"] for row in await world.attempts()] == ["young"]
