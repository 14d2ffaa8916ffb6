"""Which headers may pass the door: what only we may say is dropped in any spelling, and hops keep their own."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar, Literal

from refract.kernel.errors import Invalid, Kind, RefractError
from refract.services.gateway.domain.callers import KEY_BEGINNING, NOBODY, Caller, without_session

Header = tuple[bytes, bytes]


class UnknownUpstream(RefractError):
    """The table names a service that this process was not told how to reach."""

    kind: ClassVar[Kind] = Kind.UPSTREAM
    message = "unknown upstream"


class UpstreamFailed(RefractError):
    """The service could not be reached, or gave no answer in time. Nothing of an answer was sent yet."""

    kind: ClassVar[Kind] = Kind.UPSTREAM
    message = "upstream error"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Overstretched(RefractError):
    """We lack what it takes to ask, such as a file descriptor. That says nothing about the service."""

    kind: ClassVar[Kind] = Kind.UNAVAILABLE
    message = "service unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


# `Expect` is between the client and the server it speaks to, which has answered it before a body is read.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_NOT_ANSWERED = _HOP_BY_HOP | {b"date"}
_NEVER_NAMED = frozenset({b"authorization", b"close", b"keep-alive"})
_ONLY_OURS = frozenset(
    {b"forwarded", b"host", b"x-api-key", b"x-click-id", b"x-correlation-id", b"x-real-ip", b"x-sms-user-id"}
)
"""An API key is here because it goes no further: services get its owner's token."""
_ONLY_OURS_PREFIXES = (b"x-forwarded-", b"x-user-")

# Frameworks fold `_`, and some fold more, into `-`: every spelling that could be read as ours counts as ours.
_FOLDED = bytes(
    ord(chr(byte).lower()) if chr(byte).isascii() and chr(byte).isalnum() else ord("-") for byte in range(256)
)


def forwarded_headers(
    sent: Iterable[Header],
    *,
    correlation_id: str,
    client: str,
    scheme: str,
    host: bytes,
    caller: Caller = NOBODY,
    click_id: str = "",
) -> list[Header]:
    """A request's headers as a service gets them: the client's own, and ours in place of any that pretended to be."""
    ids = [(b"x-correlation-id", correlation_id.encode())]
    if click_id:
        ids.append((b"x-click-id", click_id.encode()))
    way = way_fields(client, scheme, host)
    return [*own_fields(sent), *token_fields(caller), *ids, *way, *caller_fields(caller)]


def own_fields(sent: Iterable[Header]) -> list[Header]:
    """What a client sent of its own and may pass."""
    headers: list[Header] = []
    named: set[bytes] = set()
    for field in sent:
        match _fate(field[0]):
            case "passes":
                headers.append(field)
            case "authorization":
                if KEY_BEGINNING not in field[1]:
                    headers.append(field)
            case "cookie":
                if cookie := without_session(field[1]):
                    headers.append((field[0], cookie))
            case "connection":
                named |= _named_in(field[1])
    if named:
        headers = [field for field in headers if field[0].translate(_FOLDED) not in named]
    return headers


def token_fields(caller: Caller) -> list[Header]:
    """The token of somebody who came with a session or a key, which services know as a bearer token."""
    return [(b"authorization", b"Bearer " + caller.token.encode())] if caller.token else []


def way_fields(client: str, scheme: str, host: bytes) -> list[Header]:
    """How a request came to us."""
    fields = (
        (b"x-forwarded-for", client.encode()),
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-host", host),
    )
    return [field for field in fields if field[1]]


def caller_fields(caller: Caller) -> list[Header]:
    """Whom we let in."""
    fields = (
        (b"x-user-id", _said(caller.user_id)),
        (b"x-user-email", _said(caller.email)),
        (b"x-sms-user-id", caller.sms_user_id.encode()),
    )
    return [field for field in fields if field[1]]


def lines_of(fields: Sequence[Header]) -> bytes:
    """Fields as they are sent. Whatever a value holds, it is one line: a second one would be a header, or a request, of
    the client's choice. Raises Invalid."""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields) or b"\0" in lines:
        raise Invalid("malformed request")
    return lines


def answered_headers(received: Iterable[Header]) -> list[Header]:
    """An answer's headers without those that were for our connection to the service only.

    Our own server dates every answer: the service's date would stand beside it.
    """
    kept = list(received)
    dropped = _NOT_ANSWERED.union(
        *(_named_in(value) for name, value in kept if name.translate(_FOLDED) == b"connection")
    )
    return [(name.lower(), value) for name, value in kept if name.translate(_FOLDED) not in dropped]


def _named_in(connection: bytes) -> set[bytes]:
    """The fields that go no further. The caller's token is not among them: who was let in by it is known by it."""
    return {token.strip().translate(_FOLDED) for token in connection.split(b",")} - _NEVER_NAMED


@lru_cache(maxsize=1024)
def _fate(name: bytes) -> Literal["passes", "authorization", "cookie", "connection", "dropped"]:
    """What becomes of a client's field, whatever its value is."""
    folded = name.translate(_FOLDED)
    if folded == b"connection":
        return "connection"
    if folded == b"cookie":
        return "cookie"
    if folded == b"authorization":
        return "authorization"
    is_ours = folded in _HOP_BY_HOP or folded in _ONLY_OURS or folded.startswith(_ONLY_OURS_PREFIXES)
    return "dropped" if is_ours else "passes"


def _said(text: str) -> bytes:
    """A text of a token as a field's value; what cannot stand in one is left out."""
    return text.encode() if text.isprintable() else b""
