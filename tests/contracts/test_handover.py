"""What a process has saved it sends from its memory; whatever it does not, and whoever is killed, the relay has it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime import handover, outbox
from refract.runtime.handover import HELD_SECONDS, Handover
from refract.runtime.messages import Message
from refract.runtime.ports import Database, EventBus, QueueReader
from refract.runtime.transactions import Bell
from tests.support.buses import bodies, drain
from tests.support.waiting import eventually
from tests.support.worlds import World, noted, running

FOREVER = 3600.0


class Counted:
    """A bus that knows how often it was used, and can be away, blocked, or hang."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.batches: list[list[Message]] = []
        self.trouble: Exception | None = None
        self.outcome: Callable[[Message], NotPublished | None] = lambda _: None
        self.open = asyncio.Event()
        self.open.set()

    async def ping(self) -> None:
        """Whether it is there."""
        if self.trouble is not None:
            raise self.trouble
        await self._bus.ping()

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Publish those that nothing happens to."""
        self.batches.append(list(messages))
        await self.open.wait()
        outcomes = [self.outcome(message) for message in messages]
        taken = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None]
        assert await self._bus.publish_all(taken) == [None] * len(taken)
        return outcomes


class Failing:
    """A database whose transactions fail while it is told so."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.fails = False
        self.tries = 0
        self.post = database.post

    def transaction(self) -> object:
        """A transaction, or none."""
        self.tries += 1
        if self.fails:
            raise Unavailable("database", "away")
        return self._database.transaction()


@pytest.fixture
def bus(world: World) -> Counted:
    return Counted(world.bus)


@pytest.fixture
def ours(world: World, bus: Counted) -> Handover:
    return handing_over(world, bus)


def handing_over(world: World, bus: Counted, database: object | None = None) -> Handover:
    return Handover(
        "test",
        database=database or world.database,  # type: ignore[arg-type]  # as much of one as is used
        bus=bus,  # type: ignore[arg-type]  # the same
        clock=world.clock,
        metrics=world.metrics,
    )


def array(world: World, *numbers: int) -> Message:
    return replace(world.message(noted(numbers[0])), body=b"[%b]" % b",".join(b"%d" % number for number in numbers))


async def on(ours: Handover) -> bool:
    return ours._is_on


@asynccontextmanager
async def one_under_way(world: World, bus: Counted, ours: Handover) -> AsyncIterator[None]:
    """It runs, and its first message is on its way until the bus is opened."""
    bus.open.clear()
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(array(world, 1))
        await eventually(lambda: _are_under_way(bus, 1))
        yield


async def test_messages_leave_from_memory_joined_and_are_marked(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    async with running(ours.run):
        await eventually(lambda: on(ours))
        for numbers in ((1, 2), (3,), (4, 5)):
            await ours.post(array(world, *numbers))
        assert bodies(await drain(reader, 1)) == [b"[1,2,3,4,5]"]
        await eventually(lambda: _are_unpublished(world, 0))
    assert world.counted("outbox_published_total", service="test") == 3
    assert len(bus.batches) == 1


async def test_what_is_no_array_leaves_byte_for_byte_in_its_place(
    world: World, ours: Handover, reader: QueueReader
) -> None:
    sent = [array(world, 1), replace(world.message(noted(2)), body=b"[]"), world.message(noted(3)), array(world, 4)]
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(*sent)
        assert bodies(await drain(reader, 4)) == bodies(sent)


async def test_a_relay_leaves_alone_what_is_held_until_its_time_is_over(world: World, reader: QueueReader) -> None:
    [held] = await world.database.post(array(world, 1), held=HELD_SECONDS)
    [free] = await world.database.post(array(world, 2))
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[2]"]
    assert {row["id"]: row["published_at"] is None for row in await world.outbox()} == {held: True, free: False}
    # A hold is from when the row was saved, which on a slow machine is long after this world's clock was set.
    [until] = [row["next_attempt_at"] for row in await world.outbox() if row["id"] == held]
    world.turn((until - world.clock.now()).total_seconds() + 1)
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[1]"]
    assert await world.unpublished() == 0


async def test_a_hold_that_no_clock_comes_to_is_none(world: World, reader: QueueReader) -> None:
    await world.database.post(array(world, 1), held=FOREVER)
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[1]"]


async def test_nobody_is_woken_for_what_is_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rings = 0
    ring = Bell.ring

    def counted(bell: Bell) -> None:
        nonlocal rings
        rings += 1
        ring(bell)

    monkeypatch.setattr(Bell, "ring", counted)
    await world.database.announced(0.01)
    if world.database.dialect == "postgresql":
        await eventually(lambda: rings == 1)  # whoever begins to listen may have missed something
    before = rings
    await world.database.post(array(world, 1), held=HELD_SECONDS)
    assert rings == before
    await world.database.post(array(world, 2))
    assert rings > before


async def test_before_it_runs_and_after_that_all_is_for_the_relay(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    await ours.post(array(world, 1))
    async with running(ours.run):
        await eventually(lambda: on(ours))
    await ours.post(array(world, 2))
    assert [row["next_attempt_at"] for row in await world.outbox()] == [None, None]
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[1,2]"]
    assert bus.batches == []


@pytest.mark.parametrize("trouble", [Unavailable("rabbitmq", "away"), BusAway("gone")])
async def test_while_the_bus_is_away_the_relay_has_everything_at_once(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, trouble: Exception
) -> None:
    async with running(ours.run):
        await eventually(lambda: on(ours))
        bus.trouble = trouble
        await ours.post(array(world, 1))
        await eventually(lambda: _are_free(world, 1))
        await ours.post(array(world, 2))  # for some seconds nothing is tried
        assert await _are_free(world, 2)
        await world.relay().drain()
        assert bodies(await drain(reader, 1)) == [b"[1,2]"]

        bus.trouble = None
        world.turn(handover.REST_SECONDS + 1)
        await ours.post(array(world, 3))
        assert bodies(await drain(reader, 1)) == [b"[3]"]
        await eventually(lambda: _are_unpublished(world, 0))


async def test_of_some_that_leave_together_the_relay_has_those_that_were_refused(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    bus.outcome = lambda message: NotPublished("refused") if message.routing_key == "test.other" else None
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(array(world, 1), replace(array(world, 2), routing_key="test.other"), array(world, 3))
        assert sorted(bodies(await drain(reader, 2))) == [b"[1]", b"[3]"]
        await eventually(lambda: _are_free(world, 1))
    assert world.counted("outbox_published_total", service="test") == 2
    [left] = [row for row in await world.outbox() if row["published_at"] is None]
    assert (left["event_type"], left["attempts"]) == ("test.other", 0)


async def test_more_than_memory_has_room_for_is_for_the_relay(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "MOST_BYTES", 6)
    async with one_under_way(world, bus, ours):
        for number in range(2, 6):
            await ours.post(array(world, number))
        assert await _are_free(world, 2)
        bus.open.set()
        await world.relay().drain()
        received = bodies(await drain(reader, 3))
        await eventually(lambda: _are_unpublished(world, 0))
    assert sorted(received) == [b"[1]", b"[2,3]", b"[4,5]"]


async def test_no_more_leaves_at_once_than_is_put_together_quickly(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "AT_ONCE_BYTES", 6)
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(*(array(world, number) for number in range(1, 6)))
        assert bodies(await drain(reader, 3)) == [b"[1,2]", b"[3,4]", b"[5]"]
    assert [len(batch) for batch in bus.batches] == [1, 1, 1]


async def test_what_comes_while_others_are_on_their_way_gathers_too(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_under_way(world, bus, ours):
        await ours.post(array(world, 2))
        monkeypatch.setattr(handover, "GATHER_SECONDS", FOREVER)
        bus.open.set()
        assert bodies(await drain(reader, 1)) == [b"[1]"]
        await eventually(lambda: _are_unpublished(world, 1))  # a moment in which another could have left
        assert len(bus.batches) == 1
    await ours.drain()
    assert await _are_free(world, 1)


async def test_as_much_as_leaves_at_once_does_not_wait_for_more(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "AT_ONCE_BYTES", 6)
    async with one_under_way(world, bus, ours):
        monkeypatch.setattr(handover, "GATHER_SECONDS", FOREVER)
        await ours.post(*(array(world, number) for number in range(2, 7)))
        bus.open.set()
        assert bodies(await drain(reader, 3)) == [b"[1]", b"[2,3]", b"[4,5]"]
        await eventually(lambda: _are_unpublished(world, 1))
        assert len(bus.batches) == 3
    await ours.drain()
    assert await _are_free(world, 1)


async def test_at_the_end_what_is_under_way_is_marked_and_the_rest_left_to_the_relay(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    async with one_under_way(world, bus, ours):
        await ours.post(array(world, 2))
    ending = asyncio.create_task(ours.drain())
    bus.open.set()
    await ending
    assert await _are_free(world, 1)
    await world.relay().drain()
    assert sorted(bodies(await drain(reader, 2))) == [b"[1]", b"[2]"]
    assert await world.unpublished() == 0


async def test_what_could_not_be_noted_is_noted_once_the_database_is_back(
    world: World, bus: Counted, reader: QueueReader
) -> None:
    database = Failing(world.database)
    ours = handing_over(world, bus, database)
    database.fails = True
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(array(world, 1))
        await drain(reader, 1)
        assert await world.unpublished() == 1
        database.fails = False
        await eventually(lambda: _are_unpublished(world, 0))


async def test_while_nothing_can_be_noted_it_says_so_once_and_soon_leaves_all_to_the_relay(
    world: World, bus: Counted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handover, "MOST_UNNOTED", 2)
    monkeypatch.setattr(handover, "NOTED_AT_ONCE", 1)
    monkeypatch.setattr(handover, "NOTE_SECONDS", 0.001)
    monkeypatch.setattr(handover, "LONGEST_NOTE_PAUSE", 0.01)
    database = Failing(world.database)
    ours = handing_over(world, bus, database)
    async with world.bus.reader(world.queue) as reader, running(ours.run):
        await eventually(lambda: on(ours))
        database.fails = True
        await ours.post(array(world, 1), array(world, 2))
        await drain(reader, 1)
        await eventually(lambda: database.tries > 10)
        await ours.post(array(world, 3))
        assert await _are_free(world, 1)
        database.fails = False
        await eventually(lambda: _are_unpublished(world, 1))
    assert [record.getMessage() for record in caplog.records].count("what was sent is not noted yet") == 1


async def test_what_has_waited_too_long_is_left_to_the_relay(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    async with one_under_way(world, bus, ours):
        await ours.post(array(world, 2))
        world.turn(HELD_SECONDS - handover.LEAST_SECONDS + 0.1)
        await ours.post(array(world, 3))
        bus.open.set()
        assert bodies(await drain(reader, 2)) == [b"[1]", b"[3]"]
        await eventually(lambda: _are_free(world, 1))
        await eventually(lambda: _are_unpublished(world, 1))


async def test_one_that_is_cancelled_from_inside_ends_and_the_next_goes_on_with_what_it_had(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    def cancel(_: Message) -> None:
        raise asyncio.CancelledError

    bus.outcome = cancel
    going = asyncio.create_task(ours.run())
    await eventually(lambda: on(ours))
    await ours.post(array(world, 1))
    async with asyncio.timeout(30):
        await asyncio.wait([going])
    assert going.cancelled()
    assert not await on(ours)
    bus.outcome = lambda _: None
    async with running(ours.run):
        await eventually(lambda: _are_free(world, 1))
        await ours.post(array(world, 2))
        assert bodies(await drain(reader, 1)) == [b"[2]"]


async def test_of_many_posts_beside_relays_nothing_is_lost(
    world: World, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where holds end while their rows are on their way, in which case some are sent twice."""
    monkeypatch.setattr(handover, "HELD_SECONDS", 0.001)
    monkeypatch.setattr(handover, "LEAST_SECONDS", -FOREVER)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.01)
    received: Counter[bytes] = Counter()
    world.turn(FOREVER / 100)

    async def read() -> None:
        while True:
            batch = await reader.next_batch()
            received.update(number for it in batch for number in it.message.body[1:-1].split(b","))
            await reader.acknowledge(batch)

    async with running(ours.run, world.relay().run, read):
        await eventually(lambda: on(ours))
        await asyncio.gather(*(ours.post(array(world, number)) for number in range(300)))
        await eventually(lambda: received.keys() == {b"%d" % number for number in range(300)})
        await eventually(lambda: _are_unpublished(world, 0))


async def _are_unpublished(world: World, number: int) -> bool:
    return await world.unpublished() == number


async def _are_free(world: World, number: int) -> bool:
    """Whether so many wait that any relay may take."""
    waiting = [row for row in await world.outbox() if row["published_at"] is None]
    return [row["next_attempt_at"] for row in waiting].count(None) == number


async def _are_under_way(bus: Counted, number: int) -> bool:
    return len(bus.batches) == number
