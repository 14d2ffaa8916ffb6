"""Which headers may pass the door: what only we may say is dropped in any spelling, and hops keep their own."""

from collections.abc import Iterable
from typing import ClassVar

from refract.kernel.errors import Kind, RefractError

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

_ONLY_OURS = frozenset({b"forwarded", b"host", b"x-correlation-id", b"x-real-ip"})
_ONLY_OURS_PREFIXES = (b"x-forwarded-", b"x-user-")

# Frameworks fold `_`, and some fold more, into `-`: every spelling that could be read as ours counts as ours.
_FOLDED = bytes(
    ord(chr(byte).lower()) if chr(byte).isascii() and chr(byte).isalnum() else ord("-") for byte in range(256)
)


def forwarded_headers(
    sent: Iterable[Header], *, correlation_id: str, client: str, scheme: str, host: bytes
) -> list[Header]:
    """A request's headers as a service gets them: the client's own, and ours in place of any that pretended to be."""
    kept = list(sent)
    dropped = _HOP_BY_HOP | _ONLY_OURS | _named_by_connection(kept)
    headers = [(name, value) for name, value in kept if not _is_dropped(name.translate(_FOLDED), dropped)]
    ours = (
        (b"x-correlation-id", correlation_id.encode()),
        (b"x-forwarded-for", client.encode()),
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-host", host),
    )
    return headers + [(name, value) for name, value in ours if value]


def answered_headers(received: Iterable[Header]) -> list[Header]:
    """An answer's headers without those that were for our connection to the service only.

    Our own server dates every answer: the service's date would stand beside it.
    """
    kept = list(received)
    dropped = _HOP_BY_HOP | {b"date"} | _named_by_connection(kept)
    return [(name.lower(), value) for name, value in kept if name.translate(_FOLDED) not in dropped]


def _named_by_connection(headers: Iterable[Header]) -> set[bytes]:
    return {
        token.strip().translate(_FOLDED)
        for name, value in headers
        if name.translate(_FOLDED) == b"connection"
        for token in value.split(b",")
    }


def _is_dropped(folded: bytes, dropped: Iterable[bytes]) -> bool:
    return folded in dropped or folded.startswith(_ONLY_OURS_PREFIXES)
