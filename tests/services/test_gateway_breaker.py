"""What a breaker makes of a target that fails, and of clients that leave, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest

from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.metrics import Metrics
from refract.runtime.server import ServerLimits
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.http.guarding import Breakers, Guard
from tests.support.breakers import Upstream, World, answering, breaking_off, door, silent, world_with_breakers
from tests.support.clocks import ManualClock
from tests.support.fronts import read_body, url_of
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

FAILED = (502, {"error": "upstream error"})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The door, with as much patience as a busy machine needs: here every target answers, or is left by its client."""
    async with world_with_breakers(answer_timeout=30.0) as opened:
        yield opened


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


async def test_a_target_that_hangs_opens_it() -> None:
    async with world_with_breakers(answer_timeout=0.3) as world:
        world.upstream.behave = silent
        answers = await asyncio.gather(*(fetch(world.port, "/r/abc") for _ in range(5)))
        assert [(one.status, one.json) for one in answers] == [FAILED] * 5
        assert world.is_in(State.OPEN)


async def test_a_target_that_refuses_connections_opens_it() -> None:
    breakers = Breakers(["links"], ManualClock())
    proxy = Proxy({"links": "http://127.0.0.1:1"})  # a port that was free a moment ago may be another's by now
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
            await eventually(lambda: world.upstream.asked == 4 + number)  # noqa: B023  # it is over when the round is
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
