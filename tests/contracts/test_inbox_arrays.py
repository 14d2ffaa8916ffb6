"""Arrays with something bad in them: the others are handled, and it alone is kept with the reason; on both modes."""

import json
import logging
from collections.abc import Sequence

import pytest

from refract.kernel.errors import BusAway
from refract.kernel.events import LONGEST_ID, Event, EventDecoder, array_of, parts_of
from refract.runtime import inbox
from refract.runtime.letters import open_letter
from refract.runtime.messages import DeadLetter, Delivery, Message
from refract.runtime.ports import QueueReader, Transaction
from tests.support.burials import burials
from tests.support.buses import take
from tests.support.inboxes import BAD, KilledReader, Unlucky, declared_world, handled
from tests.support.waiting import eventually
from tests.support.worlds import Noted, World, add_effects, noted, running

__all__ = ["declared_world"]

UNREADABLE = {
    "a number": b"7",
    "nothing": b"null",
    "a text": b'"test.noted"',
    "an array": b"[" + noted(90).encode() + b"]",
    "a missing field": noted(91).encode().replace(b'"number":91', b'"numeral":91'),
    "a wrong type": noted(92).encode().replace(b'"number":92', b'"number":"92"'),
    "no time": noted(93).encode().replace(b'"occurred_at":"20', b'"occurred_at":"the year 20'),
    "another event": noted(94).encode().replace(b"test.noted", b"test.noticed"),
    "no id": noted(95, event_id="").encode(),
    "an id that no index takes": noted(96, event_id="x" * (LONGEST_ID + 1)).encode(),
    "an id that PostgreSQL does not keep": noted(97, event_id="x\0y").encode(),
}


def packed(world: World, *bodies: bytes, message_id: str = "packed") -> Message:
    """A message with several in it, with the spaces that a careful writer leaves."""
    return Message(world.buses.exchange, Noted.routing_key(), array_of(b" %b\n" % body for body in bodies), message_id)


async def buried(world: World, count: int = 1) -> DeadLetter:
    """The one dead letter, when the readers have buried so many in all."""
    [letter] = await burials(world, count)
    return letter


async def test_what_is_no_event_is_buried_without_those_it_came_with(world: World) -> None:
    numbers = iter(range(100))
    for case, bad in UNREADABLE.items():
        first, second = noted(next(numbers)), noted(next(numbers))
        await world.bus.publish(packed(world, first.encode(), bad, second.encode(), message_id=case))
    await world.publish(noted(next(numbers)))
    count = next(numbers)
    async with running(world.inbox().run):
        await eventually(lambda: world.counted("inbox_buried_total", reader=world.queue.name) == len(UNREADABLE))
        await eventually(lambda: handled(world, count))
    assert await world.effects() == list(range(count))
    letters = {letter.message.message_id: letter for letter in await world.dead()}
    assert {case: letter.message.body for case, letter in letters.items()} == {
        case: array_of([bad]) for case, bad in UNREADABLE.items()
    }
    assert all(letter.reason.startswith("1 of 3 events: test.noted: ") for letter in letters.values())
    assert await world.attempts() == []


async def test_all_that_is_bad_stays_together_as_it_came(world: World, caplog: pytest.LogCaptureFixture) -> None:
    many = [noted(number).encode() for number in range(20)]
    await world.bus.publish(packed(world, *many[:9], *UNREADABLE.values(), *many[9:]))
    with caplog.at_level(logging.ERROR, "refract.inbox"):
        async with running(world.inbox().run):
            letter = await buried(world)
            # Somebody puts it back though nothing is mended: it returns, and has had no effect.
            assert await world.bus.replay(world.queue.name) == 1
            again = await buried(world, 2)
    assert await world.effects() == list(range(20))
    assert letter.message.body == array_of(UNREADABLE.values())
    assert letter.reason.startswith(f"{len(UNREADABLE)} of {20 + len(UNREADABLE)} events: test.noted: ")
    said = [record.getMessage() for record in caplog.records if record.name == "refract.inbox"]
    assert said == ["message moved to dead letters"] * 2
    assert world.counted("inbox_handled_total", reader=world.queue.name) == 20
    assert again.message.body == letter.message.body


async def test_an_array_without_any_event_is_buried_as_it_came(world: World) -> None:
    message = packed(world, *UNREADABLE.values())
    await world.bus.publish(message)
    async with running(world.inbox().run):
        letter = await buried(world)
    assert letter.message.body == message.body
    assert letter.reason.startswith("test.noted: Expected `object`, got `int` - at `$[0]`")


async def test_what_cannot_be_buried_yet_holds_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_self: object, _delivery: Delivery, _reason: str) -> None:
        raise BusAway("an alarm keeps the broker from taking messages")

    await world.bus.publish(packed(world, noted(0).encode(), b"7"))
    async with world.bus.reader(world.queue) as reader:
        kind = type(reader)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "bury", away)
        async with running(world.inbox().run):
            await world.publish(*map(noted, range(1, 30)))
            await eventually(lambda: handled(world, 30))
    # It was not settled, so it comes again: what was handled is not handled twice.
    async with running(world.inbox().run):
        letter = await buried(world)
    assert letter.message.body == b"[7]"
    assert await world.effects() == list(range(30))


async def test_an_array_that_is_handled_by_itself_is_settled_alike(world: World, reader: QueueReader) -> None:
    """As one is that may have killed a reader before."""
    await world.bus.publish(packed(world, noted(0).encode(), b"7", noted(1).encode()))
    [delivery] = await take(reader, 1)
    await world.inbox().settle_alone(reader, open_letter(delivery, EventDecoder(Noted)))
    assert await world.effects() == [0, 1]
    assert (await buried(world)).message.body == b"[7]"
    assert await world.attempts() == []


async def test_an_event_that_always_fails_is_buried_without_those_it_came_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    handle = Unlucky(ValueError("minus one is no number"))
    bad = json.dumps(json.loads(noted(BAD).encode()) | {"added_in_2030": True}).encode()
    good = [noted(number).encode() for number in range(100)]
    nested = array_of([noted(200).encode()])
    await world.bus.publish(packed(world, *good[:70], bad, b"7", *good[70:], nested))
    async with running(world.inbox(handle).run):
        letter = await buried(world)
    assert await world.effects() == list(range(100))
    assert letter.message.body == array_of([bad, b"7", nested]), "as it came, with what we do not know"
    assert letter.reason == "3 of 103 events: ValueError: minus one is no number"
    assert handle.calls < 50, "it is not looked for one by one"
    assert await world.attempts() == []
    # When it is mended it is handled, and nothing else is again.
    async with running(world.inbox().run):
        assert await world.bus.replay(world.queue.name) == 1
        await eventually(lambda: handled(world, 101))
        assert (await buried(world, 2)).message.body == array_of([b"7", nested])
    assert await world.effects() == [BAD, *range(100)]


async def test_what_fails_only_together_is_handled_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        await add_effects(tx, events)
        if len(events) > 10:
            raise ValueError("too much at once")

    await world.bus.publish(packed(world, *(noted(number).encode() for number in range(100))))
    async with world.bus.reader(world.queue) as reader:
        reading = world.inbox(handle)
        [letter] = await reading.settle(reader, await take(reader, 1))
        await reading.settle_alone(reader, letter)
    assert await world.effects() == list(range(100))
    assert await world.attempts() == []
    assert await world.dead() == []
    async with world.bus.reader(world.queue) as reader:
        await world.publish(noted(100))
        [delivery] = await take(reader, 1)
    assert delivery.message.message_id != "packed", "it is settled"


async def test_there_is_an_end_to_looking_for_what_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(inbox, "DIVIDE_SECONDS", -1.0)
    message = packed(world, noted(1).encode(), noted(BAD).encode())
    await world.bus.publish(message)
    async with running(world.inbox(Unlucky(ValueError("no"))).run):
        letter = await buried(world)
    assert (letter.message.body, letter.reason) == (message.body, "ValueError: no")
    assert await world.effects() == []


async def test_what_was_lost_meanwhile_is_left_to_whoever_gets_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    handle = Unlucky(ValueError("no"))
    first, bad, last = (noted(number).encode() for number in (1, BAD, 2))
    await world.bus.publish(packed(world, first, bad, last))
    async with world.bus.reader(world.queue) as reader:
        [delivery] = await take(reader, 1)
        with monkeypatch.context() as patch:
            patch.setattr(type(reader), "holds", lambda *_: handle.calls < inbox.ATTEMPTS + 1)
            await world.inbox(handle).settle_alone(reader, open_letter(delivery, EventDecoder(Noted)))
    assert await world.effects() == [1], "the division had begun"
    assert await world.dead() == []
    async with running(world.inbox(handle).run):
        letter = await buried(world)
    assert letter.message.body == array_of([bad])
    assert await world.effects() == [1, 2]


@pytest.mark.parametrize("alone", [True, False], ids=["only alone", "always"])
async def test_an_array_that_kills_its_reader_is_buried_with_all_that_is_not_handled(
    world: World, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Also where it kills only while it is divided: there is an end to it."""
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        await add_effects(tx, events)
        if any(isinstance(event, Noted) and event.number == BAD for event in events):
            raise KilledReader if len(events) == 1 or not alone else ValueError("no")

    first, bad, last = (noted(number).encode() for number in (1, BAD, 2))
    await world.bus.publish(packed(world, first, bad, last))
    deaths = 0
    while not await world.dead():
        async with world.bus.reader(world.queue) as reader:  # a reader that dies gives back what it held
            reading = world.inbox(handle)
            try:
                for letter in await reading.settle(reader, await take(reader, 1)):
                    await reading.settle_alone(reader, letter)
            except KilledReader:
                deaths += 1
        assert deaths <= 10
    body = (await buried(world)).message.body
    assert parts_of(body) == ([bad, last] if alone else [first, bad, last])
    assert deaths == (1 if alone else 6)
    assert await world.effects() == ([1] if alone else [])
    assert await world.attempts() == []
