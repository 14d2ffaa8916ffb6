"""A door with breakers before a target that behaves as a test wants."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from refract.kernel.errors import RefractError
from refract.runtime.edge import Application, Receive, Scope, Send, answer
from refract.runtime.exchange import error_body
from refract.runtime.metrics import Metrics
from refract.runtime.web import STATUSES
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import Match, resolve
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.http.guarding import Breakers, Guard
from tests.support.clocks import ManualClock
from tests.support.fronts import read_body, send_answer, url_of
from tests.support.http import fetch, running


class Upstream:
    """Plays a target: behaves as it is told, and counts the requests that reach it."""

    def __init__(self) -> None:
        self.asked = 0
        self.behave: Application = well

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.behave(scope, receive, send)


async def well(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the request and answers it."""
    await read_body(receive)
    await send_answer(send, 200, b"ok")


def answering(status: int) -> Application:
    async def behave(scope: Scope, receive: Receive, send: Send) -> None:
        await send_answer(send, status, b"{}")

    return behave


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Waits until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def breaking_off(scope: Scope, receive: Receive, send: Send) -> None:
    """Begins a good answer, and dies."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise RuntimeError("the service dies")


async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
    """An event stream, which lasts until the client has gone."""
    await read_body(receive)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await receive()


class World:
    """A door with breakers before one target, which is every service of the table at once."""

    def __init__(self, port: int, upstream: Upstream, breakers: Breakers, clock: ManualClock, metrics: Metrics) -> None:
        self.port = port
        self.upstream = upstream
        self.breakers = breakers
        self.clock = clock
        self.metrics = metrics

    def is_in(self, state: State, target: str = "links") -> bool:
        circuit = self.breakers.of(target)
        assert circuit is not None
        return circuit.state is state

    async def ask(self, path: str = "/r/abc", method: str = "GET") -> int:
        return (await fetch(self.port, path, method=method)).status

    async def open(self) -> None:
        behave, self.upstream.behave = self.upstream.behave, answering(500)
        assert [await self.ask() for _ in range(5)] == [500] * 5
        assert self.is_in(State.OPEN)
        self.upstream.behave = behave

    async def half_open(self) -> None:
        await self.open()
        self.clock.advance(30)

    def count(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(f"gateway_breaker_{name}", {"target": "links", **labels})
        assert value is not None
        return value

    def results(self) -> dict[str, float]:
        return {
            result: number
            for result in ("success", "failure", "undecided", "late")
            if (number := self.count("results_total", result=result))
        }


def door(guard: Guard) -> Application:
    """As much of the gateway as a breaker needs."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found = resolve(scope["method"], scope["path"])
        assert isinstance(found, Match)
        headers = [(name, value) for name, value in scope["headers"] if name not in {b"host", b"transfer-encoding"}]
        inner = {**scope, "raw_path": found.path.encode(), "headers": headers}
        try:
            await guard.forward(found.route, inner, receive, send)
        except RefractError as error:
            await answer(send, STATUSES[error.kind], error_body(error.message))

    return application


@asynccontextmanager
async def world_with_breakers(*, answer_timeout: float = 30.0) -> AsyncIterator[World]:
    """The door. Little patience is for targets that say nothing: one that answers may be late on a busy machine."""
    upstream, clock, metrics = Upstream(), ManualClock(), Metrics()
    targets = ("links", "analytics", "identity")
    breakers = Breakers(targets, clock, metrics)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(upstream))
        proxy = Proxy(dict.fromkeys(targets, url_of(server)), connect_timeout=10.0, answer_timeout=answer_timeout)
        stack.push_async_callback(proxy.close)
        port = (await stack.enter_async_context(running(door(Guard(proxy, breakers))))).port
        yield World(port, upstream, breakers, clock, metrics)
