"""The two wire families of events: how they are written, how they are read, and which of them must have a reader."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta, Struct, field

from refract.kernel.errors import PoisonMessage
from refract.kernel.ids import new_event_id, new_platform_event_id

LINK_EXCHANGE = "url-shortener"
PLATFORM_EXCHANGE = "smap.events"
LEGACY_MAIL_EXCHANGE = "smtp_send_email_exc"

MAX_REASON = 300

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


def encode_batch(events: Iterable[LinkEvent]) -> bytes:
    """Several events of the flat family as one body (decision 7)."""
    return _encoder.encode(list(events))


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
            if not event.event_id and not event.correlation_id:
                raise PoisonMessage(f"{routing_key}: neither event_id nor correlation_id, so it cannot be told apart")
        return events

    def _decode(self, routing_key: str, body: bytes) -> list[Event]:
        flat = self._flat.get(routing_key)
        if flat is not None:
            decoded = flat.decode(body)
            return decoded if isinstance(decoded, list) else [decoded]
        event = self._platform.get(routing_key)
        if event is None:
            raise PoisonMessage(f"{routing_key}: not an event that this reader knows")
        return [_open_envelope(event, _envelopes.decode(body))]


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
