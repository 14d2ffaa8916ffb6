"""An attempt as it travels on its topic: JSON that anybody may read, and that anybody may have written."""

import re
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from refract.kernel.errors import PoisonMessage
from refract.services.sms.domain.attempts import Attempt, Path, Status

EVENT_TYPE = "sms.attempt"
LARGEST_USER_ID = (1 << 63) - 1
LONGEST_MESSAGE = 2_000
LONGEST_TEXT = 200
"""Characters that are kept of a message, and of every other text: what a client sends may be as long as a body."""

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""A clock that shows another time is not set, and a row of such a time would never be found, or never go."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class AttemptEvent(Struct, frozen=True, kw_only=True):
    """The fields on the wire."""

    event_id: str
    event_type: str = EVENT_TYPE
    user_id: int | None = msgspec.field(name="userId")
    status: Status
    path: Path
    message: str
    reason: str
    correlation_id: str
    message_id: str | UnsetType = UNSET
    occurred_at: datetime


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AttemptEvent)


def encode(attempt: Attempt) -> bytes:
    """The value of a record; what cannot be kept in a text is replaced, and what is too long is cut."""
    user_id = attempt.user_id
    return _encoder.encode(
        AttemptEvent(
            event_id=attempt.event_id,
            user_id=user_id if user_id is not None and 0 <= user_id <= LARGEST_USER_ID else None,
            status=attempt.status,
            path=attempt.path,
            message=_kept(attempt.message, LONGEST_MESSAGE),
            reason=_kept(attempt.reason, LONGEST_TEXT),
            correlation_id=_kept(attempt.correlation_id, LONGEST_TEXT),
            message_id=_kept(attempt.message_id, LONGEST_TEXT) or UNSET,
            occurred_at=attempt.occurred_at,
        )
    )


def decode(value: bytes) -> Attempt:
    """An attempt that can be kept; anything else raises PoisonMessage that says what is wrong."""
    try:
        event = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PoisonMessage(f"no attempt: {error}") from None
    if event.event_type != EVENT_TYPE:
        raise PoisonMessage(f"event_type is not {EVENT_TYPE}")
    if _UUID.fullmatch(event.event_id) is None:
        raise PoisonMessage("event_id is not a UUID")
    if event.user_id is not None and not 0 <= event.user_id <= LARGEST_USER_ID:
        raise PoisonMessage("userId is not a number from 0 to 2^63 - 1")
    if event.occurred_at.tzinfo is None or not EARLIEST <= event.occurred_at < LATEST:
        raise PoisonMessage("occurred_at is not a moment of our time")
    return Attempt(
        event_id=event.event_id,
        user_id=event.user_id,
        status=event.status,
        path=event.path,
        message=_kept(event.message, LONGEST_MESSAGE),
        reason=_kept(event.reason, LONGEST_TEXT),
        correlation_id=_kept(event.correlation_id, LONGEST_TEXT),
        message_id="" if event.message_id is UNSET else _kept(event.message_id, LONGEST_TEXT),
        occurred_at=event.occurred_at,
    )


def _kept(text: str, longest: int) -> str:
    """A text as a database keeps it."""
    cut = text[:longest]
    if cut.isascii() and "\0" not in cut:  # nearly all of them
        return cut
    return cut.encode(errors="replace").decode().replace("\0", "\ufffd")
