"""What a request says about the click it makes, in the words of the event."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache

import msgspec

USER_AGENT_LENGTH = 512
REFERER_LENGTH = 2048
LANGUAGE_LENGTH = 128
QUERY_LENGTH = 1024

REMEMBERED = 8192
LONGEST_REMEMBERED = 2048
"""So many different sets of a client's words are kept encoded, if they are not too long."""

OPENING = b'{"event_type":"url.clicked","short_code":"'
"""The beginning of every click, which the code follows."""

CLICK_ID = b"x-click-id"
"""By which the gateway names the click of a request: asked again, because a process died before it answered, it is the
same click. Whoever is no proxy of ours may not say so."""

_EVENT_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_encode = msgspec.json.Encoder().encode
_PREFETCHES = frozenset({b"purpose", b"sec-purpose", b"x-purpose", b"x-moz"})


def is_prefetch(fields: Mapping[bytes, bytes]) -> bool:
    """Whether a browser only looks ahead: nobody has clicked yet."""
    if _PREFETCHES.isdisjoint(fields):
        return False
    said = b" ".join(fields[name] for name in _PREFETCHES if name in fields).lower()
    return b"prefetch" in said or b"preview" in said or b"prerender" in said


def click_id(fields: Mapping[bytes, bytes]) -> bytes | None:
    """The id that a click has already; None where it is given one here."""
    given = fields.get(CLICK_ID)
    return None if given is None or _EVENT_ID.match(given) is None else given


@lru_cache(maxsize=REMEMBERED)
def owner_part(user_id: str, user_email: str) -> bytes:
    """What every click of a link says behind its code: whose it is (decision 8). The same bytes for all of an owner's
    links, which lie in memory once, and are found in the processor's cache."""
    return b'","user_id":%b,"user_email":%b,' % (_encode(user_id), _encode(user_email))


class ClientWords:
    """The part of a click that the client's own header fields make: encoded once for each set of them."""

    def __init__(self) -> None:
        self._encoded: OrderedDict[tuple[bytes | None, bytes | None, bytes | None], bytes] = OrderedDict()

    def of(self, fields: Mapping[bytes, bytes]) -> bytes:
        """`"user_agent":…` and, where there are any, the referer and the languages."""
        key = fields.get(b"user-agent"), fields.get(b"referer"), fields.get(b"accept-language")
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = _client_part(*key)
            if sum(len(value) for value in key if value is not None) > LONGEST_REMEMBERED:
                return encoded  # as many as are kept, of the longest that may be sent, would fill the memory
            if len(self._encoded) >= REMEMBERED:
                self._encoded.popitem(last=False)
            self._encoded[key] = encoded
        return encoded


def _client_part(agent: bytes | None, referer: bytes | None, language: bytes | None) -> bytes:
    parts = [b'"user_agent":%b' % _text(agent or b"", USER_AGENT_LENGTH)]
    if referer:
        parts.append(b'"referer":%b' % _text(referer, REFERER_LENGTH))
    if language:
        parts.append(b'"accept_language":%b' % _text(language, LANGUAGE_LENGTH))
    return b",".join(parts)


def query_part(query: bytes) -> bytes:
    """The request's own query, or nothing."""
    return b',"query":%b' % _text(query, QUERY_LENGTH) if query else b""


def _text(value: bytes, longest: int) -> bytes:
    """A header's bytes as a JSON text; what is no UTF-8 becomes the sign for that, and what is too long is cut."""
    text = value.decode(errors="replace")[:longest].replace("\0", "\ufffd")
    return _encode(text)


class Moment:
    """The present in the words of a click and of an answer: made once a millisecond, and its date once a second."""

    def __init__(self, milliseconds: Callable[[], int]) -> None:
        self._clock = milliseconds
        self._milliseconds = self._second = -1
        self._begun = b""
        self.part = b""
        """`,"occurred_at":"…Z","event_id":"`, which the id follows."""
        self.date = b""
        """The date field of an answer."""

    def look(self) -> None:
        """Make it the present."""
        milliseconds = self._clock()
        if milliseconds != self._milliseconds:
            self._turn(milliseconds)

    def _turn(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds
        second, rest = divmod(milliseconds, 1000)
        if second != self._second:
            self._second = second
            self._begun = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
            self.date = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        self.part = b',"occurred_at":"%b.%03dZ","event_id":"' % (self._begun, rest)
