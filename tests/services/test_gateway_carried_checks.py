"""Who may pass, how often and whereto: the checks of the gateway for plain requests that need no task."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.exchange import CLIENT_LEFT
from refract.runtime.ports import RateLimiter
from refract.runtime.tokens import LIFETIME, TokenVerifier
from refract.runtime.windows import Policy, Verdict
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.domain.revocations import Revocation, Revocations
from refract.services.gateway.http.counting import Limits
from tests.support.both_paths import (
    CUT,
    GET,
    OK,
    Bare,
    Ways,
    asked,
    both_paths,
    lines,
    nothing_is_left,
    settled,
    side,
    ways,
)
from tests.support.clocks import ManualClock
from tests.support.fronts import UNAVAILABLE, authorization, said, signed, tokens
from tests.support.http import Client, fetch, head
from tests.support.waiting import eventually

__all__ = ["ways"]


class Distant(RateLimiter):
    """Has to be awaited, as Redis has; with a gate it takes its time, with an error it fails."""

    def __init__(self, clock: ManualClock, gate: asyncio.Event | None = None, error: Exception | None = None) -> None:
        self._counter = EmbeddedRateLimiter(clock)
        self._gate = gate
        self._error = error
        self.waiting = 0

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count."""
        if self._gate is not None:
            self.waiting += 1
            await self._gate.wait()
            self.waiting -= 1
        if self._error is not None:
            raise self._error
        return await self._counter.hit(who, policy, cost)

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict | None:
        """Never."""
        return None

    async def ping(self) -> None:
        """It always answers."""

    async def close(self) -> None:
        """Nothing to give back."""


def distant(redirects: int, **how: Any) -> Callable[[ManualClock], Limits]:
    return lambda clock: Limits(Distant(clock, **how), RouteLimits({"redirect": redirects}, hashes_with("salt")))


# Tokens


async def test_a_token_that_was_taken_back_is_refused_on_a_connection_that_repeats_itself(ways: Ways) -> None:
    revocations, clock = Revocations(), ManualClock()
    request = head("GET", "/api/urls", authorization(signed("u-1", clock=clock)))
    async with (
        side(Bare(), fast=True, revocations=revocations, tokens=tokens(clock)) as place,
        await Client.connect(place.port) as client,
    ):
        await place.warm_up()

        async def ask() -> int:
            await client.send(request)
            return (await client.answer()).status

        assert [await ask() for _ in range(3)] == [200] * 3
        assert ways.taken == 2
        revocations.apply(Revocation("u-1", clock.now() + timedelta(days=1), generation=1))
        assert await ask() == 401
        assert ways.taken == 2


async def test_a_token_that_is_over_is_refused_on_a_connection_that_repeats_itself(ways: Ways) -> None:
    clock = ManualClock()
    request = head("GET", "/api/urls", authorization(signed("u-1", clock=clock)))
    async with side(Bare(), fast=True, tokens=tokens(clock)) as place, await Client.connect(place.port) as client:
        await place.warm_up()
        for statuses in ([200, 200, 200], [401, 401]):
            for status in statuses:
                await client.send(request)
                assert (await client.answer()).status == status
            clock.advance(LIFETIME.total_seconds())
        assert ways.taken == 2


async def test_what_a_forged_token_costs_is_spent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, verify = 0, TokenVerifier.verify

    def counting(verifier: TokenVerifier, token: str) -> Any:
        nonlocal verified
        verified += 1
        return verify(verifier, token)

    monkeypatch.setattr(TokenVerifier, "verify", counting)
    async with side(Bare(), fast=True) as place:
        await place.warm_up()
        await asked(place, *[head("GET", "/api/urls", f"{authorization()[:-4]}AAAA")] * 3)
    assert verified == 3


# Limits


@both_paths
async def test_a_limit_counts_and_says_what_is_left(ways: Ways, fast: bool) -> None:
    async with side(Bare(), fast=fast, counted=distant(5)) as place:
        await place.warm_up()
        answers = await asked(place, *[GET] * 6)
        assert [answer[9:12] for answer in answers] == [b"200"] * 4 + [b"429"] * 2
        left = [lines(answer, b"x-ratelimit-remaining") for answer in answers]
        assert left == [[b"x-ratelimit-remaining: %d" % each] for each in (3, 2, 1, 0, 0, 0)]
        assert all(len(lines(answer, b"ratelimit")) == 2 for answer in answers)
        assert len(place.bare.heads) == 4
        # The first had no connection, the one that is over the limit is told so where everything is said.
        assert (ways.taken, ways.handed_over) == ((6, 2) if fast else (0, 0))
        await settled(place, 7)
        assert place.counted()["GET", "/r/{code}", "429"] == 2


@both_paths
async def test_a_counter_that_fails_is_an_error_of_ours(ways: Ways, fast: bool) -> None:
    limits = distant(5, error=ValueError("a mistake"))
    async with side(Bare(), fast=fast, counted=limits) as place:
        answers = await asked(place, GET, GET)
        assert [answer[9:12] for answer in answers] == [b"500", b"500"]
        assert ways.handed_over == (2 if fast else 0)
        assert place.bare.heads == []


async def test_who_leaves_while_it_is_counted_is_not_asked_for(ways: Ways) -> None:
    gate = asyncio.Event()
    async with side(Bare(), fast=True, capacity=1, counted=distant(9, gate=gate)) as place:
        async with await Client.connect(place.port) as client:
            await client.send(GET)
            await eventually(lambda: ways.taken == 1)
            assert said(await fetch(place.port, "/r/abc")) == UNAVAILABLE  # it has the place
        await eventually(lambda: place.server.connections == 0)
        gate.set()
        await settled(place, 2)
        assert place.counted()["GET", "/r/{code}", str(CLIENT_LEFT)] == 1
        assert place.bare.heads == []
        await eventually(lambda: asked(place, GET))


async def test_a_breaker_that_opens_while_a_request_is_counted_refuses_it(ways: Ways) -> None:
    gate = asyncio.Event()
    gate.set()
    async with side(Bare(), fast=True, counted=distant(9, gate=gate)) as place, asyncio.TaskGroup() as group:
        await place.warm_up()
        gate.clear()
        asking = group.create_task(asked(place, GET))
        await eventually(lambda: ways.taken == 2)
        circuit = place.breakers.of("links")
        assert circuit is not None
        for _ in range(5):
            circuit.settle(circuit.enter(), "failure")
        gate.set()
        (answer,) = await asking
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert (lines(answer, b"retry-after"), lines(answer, b"x-ratelimit-remaining")) == (
            [b"retry-after: 30"],
            [b"x-ratelimit-remaining: 7"],
        )
        assert place.bare.heads == []


async def test_without_a_connection_a_counted_request_goes_on_in_the_application(ways: Ways) -> None:
    async with side(Bare(), fast=True, counted=distant(9)) as place:
        answers = await asked(place, GET, GET)
        assert [lines(answer, b"x-ratelimit-remaining") for answer in answers] == [
            [b"x-ratelimit-remaining: 8"],
            [b"x-ratelimit-remaining: 7"],
        ]
        assert ways.seen == (2, 1, 0)


# The breaker


@both_paths
async def test_failures_open_the_breaker_and_a_probe_closes_it(fast: bool) -> None:
    bare = Bare(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
    async with side(bare, fast=fast) as place:
        await place.warm_up()

        def state() -> State:
            circuit = place.breakers.of("links")
            assert circuit is not None
            return circuit.state

        answers = await asked(place, *[GET] * 7)
        assert [answer[9:12] for answer in answers] == [b"500"] * 5 + [b"503"] * 2
        assert state() is State.OPEN
        bare.pieces = (OK,)
        place.clock.advance(30)
        assert [answer[9:12] for answer in await asked(place, GET, GET)] == [b"200"] * 2
        assert state() is State.CLOSED
        assert len(bare.heads) == 7


async def test_a_connection_that_died_while_it_waited_is_asked_again_once(ways: Ways) -> None:
    bare = Bare(CUT, first=(OK,))
    async with side(bare, fast=True) as place:
        await place.warm_up()
        (answer,) = await asked(place, GET)
        assert answer.endswith(b"ok")
        assert len(bare.heads) == 2
        assert bare.heads[0] == bare.heads[1], "the same request, with the same id"
        assert ways.seen == (1, 1, 1)
        assert place.results() == {"success": 2, "failure": 0, "undecided": 0, "late": 0}
        await nothing_is_left(place)


@both_paths
async def test_a_visit_that_is_asked_for_again_is_the_same_click(fast: bool) -> None:
    bare = Bare(CUT, first=(OK,))
    async with side(bare, fast=fast) as place:
        await place.warm_up()
        for _ in range(2):
            await asked(place, GET)
        names = [lines(head, b"x-click-id: ") for head in bare.heads]
        assert [len(each) for each in names] == [1] * 4
        assert names[0] == names[1] != names[2] == names[3]
        await asked(place, head("GET", "/api/stats/abc"))
        assert lines(bare.heads[-1], b"x-click-id: ") == [], "it is about links only"
