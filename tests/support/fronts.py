"""Gateways before services that a test makes up, reached in both ways: in the process, and over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import msgspec
import pytest

from refract.kernel.clock import Clock, SystemClock
from refract.runtime.client_address import Network
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.runtime.server import HttpServer, ServerLimits
from refract.runtime.tokens import Role, TokenSigner, TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import TARGETS
from refract.services.gateway.ports import Services
from refract.services.gateway.service import build_gateway
from tests.support.http import Answer, running

SECRET = "the secret that signs the tokens of gateways under test"
UNAVAILABLE = (503, {"error": "service unavailable"})
"""What `said` makes of the answer where nobody can be asked."""


def tokens(clock: Clock | None = None) -> TokenVerifier:
    """What a gateway under test believes."""
    return TokenVerifier([SECRET], clock or SystemClock())


def signed(
    user_id: str = "u-1",
    email: str = "u@example.com",
    *,
    role: Role = "user",
    generation: int = 0,
    clock: Clock | None = None,
) -> str:
    """A token that it believes."""
    return TokenSigner(SECRET, clock or SystemClock()).sign(user_id, email, role=role, generation=generation).token


def authorization(token: str = "") -> str:
    """The header field of a caller: somebody's, or that of a given token."""
    return f"Authorization: Bearer {token or signed()}"


class Front(Protocol):
    """Puts the gateway before an application that plays every service, and gives the gateway's port."""

    def __call__(
        self, service: Application, *, limits: ServerLimits = ..., trusted: Sequence[Network] = ..., **options: Any
    ) -> Awaitable[int]: ...


ROOMY = ServerLimits(body=64 * 1024 * 1024, receive=60, send=60)
"""Bodies of any size, and the time that a busy machine needs for them."""


def url_of(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def serve_gateway(
    services: Services,
    stack: AsyncExitStack,
    limits: ServerLimits = ROOMY,
    trusted: Sequence[Network] = (),
    *,
    fast: bool = True,
    **options: Any,
) -> int:
    """The gateway on a port of its own; `options` are those of `build_gateway`, but `limits` are called `counted`."""
    options.setdefault("tokens", tokens())
    gateway = build_gateway(services, trusted_proxies=trusted, limits=options.pop("counted", None), **options)
    stack.push_async_callback(gateway.stop)
    fast_path = gateway.fast_path if fast else None
    return (await stack.enter_async_context(running(gateway.application, limits=limits, fast_path=fast_path))).port


def front_of(way: str, stack: AsyncExitStack) -> Front:
    """Opens gateways that reach their services in one way or the other."""

    async def open_front(
        service: Application, *, limits: ServerLimits = ROOMY, trusted: Sequence[Network] = (), **options: Any
    ) -> int:
        if way == "in_process":
            in_process = InProcess(dict.fromkeys(TARGETS, service))
            return await serve_gateway(in_process, stack, limits, trusted, **options)
        upstream = await stack.enter_async_context(running(service, limits=ROOMY))
        proxy = Proxy(dict.fromkeys(TARGETS, url_of(upstream)))
        return await serve_gateway(proxy, stack, limits, trusted, **options)

    return open_front


@pytest.fixture(params=["in_process", "proxy"])
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """The gateway in both of its forms."""
    async with AsyncExitStack() as stack:
        yield front_of(request.param, stack)


@pytest.fixture
async def in_process() -> AsyncIterator[Front]:
    """The gateway in one of its forms, for what is decided before a service is reached, in many cases."""
    async with AsyncExitStack() as stack:
        yield front_of("in_process", stack)


@pytest.fixture
async def proxied() -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """The gateway as a proxy before a URL."""
    async with AsyncExitStack() as stack:

        async def open_front(url: str, answer_timeout: float = 30.0) -> int:
            proxy = Proxy({"links": url}, connect_timeout=10.0, answer_timeout=answer_timeout)
            return await serve_gateway(proxy, stack)

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


class Service:
    """Answers everything, and notes what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope["path"])
        await send_answer(send, 200, b"{}")


def said(answer: Answer) -> tuple[int, Any]:
    """Status and body of an answer."""
    return answer.status, answer.json
