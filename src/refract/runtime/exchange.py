"""One request and its answer through the ASGI application."""

import logging
from collections.abc import Iterable

import msgspec
from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from refract.kernel.errors import BodyTooLarge

log = logging.getLogger(__name__)


def error_body(message: str) -> bytes:
    """The body of every error (decision 21)."""
    return msgspec.json.encode({"error": message})


class Exchange(RequestResponseCycle):
    """Uvicorn's cycle, with a bound on the body and errors in JSON."""

    body_refused = False
    lingers = False
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

    def abandon(self) -> None:
        """The client has gone, or has waited too long: what the application still sends goes nowhere."""
        self.disconnected = True
        self.message_event.set()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Run the application and make sure that an answer leaves, whatever it does."""
        try:
            await app(self.scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                log.error("the application ended without a whole answer")
                await self._fail(500, "internal server error")
        except BodyTooLarge as error:
            await self._fail(413, error.message)
        except Exception:
            log.exception("the application failed")
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
        elif self.lingers and not message.get("more_body", False):
            self.keep_alive = True  # the connection closes itself, once the client could read the answer
        await super().send(message)

    async def receive(self) -> ASGIReceiveEvent:
        """The next part of the body, unless there is too much of it."""
        if not self.body_refused:
            event = await super().receive()
        if self.body_refused:
            raise BodyTooLarge
        return event

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
