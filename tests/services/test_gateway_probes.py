"""A breaker that opened: who may try the target again, whose word counts, and who is told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from refract.runtime.edge import Application, Receive, Scope, Send
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import Match, resolve
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.http.guarding import Guard
from tests.support.breakers import World, answering, silent, streaming, well, world_with_breakers
from tests.support.fronts import send_answer
from tests.support.http import Client, fetch, head
from tests.support.waiting import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The door, with little patience."""
    async with world_with_breakers() as opened:
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
