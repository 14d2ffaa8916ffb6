"""What a redirect needs to know of a link, as it lies in the caches and comes from the database."""

from datetime import datetime
from functools import lru_cache

import msgspec
from msgspec import Struct

from refract.kernel.events import Moment
from refract.services.links.domain.link import REDIRECT_STATUSES, Status, status_at

KEY_PREFIX = "url:"
"""A link's copy lies under this and its code."""

COPY_SECONDS = 3600.0
"""How long a copy may live, if the link does."""

_STATUSES = {status.value: status for status in Status}


class LinkRecord(Struct, frozen=True, gc=False):
    """A link as whoever follows it sees it; the user is its owner, whom every click names."""

    short_code: str
    original_url: str
    user_id: str
    user_email: str
    status: str
    expires_at: Moment | None
    redirect_status: int
    order: int

    def effective_status(self, now: datetime) -> Status:
        """The status that counts at this moment."""
        return status_at(_STATUSES[self.status], self.expires_at, now)

    def seconds_left(self, now: datetime) -> float | None:
        """How long it stays what it is now, if nobody changes it; None for ever: only an active link expires."""
        if self.expires_at is None or self.effective_status(now) is not Status.ACTIVE:
            return None
        return (self.expires_at - now).total_seconds()

    def copy_seconds(self, now: datetime) -> float:
        """How long a copy may be kept: never beyond the expiry, and not at all once that is past."""
        if self.expires_at is None:
            return COPY_SECONDS
        return min(COPY_SECONDS, (self.expires_at - now).total_seconds())


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LinkRecord).decode
_ENDINGS = {True: b',"is_active":true}', False: b',"is_active":false}'}


def encode_copy(record: LinkRecord) -> bytes:
    """The copy that a cache keeps: a JSON object that also has the field `is_active` of 000."""
    return _encode(record)[:-1] + _ENDINGS[record.status == "active"]


def decode_copy(copy: bytes, short_code: str) -> LinkRecord | None:
    """The record in a copy, or None where it is not ours: garbage, of another version, of another link."""
    try:
        record = _decode(copy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    sound = record.status in _STATUSES and record.redirect_status in REDIRECT_STATUSES and record.order >= 0
    return record if sound and record.short_code == short_code else None


def is_same_copy(copy: bytes, short_code: str, status: int, order: int) -> bool:
    """Whether a copy is that of an active link without expiry, at this very version; no more than its ends are read.

    A quote within a text is escaped, so that nothing in a URL can pass for one of these fields.
    """
    return copy.endswith(_last_fields(status, order)) and copy.startswith(b'{"short_code":"%b",' % short_code.encode())


@lru_cache(maxsize=1024)
def _last_fields(status: int, order: int) -> bytes:
    return b',"status":"active","expires_at":null,"redirect_status":%d,"order":%d%b' % (status, order, _ENDINGS[True])
