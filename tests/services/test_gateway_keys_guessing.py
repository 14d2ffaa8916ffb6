"""Whoever makes API keys up: good keys are heard all the same, guesses are counted by address, and so are new keys."""

import asyncio
import resource
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.ports import RateLimiter
from refract.runtime.windows import Policy
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import NEW_KEY, REFUSED_KEY, ROUTES, TARGETS
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.domain.callers import Asked
from refract.services.gateway.domain.headers import UpstreamFailed
from refract.services.gateway.domain.keys import KnownKeys, Unresolved
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http import Limits
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.service import Gateway, build_gateway
from tests.support.both_paths import both_paths
from tests.support.clocks import ManualClock
from tests.support.fronts import UNAVAILABLE, Front, authorization, in_process, said, signed, tokens, url_of
from tests.support.http import Answer, fetch, running
from tests.support.keys import REFUSED, Desk, new_key
from tests.support.redis_twins import connected
from tests.support.waiting import eventually

__all__ = ["in_process"]

NEIGHBOUR = "192.0.2.7"
TOO_MANY = (429, {"error": "rate limit exceeded"})
LOOPBACK = ip_network("127.0.0.1/32")


class Door:
    """A gateway before a desk that plays every service, of which few questions are asked at once."""

    def __init__(self, limiter: RateLimiter | None = None, most_questions: int = 4) -> None:
        self.clock = ManualClock()
        self.desk = Desk(self.clock)
        self.known = KnownKeys(self.clock)
        routes = RouteLimits({"refused_key": 3}, hashes_with(secrets.token_hex(8)))
        self.gateway: Gateway = build_gateway(
            InProcess(dict.fromkeys(TARGETS, self.desk)),
            tokens=tokens(self.clock),
            known_keys=self.known,
            limits=None if limiter is None else Limits(limiter, routes),
            trusted_proxies=[LOOPBACK],
        )
        self.gateway.keys._most_questions = most_questions
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Door"]:
        async with running(self.gateway.application, fast_path=self.gateway.fast_path) as server:
            self.port = server.port
            try:
                yield self
            finally:
                if self.desk.gate is not None:
                    self.desk.gate.set()

    async def ask(self, key: str, address: str = "192.0.2.1") -> Answer:
        return await fetch(self.port, "/api/urls", f"X-API-Key: {key}", f"X-Forwarded-For: {address}")

    async def answers(self, *keys: str, address: str = "192.0.2.1") -> list[int]:
        return [(await self.ask(key, address)).status for key in keys]


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with Door().open() as door:
        yield door


# Questions, and who may ask them


async def test_however_many_wait_with_one_bad_key_it_is_one_question(door: Door) -> None:
    bad, good = new_key(), door.desk.issue()
    door.desk.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(door.ask(bad)) for _ in range(4)]
        await eventually(lambda: [one.waiting for one in door.gateway.keys._questions.values()] == [4])
        assert said(await door.ask(bad)) == UNAVAILABLE, "so many wait for one answer, and no more"
        other = group.create_task(door.ask(good))
        await eventually(lambda: len(door.desk.questions) == 2)
        door.desk.gate.set()
    assert ({said(task.result())[0] for task in waiting}, other.result().status) == ({401}, 200)
    assert door.gateway.keys._questions == {}


@pytest.mark.parametrize("forgotten_by", ["time", "gap", "user"])
async def test_a_quarter_of_the_questions_is_for_keys_that_were_good_lately(door: Door, forgotten_by: str) -> None:
    good = door.desk.issue()
    assert (await door.ask(good)).status == 200
    if forgotten_by == "time":
        door.clock.advance(300)
    elif forgotten_by == "gap":
        door.known.forget_all()
    else:
        door.known.forget_user("u-1")
    door.desk.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        strangers = [group.create_task(door.ask(new_key())) for _ in range(3)]
        await eventually(lambda: len(door.desk.questions) == 4)
        turned_away = await door.ask(new_key())
        assert (said(turned_away), turned_away.headers["retry-after"]) == (UNAVAILABLE, "1")
        asking = group.create_task(door.ask(good))
        await eventually(lambda: len(door.desk.asked(good)) == 2)
        door.desk.gate.set()
    assert asking.result().status == 200
    assert {task.result().status for task in strangers} == {401}


# Guesses


@pytest.fixture(params=["embedded", "distributed", "without redis"])
async def guessed(request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    """A door at which an address may show three keys that nobody knows."""
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            limiter: RateLimiter = EmbeddedRateLimiter(ManualClock())
        elif request.param == "distributed":
            address = request.getfixturevalue("redis_address")
            limiter = DistributedRateLimiter(await stack.enter_async_context(connected(address)))
        else:
            away = await stack.enter_async_context(connected("127.0.0.1:1", deadline=0.05))
            limiter = DistributedRateLimiter(away)
        yield await stack.enter_async_context(Door(limiter).open())


async def test_whoever_guesses_is_told_to_stop_and_good_keys_of_the_address_go_on(guessed: Door) -> None:
    good, later = guessed.desk.issue(), guessed.desk.issue()
    assert (await guessed.ask(good)).status == 200
    assert await guessed.answers(*[new_key() for _ in range(3)]) == [401] * 3
    asked = len(guessed.desk.questions)
    for key in (new_key(), new_key(), later):
        told = await guessed.ask(key)
        assert said(told) == TOO_MANY
        assert 1 <= int(told.headers["retry-after"]) <= 945
        assert told.headers["ratelimit-policy"] == '"refused_key";q=3;w=900'
    assert len(guessed.desk.questions) == asked, "identity hears nothing of them"
    assert await guessed.answers(new_key(), later, address=NEIGHBOUR) == [401, 200]
    assert await guessed.answers(good, later) == [200, 200]
    guessed.clock.advance(60)
    assert await guessed.answers(good, later) == [200, 200], "also where they have to be asked for again"


async def test_one_bad_key_is_one_guess_however_often_it_comes(guessed: Door) -> None:
    bad, good = new_key(), guessed.desk.issue()
    for _ in range(5):
        assert said(await guessed.ask(bad)) == said(await guessed.ask(bad)) == REFUSED
        guessed.clock.advance(5)
    assert len(guessed.desk.asked(bad)) == 5
    assert await guessed.answers(new_key(), good, new_key(), new_key()) == [401, 200, 401, 429]


async def test_what_can_be_no_key_and_what_identity_cannot_tell_are_no_guesses(guessed: Door) -> None:
    assert await guessed.answers(*["refract_short"] * 5) == [401] * 5
    guessed.desk.instead = 500, b"{}"
    assert await guessed.answers(*[new_key() for _ in range(4)]) == [503] * 4
    guessed.desk.instead = None
    assert await guessed.answers(*[new_key() for _ in range(4)]) == [401] * 3 + [429]


async def test_after_a_while_an_address_may_try_again() -> None:
    clock = ManualClock()
    async with Door(EmbeddedRateLimiter(clock)).open() as door:
        assert await door.answers(*[new_key() for _ in range(4)]) == [401] * 3 + [429]
        clock.advance(900 + 45)
        assert await door.answers(door.desk.issue(), new_key()) == [200, 401]


# New keys


@both_paths
async def test_a_user_makes_so_many_keys_in_an_hour(in_process: Front, fast: bool) -> None:
    limits = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"new_key": 2}, str.upper))
    port = await in_process(Desk(), fast=fast, counted=limits)

    async def make(user: str) -> Answer:
        return await fetch(port, "/api/keys", authorization(signed(user)), method="POST")

    answers = [await make("u-1") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"new_key";q=2;w=3600'}
    assert int(answers[-1].headers["retry-after"]) >= 3600
    assert (await make("u-2")).status == 200, "from the same address"
    listed = await fetch(port, "/api/keys", authorization(signed("u-1")))
    assert (listed.status, [name for name in listed.headers if "ratelimit" in name]) == (200, [])


def test_the_limits_that_nobody_sets() -> None:
    limits = RouteLimits({"shorten": 10}, str.upper)
    assert limits.policy(NEW_KEY) == Policy("new_key", 60, 3600.0)
    assert limits.policy(REFUSED_KEY) == Policy("refused_key", 50, 900.0, when_away="local")
    assert RouteLimits({"new_key": 0, "refused_key": 0}, str.upper).policy(NEW_KEY) is None


# Our own want


async def test_that_we_lack_descriptors_is_not_identitys_fault() -> None:
    desk, clock = Desk(ManualClock()), ManualClock()
    desk.clock = clock
    breakers = Breakers(TARGETS, clock)
    circuit = breakers.of("identity")
    assert circuit is not None
    route = next(route for route in ROUTES if route.scope == "links:read")
    asked = Asked.of([(b"x-api-key", desk.issue().encode())], "http")
    async with running(desk) as server:
        proxy = Proxy(dict.fromkeys(TARGETS, url_of(server)))
        gateway = build_gateway(proxy, tokens=tokens(clock), known_keys=KnownKeys(clock), breakers=breakers)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            for _ in range(10):
                with pytest.raises(Unresolved):
                    await gateway.keys.identify(route, asked, "192.0.2.1")
            with pytest.raises(UpstreamFailed, match="no connection can be made"):
                await proxy.fetch("identity", "/health", {})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert circuit.state is State.CLOSED
        assert (await gateway.keys.identify(route, asked, "192.0.2.1")).user_id == "u-1"
        await gateway.stop()
