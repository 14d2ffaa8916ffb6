"""Answers in bytes, as our server writes what the application sends: for those that leave from the parser."""

import re
from collections.abc import Iterable
from functools import lru_cache

from refract.runtime.exchange import can_be_written
from refract.runtime.heads import STATUS_LINES
from refract.services.gateway.domain.headers import Header, answered_headers

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
OURS = frozenset({b"x-correlation-id", NO_SNIFFING[0]})
"""What only we say of an answer."""

_WITHOUT_BODY = frozenset({204, 304})
_HARMLESS = frozenset({b"close", b"keep-alive"})
"""What a service may say of its connection that concerns no other field."""
_UNWRITABLE = re.compile(rb"[\x00-\x08\n-\x1f\x7f]")

_CONNECTION, _DROPPED, _ODD = b"1", b"2", b"3"


def passed_head(status: int, headers: Iterable[Header], *, has_body: bool, more: bytes) -> tuple[bytes, bool] | None:
    """The fields of a service's answer as they are passed on, to the empty line, and whether the body leaves in chunks.

    `more` are those of ours, each with its end. None where the answer cannot be passed on, or needs a closer look.
    """
    if status not in STATUS_LINES:
        return None
    has_body = has_body and status not in _WITHOUT_BODY
    lines: list[bytes] = []
    values: list[bytes] = []
    chunked = has_body
    for name, value in headers:
        beginning = _beginning(name)
        if beginning is _DROPPED or (name == b"content-length" and status in _WITHOUT_BODY):
            continue
        if beginning is _ODD or (beginning is _CONNECTION and value.lower() not in _HARMLESS):
            return None
        if beginning is _CONNECTION:
            continue
        values.append(value)
        if name == b"content-length":
            chunked = False
        if name not in OURS:
            lines += (beginning, value, b"\r\n")
    if _UNWRITABLE.search(b"".join(values)):
        return None
    lines.append(more)
    if chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines), chunked


def chunk(body: bytes) -> bytes:
    """A whole body as the only chunk."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"


@lru_cache(maxsize=1024)
def _beginning(name: bytes) -> bytes:
    """How the line of a field begins, or what else becomes of it."""
    if name == b"connection":
        return _CONNECTION
    if not answered_headers([(name, b"")]):
        return _DROPPED
    return name + b": " if can_be_written(200, [(name, b"")]) else _ODD
