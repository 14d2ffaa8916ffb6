"""The order of the gateway's checks, the bound on what is in flight, and refusals that are the same on both paths."""

import asyncio
import logging

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.fast_path import HeldAnswer
from refract.runtime.metrics import Metrics
from refract.runtime.windows import Policy, Verdict
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.api import REDIRECT, ROUTES, TARGETS, Match, Route, resolve
from refract.services.gateway.domain.callers import NOBODY, Caller
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http.counting import Counting, Limits
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.http.refusing import TooMany
from refract.services.gateway.service import build_gateway
from tests.support.applications import Gate
from tests.support.both_paths import both_paths
from tests.support.clocks import ManualClock
from tests.support.fronts import UNAVAILABLE, Front, Service, authorization, said, send_answer, signed, tokens
from tests.support.http import Answer, Client, fetch, head, running
from tests.support.waiting import eventually


class DistantLimiter(EmbeddedRateLimiter):
    """Has to be awaited, as Redis has, and notes whom it was asked about."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count."""
        self.asked.append(f"{policy.route}:{who}")
        verdict = super().hit_soon(who, policy, cost)
        assert verdict is not None
        return verdict

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> None:  # type: ignore[override]  # as over Redis
        """Never: there, only `hit` can tell."""


def limits(limiter: EmbeddedRateLimiter, **per_minute: int) -> Limits:
    return Limits(limiter, RouteLimits(per_minute, hashes_with("salt")))


def opened(clock: ManualClock, target: str) -> Breakers:
    """Breakers, one of which is open."""
    breakers = Breakers(TARGETS, clock)
    circuit = breakers.of(target)
    assert circuit is not None
    for _ in range(5):
        circuit.settle(circuit.enter(), "failure")
    return breakers


# The order of M5


@both_paths
async def test_strangers_are_not_counted_and_those_who_come_too_often_never_reach_the_breaker(
    front: Front, fast: bool
) -> None:
    clock, service = ManualClock(), Service()
    limiter = DistantLimiter(clock)
    port = await front(service, counted=limits(limiter, shorten=2), breakers=opened(clock, "links"), fast=fast)
    assert (await fetch(port, "/api/shorten", method="POST")).status == 401
    assert limiter.asked == []
    answered = [await fetch(port, "/api/shorten", authorization(), method="POST") for _ in range(3)]
    assert [answer.status for answer in answered] == [503, 503, 429]
    assert len(limiter.asked) == 3
    assert service.reached == []


@both_paths
async def test_an_open_breaker_asks_for_the_token_first(front: Front, fast: bool) -> None:
    service = Service()
    port = await front(service, breakers=opened(ManualClock(), "links"), fast=fast)
    for sent, status in (
        ([], 401),
        ([authorization("nonsense")], 401),
        ([authorization()], 503),
        ([f"Cookie: refract_session={signed()}"], 503),
        (["Cookie: refract_session=nonsense"], 401),
    ):
        answer = await fetch(port, "/api/urls", *sent)
        assert answer.status == status
        assert answer.headers.get("retry-after") == ("30" if status == 503 else None)
    assert said(await fetch(port, "/r/abc")) == UNAVAILABLE
    assert service.reached == []
    assert (await fetch(port, "/api/me", authorization())).status == 200  # another target


# Counting


async def test_a_refusal_is_remembered_until_it_is_over() -> None:
    clock = ManualClock()
    limiter = DistantLimiter(clock)
    counting = Counting(limits(limiter, redirect=2), now=clock.monotonic)
    route = next(route for route in ROUTES if route.limit == REDIRECT)
    assert counting.refusal(route, "a") is None
    for left in (b"1", b"0"):
        assert (b"x-ratelimit-remaining", left) in await counting.count(route, NOBODY, "a")
        assert counting.refusal(route, "a") is None
    for waited, retry_after in ((0, b"63"), (10.5, b"53"), (52.4, b"1")):
        clock.advance(waited)
        with pytest.raises(TooMany) as refused:
            await counting.count(route, NOBODY, "a")
        assert (b"retry-after", retry_after) in refused.value.fields
        known = counting.refusal(route, "a")
        assert known is not None
        assert known.fields == refused.value.fields
    assert len(limiter.asked) == 3
    assert counting.refusal(route, "b") is None
    assert await counting.count(route, NOBODY, "b") != []
    clock.advance(0.1)  # all of the 63 seconds
    assert counting.refusal(route, "a") is None
    assert (b"x-ratelimit-remaining", b"1") in await counting.count(route, NOBODY, "a")


async def test_each_is_counted_by_what_the_table_says(in_process: Front) -> None:
    limiter = DistantLimiter(ManualClock())
    port = await in_process(Service(), counted=limits(limiter, bulk=1, shorten=3, redirect=5, api_key=7))
    one, other = authorization(signed("u-1")), authorization(signed("u-2"))
    for sent, status in ((one, 200), (one, 429), (other, 200), (other, 429)):
        assert (await fetch(port, "/api/shorten/bulk", sent, method="POST")).status == status
    assert limiter.asked == ["bulk:u-1", "bulk:u-1", "bulk:u-2", "bulk:u-2"]
    for sent, left in ((one, "2"), (other, "1")):
        answer = await fetch(port, "/api/shorten", sent, method="POST")
        assert answer.headers["x-ratelimit-remaining"] == left
    assert len(set(limiter.asked[4:])) == 1


async def test_what_a_service_says_of_its_own_limit_stands(in_process: Front) -> None:
    """A bulk request by an API key has two limits; the one that refused it is the one to wait for."""
    said_here = [(b"x-ratelimit-limit", b"10000"), (b"ratelimit", b'"bulk";r=0;t=9'), (b"retry-after", b"9")]

    class Refusing(Service):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await send_answer(send, 429, b"{}", *said_here)

    port = await in_process(Refusing(), counted=limits(DistantLimiter(ManualClock()), bulk=3))
    answer = await fetch(port, "/api/shorten/bulk", authorization(signed("u-1")), method="POST")
    for name, value in said_here:
        assert answer.headers[name.decode()] == value.decode()
    assert answer.headers["x-ratelimit-remaining"] == "2"


async def test_a_caller_with_an_api_key_is_counted_by_it_on_every_row() -> None:
    limiter = DistantLimiter(ManualClock())
    counting = Counting(limits(limiter, shorten=1, api_key=3))
    program = Caller("u-1", "u@example.com", key_id="k-1")
    for method, path in (("POST", "/api/shorten"), ("POST", "/api/shorten"), ("GET", "/api/urls")):
        fields = dict(await counting.count(row(method, path), program, "a"))
        assert fields[b"ratelimit-policy"] == b'"api_key";q=3;w=3600'
    with pytest.raises(TooMany):
        await counting.count(row("GET", "/api/me"), program, "b")
    assert limiter.asked == ["api_key:k-1"] * 4


def row(method: str, path: str) -> Route:
    match = resolve(method, path)
    assert isinstance(match, Match)
    return match.route


# In flight (ACCEPTANCE 26)


@both_paths
async def test_what_there_is_no_place_for_is_refused_at_once(front: Front, fast: bool) -> None:
    gate = Gate()
    port = await front(gate, capacity=2, fast=fast, breakers=Breakers(TARGETS, ManualClock()))
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(fetch(port, "/r/abc")), group.create_task(fetch(port, "/api/urls", authorization()))]
        await eventually(lambda: gate.waiting == 2)
        for sent in ([], [authorization()]):
            for path in ("/r/abc", "/api/urls"):
                refused = await fetch(port, path, *sent)
                assert said(refused) == UNAVAILABLE
                assert refused.headers["retry-after"] == "1"
        async with await Client.connect(port) as client:
            assert said(await client.post("/api/shorten", b"{}", authorization())) == UNAVAILABLE
        other = group.create_task(fetch(port, "/api/me", authorization()))  # with another target
        await eventually(lambda: gate.waiting == 3)
        gate.opened.set()
    assert [task.result().status for task in (*held, other)] == [200, 200, 200]
    assert (await fetch(port, "/r/abc")).status == 200


async def test_a_client_that_leaves_gives_its_place_back(front: Front) -> None:
    reached = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal reached
        reached += 1
        while (await receive())["type"] != "http.disconnect":
            pass

    port = await front(service, capacity=1)

    async def is_free() -> bool:
        return (await fetch(port, "/api/urls", "Authorization: none")).status == 401

    for number in range(3):
        async with await Client.connect(port) as client:
            await client.send(head("GET", "/r/abc"))
            await eventually(lambda: reached == number + 1)  # noqa: B023  # it is over when the round is
            assert (await fetch(port, "/r/abc")).status == 503

        # With the place free, it is the token that is wrong.
        await eventually(is_free)


async def test_streams_take_no_place(front: Front) -> None:
    gate = Gate()
    port = await front(gate, capacity=1)
    async with asyncio.TaskGroup() as group:
        paths = ("/api/stats/abc/live", "/api/stats/def/live", "/api/stats/abc")
        tasks = [group.create_task(fetch(port, path, authorization())) for path in paths]
        await eventually(lambda: gate.waiting == 3)
        tasks.append(group.create_task(fetch(port, "/api/stats/ghi/live", authorization())))
        await eventually(lambda: gate.waiting == 4)
        assert (await fetch(port, "/api/stats/abc")).status == 503
        gate.opened.set()
    assert [task.result().status for task in tasks] == [200] * 4


async def test_places_are_spoken_for_before_they_are_taken() -> None:
    gateway = build_gateway(InProcess({}), tokens=tokens(), capacity=2)

    def ask(target: bytes) -> bytes | HeldAnswer | None:
        return gateway.fast_path(b"GET", target, [(b"host", b"test")], "127.0.0.1")

    assert [ask(b"/r/abc"), ask(b"/abc")] == [None, None]  # they go to the application
    held = ask(b"/abc")
    assert isinstance(held, HeldAnswer)
    assert not held.payload  # who is told at once asks again at once
    assert ask(b"/api/stats/abc") is None  # another target
    await asyncio.sleep(0)
    assert ask(b"/abc") is None  # those who were expected have come, or will not
    payload = await eventually(lambda: held.payload)
    assert payload is not None
    assert payload.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


# Both paths say the same

REFUSED = [
    ("GET", "/api/urls", [], 401),
    ("HEAD", "/api/urls", [], 401),
    ("DELETE", "/api/urls/abc", [], 401),
    ("POST", "/api/keys", ["X-Correlation-ID: mine"], 401),
    ("GET", "/api/urls?after=a%20b&limit=x", ["X-Correlation-ID: not/mine"], 401),
    ("GET", "/api/urls/abc", ["X-Correlation-ID: one", "X-Correlation-ID: two"], 401),
    ("POST", "/api/sms/send", ["Connection: close"], 401),
    ("GET", "/api/urls", [authorization()], 503),
    ("GET", "/api/urls/abc/qr.svg", ["Cookie: a=1"], 401),
    ("GET", "/api/urls", ["Authorization: Bearer x"], 401),
    ("GET", "/abc", [], 429),
    ("GET", "/r/abc", [], 429),
    ("HEAD", "/r/%61bc?x=1", [], 429),
    ("GET", "/r/abc", ["X-Forwarded-For: 203.0.113.9"], 429),
    ("GET", "/api/stats/abc", [], 503),
    ("GET", "/r/..", [], 404),
    ("GET", "//", [], 404),
    ("POST", "/api/urls", [], 405),
    ("PATCH", "/api/stats/abc", [], 405),
]


async def test_refusals_are_the_same_on_both_paths(in_process: Front) -> None:
    service, clock = Service(), ManualClock()
    ports = []
    for fast in (True, False):
        breakers = opened(clock, "links")
        circuit = breakers.of("analytics")
        assert circuit is not None
        for _ in range(5):
            circuit.settle(circuit.enter(), "failure")
        counted = limits(DistantLimiter(clock), redirect=1)
        ports.append(await in_process(service, fast=fast, breakers=breakers, counted=counted))
    assert [(await fetch(port, "/r/abc")).status for port in ports] == [503, 503]  # the one that is allowed
    for method, path, sent, status in REFUSED:
        fast_answer, answer = [await fetch(port, path, *sent, method=method) for port in ports]
        assert answer.status == status, (method, path)
        assert comparable(fast_answer) == comparable(answer), (method, path)
    assert service.reached == []


@both_paths
async def test_a_refusal_to_head_has_no_body(in_process: Front, fast: bool) -> None:
    async with await Client.connect(await in_process(Service(), fast=fast)) as client, asyncio.timeout(10):
        await client.send(head("HEAD", "/api/urls", "Connection: close"))
        raw = await client.reader.read()
    assert raw.startswith(b"HTTP/1.1 401 ")
    assert b"\r\ncontent-length: 24\r\n" in raw
    assert raw.endswith(b"\r\n\r\n")


def comparable(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """All but the moment, and an id that is nobody's."""
    headers = {**answer.headers, "date": str("date" in answer.headers)}
    correlation_id = headers.pop("x-correlation-id")
    if len(correlation_id) == 36:
        correlation_id = ""
    headers.pop("retry-after", None)
    headers.pop("ratelimit", None)  # these two count the seconds
    return answer.status, [*headers.items(), ("x-correlation-id", correlation_id)], answer.body


@both_paths
async def test_refusals_are_counted_by_route_and_logged(
    in_process: Front, fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    metrics = Metrics()
    port = await in_process(Service(), metrics=metrics, fast=fast)
    for path in ("/api/urls/abc", "/api/urls/def"):
        assert (await fetch(port, path, "X-Correlation-ID: trace-1", method="DELETE")).status == 401

    def counted() -> float | None:
        labels = {"service": "gateway", "method": "DELETE", "route": "/api/urls/{code}", "status": "401"}
        return metrics.registry.get_sample_value("http_requests_total", labels)

    await eventually(lambda: counted() == 2.0)
    seconds = metrics.registry.get_sample_value(
        "http_request_duration_seconds_count", {"service": "gateway", "route": "/api/urls/{code}"}
    )
    assert seconds == 2.0

    def lines() -> list[tuple[str, str, int]]:
        done = [vars(line) for line in caplog.records if line.getMessage() == "request completed"]
        return [(line["method"], line["path"], line["status"]) for line in done]

    await eventually(lambda: len(lines()) == 2)
    assert lines() == [("DELETE", "/api/urls/abc", 401), ("DELETE", "/api/urls/def", 401)]


async def test_what_was_refused_last_is_counted_at_the_end() -> None:
    metrics = Metrics()
    gateway = build_gateway(InProcess({}), tokens=tokens(), metrics=metrics)
    async with running(gateway.application, fast_path=gateway.fast_path) as server:
        assert (await fetch(server.port, "/api/me")).status == 401
        await gateway.stop()
        labels = {"service": "gateway", "method": "GET", "route": "/api/me", "status": "401"}
        assert metrics.registry.get_sample_value("http_requests_total", labels) == 1.0
