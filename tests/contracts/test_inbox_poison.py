"""What the inbox makes of messages that fail: they are tried again, and in the end kept with the reason."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from refract.kernel.errors import PoisonMessage, Unavailable
from refract.kernel.events import Event, encode_batch
from refract.runtime import inbox
from refract.runtime.correlation import current_correlation_id
from refract.runtime.messages import Message
from refract.runtime.ports import QueueReader, Transaction
from tests.support.burials import burials
from tests.support.buses import take
from tests.support.databases import AwayAtFirst
from tests.support.inboxes import BAD, KilledReader, Unlucky, declared_world, handled
from tests.support.waiting import eventually
from tests.support.worlds import Noted, World, add_effects, noted, running

__all__ = ["declared_world"]


async def test_one_bad_message_is_buried_and_its_neighbours_are_handled(world: World) -> None:
    handle = Unlucky(ValueError("minus one is no number"))
    events = [noted(number) for number in range(100)]
    bad = noted(BAD, correlation_id="its-own")
    await world.publish(*events[:50], bad, *events[50:])
    async with running(world.inbox(handle).run):
        [letter] = await burials(world)
        await eventually(lambda: world.counted("inbox_handled_total", reader=world.queue.name) == 100)
    assert letter.message.body == bad.encode()
    assert (letter.message.message_id, letter.message.correlation_id) == (bad.event_id, "its-own")
    assert letter.reason == "ValueError: minus one is no number"
    assert await world.effects() == list(range(100))
    assert await world.attempts() == []


async def test_it_is_found_without_handling_every_neighbour_by_itself(world: World, reader: QueueReader) -> None:
    handle = Unlucky(ValueError("no"))
    await world.publish(*map(noted, range(300)), noted(BAD), *map(noted, range(300, 499)))
    [letter] = await world.inbox(handle).settle(reader, await take(reader, 500))
    assert b'"number":-1' in letter.delivery.message.body
    assert await world.effects() == list(range(499))
    assert handle.calls < 50


async def test_a_message_that_fails_holds_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(inbox, "LONGEST_PAUSE", 3600.0)
    async with running(world.inbox(Unlucky(ValueError("no"))).run):
        await world.publish(noted(1), noted(BAD), noted(2))
        await eventually(world.attempts)
        await world.publish(*map(noted, range(3, 50)))
        await eventually(lambda: handled(world, 49))


async def test_a_message_has_five_attempts(world: World, reader: QueueReader) -> None:
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
async def test_what_cannot_be_read_is_buried_at_once(world: World, body: bytes, reason: str) -> None:
    tries = Unlucky(ValueError("never called"))
    poison = Message(world.buses.exchange, "test.noted", body, "poison")
    await world.bus.publish_all([world.message(noted(1)), poison, world.message(noted(2))])
    async with running(world.inbox(tries).run):
        [letter] = await burials(world)
        await eventually(lambda: handled(world, 2))
    assert reason in letter.reason
    assert letter.message.body == body
    assert tries.tries == 0
    assert await world.attempts() == []


async def test_an_event_of_another_reader_is_buried_with_its_name(world: World) -> None:
    stray = replace(world, queue=world.buses.queue("stray", "test.#"))
    await stray.bus.declare(stray.queue)
    await stray.bus.publish(replace(world.message(noted(1)), routing_key="test.unknown"))
    async with running(stray.inbox().run):
        [letter] = await eventually(stray.dead)
    assert letter.reason == "test.unknown: not an event that this reader knows"


async def test_a_reason_may_hold_anything(world: World) -> None:
    await world.publish(noted(BAD))
    async with running(world.inbox(Unlucky(ValueError("a \x00 and a \ud800" + "x" * 5_000))).run):
        [letter] = await eventually(world.dead)
    assert letter.reason.startswith("ValueError: a \ufffd and a ?xxx")
    assert len(letter.reason) <= inbox.MAX_REASON


async def test_replaying_dead_letters_has_no_double_effect(world: World) -> None:
    good, bad, array = noted(1), noted(BAD), [noted(2), noted(3)]
    handle = Unlucky(PoisonMessage("a mistake of ours"))
    both = Message(world.buses.exchange, Noted.routing_key(), encode_batch([*array, bad, good]), "both")
    async with running(world.inbox(handle).run):
        await world.publish(good)
        await eventually(lambda: handled(world, 1))
        await world.bus.publish(both)
        await burials(world)
    assert await world.effects() == [1, 2, 3]
    # The mistake is mended, and the letter is put back: twice, as it may happen.
    async with running(world.inbox().run):
        assert await world.bus.replay(world.queue.name) == 1
        await eventually(lambda: handled(world, 4))
        await world.bus.publish(both)
        await eventually(lambda: world.counted("inbox_repeated_total", reader=world.queue.name) == 5)
    assert await world.effects() == [BAD, 1, 2, 3]
    assert await world.dead() == []
    assert await world.attempts() == []


async def test_a_replayed_letter_has_all_its_attempts_again(world: World) -> None:
    handle = Unlucky(ValueError("no"))
    await world.publish(noted(BAD))
    async with running(world.inbox(handle).run):
        await burials(world)
        first = handle.tries
        assert await world.bus.replay(world.queue.name) == 1
        await burials(world, 2)
    assert handle.tries == 2 * first
    assert len(await world.dead()) == 1


@contextmanager
def lines_of_the_inbox() -> Iterator[list[tuple[str, str]]]:
    """What it says, and under which correlation id."""
    lines: list[tuple[str, str]] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.getMessage(), current_correlation_id()))

    noting = Noting()
    inbox.logger.addHandler(noting)
    try:
        yield lines
    finally:
        inbox.logger.removeHandler(noting)


async def test_every_line_about_a_message_has_its_correlation_id(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    unreadable = replace(world.message(noted(0, correlation_id="the second")), body=b"{")
    await world.bus.publish_all([world.message(noted(BAD, correlation_id="the first")), unreadable])
    with lines_of_the_inbox() as lines:
        async with running(world.inbox(Unlucky(ValueError("no"))).run):
            await eventually(lambda: world.counted("inbox_buried_total", reader=world.queue.name) == 2)
    assert sorted(lines) == [
        ("batch failed; looking for the message", "the first"),
        *[("message failed", "the first")] * inbox.ATTEMPTS,
        ("message moved to dead letters", "the first"),
        ("message moved to dead letters", "the second"),
    ]


async def test_a_line_about_a_batch_has_the_correlation_id_of_its_first_event(
    world: World, reader: QueueReader
) -> None:
    await world.publish(*(noted(number, correlation_id=f"story {number}") for number in (1, 2, BAD)))
    with lines_of_the_inbox() as lines:
        await world.inbox(Unlucky(ValueError("no"))).settle(reader, await take(reader, 3))
    assert lines == [
        ("batch failed; looking for the message", "story 1"),
        ("batch failed; looking for the message", f"story {BAD}"),
    ]


async def test_lines_about_an_array_have_it_though_what_is_done_has_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clicks of many visitors come in one message, which belongs to none of them."""
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    done: set[str] = set()

    async def handle(_tx: Transaction, events: Sequence[Event]) -> None:
        done.add(current_correlation_id() if len(events) > 1 else "")
        raise ValueError("no")

    events = [noted(number, correlation_id=f"story {number}") for number in (1, 2)]
    await world.bus.publish(Message(world.buses.exchange, Noted.routing_key(), encode_batch(events), "both"))
    with lines_of_the_inbox() as lines:
        async with running(world.inbox(handle).run):
            await burials(world)
    assert lines.count(("message failed", "story 1")) == inbox.ATTEMPTS
    assert lines[-1] == ("message moved to dead letters", "story 1")
    assert all(story for _, story in lines)
    assert done == {""}


@pytest.mark.parametrize("redelivered", [False, True])
async def test_a_line_about_a_batch_that_waits_has_it_too(
    world: World, reader: QueueReader, redelivered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it is told apart which of the messages have been tried before."""
    monkeypatch.setattr(inbox, "LONGEST_PAUSE", 0.001)
    database: Any = AwayAtFirst(world.database)
    await world.publish(*(noted(number, correlation_id=f"story {number}") for number in (1, 2)))
    deliveries = [replace(one, redelivered=redelivered) for one in await take(reader, 2)]
    with lines_of_the_inbox() as lines:
        await world.inbox(database=database).settle(reader, deliveries)
    assert lines == [("reader waits for a dependency", "story 1")]
    assert await world.effects() == [1, 2]


# Dependencies that are away


@pytest.mark.parametrize("redelivered", [False, True])
async def test_a_dependency_that_is_away_is_waited_for_and_never_counted(
    world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch, redelivered: bool
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
    world: World, monkeypatch: pytest.MonkeyPatch
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


# Readers that die


async def test_a_message_that_kills_its_reader_is_buried_and_its_neighbours_are_handled(world: World) -> None:
    killer = noted(BAD)
    await world.publish(noted(1), killer, noted(2))
    deaths = 0
    while not await world.dead():
        async with world.bus.reader(world.queue) as reader:  # a reader that dies gives back what it held
            try:
                async with asyncio.timeout(60):
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
