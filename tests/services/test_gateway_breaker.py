"""What a breaker makes of a target that fails, and of clients that leave, over real connections."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress

import pytest

from refract.kernel.errors import RefractError
from refract.runtime.edge import Application, Receive, Scope, Send, answer
from refract.runtime.exchange import error_body
from refract.runtime.metrics import Metrics
from refract.runtime.server import ServerLimits
from refract.runtime.web import STATUSES
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import Match, resolve
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.http.guarding import Breakers, Guard
from tests.support.clocks import ManualClock
from tests.support.fronts import read_body, send_answer, url_of
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

REFUSED = (503, {"error": "service unavailable"})
FAILED = (502, {"error": "upstream error"})


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


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The door, with little patience."""
    upstream, clock, metrics = Upstream(), ManualClock(), Metrics()
    targets = ("links", "analytics", "identity")
    breakers = Breakers(targets, clock, metrics)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(upstream))
        proxy = Proxy(dict.fromkeys(targets, url_of(server)), connect_timeout=2.0, answer_timeout=0.3)
        stack.push_async_callback(proxy.close)
        port = (await stack.enter_async_context(running(door(Guard(proxy, breakers))))).port
        yield World(port, upstream, breakers, clock, metrics)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_five_answers_of_5xx_open_it_and_pass_as_they_are(world: World, status: int) -> None:
    world.upstream.behave = answering(status)
    assert [await world.ask() for _ in range(5)] == [status] * 5
    assert world.is_in(State.OPEN)
    assert world.results() == {"failure": 5}


async def test_an_open_breaker_makes_no_call(world: World) -> None:
    await world.open()
    asked = world.upstream.asked
    refused = await asyncio.gather(*(fetch(world.port, "/r/abc") for _ in range(50)))
    assert {(one.status, one.body) for one in refused} == {(503, b'{"error":"service unavailable"}')}
    assert world.upstream.asked == asked == 5
    assert world.count("refusals_total") == 50


async def test_a_target_that_hangs_opens_it(world: World) -> None:
    world.upstream.behave = silent
    answers = await asyncio.gather(*(fetch(world.port, "/r/abc") for _ in range(5)))
    assert [(one.status, one.json) for one in answers] == [FAILED] * 5
    assert world.is_in(State.OPEN)


async def test_a_target_that_refuses_connections_opens_it(free_port: int) -> None:
    breakers = Breakers(["links"], ManualClock())
    proxy = Proxy({"links": f"http://127.0.0.1:{free_port}"})
    async with running(door(Guard(proxy, breakers))) as server:
        assert [(await fetch(server.port, "/r/abc")).status for _ in range(7)] == [502] * 5 + [503] * 2
    await proxy.close()


@pytest.mark.parametrize("half", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_target_that_hangs_up_before_its_answer_opens_it(half: bytes) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(half)
        writer.close()

    upstream = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    breakers = Breakers(["links"], ManualClock())
    proxy = Proxy({"links": f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"})
    async with upstream, running(door(Guard(proxy, breakers))) as server:
        assert [(await fetch(server.port, "/r/abc")).status for _ in range(7)] == [502] * 5 + [503] * 2
    await proxy.close()


async def test_a_target_that_breaks_off_its_answers_opens_it(world: World) -> None:
    world.upstream.behave = breaking_off
    for _ in range(5):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await world.ask()
    await eventually(lambda: world.is_in(State.OPEN))
    assert world.results() == {"failure": 5}
    assert await world.ask() == 503


async def test_a_4xx_is_a_success_of_the_target(world: World) -> None:
    for status in (400, 401, 403, 404, 410, 422, 429, 499):
        world.upstream.behave = answering(500)
        for _ in range(4):
            assert await world.ask() == 500
        world.upstream.behave = answering(status)
        assert await world.ask() == status
    assert world.is_in(State.CLOSED)
    assert world.results() == {"failure": 32, "success": 8}


async def test_clients_that_leave_do_not_count(world: World) -> None:
    world.upstream.behave = answering(500)
    for _ in range(4):
        await world.ask()
    world.upstream.behave = silent
    for number in range(1, 11):
        async with await Client.connect(world.port) as client:
            await client.send(head("GET", "/r/abc"))
            await eventually(lambda number=number: world.upstream.asked == 4 + number)  # type: ignore[misc]
    await eventually(lambda: world.results() == {"failure": 4, "undecided": 10})
    assert world.is_in(State.CLOSED)
    world.upstream.behave = answering(500)
    assert await world.ask() == 500
    assert world.is_in(State.OPEN)


async def test_a_client_that_leaves_in_the_middle_of_a_good_answer_had_one(world: World) -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await receive()

    world.upstream.behave = endless
    async with await Client.connect(world.port) as client:
        await client.send(head("GET", "/r/abc"))
        await client.reader.readuntil(b"half")
        assert world.results() == {}
    await eventually(lambda: world.results() == {"success": 1})


async def test_half_an_upload_says_nothing_about_the_target(world: World) -> None:
    async with await Client.connect(world.port) as client:
        await client.send(head("POST", "/api/shorten", "Content-Length: 6") + b"abc")
        await eventually(lambda: world.upstream.asked)
    await eventually(lambda: world.results() == {"undecided": 1})


async def test_a_body_over_the_limit_says_nothing_about_the_target() -> None:
    upstream, metrics = Upstream(), Metrics()
    async with running(upstream) as server, AsyncExitStack() as stack:
        proxy = Proxy({"links": url_of(server)})
        stack.push_async_callback(proxy.close)
        guard = Guard(proxy, Breakers(["links"], ManualClock(), metrics))
        front = await stack.enter_async_context(running(door(guard), limits=ServerLimits(body=1000)))
        async with await Client.connect(front.port) as client:
            await client.send(head("POST", "/api/shorten", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
            await eventually(lambda: upstream.asked)
            await client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert (await client.answer()).status == 413
    labels = {"target": "links", "result": "undecided"}
    assert metrics.registry.get_sample_value("gateway_breaker_results_total", labels) == 1


async def test_our_own_server_that_gives_up_waiting_counts_as_a_failure() -> None:
    upstream, metrics = Upstream(), Metrics()
    upstream.behave = silent
    async with running(upstream) as server, AsyncExitStack() as stack:
        proxy = Proxy({"links": url_of(server)})
        stack.push_async_callback(proxy.close)
        guard = Guard(proxy, Breakers(["links"], ManualClock(), metrics))
        front = await stack.enter_async_context(running(door(guard), limits=ServerLimits(send=0.1)))
        assert (await fetch(front.port, "/r/abc")).status == 503
        labels = {"target": "links", "result": "failure"}
        await eventually(lambda: metrics.registry.get_sample_value("gateway_breaker_results_total", labels) == 1)


async def test_half_open_exactly_one_of_a_hundred_reaches_the_target(world: World) -> None:
    opened, gate = asyncio.Event(), asyncio.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        opened.set()
        await gate.wait()
        await well(scope, receive, send)

    await world.half_open()
    world.upstream.asked, world.upstream.behave = 0, held
    asking = [asyncio.create_task(fetch(world.port, "/r/abc")) for _ in range(100)]
    await opened.wait()
    await eventually(lambda: sum(task.done() for task in asking) == 99)
    assert world.is_in(State.HALF_OPEN)
    gate.set()
    statuses = [one.status for one in await asyncio.gather(*asking)]
    assert sorted(statuses) == [200] + [503] * 99
    assert world.upstream.asked == 1
    assert world.is_in(State.CLOSED)


async def test_a_probe_that_fails_opens_it_again(world: World) -> None:
    await world.half_open()
    world.upstream.behave = answering(503)
    assert await world.ask() == 503
    assert world.is_in(State.OPEN)
    world.upstream.behave = well
    world.clock.advance(29.9)
    assert await world.ask() == 503
    assert world.upstream.asked == 6
    world.clock.advance(0.1)
    assert await world.ask() == 200
    assert world.is_in(State.CLOSED)


async def test_a_probe_whose_client_leaves_gives_its_place_to_the_next(world: World) -> None:
    await world.half_open()
    world.upstream.behave = silent
    async with await Client.connect(world.port) as client:
        await client.send(head("GET", "/r/abc"))
        await eventually(lambda: world.upstream.asked == 6)
        assert await world.ask() == 503
    await eventually(lambda: world.count("results_total", result="undecided") == 1)
    world.upstream.behave = well
    assert await world.ask() == 200
    assert world.is_in(State.CLOSED)


async def test_a_probe_that_hangs_gives_its_place_to_the_next_after_thirty_seconds(world: World) -> None:
    await world.half_open()
    async with await Client.connect(world.port) as client:
        await client.send(head("POST", "/api/shorten", "Content-Length: 6") + b"abc")  # and the rest does not come
        await eventually(lambda: world.upstream.asked == 6)
        assert await world.ask() == 503
        world.clock.advance(30)
        assert await world.ask() == 200
        assert world.is_in(State.CLOSED)
        await client.send(b"def")
        assert (await client.answer()).status == 200
    assert world.results() == {"failure": 5, "success": 1, "late": 1}


async def test_answers_to_what_began_before_it_opened_do_not_count(world: World) -> None:
    gate, waiting = asyncio.Event(), 0

    def held(status: int) -> Application:
        async def behave(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal waiting
            waiting += 1
            await gate.wait()
            await send_answer(send, status, b"")

        return behave

    world.upstream.behave = held(200)
    slow = [asyncio.create_task(world.ask()) for _ in range(3)]
    await eventually(lambda: waiting == 3)
    world.upstream.behave = held(500)
    slow += [asyncio.create_task(world.ask()) for _ in range(6)]
    await eventually(lambda: waiting == 9)
    await world.open()
    gate.set()
    await asyncio.gather(*slow)
    assert world.is_in(State.OPEN)
    assert world.results() == {"failure": 5, "late": 9}
    assert (world.count("opens_total"), world.count("state")) == (1, 1)


async def test_an_event_stream_closes_it_when_it_begins(world: World) -> None:
    await world.half_open()
    world.upstream.behave = streaming
    async with await Client.connect(world.port) as client:
        await client.send(head("GET", "/r/abc"))
        await client.reader.readuntil(b"data: 1\n\n")
        assert world.is_in(State.CLOSED)
    assert world.results() == {"failure": 5, "success": 1}


async def test_each_target_has_its_own(world: World) -> None:
    await world.open()
    assert await world.ask("/api/stats/abc") == 200
    assert world.is_in(State.CLOSED, "analytics")
    assert await world.ask() == 503


async def test_rows_without_a_breaker_go_past_it(world: World) -> None:
    world.upstream.behave = answering(500)
    assert [await world.ask("/api/auth/login", "POST") for _ in range(10)] == [500] * 10
    assert world.is_in(State.CLOSED, "identity")
    assert [await world.ask("/api/me") for _ in range(6)] == [500] * 5 + [503]
    assert await world.ask("/api/auth/login", "POST") == 500


async def test_without_breakers_nothing_is_refused() -> None:
    upstream = Upstream()
    upstream.behave = answering(500)
    async with running(upstream) as server, AsyncExitStack() as stack:
        proxy = Proxy({"links": url_of(server)})
        stack.push_async_callback(proxy.close)
        front = await stack.enter_async_context(running(door(Guard(proxy, None))))
        assert [(await fetch(front.port, "/r/abc")).status for _ in range(10)] == [500] * 10


async def test_every_change_is_a_log_line_and_a_metric(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract.gateway.breaker")

    def said() -> list[tuple[str, str, str]]:
        lines = [(line.levelname, line.getMessage(), vars(line)["target"]) for line in caplog.records]
        caplog.clear()
        return lines

    assert world.count("state") == 0
    await world.half_open()
    assert said() == [("WARNING", "circuit breaker is open", "links")]
    assert (world.count("state"), world.count("opens_total")) == (1, 1)
    world.upstream.behave = answering(500)
    await world.ask()
    assert said() == [
        ("INFO", "circuit breaker is half-open", "links"),
        ("WARNING", "circuit breaker is open", "links"),
    ]
    assert (world.count("state"), world.count("opens_total")) == (1, 2)
    world.clock.advance(30)
    world.upstream.behave = silent
    async with await Client.connect(world.port) as client:
        await client.send(head("GET", "/r/abc"))
        await eventually(lambda: world.count("state") == 2)
    await eventually(lambda: world.count("results_total", result="undecided"))
    world.upstream.behave = well
    await world.ask()
    assert said() == [
        ("INFO", "circuit breaker is half-open", "links"),
        ("INFO", "circuit breaker is closed", "links"),
    ]
    assert (world.count("state"), world.count("opens_total")) == (0, 2)


async def test_the_hot_path_learns_of_a_refusal_and_changes_nothing(
    world: World, route_of: Callable[[str], Match]
) -> None:
    guard = Guard(Proxy({}), world.breakers)
    route = route_of("/r/abc").route
    assert guard.refusal(route) is None
    assert guard.is_closed(route)
    await world.open()
    assert not guard.is_closed(route)
    world.clock.advance(12)
    refusal = guard.refusal(route)
    assert refusal is not None
    assert (refusal.retry_after, world.count("refusals_total")) == (18.0, 1)
    world.clock.advance(18)
    assert guard.refusal(route) is None
    assert world.is_in(State.OPEN)
    assert await world.ask() == 200
    assert guard.is_closed(route)
    assert Guard(Proxy({}), None).refusal(route) is None
    assert Guard(Proxy({}), None).is_closed(route)


@pytest.fixture
def route_of() -> Callable[[str], Match]:
    def find(path: str) -> Match:
        found = resolve("GET", path)
        assert isinstance(found, Match)
        return found

    return find


@pytest.fixture
async def free_port() -> int:
    async with running(well) as server:
        return server.port
