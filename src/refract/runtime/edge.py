"""The outermost layer of an application: correlation, client address, one log line and one measurement a request."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from refract.runtime.client_address import ClientAddresses
from refract.runtime.correlation import accept_correlation_id, correlated
from refract.runtime.exchange import ended_with, error_body
from refract.runtime.metrics import Metrics
from refract.runtime.request_log import EVERY_LINE, RequestLog, is_in, json_handler
from refract.runtime.telemetry import serving

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

_JSON = (b"content-type", b"application/json")
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_OURS = frozenset({b"x-correlation-id", _NO_SNIFFING[0]})
_FOR_NO_CACHE = (b"cache-control", b"no-store")
_HEALTH = "/health"
_PLAIN = re.compile(r"[A-Z]{1,10} [A-Za-z0-9._~!$&'()*+,;=:@/%-]*\Z")
"""A method and a path in which JSON has nothing to escape."""


class Edge:
    """Answers /health by itself and leaves the rest to the application.

    Handlers find `client_address` and `correlation_id` in the state of the scope.
    """

    def __init__(
        self,
        app: Application,
        service: str,
        *,
        metrics: Metrics | None = None,
        addresses: ClientAddresses | None = None,
        answers_callers: bool = True,
        samples: Mapping[str, float] = EVERY_LINE,
    ) -> None:
        """What is answered to somebody with a token is for no cache, unless the application says otherwise.

        `answers_callers` is for those who answer themselves: who only passes on what others say adds nothing to it.
        """
        self._app = app
        self._service = service
        self._metrics = metrics
        self._addresses = addresses or ClientAddresses()
        self._answers_callers = answers_callers
        self._samples = samples
        self._lines = RequestLog(service)
        self._health = b'{"status":"ok","service":"%s"}' % service.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        begun = time.monotonic()
        status = 0
        # Routing changes the path in the scope.
        method, path = scope["method"], scope["path"]
        correlation_id, is_personal = self._introduce(scope)

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = ended_with(scope) or message["status"]
                kept = [field for field in message.get("headers", ()) if field[0] not in _OURS]
                if is_personal and not any(field[0] == _FOR_NO_CACHE[0] for field in kept):
                    kept.append(_FOR_NO_CACHE)
                message["headers"] = [*kept, (b"x-correlation-id", correlation_id.encode()), _NO_SNIFFING]
            await send(message)

        with correlated(correlation_id), serving(self._service):
            try:
                if path == _HEALTH:
                    scope["path_template"] = path
                    await answer(send_marked, 200, self._health)
                else:
                    await self._app(scope, receive, send_marked)
            except Exception:
                if status:
                    raise  # half an answer has left: only the server can still do something, which is to cut it
                log.exception("request failed", extra={"method": method, "path": path})
                await answer(send_marked, 500, error_body("internal server error"))
            finally:
                # An application that ends without an answer leaves it to the server, which sends a 500.
                status = status or ended_with(scope) or 500
                route = scope.get("path_template") or "unmatched"
                if self._metrics is not None:
                    self._metrics.request(self._service, method, route, status, time.monotonic() - begun)
                if is_in(self._samples.get(route, 1.0)):
                    self._note(method, path, status, begun, correlation_id)

    def _introduce(self, scope: Scope) -> tuple[str, bool]:
        """Find out who asks and under which id, and leave both where handlers look for them.

        Tells the id, and whether the answer is to somebody with a token, as keys and sessions are behind the gateway.
        """
        offered: str | None = None
        is_personal = False
        forwarded_for: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"x-correlation-id" and offered is None:
                offered = value.decode("latin-1")
            elif name == b"x-forwarded-for":
                forwarded_for.append(value)
            elif name == b"authorization":
                is_personal = self._answers_callers and scope["path"] != _HEALTH
        correlation_id = accept_correlation_id(offered)
        client = scope.get("client")
        state = scope.setdefault("state", {})
        state["correlation_id"] = correlation_id
        state["client_address"] = self._addresses.find(client[0], forwarded_for) if client else ""
        return correlation_id, is_personal

    def _note(self, method: str, path: str, status: int, begun: float, correlation_id: str) -> None:
        """Log a request: with others, where the line can be written as it stands, which takes a tenth of the time."""
        if not log.isEnabledFor(logging.INFO):
            return
        if json_handler() is not None and _PLAIN.match(f"{method} {path}"):
            self._lines.completed(method.encode(), path.encode(), status, begun, correlation_id.encode())
            return
        milliseconds = round((time.monotonic() - begun) * 1000)
        fields = {"method": method, "path": path, "status": status, "duration_ms": milliseconds}
        log.info("request completed", extra=fields)


async def answer(send: Send, status: int, body: bytes, content_type: bytes = _JSON[1]) -> None:
    """Send a whole answer."""
    headers = [(_JSON[0], content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
