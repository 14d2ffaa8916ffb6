"""A breaker that opened: who may try the target again, whose word counts, and who is told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from refract.kernel.errors import RefractError
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.runtime.metrics import Metrics
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import Match, resolve
from refract.services.gateway.domain.breaker import BreakerPolicy, State
from refract.services.gateway.http.guarding import Breakers, Guard
from tests.support.breakers import Upstream, World, answering, silent, streaming, well, world_with_breakers
from tests.support.clocks import ManualClock
from tests.support.fronts import authorization, front_of, read_body, send_answer
from tests.support.http import Client, fetch, head
from tests.support.waiting import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The door, with as much patience as a busy machine needs: here every target answers, or is left by its client."""
    async with world_with_breakers(answer_timeout=30.0) as opened:
        yield opened


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
    gate = asyncio.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await well(scope, receive, send)

    await world.half_open()
    world.upstream.behave = held
    async with await Client.connect(world.port) as client:
        await client.send(head("GET", "/r/abc"))
        await eventually(lambda: world.upstream.asked == 6)
        world.upstream.behave = well
        world.clock.advance(29.9)
        assert await world.ask() == 503
        world.clock.advance(0.1)
        assert await world.ask() == 200
        assert world.is_in(State.CLOSED)
        gate.set()
        assert (await client.answer()).status == 200
    assert world.results() == {"failure": 5, "success": 1, "late": 1}


Withheld = tuple[World, Client]


@pytest.fixture(params=["in_process", "proxy"])
async def withheld(request: pytest.FixtureRequest) -> AsyncIterator[Withheld]:
    """A half-open breaker, and a client that has said half of what it wants the target to do."""
    upstream, clock, metrics = Upstream(), ManualClock(), Metrics()
    async with AsyncExitStack() as stack:
        breakers = Breakers(("links",), clock, metrics)
        port = await front_of(request.param, stack)(upstream, breakers=breakers)
        world = World(port, upstream, breakers, clock, metrics)
        await world.half_open()
        client = await stack.enter_async_context(await Client.connect(port))
        await client.send(head("POST", "/api/shorten", authorization(), "Content-Length: 6") + b"abc")
        await eventually(lambda: upstream.asked == 6)
        yield world, client


async def test_a_probe_that_withholds_its_body_keeps_nobody_out(withheld: Withheld) -> None:
    world, client = withheld
    assert await world.ask() == 200
    assert world.is_in(State.CLOSED)
    await client.send(b"def")
    assert (await client.answer()).status == 200
    assert world.results() == {"failure": 5, "success": 2}


async def test_a_probe_that_ends_its_body_before_anybody_else_comes_is_the_probe(withheld: Withheld) -> None:
    world, client = withheld
    gate, whole = asyncio.Event(), asyncio.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        whole.set()
        await gate.wait()
        await send_answer(send, 200, b"")

    client.close()  # begun before the service was slow: another one, then
    await eventually(lambda: world.count("results_total", result="undecided") == 1)
    world.upstream.behave = held
    async with await Client.connect(world.port) as probe:
        await probe.send(head("POST", "/api/shorten", authorization(), "Content-Length: 6") + b"abc")
        await eventually(lambda: world.upstream.asked == 7)
        await probe.send(b"def")
        await whole.wait()
        assert await world.ask() == 503
        gate.set()
        assert (await probe.answer()).status == 200
    assert world.is_in(State.CLOSED)


async def test_a_body_that_ends_while_another_is_the_probe_goes_no_further(withheld: Withheld) -> None:
    world, client = withheld
    gate = asyncio.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await well(scope, receive, send)

    world.upstream.behave = held
    probe = asyncio.create_task(world.ask())
    await eventually(lambda: world.upstream.asked == 7)
    await client.send(b"def")
    refused = await client.answer()
    assert (refused.status, refused.json) == (503, {"error": "service unavailable"})
    assert world.is_in(State.HALF_OPEN)
    gate.set()
    assert await probe == 200
    assert world.is_in(State.CLOSED)
    assert world.results() == {"failure": 5, "success": 1, "undecided": 1}


async def test_a_service_that_passes_our_refusal_on_has_not_failed() -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await read_body(receive)
        except RefractError:
            await send_answer(send, 503, b"{}")
        else:
            await gate.wait()
            await send_answer(send, 200, b"{}")

    begun, gate = asyncio.Event(), asyncio.Event()
    breakers = Breakers(("links",), ManualClock(), policy=BreakerPolicy(failures=1))
    async with AsyncExitStack() as stack:
        port = await front_of("in_process", stack)(service, breakers=breakers, capacity=1)
        client = await stack.enter_async_context(await Client.connect(port))
        await client.send(head("POST", "/api/shorten", authorization(), "Content-Length: 6") + b"abc")
        await begun.wait()
        begun.clear()
        held = asyncio.create_task(fetch(port, "/r/abc"))
        await begun.wait()
        await client.send(b"def")
        assert (await client.answer()).status == 503
        gate.set()
        assert (await held).status == 200
    circuit = breakers.of("links")
    assert circuit is not None
    assert circuit.state is State.CLOSED


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


async def test_every_change_is_a_log_line_and_a_metric(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract.gateway.breaker")

    def said() -> list[tuple[str, str, str]]:
        ours = [line for line in caplog.records if line.name == "refract.gateway.breaker"]
        caplog.clear()
        return [(line.levelname, line.getMessage(), vars(line)["target"]) for line in ours]

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
