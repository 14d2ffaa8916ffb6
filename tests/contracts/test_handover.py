"""What a process has saved it sends from its memory; whatever it does not, the relay has it."""

import asyncio
from dataclasses import replace

import pytest

from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime import handover
from refract.runtime.handover import HELD_SECONDS, Handover
from refract.runtime.ports import QueueReader
from refract.runtime.transactions import Bell
from tests.support.buses import bodies, drain
from tests.support.handovers import Counted, are_free, are_unpublished, array, bus, on, one_under_way, ours
from tests.support.waiting import eventually
from tests.support.worlds import World, noted, running

__all__ = ["bus", "ours"]

FOREVER = 3600.0


async def test_messages_leave_from_memory_joined_and_are_marked(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    async with running(ours.run):
        await eventually(lambda: on(ours))
        for numbers in ((1, 2), (3,), (4, 5)):
            await ours.post(array(world, *numbers))
        assert bodies(await drain(reader, 1)) == [b"[1,2,3,4,5]"]
        await eventually(lambda: are_unpublished(world, 0))
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
        await eventually(lambda: are_free(world, 1))
        await ours.post(array(world, 2))  # for some seconds nothing is tried
        assert await are_free(world, 2)
        await world.relay().drain()
        assert bodies(await drain(reader, 1)) == [b"[1,2]"]

        bus.trouble = None
        world.turn(handover.REST_SECONDS + 1)
        await ours.post(array(world, 3))
        assert bodies(await drain(reader, 1)) == [b"[3]"]
        await eventually(lambda: are_unpublished(world, 0))


async def test_of_some_that_leave_together_the_relay_has_those_that_were_refused(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    bus.outcome = lambda message: NotPublished("refused") if message.routing_key == "test.other" else None
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(array(world, 1), replace(array(world, 2), routing_key="test.other"), array(world, 3))
        assert sorted(bodies(await drain(reader, 2))) == [b"[1]", b"[3]"]
        await eventually(lambda: are_free(world, 1))
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
        assert await are_free(world, 2)
        bus.open.set()
        await world.relay().drain()
        received = bodies(await drain(reader, 3))
        await eventually(lambda: are_unpublished(world, 0))
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
        await eventually(lambda: are_unpublished(world, 1))  # a moment in which another could have left
        assert len(bus.batches) == 1
    await ours.drain()
    assert await are_free(world, 1)


async def test_as_much_as_leaves_at_once_does_not_wait_for_more(
    world: World, bus: Counted, ours: Handover, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "AT_ONCE_BYTES", 6)
    async with one_under_way(world, bus, ours):
        monkeypatch.setattr(handover, "GATHER_SECONDS", FOREVER)
        await ours.post(*(array(world, number) for number in range(2, 7)))
        bus.open.set()
        assert bodies(await drain(reader, 3)) == [b"[1]", b"[2,3]", b"[4,5]"]
        await eventually(lambda: are_unpublished(world, 1))
        assert len(bus.batches) == 3
    await ours.drain()
    assert await are_free(world, 1)


async def test_at_the_end_what_is_under_way_is_marked_and_the_rest_left_to_the_relay(
    world: World, bus: Counted, ours: Handover, reader: QueueReader
) -> None:
    async with one_under_way(world, bus, ours):
        await ours.post(array(world, 2))
    ending = asyncio.create_task(ours.drain())
    bus.open.set()
    await ending
    assert await are_free(world, 1)
    await world.relay().drain()
    assert sorted(bodies(await drain(reader, 2))) == [b"[1]", b"[2]"]
    assert await world.unpublished() == 0
