"""Places in flight at the gateway: who has one, who is only about to, and what the refused are told besides."""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.metrics import Metrics
from refract.runtime.windows import Policy, Verdict
from refract.services.gateway.adapters.connections import Connection, Pool
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import LOOK_AROUND, Proxy
from refract.services.gateway.api import ROUTES, TARGETS
from refract.services.gateway.domain.breaker import BreakerPolicy
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http.counting import Limits
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.http.places import Place, Places
from refract.services.gateway.http.refusing import Busy
from refract.services.gateway.service import build_gateway
from tests.support.applications import Gate, echo
from tests.support.clocks import ManualClock
from tests.support.fronts import (
    UNAVAILABLE,
    Front,
    authorization,
    front_of,
    read_body,
    said,
    send_answer,
    serve_gateway,
    tokens,
    url_of,
)
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

WITHHELD = [
    ("POST", "/api/auth/login", "Content-Length: 6"),
    ("POST", "/api/auth/register", "Transfer-Encoding: chunked"),
    ("GET", "/api/stats/abc", "Content-Length: 6"),
]


@pytest.mark.parametrize(("method", "path", "framing"), WITHHELD, ids=str)
@pytest.mark.parametrize("begun", [b"", b"abc"], ids=["nothing", "a part"])
async def test_who_withholds_a_body_takes_no_place(
    front: Front, method: str, path: str, framing: str, begun: bytes
) -> None:
    waiting = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal waiting
        waiting += 1
        await echo(scope, receive, send)

    port = await front(service, capacity=2)
    chunked = framing.startswith("Transfer")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(port)) for _ in range(2 if begun else 4)]
        for client in clients:
            await client.send(head(method, path, framing) + (b"3\r\nabc\r\n" if chunked and begun else begun))
            assert (await fetch(port, path, method=method)).status == 200
        if begun:  # over HTTP a service is asked when there is something to say
            await eventually(lambda: waiting == 4)
        for client in clients:
            rest = b"abcdef".removeprefix(begun)
            await client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest) if chunked else rest)
            answer = await client.answer()
            assert answer.status == 200
            assert answer.text.endswith(" 6")
    for _ in range(3):  # and all have been given back, once each
        assert (await fetch(port, path, method=method)).status == 200


@pytest.mark.parametrize("begun", [b"", b"abc"], ids=["nothing", "a part"])
async def test_a_body_that_ends_when_there_is_no_place_is_refused(front: Front, begun: bytes) -> None:
    gate, reached = Gate(), 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal reached
        if scope["path"] == "/me":
            await gate(scope, receive, send)
            return
        reached += 1
        await echo(scope, receive, send)

    breakers = Breakers(TARGETS, ManualClock(), policy=BreakerPolicy(failures=1))
    port = await front(service, capacity=1, breakers=breakers)
    async with await Client.connect(port) as late, asyncio.TaskGroup() as group:
        await late.send(head("POST", "/api/keys", authorization(), "Content-Length: 6") + begun)
        if begun:
            await eventually(lambda: reached == 1)
        held = group.create_task(fetch(port, "/api/me", authorization()))
        await eventually(lambda: gate.waiting == 1)
        await late.send(b"abcdef".removeprefix(begun))
        refused = await late.answer()
        assert (said(refused), refused.headers["retry-after"]) == (UNAVAILABLE, "1")
        assert said(await fetch(port, "/api/me", authorization())) == UNAVAILABLE  # it has given back nobody else's
        gate.opened.set()
    assert held.result().status == 200
    assert (await fetch(port, "/api/me", authorization())).status == 200


async def test_so_many_may_be_in_the_middle_of_a_body_as_there_are_places(front: Front) -> None:
    asked = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        await echo(scope, receive, send)

    port = await front(service, capacity=2)
    request = head("POST", "/api/keys", authorization(), "Content-Length: 6")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(port)) for _ in range(3)]
        for number, client in enumerate(clients[:2], 1):
            await client.send(request + b"abc")
            await eventually(lambda: asked == number)  # noqa: B023  # it is over when the round is
        await clients[2].send(request + b"abc")
        assert (await clients[2].answer()).status == 503
        async with await Client.connect(port) as client:  # who has said everything does not have to be waited for
            assert (await client.post("/api/keys", b"abcdef", authorization())).status == 200
        for client in clients[:2]:
            await client.send(b"def")
            assert (await client.answer()).status == 200
    async with await Client.connect(port) as client:
        await client.send(request + b"abc")
        await eventually(lambda: asked >= 4)
        await client.send(b"def")
        assert (await client.answer()).status == 200


async def test_a_place_is_kept_while_the_service_is_at_work(front: Front) -> None:
    opened, whole = asyncio.Event(), asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        watching = asyncio.ensure_future(receive())  # for a client that goes away, as services and the proxy do
        whole.set()
        await opened.wait()
        watching.cancel()
        await send_answer(send, 200, b"{}")

    port = await front(service, capacity=1)
    async with await Client.connect(port) as client:
        await client.send(head("POST", "/api/keys", authorization(), "Content-Length: 3") + b"abc")
        await whole.wait()
        await asyncio.sleep(2 * LOOK_AROUND)  # so that the proxy watches, too
        assert said(await fetch(port, "/api/me", authorization())) == UNAVAILABLE
        opened.set()
        assert (await client.answer()).status == 200


async def test_an_answer_before_the_end_of_its_body_leaves_no_place_behind(front: Front) -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await receive()
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await gate(scope, receive, send)

    gate = Gate()
    port = await front(service, capacity=2)
    for _ in range(4):
        async with await Client.connect(port) as client:
            await client.send(head("POST", "/api/keys", authorization(), "Content-Length: 600") + b"abc")
            assert (await client.answer()).status == 413
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(fetch(port, "/api/me", authorization())) for _ in range(2)]
        await eventually(lambda: gate.waiting == 2)
        assert said(await fetch(port, "/api/me", authorization())) == UNAVAILABLE  # no more than there are
        gate.opened.set()
    assert [task.result().status for task in held] == [200, 200]


async def test_who_reads_on_after_the_answer_takes_no_place() -> None:
    places, coming = Places(1), asyncio.Event()
    route = next(route for route in ROUTES if route.path == "/api/keys")
    pieces = [True, False]

    async def receive() -> Any:
        if not pieces[0]:
            await coming.wait()
        return {"type": "http.request", "body": b"", "more_body": pieces.pop(0)}

    place = Place(places, route)
    receiving = await place.begun(receive)
    assert receiving is not None
    await receiving()
    reading = asyncio.ensure_future(receiving())
    await asyncio.sleep(0)
    place.leave()
    coming.set()
    await reading
    Place(places, route).take()
    with pytest.raises(Busy):
        Place(places, route).take()


class SlowLimiter(EmbeddedRateLimiter):
    """Counts once the gate is open, as one does that has to be asked over a network."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.gate = asyncio.Event()
        self.waiting = 0

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Any:
        """It cannot tell."""

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Wait, and count."""
        self.waiting += 1
        await self.gate.wait()
        return super().hit_soon(who, policy, cost)


@pytest.mark.parametrize("begun", [b"", b"abc"], ids=["nothing", "a part"])
async def test_who_withholds_a_body_takes_no_place_while_it_is_counted(front: Front, begun: bytes) -> None:
    limiter = SlowLimiter()
    limits = Limits(limiter, RouteLimits({"shorten": 100}, hashes_with("salt")))
    port = await front(echo, capacity=1, counted=limits)
    request = head("POST", "/api/shorten", authorization(), "Content-Length: 6")
    async with await Client.connect(port) as first, await Client.connect(port) as second:
        for number, client in enumerate((first, second), 1):
            await client.send(request + begun)
            await eventually(lambda: limiter.waiting == number)  # noqa: B023  # it is over when the round is
        assert (await fetch(port, "/api/urls", authorization())).status == 200
        limiter.gate.set()
        for client in (first, second):
            await client.send(b"abcdef".removeprefix(begun))
        # There is one place, and one in the middle of a body: all that matters here is that they did not take it.
        assert 200 in {(await client.answer()).status for client in (first, second)}
    assert (await fetch(port, "/api/urls", authorization())).status == 200


async def test_who_withholds_a_body_takes_no_place_while_the_service_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting, gate = 0, asyncio.Event()
    connect = Pool.connect

    async def slowly(pool: Pool) -> Connection:
        nonlocal connecting
        connecting += 1
        await gate.wait()
        return await connect(pool)

    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running(echo))
        port = await serve_gateway(Proxy({"links": url_of(upstream)}), stack, capacity=2)
        assert (await fetch(port, "/r/abc")).status == 200  # a connection waits in the pool, for the one below
        monkeypatch.setattr(Pool, "connect", slowly)
        idle = Pool.waiting
        monkeypatch.setattr(Pool, "waiting", lambda _: None)
        withheld = [await stack.enter_async_context(await Client.connect(port)) for _ in range(2)]
        for client in withheld:
            await client.send(head("GET", "/r/abc", "Content-Length: 6") + b"abc")
        await eventually(lambda: connecting == 2)
        monkeypatch.setattr(Pool, "waiting", idle)
        assert (await fetch(port, "/r/abc")).status == 200
        gate.set()
        for client in withheld:
            await client.send(b"def")
            assert (await client.answer()).status == 200


async def test_a_body_that_no_service_reads_does_not_save_a_place(front: Front) -> None:
    opened, waiting = asyncio.Event(), 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal waiting
        waiting += 1
        await opened.wait()
        await send_answer(send, 200, b"{}")

    port = await front(service, capacity=1)
    async with await Client.connect(port) as held:
        await held.send(head("GET", "/api/me", authorization(), "Content-Length: 3") + b"abc")
        await eventually(lambda: waiting == 1)
        assert said(await fetch(port, "/api/me", authorization())) == UNAVAILABLE
        opened.set()
        assert (await held.answer()).status == 200


async def test_who_repeats_itself_is_refused_in_the_same_words(front: Front) -> None:
    gate, logged = Gate(), Metrics()
    port = await front(gate, capacity=1, metrics=logged)
    async with asyncio.TaskGroup() as group, await Client.connect(port) as client:
        held = group.create_task(fetch(port, "/api/stats/abc"))
        await eventually(lambda: gate.waiting == 1)
        answers = [await client.get(path) for path in ("/api/stats/abc", "/api/stats/abc", "/api/stats/def?x=1")]
        assert [said(answer) for answer in answers] == [UNAVAILABLE] * 3
        fields = [{name: value for name, value in answer.headers.items() if name != "date"} for answer in answers]
        assert len({field.pop("x-correlation-id") for field in fields}) == 3
        assert fields[0] == fields[1] == fields[2]
        for trace in ("trace-1", "trace-1", "trace-2"):  # words that are its own
            answer = await client.get("/api/stats/abc", f"X-Correlation-ID: {trace}")
            assert (said(answer), answer.headers["x-correlation-id"]) == (UNAVAILABLE, trace)
        assert (await client.get("/api/nothing")).status == 404, "what has no row is not refused for want of a place"
        gate.opened.set()
        assert (await held).status == 200
        assert (await client.get("/api/stats/abc")).status == 200
    labels = {"service": "gateway", "method": "GET", "route": "/api/stats/{code}", "status": "503"}
    await eventually(lambda: logged.registry.get_sample_value("http_requests_total", labels) == 6)


async def test_a_request_that_takes_long_needs_no_task_to_watch_its_client() -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        port = await front_of("proxy", stack)(gate)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(fetch(port, "/api/stats/abc")) for _ in range(5)]
            await eventually(lambda: gate.waiting == 5)
            await asyncio.sleep(3 * LOOK_AROUND)
            names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
            assert [name for name in names if name.startswith("Exchange._watch")] == []
            gate.opened.set()
        assert [task.result().status for task in asked] == [200] * 5


async def test_streams_are_not_expected_to_take_a_place() -> None:
    gateway = build_gateway(InProcess({}), tokens=tokens(), capacity=1)
    fields = [(b"host", b"test"), (b"authorization", b"Bearer x")]
    for target in (b"/api/stats/abc/live", b"/api/stats/def/live", b"/api/stats/abc"):
        assert gateway.fast_path(b"GET", target, fields, "127.0.0.1") is None
    assert gateway.fast_path(b"GET", b"/api/stats/abc", fields, "127.0.0.1") is not None


# What a refusal says besides


async def test_every_answer_of_a_limited_row_tells_what_is_left() -> None:
    limits = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"redirect": 7}, hashes_with("salt")))
    breakers = Breakers(TARGETS, ManualClock())
    async with AsyncExitStack() as stack:
        nowhere = Proxy({"links": "http://127.0.0.1:1"})
        port = await serve_gateway(nowhere, stack, counted=limits, breakers=breakers)
        answers = [await fetch(port, "/r/abc") for _ in range(8)]
    assert [answer.status for answer in answers] == [502] * 5 + [503] * 2 + [429]
    told = [
        (answer.headers.get("x-ratelimit-limit"), answer.headers.get("x-ratelimit-remaining")) for answer in answers
    ]
    assert told == [("7", str(left)) for left in (6, 5, 4, 3, 2, 1, 0, 0)]
    assert [answer.headers.get("retry-after") for answer in answers[4:7]] == [None, "30", "30"]


async def test_a_row_without_a_service_is_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "refract")
    async with AsyncExitStack() as stack:
        for services in (InProcess({}), Proxy({})):
            port = await serve_gateway(services, stack)
            assert said(await fetch(port, "/r/abc", "X-Correlation-ID: t")) == (502, {"error": "unknown upstream"})
    ours = [one for one in caplog.records if one.name.startswith("refract")]
    assert [(line.levelname, line.getMessage(), vars(line)["path"]) for line in ours] == [
        ("ERROR", "unknown upstream", "/r/abc")
    ] * 2
