"""What a user is told of an event: one plain line, and what a mail or a webhook says beyond it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import Event, EventDecoder
from refract.services.analytics.api import MilestoneReached
from refract.services.links.api import UrlCreated, UrlDeleted

TOLD = (UrlCreated, UrlDeleted, MilestoneReached)
"""The events that owners of links are told about (M5)."""

WEBHOOK_DISABLED = "webhook.disabled"

LONGEST_ID = 256
LONGEST_CODE = 64
LONGEST_TITLE = 300
SHOWN_URL = 120
SHOWN_TITLE = 80
MOST_BYTES = 64 * 1024

_NOT_FOR_OTHERS = frozenset({"event_type", "event_id", "correlation_id", "user_email"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a user is told. `details` are the lines of a mail below the title."""

    user_id: str
    event_type: str
    event_id: str
    title: str
    occurred_at: datetime
    payload: Mapping[str, Any]
    user_email: str = ""
    correlation_id: str = ""
    short_code: str | None = None
    details: tuple[str, ...] = field(default=())

    @property
    def data(self) -> dict[str, Any]:
        """What a webhook is told: all but what is between us and the user."""
        return {name: value for name, value in self.payload.items() if name not in _NOT_FOR_OTHERS}


class NoticeDecoder(EventDecoder):
    """Reads events whose owner can be told; any other is poison, and the reason is said at once (M5, step 3).

    M5 asks for the correlation id too, because it told events apart by it; we have the event id for that (decision 6).
    """

    def __init__(self) -> None:
        super().__init__(*TOLD)

    def decode(self, routing_key: str, body: bytes) -> list[Event]:
        """The events in a body, at least one; raises PoisonMessage that says what is wrong."""
        events = super().decode(routing_key, body)
        for event in events:
            _check(routing_key, event)
        return events


def _check(routing_key: str, event: Event) -> None:
    assert isinstance(event, TOLD), "the decoder knows no others"
    if not event.user_id.strip():
        raise PoisonMessage(f"{routing_key}: user_id is empty, so there is nobody to tell")
    if not event.user_id.isprintable() or len(event.user_id) > LONGEST_ID:
        raise PoisonMessage(f"{routing_key}: user_id is no id")
    if len(event.identity) > LONGEST_ID:
        raise PoisonMessage(f"{routing_key}: event_id is longer than {LONGEST_ID} characters")
    if len(event.encode()) > MOST_BYTES:
        raise PoisonMessage(f"{routing_key}: the event is larger than {MOST_BYTES} bytes")


def notice_of(event: UrlCreated | UrlDeleted | MilestoneReached) -> Notice:
    """What the owner of a link is told of an event."""
    title, details = _words(event, one_line(event.short_code, LONGEST_CODE))
    return Notice(
        user_id=event.user_id,
        user_email=event.user_email,
        event_type=event.routing_key(),
        event_id=event.identity,
        correlation_id=_storable(event.correlation_id),
        occurred_at=event.occurred_at,
        title=title,
        details=details,
        short_code=one_line(event.short_code, LONGEST_CODE),
        payload=_storable(msgspec.to_builtins(event)),
    )


def _words(event: UrlCreated | UrlDeleted | MilestoneReached, code: str) -> tuple[str, tuple[str, ...]]:
    match event:
        case UrlCreated():
            name = f"“{one_line(event.title, SHOWN_TITLE)}”: {code}" if event.title.strip() else code
            return f"New link {name} → {one_line(event.original_url, SHOWN_URL)}", ()
        case UrlDeleted():
            return f"Link {code} was deleted", ("It no longer redirects, and its code is never given to another link.",)
        case MilestoneReached():
            more = event.total_clicks > event.milestone
            details = (f"It has {clicks(event.total_clicks)} by now.",) if more else ()
            return f"Link {code} reached {clicks(event.milestone)}", details


def clicks(count: int) -> str:
    """A number of clicks, as people write it."""
    return "1 click" if count == 1 else f"{count:,} clicks"


def one_line(text: str, length: int) -> str:
    """A text of unknown origin that stays on its line and turns nothing around it, cut where it is too long."""
    plain = "".join(character if character.isprintable() else " " * character.isspace() for character in text)
    plain = " ".join(plain.split())
    return plain if len(plain) <= length else f"{plain[: length - 1]}…"


def _storable(value: Any) -> Any:
    """The same without the one character that PostgreSQL keeps in no text."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    return value
