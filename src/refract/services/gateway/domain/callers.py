"""Who calls, as far as header fields tell: a token, an API key, or a browser's session and the site that uses it."""

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar
from urllib.parse import urlsplit

import can_ada
from msgspec import Struct

from refract.kernel.errors import Kind, RefractError, Unauthenticated
from refract.services.gateway.api import SESSION_COOKIE

Header = tuple[bytes, bytes]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing, and so it does not matter which site a browser sends them from."""

KEY_BEGINNING = b"refract_"
"""How every API key begins, and nothing else that comes as one or as a token."""

_BEARER = b"Bearer "
_SESSION = SESSION_COOKIE.encode()
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
PROOFS = frozenset({b"authorization", b"cookie", b"x-api-key"})
"""The fields in which somebody may show who calls."""

_NOTABLE = _FRAMING | PROOFS | {b"host", b"origin", b"x-forwarded-host", b"x-forwarded-proto"}
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_PORTS = {"http": b":80", "https": b":443"}


class CrossOrigin(RefractError):
    """A browser was sent here by another site, with the session that it has with us."""

    kind: ClassVar[Kind] = Kind.FORBIDDEN
    message = "cross-origin request refused"


class SessionOver(Unauthenticated):
    """A session cookie that is good for nothing any more: the browser may as well forget it."""


class Caller(Struct, frozen=True, gc=False):
    """Whom we know. `key_id` is that of the API key it came with, if it did, and `sms_user_id` the one for whom it
    sends messages; `token` is what services get in the place of a session or a key."""

    user_id: str = ""
    email: str = ""
    key_id: str = ""
    token: str = ""
    sms_user_id: str = ""


NOBODY = Caller()


class Offer(Struct, frozen=True, gc=False):
    """A token or a key as it was sent; an empty one is none of ours, such as another scheme's, or one of several."""

    token: str
    is_session: bool = False
    is_key: bool = False


class Asked(Struct, gc=False):
    """What the header fields of a request say that matters here. A field may have come more than once."""

    fields: dict[bytes, list[bytes]]
    scheme: str
    host: bytes
    """Scheme and host as the client sees them."""

    @classmethod
    def of(cls, headers: Iterable[Header], scheme: str) -> "Asked":
        """Read the fields of a request that came to us by this scheme."""
        fields: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            if name in _NOTABLE:
                fields.setdefault(name, []).append(value)
        return cls(fields, scheme, fields.get(b"host", _NONE)[0])

    @property
    def says_how_it_came(self) -> bool:
        """Whether there is anything that only a proxy could know."""
        return b"x-forwarded-proto" in self.fields or b"x-forwarded-host" in self.fields

    @property
    def has_body(self) -> bool:
        """Whether a body is announced, which may be a long time in coming."""
        return not _FRAMING.isdisjoint(self.fields)

    def offer(self) -> Offer | None:
        """What Authorization or X-API-Key holds, or else the token of the session; None where there is nothing."""
        authorization = self.fields.get(b"authorization")
        if b"x-api-key" in self.fields and (keys := self._keys()):
            # Whoever shows two different proofs has to say which one is meant.
            alone = len(keys) == 1 and all(sent == _BEARER + keys[0] for sent in authorization or ())
            return Offer(keys[0].decode("latin-1") if alone else "", is_key=True)
        if authorization is not None:
            only = authorization[0] if len(authorization) == 1 else b""
            token = only[len(_BEARER) :] if only.startswith(_BEARER) else b""
            return Offer(token.decode("latin-1"), is_key=token.startswith(KEY_BEGINNING))
        sessions = [token for cookie in self.fields.get(b"cookie", ()) for token in _sessions(cookie) if token]
        if not sessions:
            return None
        # Another site under our domain can add a cookie of the same name, and none says where it is from.
        return Offer(sessions[0].decode("latin-1") if len(sessions) == 1 else "", is_session=True)

    def _keys(self) -> list[bytes]:
        """The keys that came in a field of their own, each once. What begins in another way is not for us."""
        return [key for key in dict.fromkeys(self.fields[b"x-api-key"]) if key.startswith(KEY_BEGINNING)]

    def believe(self) -> None:
        """Take scheme and host from what a proxy says that we trust: it knows how the client came.

        Of several words the last is that of the proxy at the other end; one that cannot be right is no word.
        """
        scheme = _last(self.fields.get(b"x-forwarded-proto", _NONE)).lower().decode("latin-1")
        if scheme in _PORTS:
            self.scheme = scheme
        host = _last(self.fields.get(b"x-forwarded-host", _NONE))
        if _HOST.fullmatch(host):
            self.host = host


class Origins:
    """The sites that are ours: the one that the client sees, and that of BASE_URL."""

    def __init__(self, base_url: str = "") -> None:
        parts = urlsplit(base_url)
        host = parts.netloc
        if not host.isascii():
            # As browsers map it. Python's codec would take `faß` for `fass`, and believe the pages of somebody else.
            host = can_ada.parse(f"{parts.scheme}://{host}").host
        self._public = _origin(parts.scheme, host.encode("ascii"))

    def sent_by_us(self, asked: Asked) -> bool:
        """Whether a page of ours has sent the request, by the word of the browser."""
        said = asked.fields.get(b"origin", _NONE)
        origin = said[0].lower()
        return len(said) == 1 and origin != b"" and origin in {_origin(asked.scheme, asked.host), self._public}


def without_session(cookie: bytes) -> bytes:
    """A Cookie field without our session, which is for the gateway alone."""
    if _SESSION not in cookie:
        return cookie
    parts = (part.strip() for part in cookie.split(b";"))
    return b"; ".join(part for part in parts if part.partition(b"=")[0].strip() != _SESSION)


_NONE: Sequence[bytes] = (b"",)


def _sessions(cookie: bytes) -> list[bytes]:
    if _SESSION not in cookie:
        return []
    pairs = (part.partition(b"=") for part in cookie.split(b";"))
    return [value.strip() for name, _, value in pairs if name.strip() == _SESSION]


def _origin(scheme: str, host: bytes) -> bytes:
    """As a browser writes it: in small letters, and the port only where it is not the scheme's own."""
    return b"%b://%b" % (scheme.encode(), host.lower().removesuffix(_PORTS.get(scheme, b""))) if host else b""


def _last(values: Sequence[bytes]) -> bytes:
    return values[-1].rpartition(b",")[2].strip()
