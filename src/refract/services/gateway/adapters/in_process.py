"""Reaches services that live in this process: a request is a call of their application, without a socket."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from refract.runtime.correlation import current_correlation_id
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.services.gateway.domain.headers import UnknownUpstream, UpstreamFailed
from refract.services.gateway.ports import Asker, Errand

PATIENCE = 5.0
"""Seconds that a service has for what we say ourselves: as many as it has to be connected to elsewhere."""


class InProcess:
    """The services of embedded mode, by name."""

    def __init__(self, applications: Mapping[str, Application]) -> None:
        self._applications = applications

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the service's application; it reads the client's body and writes the client's answer itself."""
        application = self._application(target)
        scope["headers"] = [(b"host", target.encode()), *scope["headers"]]
        await application(scope, receive, send)

    def send_out(self, _target: str, _method: bytes, _path: bytes, _lines: bytes, _asker: Asker) -> None:
        """None: who is called is waited for."""

    async def finish(self, errand: Errand, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing is sent out."""
        raise NotImplementedError

    @property
    def places(self) -> Mapping[str, str]:
        """They are here: a name is a place."""
        return {target: target for target in self._applications}

    async def healthy(self, target: str) -> bool:
        """A service in this process is as healthy as the process is."""
        return target in self._applications

    async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
        """Call the service's application with a request of our own."""
        question = _Question()
        scope = _scope("GET", target, path, urlencode(query))
        await self._application(target)(scope, question.receive, question.send)
        status, body = question.answer()
        if status != 200:
            raise UpstreamFailed(f"status {status}")
        return body

    async def post(self, target: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Call the service's application with something that we say."""
        question = _Question(body)
        scope = _scope("POST", target, path)
        scope["headers"] += [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-correlation-id", current_correlation_id().encode()),
        ]
        try:
            async with asyncio.timeout(PATIENCE):
                await self._application(target)(scope, question.receive, question.send)
        except TimeoutError as error:
            raise UpstreamFailed("TimeoutError") from error
        return question.answer()

    async def close(self) -> None:
        """Nothing is held: the applications belong to whoever built them."""

    def _application(self, target: str) -> Application:
        application = self._applications.get(target)
        if application is None:
            raise UnknownUpstream
        return application


class _Question:
    """Both ends of a request that nobody sent over a socket: its body is whole, and its answer is gathered."""

    def __init__(self, body: bytes = b"") -> None:
        self._body = body
        self._asked = False
        self._status = 0
        self._pieces: list[bytes] = []
        self._whole = False

    async def receive(self) -> Any:
        """The body, and then nothing: whoever asks does not go away."""
        if self._asked:
            await asyncio.get_running_loop().create_future()
        self._asked = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        else:
            self._pieces.append(message.get("body", b""))
            self._whole = not message.get("more_body", False)

    def answer(self) -> tuple[int, bytes]:
        """Status and body, if that is all of it."""
        if not self._whole:
            raise UpstreamFailed(f"half an answer, with status {self._status}")
        return self._status, b"".join(self._pieces)


def _scope(method: str, target: str, path: str, query: str = "") -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", target.encode())],
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }
