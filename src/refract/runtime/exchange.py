"""One request and its answer through the ASGI application."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, RequestResponseCycle

from refract.kernel.errors import BodyTooLarge

log = logging.getLogger(__name__)

CLIENT_LEFT = 499
"""No status of HTTP and never sent: what logs and metrics say of a client that left before its answer, as in nginx."""

_ENDED_WITH = "refract.ended_with"


def error_body(message: str) -> bytes:
    """The body of every error (decision 21)."""
    return msgspec.json.encode({"error": message})


def ended_with(scope: Mapping[str, Any]) -> int:
    """The status with which the server ended a request by itself, CLIENT_LEFT, or 0 if the application has the word."""
    status: int = scope.get("extensions", {}).get(_ENDED_WITH, 0)
    return status


def can_be_written(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether this can be the head of an answer: at any other our server raises, when nothing better can be sent."""
    return 200 <= status <= 599 and not any(
        not name or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value) for name, value in headers
    )


class Exchange(RequestResponseCycle):
    """Uvicorn's cycle, with a bound on the body and errors in JSON."""

    body_refused = False
    lingers = False
    in_pieces = False
    """Whether the answer leaves in pieces, as it is made: then it takes as long as the client takes to read it."""
    response_headers: Iterable[tuple[bytes, bytes]] = ()

    @property
    def is_stream(self) -> bool:
        """Whether the answer is an event stream, which has no end by itself."""
        return any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self.response_headers
        )

    def refuse_body(self) -> None:
        """The body is over the limit: whoever reads it gets BodyTooLarge, so that the route can choose the status."""
        self.body_refused = True
        self.body = bytearray()
        self.message_event.set()

    def abandon(self, status: int) -> None:
        """The client has gone, or was given this status instead: what the application still sends goes nowhere."""
        self.disconnected = True
        if not self.response_started:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[_ENDED_WITH] = status
        self.message_event.set()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Run the application and make sure that an answer leaves, whatever it does."""
        place = {"method": self.scope["method"], "path": self.scope["path"]}  # routing changes the path in the scope
        try:
            await app(self.scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                log.error("the application ended without a whole answer", extra=place | self._correlation())
                await self._fail(500, "internal server error")
        except BodyTooLarge as error:
            await self._fail(413, error.message)
        except Exception:
            log.exception("the application failed", extra=place | self._correlation())
            await self._fail(500, "internal server error")
        finally:
            self.on_response = _nothing

    async def send(self, message: ASGISendEvent) -> None:
        """Note on the way what the connection has to know of the answer."""
        if not self.response_started and message["type"] == "http.response.start":
            self.response_headers = message.get("headers", ())
            if self.more_body:
                # An answer before the end of its request: what still comes in can only be thrown away.
                self.lingers, self.keep_alive = True, False
        elif message.get("more_body", False):
            self.in_pieces = True
        elif self.lingers:
            self.keep_alive = True  # the connection closes itself, once the client could read the answer
        await super().send(message)

    async def receive(self) -> ASGIReceiveEvent:
        """The next part of the body, unless there is too much of it."""
        if not self.body_refused:
            event = await super().receive()
        if self.body_refused:
            raise BodyTooLarge
        return event

    def _correlation(self) -> dict[str, str]:
        return {"correlation_id": self.scope.get("state", {}).get("correlation_id", "")}

    async def _fail(self, status: int, message: str) -> None:
        if self.response_started:
            self.transport.abort()
            return
        body = error_body(message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def _nothing() -> None:
    """Stands in for the connection's callback afterwards, so that the two do not keep each other alive."""
