"""What the inbox makes of messages that come again, and of those that take too long."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from refract.kernel.errors import BusAway, TimedOut
from refract.kernel.events import Event
from refract.runtime.letters import Letter
from refract.runtime.messages import Delivery
from refract.runtime.ports import QueueReader, Transaction
from tests.support.buses import take
from tests.support.inboxes import BAD, declared_world, handled
from tests.support.waiting import eventually
from tests.support.worlds import Noted, World, add_effects, noted, running

__all__ = ["declared_world"]


async def take_and_die(world: World, count: int) -> None:
    """Take messages as a reader would that is killed before it does anything with them."""
    async with world.bus.reader(world.queue) as reader:
        await take(reader, count)


async def test_a_backlog_that_comes_again_is_handled_in_batches(world: World) -> None:
    await world.publish(*map(noted, range(300)))
    await take_and_die(world, 300)
    batches: list[int] = []

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        batches.append(len(events))
        await add_effects(tx, events)

    async with world.bus.reader(world.queue) as reader:
        assert await world.inbox(handle).settle(reader, await take(reader, 300)) == []
    assert await world.effects() == list(range(300))
    assert batches == [300]
    assert await world.attempts() == []


async def test_what_comes_again_a_second_time_is_handled_one_by_one(world: World) -> None:
    """The second counted attempt is the first that tells who is to blame."""
    await world.publish(*map(noted, range(20)))
    await take_and_die(world, 20)
    batches: list[int] = []

    async def die(_tx: Transaction, _events: Sequence[Event]) -> None:
        raise SystemExit

    async with world.bus.reader(world.queue) as reader:
        deliveries = await take(reader, 20)
        with pytest.raises(SystemExit):
            await world.inbox(die).settle(reader, deliveries)
    assert {row["attempts"] for row in await world.attempts()} == {1}

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        batches.append(len(events))
        await add_effects(tx, events)

    async with running(world.inbox(handle).run):
        await eventually(lambda: sum(batches) == 20)
        await eventually(world.attempts_forgotten)
    assert batches == [1] * 20
    assert await world.effects() == list(range(20))


async def test_a_message_that_always_takes_too_long_is_buried_and_its_neighbours_are_handled(world: World) -> None:
    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        if any(isinstance(event, Noted) and event.number == BAD for event in events):
            raise TimedOut("database", "a statement took too long")
        await add_effects(tx, events)

    await world.publish(*map(noted, [*range(10), BAD, *range(10, 20)]))
    async with running(world.inbox(handle).run):
        [letter] = await eventually(world.dead)
        await eventually(world.attempts_forgotten)
    assert "took too long" in letter.reason
    assert await world.effects() == list(range(20))


async def test_a_retry_ends_when_its_message_is_no_longer_ours(world: World) -> None:
    """The connection was lost and the message comes again: two retries side by side would bury it twice."""
    attempts = 0

    async def handle(_tx: Transaction, _events: Sequence[Event]) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError("cannot be handled")

    await world.publish(noted(1))
    async with world.bus.reader(world.queue) as reader:
        [letter] = await world.inbox(handle).settle(reader, await take(reader, 1))
        assert reader.holds(letter.delivery)
        await reader.give_back([letter.delivery])
        [again] = await take(reader, 1)
        lost = LosingReader(reader)
        await world.inbox(handle).settle_alone(lost, letter)
        assert attempts == 2  # one in the batch and one alone, which lost the message
        await reader.acknowledge([again])
    assert await world.dead() == []


async def test_what_cannot_be_buried_holds_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_self: object, _delivery: Delivery, _reason: str) -> None:
        raise BusAway("an alarm keeps the broker from taking messages")

    async with world.bus.reader(world.queue) as reader:
        monkeypatch.setattr(type(reader), "bury", away)
    unreadable = replace(world.message(noted(0)), body=b"not an event")
    assert await world.bus.publish_all([unreadable]) == [None]
    await world.publish(*map(noted, range(50)))
    async with running(world.inbox().run):
        await eventually(lambda: handled(world, 50))
    assert await world.effects() == list(range(50))


async def test_readers_of_one_process_try_suspects_in_turn(world: World) -> None:
    """If one of two at once killed the process, both would be blamed."""
    trying, most = 0, 0

    async def handle(_tx: Transaction, _events: Sequence[Event]) -> None:
        nonlocal trying, most
        trying += 1
        most = max(most, trying)
        await asyncio.sleep(0.01)
        trying -= 1
        raise ValueError("cannot be handled")

    lock = asyncio.Lock()
    await world.publish(noted(1), noted(2))
    async with world.bus.reader(world.queue) as reader:
        letters = [Letter(delivery, [noted(0)]) for delivery in await take(reader, 2)]
        inboxes = [world.inbox(handle, one_at_a_time=lock) for _ in letters]
        await asyncio.gather(*(one.settle_alone(reader, letter) for one, letter in zip(inboxes, letters, strict=True)))
    assert most == 1
    assert len(await world.dead()) == 2


class LosingReader:
    """A reader whose connection is lost after the first look."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._looks = 0

    def holds(self, delivery: Delivery) -> bool:
        self._looks += 1
        return self._looks == 1

    async def next_batch(self) -> list[Delivery]:
        return await self._reader.next_batch()

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("it is not ours")

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("it is not ours")

    async def bury(self, delivery: Delivery, reason: str) -> None:
        raise AssertionError("it is not ours")
