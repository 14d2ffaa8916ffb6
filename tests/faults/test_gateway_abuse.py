"""ACCEPTANCE 26 and 28 at the gateway's own process: more than it can do, and what no client should send."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from statistics import quantiles

import pytest
import pytest_asyncio

from refract.services.gateway.http.places import CAPACITY
from tests.support.doors import Backstage, Door, one_door
from tests.support.http import Answer, Client, fetch, head
from tests.support.waiting import eventually

World = tuple[Door, Backstage]

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, redis_address: str) -> AsyncIterator[World]:
    """One for all tests; each leaves it as it found it."""
    async with one_door(tmp_path_factory.mktemp("gateway"), redis_address) as opened:
        yield opened


# 26: five times what it has room for


async def test_what_is_too_much_is_refused_at_once_and_the_rest_is_served(world: World) -> None:
    door, backstage = world
    backstage.gate = gate = asyncio.Event()
    backstage.reached.clear()
    before = door.memory()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(door.port)) for _ in range(5 * CAPACITY)]
        for client in clients:
            await client.send(head("GET", "/r/abc"))
        answers = [asyncio.create_task(client.answer()) for client in clients]
        try:
            await eventually(lambda: sum(answer.done() for answer in answers) >= 4 * CAPACITY)
            refused = [answer.result() for answer in answers if answer.done()]
            assert {(one.status, one.headers.get("retry-after"), one.closes) for one in refused} == {(503, "1", False)}
            await eventually(lambda: backstage.waiting == CAPACITY)
            assert (len(refused), backstage.reached.total()) == (4 * CAPACITY, CAPACITY)
            # Those who were refused may stay and ask again; what goes elsewhere, or needs nobody, is served.
            assert (await clients[[answer.done() for answer in answers].index(True)].get("/r/abc")).status == 503
            assert (await fetch(door.port, "/health")).status == 200
            backstage.gate = None
            assert (await fetch(door.port, "/api/me", door.authorization)).status == 200
            assert door.memory() - before < 64 * MIB
        finally:
            gate.set()
            backstage.gate = None
        assert sum([(await answer).status == 200 for answer in answers]) == CAPACITY
        assert {(await client.get("/r/abc")).status for client in clients[:50]} == {200}


# 28: what no client should send


async def refused(door: Door, *pieces: bytes) -> Answer:
    """Send until there is an answer; the connection has to end with it."""
    async with await Client.connect(door.port) as client:
        answer = asyncio.create_task(client.answer())
        try:
            for piece in pieces:
                if answer.done():
                    break
                await client.send(piece)
                await asyncio.sleep(0)
        except ConnectionError:
            pass  # it has heard enough, and what it said can still be read
        got = await answer
        assert got.closes
        return got


async def test_heads_and_bodies_that_are_too_large_are_refused(world: World) -> None:
    door, backstage = world
    backstage.reached.clear()
    sent = door.authorization
    chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    endless = [head("POST", "/api/shorten", sent, "Transfer-Encoding: chunked"), *[chunk] * 1_000]
    cases = {
        "a header of 64 KiB": ([head("GET", "/r/abc", f"X-Big: {'a' * 65_536}")], {431}),
        "1,000 headers": ([head("GET", "/r/abc", *(f"X-{number}: 1" for number in range(1_000)))], {431}),
        "an endless header": ([b"GET / HTTP/1.1\r\nHost: a\r\nX-Endless: ", *[b"a" * 1_024] * 100], {431}),
        "an endless target": ([b"GET /" + b"a" * 20_000], {414, 431}),
        "a body over the limit": ([head("POST", "/api/shorten", sent, "Content-Length: 99999999")], {400, 413}),
        "endless chunks": (endless, {400, 413}),
        "two lengths": ([head("POST", "/api/shorten", sent, "Content-Length: 3", "Content-Length: 4"), b"abc"], {400}),
    }  # fmt: skip
    before = door.memory()
    for name, (pieces, expected) in cases.items():
        answer = await refused(door, *pieces)
        assert answer.status in expected, name
        assert answer.json.keys() == {"error"}, name
    assert door.memory() - before < 64 * MIB
    assert set(backstage.reached) <= {"/shorten"}, "a body may have begun to pass; a head may not"
    assert (await fetch(door.port, "/r/abc")).status == 200


async def p99(port: int, requests: int) -> float:
    """The 99th percentile of so many requests on one connection, in seconds."""
    taken = []
    async with await Client.connect(port) as client:
        for _ in range(requests):
            begun = time.perf_counter()
            assert (await client.get("/r/abc")).status == 200
            taken.append(time.perf_counter() - begun)
            await asyncio.sleep(0.001)
    return quantiles(taken, n=100)[98]


BEGINNINGS = {
    "heads": b"GET /r/abc HTTP/1.1\r\nHost: test\r\nX-Slow: ",
    "bodies": head("GET", "/r/abc", "Content-Length: 1000") + b"a",
    "forms": head("POST", "/api/auth/login", "Content-Length: 1000") + b"a",
}


async def trickle(client: Client, beginning: bytes) -> float:
    """Send one byte every 5 s until the gateway has enough of it; how many seconds that took."""
    begun = time.perf_counter()
    await client.send(beginning)
    answer = asyncio.create_task(client.answer())
    while not (await asyncio.wait({answer}, timeout=5))[0]:
        client.writer.write(b"a")
    assert answer.result().status in {408, 503}  # too slow, or too many of them
    client.close()
    return time.perf_counter() - begun


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS.keys())
async def test_a_thousand_trickling_clients_are_closed_while_others_are_served(world: World, beginning: bytes) -> None:
    door, _ = world
    await p99(door.port, 500)
    usual = await p99(door.port, 2_000)
    clients = [await Client.connect(door.port) for _ in range(1_000)]
    trickling = asyncio.gather(*(trickle(client, beginning) for client in clients))
    meanwhile = await p99(door.port, 2_000)
    slowest = await trickling
    print(f"p99 usually {usual * 1e3:.2f} ms, meanwhile {meanwhile * 1e3:.2f} ms; closed after {max(slowest):.1f} s")
    assert max(slowest) < 15
    assert meanwhile < max(2 * usual, 0.010)
