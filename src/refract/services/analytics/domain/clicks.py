"""A click with everything that analytics knows of it, every word of it fit for a database."""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

TEXT_LENGTH = 200
LONG_TEXT_LENGTH = 2_048
"""How much is kept of a word; and of a referer and a user agent, which are kept as they came."""

VISITOR_LENGTH = 32
FUTURE_SKEW = timedelta(minutes=1)

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
"""Where watermarks begin, and the time of computers: whoever names an earlier one has a clock that is not set."""


class Click(Struct, frozen=True, gc=False):
    """A click, enriched. What is not known is "", or None for a coordinate, and NULL in the database.

    No container in it, so that the garbage collector need not look at clicks by the thousand.
    """

    event_id: str
    short_code: str
    user_id: str
    user_email: str
    occurred_at: datetime
    """In UTC, not before 1970, and at most a minute ahead of when the click was read."""
    visitor: bytes
    """Who it was, as far as anybody may know: the bytes of the salted hash."""
    ip_anonymized: str = ""
    user_agent: str = ""
    referer: str = ""
    """The page it came from, in full, where the browser says."""
    referrer: str = ""
    """The host of that page."""
    country: str = ""
    """An ISO 3166 code of two letters."""
    region: str = ""
    city: str = ""
    latitude: float | None = None
    longitude: float | None = None
    browser: str = ""
    os: str = ""
    device: str = "desktop"
    """`desktop`, `mobile`, `tablet` or `bot`; `desktop` where nothing is known of it."""
    bot: bool = False
    language: str = ""
    utm_source: str = ""
    utm_medium: str = ""
    utm_campaign: str = ""
    utm_term: str = ""
    utm_content: str = ""
    correlation_id: str = ""


def bounded(text: str, longest: int = TEXT_LENGTH) -> str:
    """A text that any database takes: not too long, without NUL, and without the halves of a character."""
    if len(text) > longest:
        text = text[:longest]
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def visitor_of(ip_hash: str) -> bytes:
    """The bytes of a hash: of its hexadecimal digits, or of its letters where it is written otherwise."""
    try:
        digest = bytes.fromhex(ip_hash)
    except ValueError:
        digest = ip_hash.encode(errors="replace")
    return digest[:VISITOR_LENGTH]


def counted_at(occurred_at: datetime, now: datetime) -> tuple[datetime, bool]:
    """When a click counts, in UTC, and whether its own time was too far ahead to be true: then it counts now."""
    if occurred_at - now > FUTURE_SKEW:
        return now, True
    if occurred_at <= EARLIEST:  # and so within what every zone and every database can tell
        return EARLIEST, False
    return occurred_at.astimezone(UTC), False
