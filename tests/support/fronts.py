"""Gateways before services that a test makes up, reached in both ways: in the process, and over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec
import pytest

from refract.runtime.client_address import Network
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.runtime.server import HttpServer, ServerLimits
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.ports import Services
from refract.services.gateway.service import build_gateway
from tests.support.http import running


class Front(Protocol):
    """Puts the gateway before an application that plays the links service, and gives the gateway's port."""

    def __call__(
        self, service: Application, *, limits: ServerLimits = ..., trusted: Sequence[Network] = ...
    ) -> Awaitable[int]: ...


ROOMY = ServerLimits(body=64 * 1024 * 1024)


def url_of(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def serve_gateway(
    services: Services, stack: AsyncExitStack, limits: ServerLimits = ROOMY, trusted: Sequence[Network] = ()
) -> int:
    gateway = build_gateway(services, trusted_proxies=trusted)
    stack.push_async_callback(gateway.stop)
    return (await stack.enter_async_context(running(gateway.application, limits=limits))).port


@pytest.fixture(params=["in_process", "proxy"])
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """The gateway in both of its forms."""
    async with AsyncExitStack() as stack:

        async def open_front(
            service: Application, *, limits: ServerLimits = ROOMY, trusted: Sequence[Network] = ()
        ) -> int:
            if request.param == "in_process":
                return await serve_gateway(InProcess({"links": service}), stack, limits, trusted)
            upstream = await stack.enter_async_context(running(service, limits=ROOMY))
            return await serve_gateway(Proxy({"links": url_of(upstream)}), stack, limits, trusted)

        yield open_front


@pytest.fixture
async def proxied() -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """The gateway as a proxy before a URL, with little patience."""
    async with AsyncExitStack() as stack:

        async def open_front(url: str) -> int:
            return await serve_gateway(Proxy({"links": url}, connect_timeout=2.0, answer_timeout=0.3), stack)

        yield open_front


async def read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request", message
        body, more = body + message["body"], message["more_body"]
    return body


async def send_answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def mirror(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked."""
    assert scope["type"] == "http"
    body = await read_body(receive)
    seen = {
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": scope["raw_path"].decode(),
        "query": scope["query_string"].decode(),
        "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
        "body": body.decode(),
    }
    await send_answer(send, 200, msgspec.json.encode(seen), (b"content-type", b"application/json"))
