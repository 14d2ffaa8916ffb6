"""The promises of the inbox: what is delivered is handled once, and under its own correlation id."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from refract.kernel.events import Event, encode_batch
from refract.runtime import inbox
from refract.runtime.correlation import current_correlation_id
from refract.runtime.messages import Message
from refract.runtime.ports import Database, QueueReader, Transaction
from tests.support.buses import take
from tests.support.databases import open_database
from tests.support.inboxes import BAD, KilledReader, Unlucky, declared_world, handled
from tests.support.waiting import eventually
from tests.support.worlds import INBOX, Noted, World, add_effects, noted, running

__all__ = ["declared_world"]


async def nothing_is_left(world: World) -> bool:
    """Whether what comes now is the first that a new reader gets: what was not acknowledged would come before it."""
    last = noted(0)
    await world.publish(last)
    async with world.bus.reader(world.queue) as reader:
        batch = await reader.next_batch()
        await reader.acknowledge(batch)
    return [delivery.message.message_id for delivery in batch] == [last.event_id]


@asynccontextmanager
async def another_database(world: World) -> AsyncIterator[Database]:
    """The database as another process has it; a SQLite file has one process."""
    if world.database.dialect == "sqlite":
        yield world.database
        return
    elsewhere = await open_database(world.location)
    yield elsewhere
    await elsewhere.close()


async def test_three_deliveries_in_any_order_have_one_effect(world: World) -> None:
    events = [noted(number) for number in range(400)]
    deliveries = events * 3
    random.Random(16).shuffle(deliveries)
    await world.publish(*deliveries)
    async with running(world.inbox().run):
        await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 800)
    assert await world.effects() == list(range(400))
    assert world.counted("inbox_handled_total", reader=world.queue.name) == 400


async def test_a_batch_with_many_events_is_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may hold hundreds of events: how long a transaction takes does not go by the number of messages."""
    monkeypatch.setattr(inbox, "MOST_EVENTS", 10)
    sizes: list[int] = []

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        sizes.append(len(events))
        await add_effects(tx, events)

    numbers = iter(range(100))
    for size in (4, 6, 1, 25, 3, 3, 5):
        events = [noted(next(numbers)) for _ in range(size)]
        await world.bus.publish(replace(world.message(events[0]), body=encode_batch(events)))
    async with world.bus.reader(world.queue) as reader:
        assert await world.inbox(handle).settle(reader, await take(reader, 7)) == []
    assert sizes == [10, 1, 25, 6, 5]
    assert await world.effects() == list(range(47))
    assert await nothing_is_left(world)


async def test_what_is_settled_is_acknowledged(world: World) -> None:
    bad = Message(world.buses.exchange, Noted.routing_key(), b"{", "bad")
    for handle in (add_effects, Unlucky(ValueError("no"))):
        await world.publish(noted(1), noted(BAD), noted(2))
        await world.bus.publish(bad)
        async with world.bus.reader(world.queue) as reader:
            reading = world.inbox(handle)
            for letter in await reading.settle(reader, await take(reader, 4)):
                await reading.settle_alone(reader, letter)
        assert await nothing_is_left(world)


async def test_what_is_not_committed_is_not_acknowledged(world: World) -> None:
    events = [noted(number) for number in range(3)]
    await world.publish(*events)
    async with world.bus.reader(world.queue) as reader:
        with pytest.raises(KilledReader):
            await world.inbox(Unlucky(KilledReader(), events[1].number)).settle(reader, await take(reader, 3))
    async with world.bus.reader(world.queue) as reader:
        again = await take(reader, 3)
    assert {delivery.message.message_id for delivery in again} == {event.event_id for event in events}
    assert all(delivery.redelivered for delivery in again)


async def test_a_handler_that_fails_leaves_neither_mark_nor_effect(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[int], int, int]] = []

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        # Inside there is the mark, and outside there is nothing: it is the same transaction.
        seen.append((await world.effects(), len(await world.marks()), len(await tx.fetch(INBOX))))
        await add_effects(tx, events)
        if len(seen) < 4:
            raise ValueError("not yet")

    await world.publish(noted(1))
    async with running(world.inbox(handle).run):
        await eventually(lambda: handled(world, 1))
    assert seen == [([], 0, 1)] * 4
    assert len(await world.marks()) == 1
    assert await world.attempts() == []
    assert await world.dead() == []


async def test_events_without_an_id_are_told_apart_by_type_and_correlation(world: World) -> None:
    first = noted(1, event_id="", correlation_id="one")
    second = noted(2, event_id="", correlation_id="two")
    await world.publish(first, second, first, second, first)
    async with running(world.inbox().run):
        await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 3)
    assert await world.effects() == [1, 2]
    assert [row["event_id"] for row in await world.marks()] == ["test.noted:one", "test.noted:two"]


async def test_of_an_array_only_what_is_new_is_handled(world: World) -> None:
    seen, *new = [noted(number) for number in range(4)]
    array = Message(world.buses.exchange, Noted.routing_key(), encode_batch([seen, *new, new[0]]), "array")
    async with running(world.inbox().run):
        await world.publish(seen)
        await eventually(lambda: handled(world, 1))
        await world.bus.publish(array)
        await eventually(lambda: handled(world, 4))
        await world.bus.publish(array)
        await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 7)
    assert await world.effects() == [0, 1, 2, 3]
    assert world.counted("inbox_handled_total", reader=world.queue.name) == 4


async def test_readers_have_marks_of_their_own(world: World) -> None:
    event = noted(1)
    other = replace(world, queue=world.buses.queue("other", Noted.routing_key()))
    await world.bus.declare(other.queue)
    await world.publish(event)
    async with running(world.inbox().run, other.inbox().run):
        await eventually(lambda: handled(world, 2))
    assert await world.effects() == [1, 1]


async def test_two_readers_of_one_queue_have_one_effect(world: World) -> None:
    events = [noted(number) for number in range(600)]
    for _ in range(2):
        await world.publish(*events, *reversed(events))
    async with (
        another_database(world) as elsewhere,
        running(world.inbox().run, world.inbox(database=elsewhere).run),
    ):
        repeated = partial(world.counted, "inbox_repeated_total", reader=world.queue.name)
        await eventually(lambda: repeated() == 1800, timeout=30)
    assert await world.effects() == list(range(600))


async def test_the_same_events_in_opposite_orders_do_not_deadlock(
    world: World, reader: QueueReader, caplog: pytest.LogCaptureFixture
) -> None:
    async with another_database(world) as elsewhere:
        one, other = world.inbox(), world.inbox(database=elsewhere)
        for rounds in range(20):
            events = [noted(number) for number in range(200 * rounds, 200 * rounds + 200)]
            await world.publish(*events, *reversed(events))
            deliveries = await take(reader, 400)
            await asyncio.gather(one.settle(reader, deliveries[:200]), other.settle(reader, deliveries[200:]))
    assert await world.effects() == list(range(4_000))
    assert [record for record in caplog.records if record.name == "refract.inbox"] == []


async def test_a_single_event_is_handled_under_its_correlation_id(world: World, reader: QueueReader) -> None:
    heard: list[str] = []

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        heard.append(current_correlation_id())

    await world.publish(noted(1, correlation_id="request-1"))
    await world.inbox(handle).settle(reader, await take(reader, 1))
    await world.publish(noted(2, correlation_id="request-2"), noted(3, correlation_id="request-3"))
    await world.inbox(handle).settle(reader, await take(reader, 2))
    assert heard == ["request-1", ""]
    assert current_correlation_id() == ""
