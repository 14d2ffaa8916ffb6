"""Messages as RabbitMQ carries them: properties, headers, frames; and the exchanges and queues they pass through."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from struct import Struct

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands, frame
from pamqp.header import ContentHeader

from refract.kernel.events import FANOUT_EXCHANGES
from refract.runtime.messages import Binding, DeadLetter, Message, Queue

REASON_LENGTH = 1_000
FRAME_OVERHEAD = 8
LONGEST_ID = 255
LARGEST_BODY = 128 * 1024 * 1024
"""What a broker takes unless it is told otherwise; one byte more and it closes the channel, for all on it."""

HEADER_FRAME, BODY_FRAME = 2, 3
BASIC = 60
_START = Struct(">BHI")
_PROPERTIES = Struct(">HHQH")
_FLAGS = 0b1001_0100_1100_0000  # content type, delivery mode, correlation id, message id, timestamp
_CONTENT_TYPE = b"\x10application/json"

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
    body, piece = message.body, frame_max - FRAME_OVERHEAD
    if len(body) > LARGEST_BODY:
        raise ValueError(f"its body has {len(body)} bytes")
    header = _with_headers(message, headers, moment, channel) if headers else _without_headers(message, moment, channel)
    if len(header) > frame_max:
        raise ValueError(f"its properties have {len(header)} bytes")
    return [
        _method(message.exchange, message.routing_key, channel, mandatory=message.mandatory),
        header,
        *(_frame(BODY_FRAME, channel, body[start : start + piece]) for start in range(0, len(body), piece)),
    ]


@lru_cache(maxsize=1024)
def _method(exchange: str, routing_key: str, channel: int, *, mandatory: bool) -> bytes:
    """The same for every event of a kind."""
    method = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return frame.marshal(method, channel)


def _without_headers(message: Message, moment: datetime, channel: int) -> bytes:
    """What the library makes of the properties of nearly every message, in a fifth of the time; a test compares."""
    properties = b"".join(
        (
            _PROPERTIES.pack(BASIC, 0, len(message.body), _FLAGS),
            _CONTENT_TYPE,
            b"\x02",  # persistent
            _short(message.correlation_id),
            _short(message.message_id),
            int(moment.timestamp()).to_bytes(8, "big"),
        )
    )
    return _frame(HEADER_FRAME, channel, properties)


def _with_headers(message: Message, headers: Mapping[str, str], moment: datetime, channel: int) -> bytes:
    properties = commands.Basic.Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        timestamp=moment,
        headers=dict(headers),
    )
    return frame.marshal(ContentHeader(body_size=len(message.body), properties=properties), channel)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_START.pack(kind, channel, len(payload)), payload)


def _short(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > LONGEST_ID:
        raise ValueError(f"an id of it has {len(encoded)} bytes")
    return b"%c%b" % (len(encoded), encoded)


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
