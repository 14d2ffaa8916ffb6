"""Messages that other programs published, with properties that break the rules of the protocol."""

import asyncio
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aio_pika
import aiormq
import pytest
from pamqp import commands, decode, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from refract.runtime.distributed import rabbit_connection
from refract.runtime.distributed.rabbit_connection import Session
from refract.runtime.distributed.rabbit_decoding import tolerate_foreign_frames
from tests.support.buses import RabbitBuses, bodies, drain, take

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp())
PLACE = b"abcd"
NOT_UTF8 = b"\xff\xfe\xfd\xfc"


def nested(depth: int) -> bytes:
    """Tables within tables, each with its length before it."""
    table = b""
    for _ in range(depth):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    return struct.pack(">I", len(table)) + table


CASES: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "routing key": ({"routing_key": "abcd"}, PLACE, NOT_UTF8),
    "message id": ({"message_id": "abcd"}, PLACE, NOT_UTF8),
    "longest message id": ({"message_id": "a" * 255}, b"a" * 255, b"\xff" * 255),
    "correlation id": ({"correlation_id": "abcd"}, PLACE, NOT_UTF8),
    "longest correlation id": ({"correlation_id": "a" * 255}, b"a" * 255, b"\xff" * 255),
    "header key": ({"headers": {"abcd": "value", "other": 1}}, PLACE, NOT_UTF8),
    "header value": ({"headers": {"key": "abcd"}}, PLACE, NOT_UTF8),
    "deep header": ({"headers": {"k": {}}}, nested(1), nested(3_000)),
    "microseconds": ({"timestamp": MOMENT}, struct.pack(">Q", SECONDS), struct.pack(">Q", SECONDS * 10**6)),
    "nanoseconds": ({"timestamp": MOMENT}, struct.pack(">Q", SECONDS), struct.pack(">Q", SECONDS * 10**9)),
    "largest time": ({"timestamp": MOMENT}, struct.pack(">Q", SECONDS), b"\xff" * 8),
}


@pytest.fixture
async def buses(rabbitmq_url: str) -> AsyncIterator[RabbitBuses]:
    """Buses over the broker that all tests share."""
    here = RabbitBuses(rabbitmq_url)
    yield here
    await here.close()


@pytest.mark.parametrize("case", CASES)
async def test_a_foreign_message_is_delivered_buried_and_replayed(buses: RabbitBuses, case: str) -> None:
    properties, correct, wrong = CASES[case]
    bus, queue = await buses.open(), buses.queue("reader", "#")
    await bus.declare(queue)
    await _publish_raw(buses, correct, wrong, **properties)
    async with bus.reader(queue) as reader:
        (foreign,) = await take(reader, 1)
        assert foreign.message.body == b"not an event"
        assert not foreign.redelivered
        await bus.publish(buses.message("key", b"ours"))
        await reader.acknowledge(await take(reader, 1))
        await reader.bury(foreign, "poison")
        (letter,) = await bus.dead_letters(queue.name, 10)
        assert letter.message == foreign.message
        assert await bus.replay(queue.name) == 1
        assert await drain(reader, 1) == [foreign.message]


async def test_a_header_that_pretends_to_be_ours_cannot_break_a_burial(buses: RabbitBuses, rabbitmq_url: str) -> None:
    """Sent back with the reason, it would be larger than a frame, and the broker would hang up each time."""
    bus, queue = await buses.open(), buses.queue("reader", "#")
    await bus.declare(queue)
    async with await aio_pika.connect(rabbitmq_url) as connection, connection.channel() as channel:
        foreign = aio_pika.Message(b"not an event", message_id="foreign", headers={"refract-exchange": "x" * 130_900})
        await channel.default_exchange.publish(foreign, queue.name)
    async with bus.reader(queue) as reader:
        (delivery,) = await take(reader, 1)
        assert delivery.message.exchange == ""
        await reader.bury(delivery, "r" * 1_000)
    (letter,) = await bus.dead_letters(queue.name, 10)
    assert letter.message.body == b"not an event"


async def test_what_arrived_on_a_channel_that_was_given_up_is_not_ours(
    buses: RabbitBuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next channel has the same number: an acknowledgement of the first would settle what came on the second."""
    bus, queue = await buses.open(), buses.queue("reader", "#")
    await bus.declare(queue)
    for number in range(3):
        await bus.publish(buses.message("key", b"%d" % number))
    consume, late = aiormq.Channel.basic_consume, True

    async def consume_late(channel: aiormq.Channel, *arguments: Any, **options: Any) -> Any:
        nonlocal late
        answered = await consume(channel, *arguments, **options)
        if late:
            late = False
            monkeypatch.setattr(rabbit_connection, "STEP_SECONDS", 30.0)  # the next step may take its time
            await asyncio.sleep(60)
        return answered

    monkeypatch.setattr(aiormq.Channel, "basic_consume", consume_late)
    monkeypatch.setattr(rabbit_connection, "STEP_SECONDS", 0.5)
    async with bus.reader(queue) as reader:
        deliveries = await take(reader, 3)
        assert [delivery.redelivered for delivery in deliveries] == [True] * 3
        assert all(map(reader.holds, deliveries))
        await reader.acknowledge(deliveries)
    await bus.publish(buses.message("key", b"last"))
    async with bus.reader(queue) as reader:
        assert bodies(await drain(reader, 1)) == [b"last"]


async def test_different_ids_stay_different(buses: RabbitBuses) -> None:
    bus, queue = await buses.open(), buses.queue("reader", "#")
    await bus.declare(queue)
    for wrong in (b"\xff\xfe\xfd\xfc", b"\xff\xfe\xfd\xfb", b"\xff\xfe\xfd\xfb"):
        await _publish_raw(buses, PLACE, wrong, message_id="abcd")
    async with bus.reader(queue) as reader:
        first, second, third = (message.message_id for message in await drain(reader, 3))
    assert first != second == third


def test_correct_properties_are_read_as_they_were() -> None:
    tolerate_foreign_frames()
    table: dict[str, Any] = {
        "text": "żółć",
        "bytes": bytearray(b"\xff"),
        "number": -5,
        "large": 2**40,
        "time": MOMENT,
        "fraction": 0.5,
    }
    table |= {"price": Decimal("1.25"), "nothing": None, "yes": True, "nested": {"list": [1, "a", {"k": MOMENT}]}}
    properties = commands.Basic.Properties(
        headers=table, message_id="żółć", correlation_id="c", timestamp=MOMENT, delivery_mode=2
    )
    marshalled = frame.marshal(ContentHeader(body_size=0, properties=properties), 1)
    header = frame.unmarshal(marshalled)[2]
    assert isinstance(header, ContentHeader)
    assert header.properties.headers == table
    for name in ("message_id", "correlation_id", "timestamp", "delivery_mode"):
        assert getattr(header.properties, name) == getattr(properties, name)
    milliseconds = struct.pack(">Q", SECONDS * 1000)
    assert decode.by_type(milliseconds, "timestamp") == (8, MOMENT)


async def _publish_raw(buses: RabbitBuses, correct: bytes, wrong: bytes, **properties: Any) -> None:
    """Publish with bytes in its frames that the client library would not write."""
    session = await Session.open(buses.url)
    channel = await session.channel()
    await channel.confirm_delivery()
    routing_key = str(properties.pop("routing_key", "key"))
    body, number = b"not an event", channel.number
    header = ContentHeader(body_size=len(body), properties=commands.Basic.Properties(**properties))
    frames = (
        frame.marshal(commands.Basic.Publish(exchange=buses.exchange, routing_key=routing_key), number),
        frame.marshal(header, number),
    )
    session.write(b"".join(_replaced(one, correct, wrong) for one in frames))
    session.write(frame.marshal(ContentBody(body), number))
    await channel.queue_declare(exclusive=True)  # answered after what came before it
    await session.close()


def _replaced(marshalled: bytes, correct: bytes, wrong: bytes) -> bytes:
    """A frame with other content: its length is written again, before the content and after type and channel."""
    content = marshalled[7:-1].replace(correct, wrong)
    return marshalled[:3] + struct.pack(">I", len(content)) + content + marshalled[-1:]
