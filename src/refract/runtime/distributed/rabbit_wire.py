"""Messages as RabbitMQ carries them: properties, headers, frames; and the exchanges and queues they pass through."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from refract.kernel.events import FANOUT_EXCHANGES
from refract.runtime.messages import Binding, DeadLetter, Message, Queue

REASON_LENGTH = 1_000
FRAME_OVERHEAD = 8
LONGEST_ID = 255
LARGEST_BODY = 128 * 1024 * 1024
"""What a broker takes unless it is told otherwise; one byte more and it closes the channel, for all on it."""

REASON = "refract-reason"
BURIED_AT = "refract-buried-at"
QUEUE = "refract-queue"
# Where a message was first sent. A dead letter and its replay travel through the default exchange.
EXCHANGE = "refract-exchange"
ROUTING_KEY = "refract-routing-key"


def origin(message: Message) -> dict[str, str]:
    """Headers that keep where a message was first sent."""
    return {EXCHANGE: message.exchange, ROUTING_KEY: message.routing_key}


def burial(message: Message, queue: str, reason: str, moment: datetime) -> dict[str, str]:
    """The headers of a dead letter."""
    about = {QUEUE: queue, REASON: reason[:REASON_LENGTH], BURIED_AT: moment.astimezone(UTC).isoformat()}
    return origin(message) | about


def publish_frames(
    message: Message, headers: Mapping[str, str] | None, moment: datetime, channel: int, frame_max: int
) -> list[bytes]:
    """The frames that publish one message: method, properties, and the body in as many pieces as it needs.

    Raises ValueError or TypeError if the broker or the protocol has no place for it.
    """
    if len(message.body) > LARGEST_BODY:
        raise ValueError(f"its body has {len(message.body)} bytes")
    properties = commands.Basic.Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        timestamp=moment,
        headers=dict(headers) if headers else None,
    )
    method = commands.Basic.Publish(
        exchange=message.exchange, routing_key=message.routing_key, mandatory=message.mandatory
    )
    body, piece = message.body, frame_max - FRAME_OVERHEAD
    header = frame.marshal(ContentHeader(body_size=len(body), properties=properties), channel)
    if len(header) > frame_max:
        raise ValueError(f"its properties have {len(header)} bytes")
    return [
        frame.marshal(method, channel),
        header,
        *(frame.marshal(ContentBody(body[start : start + piece]), channel) for start in range(0, len(body), piece)),
    ]


def read_message(delivered: DeliveredMessage) -> Message:
    """A message that arrived; one without an id (a foreign publisher) gets a stable one, to count its attempts by."""
    properties = delivered.header.properties
    exchange, routing_key = delivered.exchange or "", delivered.routing_key or ""
    if not exchange:
        headers = texts(delivered)
        exchange, routing_key = _name(headers, EXCHANGE, exchange), _name(headers, ROUTING_KEY, routing_key)
    return Message(
        exchange=exchange,
        routing_key=routing_key,
        body=delivered.body,
        message_id=_writable(properties.message_id or "") or sha256(delivered.body).hexdigest(),
        correlation_id=_writable(properties.correlation_id or ""),
    )


def _name(headers: Mapping[str, str], header: str, otherwise: str) -> str:
    """A name from a header; anybody may send those, and one that is too long for a name was not written by us."""
    said = headers.get(header, otherwise)
    return said if len(said.encode()) <= LONGEST_ID else otherwise


def read_dead_letter(delivered: DeliveredMessage, queue: str) -> DeadLetter:
    """A dead letter as it lies in its queue, whoever put it there."""
    headers = texts(delivered)
    return DeadLetter(
        message=read_message(delivered),
        queue=queue,
        reason=headers.get(REASON, "unknown"),
        buried_at=_moment(headers.get(BURIED_AT)) or delivered.header.properties.timestamp or datetime.now(UTC),
        headers=headers,
    )


def texts(delivered: DeliveredMessage) -> dict[str, str]:
    """The headers of a message as texts."""
    return {key: str(value) for key, value in (delivered.header.properties.headers or {}).items()}


async def declare_exchange(channel: AbstractChannel, exchange: str) -> None:
    """Make a durable exchange exist."""
    kind = "fanout" if exchange in FANOUT_EXCHANGES else "topic"
    await channel.exchange_declare(exchange, exchange_type=kind, durable=True)


async def declare_queue(channel: AbstractChannel, queue: Queue) -> None:
    """Make a durable queue exist, with its dead letters and bindings; no arguments, as other programs declare it."""
    await channel.queue_declare(queue.dead, durable=True)
    await channel.queue_declare(queue.name, durable=True)
    await bind(channel, queue.name, queue.bindings)


async def bind(channel: AbstractChannel, queue: str, bindings: Sequence[Binding]) -> None:
    """Let a queue take what its bindings match."""
    for exchange in {binding.exchange for binding in bindings}:
        await declare_exchange(channel, exchange)
    for binding in bindings:
        await channel.queue_bind(queue, binding.exchange, binding.pattern)


def _writable(identifier: str) -> str:
    """An id that can be sent on. One that was not UTF-8 grew when it was read, perhaps beyond what the wire holds."""
    encoded = identifier.encode()
    return identifier if len(encoded) <= LONGEST_ID else sha256(encoded).hexdigest()


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
