"""The promises of the inbox: what is delivered is handled once, what cannot be handled is kept with its reason."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from refract.kernel.errors import PoisonMessage, Unavailable
from refract.kernel.events import Event, encode_batch
from refract.runtime import inbox
from refract.runtime.correlation import current_correlation_id
from refract.runtime.messages import Message
from refract.runtime.ports import Database, QueueReader, Transaction
from tests.support.buses import take
from tests.support.databases import open_database
from tests.support.waiting import eventually
from tests.support.worlds import INBOX, Noted, World, add_effects, noted, running

BAD = -1


@pytest.fixture
async def world(world: World) -> World:
    """A world whose queue exists before its reader does."""
    await world.bus.declare(world.queue)
    return world


class Unlucky:
    """A handler that cannot bear one number."""

    def __init__(self, error: BaseException, number: int = BAD) -> None:
        self.error = error
        self.number = number
        self.calls = 0
        self.tries = 0

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Write down what there is, and only then fail: what was written must be gone."""
        self.calls += 1
        await add_effects(tx, events)
        if any(isinstance(event, Noted) and event.number == self.number for event in events):
            self.tries += 1
            raise self.error


async def handled(world: World, count: int) -> bool:
    return len(await world.effects()) == count


async def nothing_is_left(world: World) -> bool:
    """Whether what comes now is the first that a new reader gets: what was not acknowledged would come before it."""
    last = noted(0)
    await world.publish(last)
    async with world.bus.reader(world.queue) as reader:
        batch = await reader.next_batch()
        await reader.acknowledge(batch)
    return [delivery.message.message_id for delivery in batch] == [last.event_id]


class TestOnce:
    async def test_three_deliveries_in_any_order_have_one_effect(self, world: World) -> None:
        events = [noted(number) for number in range(400)]
        deliveries = events * 3
        random.Random(16).shuffle(deliveries)
        await world.publish(*deliveries)
        async with running(world.inbox().run):
            await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 800)
        assert await world.effects() == list(range(400))
        assert world.counted("inbox_handled_total", reader=world.queue.name) == 400

    async def test_a_batch_with_many_events_is_several_transactions(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    async def test_what_is_settled_is_acknowledged(self, world: World) -> None:
        bad = Message(world.buses.exchange, Noted.routing_key(), b"{", "bad")
        for handle in (add_effects, Unlucky(ValueError("no"))):
            await world.publish(noted(1), noted(BAD), noted(2))
            await world.bus.publish(bad)
            async with world.bus.reader(world.queue) as reader:
                reading = world.inbox(handle)
                for letter in await reading.settle(reader, await take(reader, 4)):
                    await reading.settle_alone(reader, letter)
            assert await nothing_is_left(world)

    async def test_what_is_not_committed_is_not_acknowledged(self, world: World) -> None:
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
        self, world: World, monkeypatch: pytest.MonkeyPatch
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

    async def test_events_without_an_id_are_told_apart_by_type_and_correlation(self, world: World) -> None:
        first = noted(1, event_id="", correlation_id="one")
        second = noted(2, event_id="", correlation_id="two")
        await world.publish(first, second, first, second, first)
        async with running(world.inbox().run):
            await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 3)
        assert await world.effects() == [1, 2]
        assert [row["event_id"] for row in await world.marks()] == ["test.noted:one", "test.noted:two"]

    async def test_of_an_array_only_what_is_new_is_handled(self, world: World) -> None:
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

    async def test_readers_have_marks_of_their_own(self, world: World) -> None:
        event = noted(1)
        other = replace(world, queue=world.buses.queue("other", Noted.routing_key()))
        await world.bus.declare(other.queue)
        await world.publish(event)
        async with running(world.inbox().run, other.inbox().run):
            await eventually(lambda: handled(world, 2))
        assert await world.effects() == [1, 1]

    async def test_two_readers_of_one_queue_have_one_effect(self, world: World) -> None:
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
        self, world: World, reader: QueueReader, caplog: pytest.LogCaptureFixture
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


@asynccontextmanager
async def another_database(world: World) -> AsyncIterator[Database]:
    """The database as another process has it; a SQLite file has one process."""
    if world.database.dialect == "sqlite":
        yield world.database
        return
    elsewhere = await open_database(world.location)
    yield elsewhere
    await elsewhere.close()


class TestPoison:
    async def test_one_bad_message_is_buried_and_its_neighbours_are_handled(self, world: World) -> None:
        handle = Unlucky(ValueError("minus one is no number"))
        events = [noted(number) for number in range(100)]
        bad = noted(BAD, correlation_id="its-own")
        await world.publish(*events[:50], bad, *events[50:])
        async with running(world.inbox(handle).run):
            [letter] = await eventually(world.dead)
            await eventually(lambda: handled(world, 100))
        assert letter.message.body == bad.encode()
        assert (letter.message.message_id, letter.message.correlation_id) == (bad.event_id, "its-own")
        assert letter.reason == "ValueError: minus one is no number"
        assert await world.effects() == list(range(100))
        assert await world.attempts() == []
        assert world.counted("inbox_buried_total", reader=world.queue.name) == 1
        assert world.counted("inbox_handled_total", reader=world.queue.name) == 100

    async def test_it_is_found_without_handling_every_neighbour_by_itself(
        self, world: World, reader: QueueReader
    ) -> None:
        handle = Unlucky(ValueError("no"))
        await world.publish(*map(noted, range(300)), noted(BAD), *map(noted, range(300, 499)))
        [letter] = await world.inbox(handle).settle(reader, await take(reader, 500))
        assert b'"number":-1' in letter.delivery.message.body
        assert await world.effects() == list(range(499))
        assert handle.calls < 50

    async def test_a_message_that_fails_holds_nobody_up(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inbox, "FIRST_PAUSE", 3600.0)
        monkeypatch.setattr(inbox, "LONGEST_PAUSE", 3600.0)
        async with running(world.inbox(Unlucky(ValueError("no"))).run):
            await world.publish(noted(1), noted(BAD), noted(2))
            await eventually(world.attempts)
            await world.publish(*map(noted, range(3, 50)))
            await eventually(lambda: handled(world, 49))

    async def test_a_message_has_five_attempts(self, world: World, reader: QueueReader) -> None:
        handle = Unlucky(ValueError("no"))
        await world.publish(noted(BAD))
        reading = world.inbox(handle)
        [letter] = await reading.settle(reader, await take(reader, 1))
        assert handle.tries == 1  # in the batch that it was delivered in, which is not counted
        await reading.settle_alone(reader, letter)
        assert handle.tries == 1 + 5
        assert len(await world.dead()) == 1

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"{", "test.noted: Input data was truncated"),
            (b'{"event_type":"test.noted","number":"one"}', "Expected `int`, got `str` - at `$.number`"),
            (b"[]", "test.noted: the body is an empty array"),
            (b"\xff\xfe", "test.noted: "),
        ],
        ids=["truncated", "wrong type", "empty", "not text"],
    )
    async def test_what_cannot_be_read_is_buried_at_once(self, world: World, body: bytes, reason: str) -> None:
        tries = Unlucky(ValueError("never called"))
        poison = Message(world.buses.exchange, "test.noted", body, "poison")
        await world.bus.publish_all([world.message(noted(1)), poison, world.message(noted(2))])
        async with running(world.inbox(tries).run):
            [letter] = await eventually(world.dead)
            await eventually(lambda: handled(world, 2))
        assert reason in letter.reason
        assert letter.message.body == body
        assert tries.tries == 0
        assert await world.attempts() == []

    async def test_an_event_of_another_reader_is_buried_with_its_name(self, world: World) -> None:
        stray = replace(world, queue=world.buses.queue("stray", "test.#"))
        await stray.bus.declare(stray.queue)
        await stray.bus.publish(replace(world.message(noted(1)), routing_key="test.unknown"))
        async with running(stray.inbox().run):
            [letter] = await eventually(stray.dead)
        assert letter.reason == "test.unknown: not an event that this reader knows"

    async def test_a_reason_may_hold_anything(self, world: World) -> None:
        await world.publish(noted(BAD))
        async with running(world.inbox(Unlucky(ValueError("a \x00 and a \ud800" + "x" * 5_000))).run):
            [letter] = await eventually(world.dead)
        assert letter.reason.startswith("ValueError: a \ufffd and a ?xxx")
        assert len(letter.reason) <= inbox.MAX_REASON

    async def test_replaying_dead_letters_has_no_double_effect(self, world: World) -> None:
        good, bad, array = noted(1), noted(BAD), [noted(2), noted(3)]
        handle = Unlucky(PoisonMessage("a mistake of ours"))
        both = Message(world.buses.exchange, Noted.routing_key(), encode_batch([*array, bad, good]), "both")
        async with running(world.inbox(handle).run):
            await world.publish(good)
            await eventually(lambda: handled(world, 1))
            await world.bus.publish(both)
            await eventually(world.dead)
        assert await world.effects() == [1]
        # The mistake is mended, and the letter is put back: twice, as it may happen.
        async with running(world.inbox().run):
            assert await world.bus.replay(world.queue.name) == 1
            await eventually(lambda: handled(world, 4))
            await world.bus.publish(both)
            await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 5)
        assert await world.effects() == [BAD, 1, 2, 3]
        assert await world.dead() == []
        assert await world.attempts() == []

    async def test_a_replayed_letter_has_all_its_attempts_again(self, world: World) -> None:
        handle = Unlucky(ValueError("no"))
        await world.publish(noted(BAD))
        async with running(world.inbox(handle).run):
            await eventually(world.dead)
            first = handle.tries
            assert await world.bus.replay(world.queue.name) == 1
            await eventually(lambda: world.counted("inbox_buried_total", reader=world.queue.name) == 2)
        assert handle.tries == 2 * first
        assert len(await world.dead()) == 1


class TestTransient:
    @pytest.mark.parametrize("redelivered", [False, True])
    async def test_a_dependency_that_is_away_is_waited_for_and_never_counted(
        self, world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch, redelivered: bool
    ) -> None:
        monkeypatch.setattr(inbox, "LONGEST_PAUSE", 0.001)
        counts: list[int] = []
        tries = 0

        async def handle(tx: Transaction, events: Sequence[Event]) -> None:
            nonlocal tries
            tries += 1
            counts.extend(row["attempts"] for row in await world.attempts())
            await add_effects(tx, events)
            if tries <= 20:
                raise Unavailable("mail server", "it is away")

        await world.publish(noted(1), noted(2))
        deliveries = [replace(one, redelivered=redelivered) for one in await take(reader, 2)]
        await world.inbox(handle).settle(reader, deliveries)
        assert await world.effects() == [1, 2]
        assert set(counts) == ({1} if redelivered else set())
        assert await world.dead() == []
        assert await world.attempts() == []
        assert tries > 20

    async def test_a_failure_of_the_message_is_still_counted_beside_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inbox, "LONGEST_PAUSE", 0.001)
        tries = 0

        async def handle(tx: Transaction, events: Sequence[Event]) -> None:
            nonlocal tries
            tries += 1
            if tries % 2:
                raise Unavailable("mail server", "it is away")
            raise ValueError("and it is no use")

        await world.publish(noted(1))
        async with running(world.inbox(handle).run):
            [letter] = await eventually(world.dead)
        assert letter.reason == "ValueError: and it is no use"
        assert tries == 2 * 6


class TestKilledReaders:
    async def test_a_message_that_kills_its_reader_is_buried_and_its_neighbours_are_handled(self, world: World) -> None:
        killer = noted(BAD)
        await world.publish(noted(1), killer, noted(2))
        deaths = 0
        while not await world.dead():
            async with world.bus.reader(world.queue) as reader:  # a reader that dies gives back what it held
                try:
                    async with asyncio.timeout(10):
                        await world.inbox(Unlucky(KilledReader())).settle(reader, await take(reader, 1))
                except KilledReader:
                    deaths += 1
            assert deaths <= 10
        async with world.bus.reader(world.queue) as reader:  # a neighbour that was under way may still be to come
            while not await handled(world, 2):
                await world.inbox().settle(reader, await take(reader, 1))
        assert await world.effects() == [1, 2]
        [letter] = await world.dead()
        assert letter.message.message_id == killer.event_id
        assert letter.reason == "the reader died 5 times while handling it"
        assert deaths == 1 + 5  # once with its batch, which is not counted
        assert await world.attempts() == []


class KilledReader(BaseException):
    """The end of a reader, as near as one process can come to it."""


class TestCorrelation:
    async def test_a_single_event_is_handled_under_its_correlation_id(self, world: World, reader: QueueReader) -> None:
        heard: list[str] = []

        async def handle(tx: Transaction, events: Sequence[Event]) -> None:
            heard.append(current_correlation_id())

        await world.publish(noted(1, correlation_id="request-1"))
        await world.inbox(handle).settle(reader, await take(reader, 1))
        await world.publish(noted(2, correlation_id="request-2"), noted(3, correlation_id="request-3"))
        await world.inbox(handle).settle(reader, await take(reader, 2))
        assert heard == ["request-1", ""]
        assert current_correlation_id() == ""
