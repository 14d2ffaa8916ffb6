"""The two wire families of events: how they are written, how they are read, and which of them must have a reader."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta, Struct, field

from refract.kernel.errors import PoisonMessage
from refract.kernel.ids import new_event_id, new_platform_event_id

LINK_EXCHANGE = "url-shortener"
PLATFORM_EXCHANGE = "smap.events"
LEGACY_MAIL_EXCHANGE = "smtp_send_email_exc"

MAX_REASON = 300
MOST_BYTES, MOST_PARTS = 2 * 1024 * 1024, 10_000
"""Of an array whose elements are looked at one by one, while nobody else has a turn; ours have a thousand and half a
megabyte."""

LONGEST_ID = 256
"""Characters of an id that events are told apart by: what any database keeps in an index."""

FANOUT_EXCHANGES = frozenset({LEGACY_MAIL_EXCHANGE})

Moment = Annotated[datetime, Meta(tz=True)]
"""A moment with its offset. Nanoseconds on the wire are rounded to Python's microseconds."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. The class says where it travels, the fields say what readers need to know.

    `event_id` and `correlation_id` are filled in when the event is announced, so that a domain can make events without
    knowing of requests. A field that has its default is left out on the wire.
    """

    exchange: ClassVar[str]
    needs_reader: ClassVar[bool] = True
    """Whether it must reach a queue (decision 22): if none takes it, it stays unpublished and a counter rises."""

    occurred_at: Moment
    # A factory's value is no default to msgspec, so that these two are always written.
    event_id: str = field(default_factory=str)
    correlation_id: str = field(default_factory=str)

    @classmethod
    def routing_key(cls) -> str:
        """The event's type, which is also its routing key."""
        return str(cls.__struct_config__.tag)

    @classmethod
    def new_id(cls) -> str:
        """A fresh id in the form of the event's family."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """The body on the wire."""
        raise NotImplementedError

    def stamped(self, correlation_id: str) -> Self:
        """This event with an id and a correlation id, where it has none yet."""
        if self.event_id and self.correlation_id:
            return self
        return msgspec.structs.replace(
            self,
            event_id=self.event_id or self.new_id(),
            correlation_id=self.correlation_id or correlation_id,
        )

    @property
    def identity(self) -> str:
        """What readers deduplicate on: the event id, or the older composite for events that came without one."""
        return self.event_id or f"{self.routing_key()}:{self.correlation_id}"


class LinkEvent(Event, frozen=True, kw_only=True, tag_field="event_type", tag=True):
    """The flat family: one JSON object with `event_type`, or an array of them (decision 7)."""

    exchange: ClassVar[str] = LINK_EXCHANGE

    @classmethod
    def new_id(cls) -> str:
        """A UUID."""
        return new_event_id()

    def encode(self) -> bytes:
        """One JSON object; absent optional fields are left out."""
        return _encoder.encode(self)


class PlatformEvent(Event, frozen=True, kw_only=True, tag_field="event_type", tag=True):
    """The enveloped family: `event_id`, `timestamp`, `payload`; the type travels as the routing key."""

    exchange: ClassVar[str] = PLATFORM_EXCHANGE

    @classmethod
    def new_id(cls) -> str:
        """A UUID with the family's prefix."""
        return new_platform_event_id()

    def encode(self) -> bytes:
        """The envelope around the event's own fields."""
        payload = msgspec.to_builtins(self)
        del payload["event_type"]
        envelope = _Envelope(
            event_id=payload.pop("event_id"),
            timestamp=payload.pop("occurred_at"),
            correlation_id=payload.pop("correlation_id"),
            payload=payload,
        )
        return _encoder.encode(envelope)


class _Envelope(Struct, frozen=True, kw_only=True):
    event_id: str
    timestamp: str
    payload: dict[str, Any]
    correlation_id: str = ""


_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(_Envelope)
_arrays = msgspec.json.Decoder(list[msgspec.Raw])


def encode_batch(events: Iterable[LinkEvent]) -> bytes:
    """Several events of the flat family as one body (decision 7)."""
    return _encoder.encode(list(events))


class Unreadable(NamedTuple):
    """One of several in a body that is no event for this reader: as it came, and what is wrong with it."""

    body: bytes
    reason: str


class EventDecoder:
    """Reads the bodies of the event classes that a reader asked for; anything else is poison, with a reason."""

    def __init__(self, *events: type[Event]) -> None:
        self._platform = {event.routing_key(): event for event in events if issubclass(event, PlatformEvent)}
        self._flat: dict[str, msgspec.json.Decoder[Any]] = {}
        for event in events:
            if issubclass(event, LinkEvent):
                self._flat[event.routing_key()] = msgspec.json.Decoder(event | list[event])  # type: ignore[valid-type]

    def decode(self, routing_key: str, body: bytes) -> list[Event]:
        """The events in a body, at least one; raises PoisonMessage that says what is wrong."""
        try:
            events = self._decode(routing_key, body)
        except msgspec.MsgspecError as error:
            raise PoisonMessage(f"{routing_key}: {_shortened(str(error))}") from error
        except UnicodeDecodeError as error:
            raise PoisonMessage(f"{routing_key}: the body is not UTF-8: {error}") from error
        except RecursionError as error:
            raise PoisonMessage(f"{routing_key}: the body is nested too deeply") from error
        if not events:
            raise PoisonMessage(f"{routing_key}: the body is an empty array")
        for event in events:
            name = event.event_id or event.correlation_id
            if not name:
                raise PoisonMessage(f"{routing_key}: neither event_id nor correlation_id, so it cannot be told apart")
            if len(name) > LONGEST_ID or not name.isprintable():
                raise PoisonMessage(f"{routing_key}: an id of {len(name)} characters that cannot be kept")
        return events

    def sort_out(self, routing_key: str, body: bytes) -> tuple[list[Event], list[Unreadable]]:
        """The events in a body, at least one, and what of an array is none; raises PoisonMessage if all of it is."""
        try:
            return self.decode(routing_key, body), []
        except PoisonMessage:
            events: list[Event] = []
            unreadable: list[Unreadable] = []
            for part in parts_of(body) if routing_key in self._flat else ():
                try:
                    events += self.decode_part(routing_key, part)
                except PoisonMessage as error:
                    unreadable.append(Unreadable(part, str(error)))
            if not events:
                raise
            return events, unreadable

    def decode_part(self, routing_key: str, part: bytes) -> list[Event]:
        """The event in one element of an array; raises PoisonMessage with what is wrong with it."""
        if part.startswith(b"["):
            raise PoisonMessage(f"{routing_key}: an array within an array")
        return self.decode(routing_key, part)

    def _decode(self, routing_key: str, body: bytes) -> list[Event]:
        flat = self._flat.get(routing_key)
        if flat is not None:
            decoded = flat.decode(body)
            return decoded if isinstance(decoded, list) else [decoded]
        event = self._platform.get(routing_key)
        if event is None:
            raise PoisonMessage(f"{routing_key}: not an event that this reader knows")
        return [_open_envelope(event, _envelopes.decode(body))]


def parts_of(body: bytes) -> list[bytes]:
    """The elements of an array as they stand in it; none where the body is no array, or larger than any of ours."""
    if len(body) > MOST_BYTES:
        return []
    try:
        parts = _arrays.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [bytes(part).strip() for part in parts] if len(parts) <= MOST_PARTS else []


def array_of(parts: Iterable[bytes]) -> bytes:
    """A body of such elements."""
    return b"[%b]" % b",".join(parts)


def _shortened(reason: str) -> str:
    """A reason may quote the body, and a reason travels in a header: it must not be as long as a body."""
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"


def _open_envelope(event: type[Event], envelope: _Envelope) -> Event:
    fields = envelope.payload | {
        "event_type": event.routing_key(),
        "event_id": envelope.event_id,
        "occurred_at": envelope.timestamp,
        "correlation_id": envelope.correlation_id,
    }
    return msgspec.convert(fields, event)
