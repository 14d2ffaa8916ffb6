"""A handover whose database is not heard, whose time is over, or that is stopped: nothing is lost, or waits long."""

import asyncio
from collections import Counter
from contextlib import nullcontext

import pytest

from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime import handover, outbox
from refract.runtime.handover import HELD_SECONDS, Handover
from refract.runtime.messages import Message
from refract.runtime.ports import QueueReader
from tests.support.buses import bodies, drain
from tests.support.handovers import (
    Counted,
    Failing,
    Unheard,
    are_free,
    are_unpublished,
    array,
    bus,
    handing_over,
    on,
    one_under_way,
    ours,
)
from tests.support.waiting import eventually
from tests.support.worlds import World, running

__all__ = ["bus", "ours"]

FOREVER = 3600.0


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
        await eventually(lambda: are_unpublished(world, 0))


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
        assert await are_free(world, 1)
        database.fails = False
        await eventually(lambda: are_unpublished(world, 1))
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
        await eventually(lambda: are_free(world, 1))
        await eventually(lambda: are_unpublished(world, 1))


@pytest.mark.parametrize("error", [Unavailable("database", "no answer"), asyncio.CancelledError()])
async def test_what_was_saved_without_a_word_is_left_to_the_relay_at_once(
    world: World, bus: Counted, reader: QueueReader, error: BaseException
) -> None:
    ours = handing_over(world, bus, Unheard(world.database, error))
    async with running(ours.run):
        await eventually(lambda: on(ours))
        with pytest.raises(type(error)):
            await ours.post(array(world, 1), array(world, 2))
        await eventually(lambda: are_free(world, 2))
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[1,2]"]
    assert bus.batches == []


async def test_what_was_saved_without_a_word_is_left_to_the_relay_at_the_end(world: World, bus: Counted) -> None:
    ours = handing_over(world, bus, Unheard(world.database, asyncio.CancelledError()))
    ours._is_on = True
    with pytest.raises(asyncio.CancelledError):
        await ours.post(array(world, 1))
    assert await are_free(world, 0)
    await ours.drain()
    assert await are_free(world, 1)


@pytest.mark.parametrize("heard", [True, False])
async def test_what_a_relay_has_tried_and_put_off_meanwhile_is_left_as_it_is(
    world: World, bus: Counted, reader: QueueReader, heard: bool
) -> None:
    """A row that has failed and says of no moment when it is due would be tried by nobody."""
    ours = handing_over(world, bus, None if heard else Unheard(world.database, Unavailable("database", "no answer")))
    ours._is_on = True
    with nullcontext() if heard else pytest.raises(Unavailable):
        await ours.post(array(world, 1))
    [held] = await world.outbox()
    world.turn((held["next_attempt_at"] - world.clock.now()).total_seconds() + 1)
    bus.outcome = lambda _: NotPublished("refused")
    await world.relay(bus=bus).move()  # type: ignore[arg-type]  # Counted is a stand-in
    [put_off] = await world.outbox()
    assert put_off["attempts"] == 1
    await ours.drain()
    assert await world.outbox() == [put_off]
    world.turn(outbox.LONGEST_PAUSE)
    await world.relay().drain()
    assert bodies(await drain(reader, 1)) == [b"[1]"]


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
        await eventually(lambda: are_free(world, 1))
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
        await eventually(lambda: are_unpublished(world, 0))
