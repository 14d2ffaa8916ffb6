"""The promises of the event bus, on both twins."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from refract.kernel.errors import BusAway, NotPublished, Unavailable, Unroutable
from refract.kernel.events import LEGACY_MAIL_EXCHANGE
from refract.runtime.messages import Binding, Message
from refract.runtime.ports import EventBus
from tests.support.buses import Buses, EmbeddedBuses, RabbitBuses, bodies, drain, take
from tests.support.waiting import eventually


@pytest.fixture(params=["embedded", "distributed"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    """Where buses of one kind meet."""
    here = (
        EmbeddedBuses(tmp_path) if request.param == "embedded" else RabbitBuses(request.getfixturevalue("rabbitmq_url"))
    )
    yield here
    await here.close()


@pytest.fixture
async def bus(buses: Buses) -> EventBus:
    """One bus."""
    return await buses.open()


def texts(count: int) -> list[bytes]:
    """Bodies that can be told apart."""
    return [b"%d" % number for number in range(count)]


def _note_key(keys: list[str], message: Message) -> None:
    keys.append(message.routing_key)


class TestRouting:
    async def test_a_binding_matches_what_the_broker_routes(self, buses: Buses, bus: EventBus) -> None:
        words = ("a", "b", "*", "#")
        patterns = [".".join(parts) for length in (1, 2, 3) for parts in product(words, repeat=length)]
        patterns += ["a.#.b.*", "#.a.#", "a.b.#.#", "*.*.*.*", "a..b", ""]
        keys = [".".join(parts) for length in (1, 2, 3, 4) for parts in product("abc", repeat=length)]
        keys += ["", ".", "a.", ".b", "a..b"]
        bindings = [Binding(buses.exchange, pattern) for pattern in patterns]
        end = Binding(buses.exchange, "the.end")
        heard: list[list[str]] = [[] for _ in bindings]
        for binding, keys_heard in zip(bindings, heard, strict=True):
            await bus.listen([binding, end], partial(_note_key, keys_heard), lambda: None)

        for key in (*keys, "the.end"):
            await bus.publish(buses.message(key, mandatory=False))
        await eventually(lambda: all("the.end" in keys_heard for keys_heard in heard))

        for binding, keys_heard in zip(bindings, heard, strict=True):
            expected = [key for key in keys if binding.matches(buses.exchange, key)]
            assert (binding.pattern, keys_heard[:-1]) == (binding.pattern, expected)

    async def test_each_bound_queue_gets_its_own_copy(self, buses: Buses, bus: EventBus) -> None:
        first, second = buses.queue("first", "url.*"), buses.queue("second", "url.created", "url.#")
        async with bus.reader(first) as one, bus.reader(second) as other:
            await bus.publish(buses.message("url.created", b"once"))
            await bus.publish(buses.message("url.created", b"the end"))
            assert bodies(await drain(one, 2)) == bodies(await drain(other, 2)) == [b"once", b"the end"]

    async def test_a_fanout_exchange_ignores_the_key(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("mail", "", exchange=LEGACY_MAIL_EXCHANGE)
        async with bus.reader(queue) as reader:
            mail = secrets.token_bytes(16)  # the exchange is everybody's: other tests may send to it, too
            await bus.publish(Message(LEGACY_MAIL_EXCHANGE, "whatever.key", mail, "id"))
            while mail not in bodies(await drain(reader, 1)):
                pass

    async def test_a_mandatory_message_that_no_queue_takes_is_refused_alone(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "url.created")
        async with bus.reader(queue) as reader:
            outcomes = await bus.publish_all(
                [
                    buses.message("url.created", b"0", message_id="same"),
                    buses.message("url.unknown", b"1", message_id="same"),
                    buses.message("url.created", b"2"),
                    buses.message("url.unknown", b"3", mandatory=False),
                ]
            )
            assert [type(outcome) for outcome in outcomes] == [type(None), Unroutable, type(None), type(None)]
            assert bodies(await drain(reader, 2)) == [b"0", b"2"]

    @pytest.mark.parametrize(
        "odd",
        [
            {"routing_key": "k" * 256},
            {"routing_key": "ż" * 128},
            {"routing_key": "\ud800"},
            {"message_id": "i" * 256},
            {"correlation_id": "c" * 256},
            {"exchange": "exchangé"},
            {"exchange": "e" * 128},
        ],
        ids=["long key", "long key in bytes", "no unicode", "long id", "long correlation", "exchange", "long exchange"],
    )
    async def test_a_message_that_no_wire_carries_is_refused_alone(
        self, buses: Buses, bus: EventBus, odd: dict[str, str]
    ) -> None:
        async with bus.reader(buses.queue("reader", "#")) as reader:
            refused = replace(buses.message("key", b"refused"), **odd)  # type: ignore[arg-type]
            outcomes = await bus.publish_all([buses.message("key", b"0"), refused, buses.message("k" * 255, b"1")])
            assert [type(outcome) for outcome in outcomes] == [type(None), NotPublished, type(None)]
            assert bodies(await drain(reader, 2)) == [b"0", b"1"]

    async def test_an_unroutable_message_raises_until_a_queue_takes_it(self, buses: Buses, bus: EventBus) -> None:
        with pytest.raises(Unroutable, match="late"):
            await bus.publish(buses.message("late"))
        await bus.publish(buses.message("late", mandatory=False))
        await bus.declare(buses.queue("late", "late"))
        await bus.publish(buses.message("late"))

    async def test_declaring_twice_changes_nothing(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("twice", "key")
        await bus.declare(queue)
        await bus.publish(buses.message("key", b"kept"))
        await bus.declare(queue)
        async with bus.reader(queue) as reader:
            assert bodies(await drain(reader, 1)) == [b"kept"]


class TestReading:
    @pytest.mark.parametrize(
        ("body", "message_id", "correlation_id"),
        [
            (b'{"a": 1}', "evt_1", "c-1"),
            ("żółć ☃".encode(), "id-żółć", "c-☃"),
            (b"\x00\xff" * 524_288, "large", ""),
            (b"\0lz4 is no JSON", "as if it were packed", ""),
            (b"", "empty", ""),
        ],
        ids=["plain", "unicode", "one MiB", "a mark of ours", "empty"],
    )
    async def test_a_message_arrives_as_it_was_sent(
        self, buses: Buses, bus: EventBus, body: bytes, message_id: str, correlation_id: str
    ) -> None:
        sent = Message(buses.exchange, "ürl.created", body, message_id, correlation_id)
        async with bus.reader(buses.queue("reader", "#")) as reader:
            await bus.publish(sent)
            (delivery,) = await reader.next_batch()
        assert delivery.message == sent
        assert not delivery.redelivered

    async def test_a_message_without_an_id_gets_a_stable_one(self, buses: Buses, bus: EventBus) -> None:
        async with bus.reader(buses.queue("reader", "#")) as reader:
            for body in (b"same", b"same", b"other"):
                await bus.publish(Message(buses.exchange, "key", body, ""))
            first, second, other = (message.message_id for message in await drain(reader, 3))
        assert first == second != other
        assert first

    async def test_many_messages_arrive_in_batches_up_to_the_prefetch(self, buses: Buses, bus: EventBus) -> None:
        async with bus.reader(buses.queue("reader", "#", prefetch=20)) as reader:
            assert await bus.publish_all([buses.message("key", body) for body in texts(200)]) == [None] * 200
            received: list[bytes] = []
            while len(received) < 200:
                batch = await reader.next_batch()
                assert 1 <= len(batch) <= 20
                received += bodies(batch)
                await reader.acknowledge(batch)
        assert received == texts(200)

    async def test_a_reader_holds_no_more_than_the_prefetch(self, buses: Buses, bus: EventBus) -> None:
        async with bus.reader(buses.queue("reader", "#", prefetch=3)) as reader:
            await bus.publish_all([buses.message("key", body) for body in texts(4)])
            held = await take(reader, 3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.next_batch(), 0.2)
            await reader.acknowledge(held[:1])
            assert bodies(await reader.next_batch()) == [b"3"]

    async def test_a_reader_without_room_does_not_hold_up_another(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("shared", "#", prefetch=1)
        async with bus.reader(queue) as full:
            await bus.publish(buses.message("key", b"held"))
            await take(full, 1)
            waiting = asyncio.create_task(full.next_batch())
            await asyncio.sleep(0)
            async with bus.reader(queue) as other:
                await bus.publish(buses.message("key", b"next"))
                assert bodies(await asyncio.wait_for(take(other, 1), 60)) == [b"next"]
            waiting.cancel()

    async def test_two_readers_share_a_queue(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("shared", "#", prefetch=5)
        async with bus.reader(queue) as one, bus.reader(queue) as other:
            await bus.publish_all([buses.message("key", body) for body in texts(10)])
            halves = await asyncio.gather(take(one, 5), take(other, 5))
        assert sorted(bodies([*halves[0], *halves[1]])) == texts(10)

    async def test_what_a_closed_reader_held_comes_again_to_the_next(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish_all([buses.message("key", body) for body in texts(5)])
            held = await take(reader, 5)
            await reader.acknowledge([held[1], held[3]])
        async with bus.reader(queue) as reader:
            again = await take(reader, 3)
        assert [(delivery.message.body, delivery.redelivered) for delivery in again] == [
            (b"0", True),
            (b"2", True),
            (b"4", True),
        ]

    async def test_what_waits_for_a_reader_in_vain_goes_to_another(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("shared", "#", prefetch=4)
        async with bus.reader(queue) as other:
            async with bus.reader(queue) as closing:
                await bus.publish_all([buses.message("key", body) for body in texts(8)])
                await asyncio.gather(take(closing, 4), taken := asyncio.ensure_future(take(other, 4)))
            await other.acknowledge(taken.result())
            again = await take(other, 4)
        assert all(delivery.redelivered for delivery in again)
        assert sorted(bodies([*taken.result(), *again])) == texts(8)

    async def test_given_back_messages_come_again_marked(self, buses: Buses, bus: EventBus) -> None:
        async with bus.reader(buses.queue("reader", "#")) as reader:
            await bus.publish_all([buses.message("key", body) for body in texts(3)])
            held = await take(reader, 3)
            await reader.give_back([held[0], held[2]])
            await reader.acknowledge([held[1]])
            again = await take(reader, 2)
        assert [(delivery.message.body, delivery.redelivered) for delivery in again] == [(b"0", True), (b"2", True)]

    async def test_settling_too_late_or_twice_does_no_harm(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        async with bus.reader(queue) as closed:
            await bus.publish(buses.message("key", b"body"))
            stale = await take(closed, 1)
        await closed.acknowledge(stale)
        await closed.give_back(stale)
        async with bus.reader(queue) as reader:
            fresh = await take(reader, 1)
            await reader.acknowledge(fresh)
            await reader.acknowledge(fresh)
            await reader.give_back(fresh)
            await bus.publish(buses.message("key", b"the end"))
            assert bodies(await take(reader, 1)) == [b"the end"]

    async def test_a_cancelled_wait_loses_nothing(self, buses: Buses, bus: EventBus) -> None:
        async with bus.reader(buses.queue("reader", "#")) as reader:
            for body in texts(20):
                waiting = asyncio.create_task(reader.next_batch())
                await asyncio.sleep(0)
                publishing = asyncio.create_task(bus.publish(buses.message("key", body)))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting, publishing])
                if not waiting.cancelled():
                    await reader.give_back(waiting.result())
            assert sorted(bodies(await take(reader, 20)), key=int) == texts(20)


class TestDeadLetters:
    async def test_a_buried_message_is_kept_with_its_reason(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        # The last one is as our own file would have it.
        poison = b"0", b"1" * 5_000, b"\0lz4\x7d\x3c\x7b\x6a\5\0\0\0Phello"
        sent = [Message(buses.exchange, f"key.{number}", poison[number], f"id-{number}", "c-1") for number in range(3)]
        async with bus.reader(queue) as reader:
            await bus.publish_all(sent)
            for number, delivery in enumerate(await take(reader, 3)):
                await reader.bury(delivery, f"reason {number}")
        async with bus.reader(queue) as reader:
            await bus.publish(buses.message("key", b"the end"))
            assert bodies(await take(reader, 1)) == [b"the end"]

        for _ in range(2):  # looking removes nothing
            letters = await bus.dead_letters(queue.name, 10)
            assert [letter.message for letter in letters] == sent
            assert [letter.reason for letter in letters] == ["reason 0", "reason 1", "reason 2"]
            assert {letter.queue for letter in letters} == {queue.name}
        assert letters[0].buried_at <= letters[1].buried_at <= letters[2].buried_at
        assert letters[0].buried_at.tzinfo is not None
        assert [letter.message for letter in await bus.dead_letters(queue.name, 2)] == sent[:2]

    async def test_a_long_reason_is_cut(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish(buses.message("key"))
            await reader.bury((await reader.next_batch())[0], "ß" * 5_000)
        assert [letter.reason for letter in await bus.dead_letters(queue.name, 1)] == ["ß" * 1_000]

    async def test_replay_puts_all_back_as_they_were(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        sent = [Message(buses.exchange, f"key.{number}", b"%d" % number, f"id-{number}", "c-1") for number in range(3)]
        async with bus.reader(queue) as reader:
            await bus.publish_all(sent)
            for delivery in await take(reader, 3):
                await reader.bury(delivery, "poison")
            assert await bus.replay(queue.name) == 3
            again = await take(reader, 3)
            assert sorted((delivery.message for delivery in again), key=lambda one: one.message_id) == sent
            assert await bus.dead_letters(queue.name, 10) == []

            await reader.bury(again[0], "poison again")
            (letter,) = await bus.dead_letters(queue.name, 10)
            assert (letter.message, letter.reason) == (again[0].message, "poison again")

    async def test_replay_by_id_leaves_the_others(self, buses: Buses, bus: EventBus) -> None:
        queue = buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish_all([buses.message("key", message_id=f"id-{number}") for number in range(5)])
            for delivery in await take(reader, 5):
                await reader.bury(delivery, "poison")
            assert await bus.replay(queue.name, ["id-1", "id-3", "unknown"]) == 2
            assert sorted(message.message_id for message in await drain(reader, 2)) == ["id-1", "id-3"]
        letters = await bus.dead_letters(queue.name, 10)
        assert [letter.message.message_id for letter in letters] == ["id-0", "id-2", "id-4"]

    async def test_a_queue_that_nobody_declared_has_none(self, buses: Buses, bus: EventBus) -> None:
        assert await bus.dead_letters(f"{buses.prefix}.nowhere", 10) == []
        assert await bus.replay(f"{buses.prefix}.nowhere") == 0


class TestListening:
    async def test_a_listener_hears_everything_from_now_on(self, buses: Buses, bus: EventBus) -> None:
        await bus.publish(buses.message("key", b"before", mandatory=False))
        heard: list[Message] = []
        gaps: list[None] = []
        await bus.listen([Binding(buses.exchange, "key")], heard.append, lambda: gaps.append(None))
        sent = [Message(buses.exchange, "key", body, "id", "c-1") for body in texts(200)]
        outcomes = await bus.publish_all([*sent, buses.message("other", mandatory=False)])
        assert outcomes == [None] * 201
        await eventually(lambda: len(heard) >= 200)
        assert heard == sent
        assert gaps == []

    async def test_every_listener_hears_even_if_one_fails(self, buses: Buses, bus: EventBus) -> None:
        heard: list[Message] = []

        def fail(_: Message) -> None:
            raise ValueError("a broken listener")

        for hear in (fail, heard.append, fail, heard.append):
            await bus.listen([Binding(buses.exchange, "#")], hear, lambda: None)
        await bus.publish(buses.message("key", b"one"))
        await bus.publish(buses.message("key", b"two"))
        await eventually(lambda: len(heard) == 4)
        assert sorted(bodies(heard)) == [b"one", b"one", b"two", b"two"]


class TestLife:
    async def test_messages_outlive_the_bus(self, buses: Buses) -> None:
        queue = buses.queue("durable", "#")
        first = await buses.open()
        async with first.reader(queue) as reader:
            await first.publish_all([buses.message("key", body) for body in texts(2)])
            handled, held = await take(reader, 2)
            await reader.acknowledge([handled])
            assert held.message.body == b"1"
        await first.close()

        second = await buses.open()
        await second.publish(buses.message("key", b"new"))
        async with second.reader(queue) as reader:
            again = await take(reader, 2)
        assert [(delivery.message.body, delivery.redelivered) for delivery in again] == [(b"1", True), (b"new", False)]

    async def test_what_was_never_handed_out_is_not_marked_after_a_restart(self, buses: Buses) -> None:
        queue = buses.queue("durable", "#")
        first = await buses.open()
        await first.declare(queue)
        await first.publish(buses.message("key", b"waiting"))
        await first.close()
        second = await buses.open()
        async with second.reader(queue) as reader:
            (delivery,) = await take(reader, 1)
        assert not delivery.redelivered

    async def test_ping_tells_whether_the_bus_answers(self, buses: Buses, bus: EventBus) -> None:
        await bus.ping()
        await bus.close()
        with pytest.raises(Unavailable):
            await bus.ping()

    async def test_a_closed_bus_publishes_nothing(self, buses: Buses, bus: EventBus) -> None:
        await bus.declare(buses.queue("reader", "#"))
        await bus.close()
        with pytest.raises(BusAway):
            await bus.publish(buses.message("key"))

    async def test_publishing_nothing_is_fine(self, bus: EventBus) -> None:
        assert await bus.publish_all([]) == []
