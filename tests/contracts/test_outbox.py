"""The promises of the outbox: what is announced is sent after its commit, at least once, and nothing else is."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime import outbox
from refract.runtime.correlation import correlated
from refract.runtime.messages import Message
from refract.runtime.outbox import MARK, pending_in_outbox
from refract.runtime.ports import QueueReader
from refract.runtime.statements import Statement
from refract.runtime.transactions import OUTBOX_COLUMNS
from tests.support.buses import bodies, drain
from tests.support.databases import open_database
from tests.support.waiting import eventually
from tests.support.worlds import Noted, World, noted, running

FOREVER = 3600.0
ROW_ID = Statement("row_id", "Finds the row of a message.", "SELECT id FROM outbox WHERE message_id = :message_id")


class SomethingWrong(Exception):
    """What a use case may raise."""


class TestRelay:
    async def test_sends_the_exact_bytes_in_the_order_of_their_rows(self, world: World, reader: QueueReader) -> None:
        sent = [
            Message(world.buses.exchange, "test.noted", body, f"id-{number}", f"correlation-{number}")
            for number, body in enumerate(
                (
                    b'{"b":1,"a":[1.0,1e3]}',
                    b'  {"spaced" : "\xc3\xa9 \xf0\x9f\x9a\x80"}\n',
                    b'{"long":"%b"}' % ("é".encode() * 5_000),
                    b"not even json",
                    b"",
                )
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
        messages = [replace(world.message(noted(number)), message_id=f"{-number}") for number in range(100)]
        for message in messages:
            await world.post(message)
        await world.relay().drain()
        assert bodies(await drain(reader, 100)) == [message.body for message in messages]

    async def test_never_sends_what_was_rolled_back(self, world: World, reader: QueueReader) -> None:
        with pytest.raises(SomethingWrong):
            await _fail_after_announcing(world)
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
                async with asyncio.timeout(60):
                    assert bodies(await drain(reader, 1)) == [message.body]
        await elsewhere.close()

    async def test_finds_what_nobody_told_it_of(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "POLL_SECONDS", 0.05)
        async with running(world.relay().run):
            async with world.database.transaction() as tx:  # a row that comes without an announcement
                await tx.insert_many("outbox", OUTBOX_COLUMNS, [world.row(datetime.now(UTC))])
            async with asyncio.timeout(60):
                assert bodies(await drain(reader, 1)) == [b"{}"]

    async def test_drains(self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "BATCH", 10)
        await world.announce(*map(noted, range(95)))
        await world.relay().drain()
        assert await world.unpublished() == 0


async def _fail_after_announcing(world: World) -> None:
    async with world.database.transaction() as tx:
        await tx.post(world.message(noted(1)))
        await tx.fetch(ROW_ID, message_id="so that it is written")
        raise SomethingWrong


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
            world.turn(1)
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
            world.turn(pauses[-1])
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
        world.turn(FOREVER)
        message = world.message(noted(1))
        await world.post(message)
        await relay.move()
        async with asyncio.timeout(60):
            assert bodies(await drain(reader, 1)) == [message.body]


class TestMeasure:
    async def test_batches_are_small_where_rows_are_heavy(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "BATCH_BYTES", 10_000)
        messages = [replace(world.message(noted(number)), body=b"%04d" % number * 250) for number in range(200)]
        await world.post(*messages)
        sizes: list[int] = []
        publish_all = world.bus.publish_all

        async def weighed(batch: Sequence[Message]) -> list[NotPublished | None]:
            sizes.append(len(batch))
            return await publish_all(batch)

        monkeypatch.setattr(world.bus, "publish_all", weighed)
        await world.relay().drain()
        assert sizes[0] == outbox.FIRST_BATCH
        assert max(sizes[outbox.LANES :]) == 10
        assert bodies(await drain(reader, 200)) == [message.body for message in messages]

    async def test_a_clock_that_was_set_back_holds_nothing_up(self, world: World) -> None:
        await world.announce(noted(1))
        relay = world.relay()
        await relay.drain()
        assert (await world.outbox())[0]["attempts"] == 1
        world.turn(-FOREVER)
        await relay.drain()
        assert (await world.outbox())[0]["attempts"] == 2

    @pytest.mark.parametrize(
        ("claim", "index"), [(outbox.CLAIM_FRESH, "outbox_fresh"), (outbox.CLAIM_FAILED, "outbox_failed")]
    )
    async def test_claims_stay_on_an_index(self, world: World, claim: Statement, index: str) -> None:
        """Beside a week of published rows a claim must not look at one of them."""
        async with world.database.transaction() as tx:
            await tx.insert_many(
                "outbox",
                (*OUTBOX_COLUMNS, "published_at"),
                [(*world.row(datetime.now(UTC), number), datetime.now(UTC)) for number in range(3_000)],
            )
        async with world.database.transaction() as tx:
            await tx.execute(Statement("analyze", "Lets the planner know.", "ANALYZE outbox"))
        explain = Statement(
            "explain",
            "Asks for the plan.",
            f"EXPLAIN {claim.sql}",
            sqlite=f"EXPLAIN QUERY PLAN {claim.for_sqlite()}",
        )
        parameters = {"batch": 10, "now": datetime.now(UTC), "never": datetime.now(UTC)}
        asked = {name: parameters[name] for name in claim.for_postgresql()[1]}
        async with world.database.transaction() as tx:
            plan = await tx.fetch(explain, **asked)
        assert index in str(plan)

    async def test_who_marks_a_row_again_does_not_move_the_time(self, world: World) -> None:
        """A row that was slow to be noted may have been sent by a relay too; the first to know it says when."""
        await world.announce(noted(1), noted(2))
        first, second = [row["id"] for row in await world.outbox()]
        earlier = world.clock.now()
        world.turn(60)
        for now, ids in ((earlier, [first]), (world.clock.now(), [first, second])):
            async with world.database.transaction() as tx:
                assert await tx.execute(MARK, now=now, ids=ids) == 1
        assert [row["published_at"] for row in await world.outbox()] == [earlier, world.clock.now()]


class TestTrouble:
    async def test_a_row_that_the_bus_cannot_take_does_not_starve_the_others(
        self, world: World, reader: QueueReader
    ) -> None:
        # A broker closes the channel on such a name, and with it fails whatever was sent along.
        impossible = replace(world.message(noted(0)), exchange="amq.nobody-may-make-this")
        good = [world.message(noted(number)) for number in range(1, 41)]
        await world.post(*good[:20], impossible, *good[20:])
        async with running(world.relay().run), asyncio.timeout(60):
            assert sorted(bodies(await drain(reader, 40))) == sorted(message.body for message in good)
            later = world.message(noted(99))
            await world.post(later)
            assert bodies(await drain(reader, 1)) == [later.body]
            await eventually(lambda: _only_attempted(world, impossible))
        [row] = [row for row in await world.outbox() if row["published_at"] is None]
        assert row["message_id"] == impossible.message_id
        assert row["last_error"]

    @pytest.mark.parametrize("count", [1, 30])
    async def test_a_bus_that_is_away_leaves_the_rows_untouched(
        self, world: World, reader: QueueReader, count: int
    ) -> None:
        messages = [world.message(noted(number)) for number in range(count)]
        await world.post(*messages)
        before = await world.outbox()
        away = await world.buses.open()
        await away.close()
        relay = world.relay(bus=away)
        for _ in range(3):
            with pytest.raises((Unavailable, NotPublished)):
                await relay.move()
            await relay.drain()
        assert await world.outbox() == before
        assert world.counted("outbox_failed_total", service="test") == 0
        await world.relay().drain()
        assert bodies(await drain(reader, count)) == [message.body for message in messages]
        assert await world.unpublished() == 0

    async def test_a_bus_that_goes_away_in_mid_batch_puts_nothing_off(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        messages = [world.message(noted(number)) for number in range(30)]
        await world.post(*messages)
        publish_all = world.bus.publish_all

        async def publish_ten(batch: Sequence[Message]) -> list[NotPublished | None]:
            monkeypatch.setattr(world.bus, "publish_all", publish_all)
            lost: list[NotPublished | None] = [BusAway("lost") for _ in batch[10:]]
            return await publish_all(batch[:10]) + lost

        monkeypatch.setattr(world.bus, "publish_all", publish_ten)
        relay = world.relay()
        assert await relay.move()
        assert [row["attempts"] for row in await world.outbox() if row["published_at"] is None] == [0] * 20
        await relay.drain()
        assert bodies(await drain(reader, 30)) == [message.body for message in messages]

    async def test_what_breaks_one_lane_is_said_although_the_other_has_work(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish_all, calls = world.bus.publish_all, 0

        async def fail_once(batch: Sequence[Message]) -> list[NotPublished | None]:
            nonlocal calls
            calls += 1
            await world.post(world.message(noted(0), mandatory=False))  # there is always more to do
            return [BusAway("lost") for _ in batch] if calls == 3 else await publish_all(batch)

        monkeypatch.setattr(outbox, "BATCH", 2)
        monkeypatch.setattr(world.bus, "publish_all", fail_once)
        await world.post(*(world.message(noted(number), mandatory=False) for number in range(10)))
        async with asyncio.timeout(60):
            await world.relay().drain()
        assert calls <= 3 + outbox.LANES

    @pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)  # a SQLite file has one relay
    async def test_two_relays_share_the_work(self, world: World, reader: QueueReader) -> None:
        elsewhere = await open_database(world.location)
        relays = [world.relay(), world.relay(database=elsewhere, bus=await world.buses.open())]
        messages = [world.message(noted(number)) for number in range(3_000)]
        for first in range(0, 3_000, 100):
            await world.post(*messages[first : first + 100])
        async with running(*(relay.run for relay in relays)):
            received = Counter(bodies(await drain(reader, 3_000)))
            # Counted after the commit, which others see before the relay does.
            await eventually(lambda: world.counted("outbox_published_total", service="test") == 3_000)
        assert received == Counter(message.body for message in messages)
        assert await _all_published(world)
        await elsewhere.close()

    @pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)  # a SQLite file has one relay
    async def test_a_relay_passes_over_what_another_one_holds(self, world: World, reader: QueueReader) -> None:
        await world.announce(noted(1))
        async with world.database.transaction() as tx:
            [held] = await tx.fetch(outbox.CLAIM_FRESH, batch=10, now=datetime.now(UTC), never=datetime.now(UTC))
            free = world.message(noted(2))
            await world.post(free)
            async with asyncio.timeout(60):
                await world.relay().drain()
        assert bodies(await drain(reader, 1)) == [free.body]
        [waiting] = [row for row in await world.outbox() if row["published_at"] is None]
        assert waiting["id"] == held["id"]


async def _only_attempted(world: World, message: Message) -> bool:
    waiting = [row for row in await world.outbox() if row["published_at"] is None]
    return [row["message_id"] for row in waiting if row["attempts"]] == [message.message_id] and len(waiting) == 1


async def _all_published(world: World) -> bool:
    return await pending_in_outbox(world.database) == 0
