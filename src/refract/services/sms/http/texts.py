"""The plain texts that document 003 answers with, in place of the JSON of every other service."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse

from refract.kernel.errors import BodyTooLarge, Invalid, Kind, Limited, RefractError, Unavailable
from refract.runtime.web import DISCONNECTED, STATUSES
from refract.services.sms.domain.sends import DatabaseAway

log = logging.getLogger(__name__)

SENT = "Message Sent Successfully"
INVALID = "Missing/Invalid Arguments"
INTERNAL = "Internal Server Error"

_NO_HEADERS: Mapping[str, str] = {}


class PlainText(ASGIResponse):
    """An answer that is ready to leave: a refusal is not to cost more than it saves."""

    __slots__ = ("_fields", "_status", "_text")

    def __init__(self, text: str, status: int = 200, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        # Without the framework's own, which takes as long as all else that a refusal takes.
        self._text = text.encode()
        self._status = status
        self._fields = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(self._text)),
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  # the form of ASGI
        """Leave."""
        await send({"type": "http.response.start", "status": self._status, "headers": self._fields})
        await send({"type": "http.response.body", "body": self._text})


def plain_error(request: Request[Any, Any, Any], error: Exception) -> PlainText:
    """Any error as document 003 answers it."""
    return PlainText(*_described(request, error))


def render_text(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    """The same for what a framework has raised."""
    body, status, headers = _described(request, error)
    return Response(body, status_code=status, headers=dict(headers), media_type=MediaType.TEXT)


def _described(request: Request[Any, Any, Any], error: Exception) -> tuple[str, int, Mapping[str, str]]:
    if isinstance(error, Limited):
        return error.message, STATUSES[error.kind], {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if _is_invalid(error):
        return INVALID, STATUSES[Kind.INVALID], _NO_HEADERS
    if isinstance(error, Unavailable):
        return DatabaseAway.message, STATUSES[Kind.UNAVAILABLE], _NO_HEADERS
    if isinstance(error, RefractError) and error.kind is not Kind.INTERNAL:
        return error.message, STATUSES[error.kind], _NO_HEADERS
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.scope["path"]})
    return INTERNAL, STATUSES[Kind.INTERNAL], _NO_HEADERS


def _is_invalid(error: Exception) -> bool:
    if isinstance(error, HTTPException):
        return error.status_code < 500 or error.detail == DISCONNECTED  # then nobody reads it
    return isinstance(error, Invalid | BodyTooLarge)
