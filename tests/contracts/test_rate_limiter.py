"""What every rate limiter promises, on both twins."""

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.ports import RateLimiter
from refract.runtime.windows import Policy
from tests.support.clocks import ManualClock
from tests.support.redis_twins import administering, connected
from tests.support.waiting import eventually


@pytest.fixture
def embedded() -> EmbeddedRateLimiter:
    return EmbeddedRateLimiter()


@pytest.fixture
async def distributed(redis_address: str) -> AsyncIterator[RateLimiter]:
    async with connected(redis_address) as redis:
        yield DistributedRateLimiter(redis)


@pytest.fixture(params=["embedded", "distributed"])
def limits(request: pytest.FixtureRequest) -> RateLimiter:
    found: RateLimiter = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def two_a_minute(redis_namespace: str) -> Policy:
    return Policy(redis_namespace, limit=2, window=60)


async def test_refuses_the_first_hit_over_the_limit(limits: RateLimiter, two_a_minute: Policy) -> None:
    verdicts = [await limits.hit("somebody", two_a_minute) for _ in range(3)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert [verdict.remaining for verdict in verdicts] == [1, 0, 0]
    assert {verdict.limit for verdict in verdicts} == {2}
    assert verdicts[0].retry_after == 0
    assert 0 < verdicts[2].retry_after <= 63


async def test_everybody_and_every_route_is_counted_apart(limits: RateLimiter, two_a_minute: Policy) -> None:
    other = replace(two_a_minute, route=two_a_minute.route + "other")
    for who in ("somebody", "somebody else"):
        for policy in (two_a_minute, other):
            assert (await limits.hit(who, policy, cost=2)).allowed
            assert not (await limits.hit(who, policy)).allowed


async def test_a_cost_is_counted_whole_or_not_at_all(limits: RateLimiter, redis_namespace: str) -> None:
    policy = Policy(redis_namespace, limit=10, window=60)
    assert (await limits.hit("somebody", policy, cost=7)).remaining == 3
    refused = await limits.hit("somebody", policy, cost=4)
    assert (refused.allowed, refused.remaining) == (False, 3)
    assert (await limits.hit("somebody", policy, cost=3)).allowed


async def test_a_cost_over_the_limit_is_refused(limits: RateLimiter, two_a_minute: Policy) -> None:
    refused = await limits.hit("somebody", two_a_minute, cost=3)
    assert not refused.allowed
    assert refused.retry_after > 0
    assert (await limits.hit("somebody", two_a_minute, cost=2)).allowed


async def test_a_cost_of_nothing_asks_without_counting(limits: RateLimiter, two_a_minute: Policy) -> None:
    await limits.hit("somebody", two_a_minute)
    assert [(await limits.hit("somebody", two_a_minute, cost=0)).remaining for _ in range(3)] == [1, 1, 1]


async def test_a_limit_of_nothing_is_off(limits: RateLimiter, redis_namespace: str) -> None:
    policy = Policy(redis_namespace, limit=0, window=60)
    assert all([(await limits.hit("somebody", policy, cost=1_000)).allowed for _ in range(50)])


async def has_come(moment: float) -> None:
    """Not a sleep: uvloop counts one from when its turn of the loop began, and may wake early."""
    await eventually(lambda: time.monotonic() >= moment, interval=0.001)


async def test_who_waits_as_told_gets_through(limits: RateLimiter, redis_namespace: str) -> None:
    policy = Policy(redis_namespace, limit=3, window=0.2)
    for _ in range(6):
        verdict = await limits.hit("somebody", policy)
        while verdict.allowed:
            verdict = await limits.hit("somebody", policy)
        await has_come(time.monotonic() + verdict.retry_after + 0.001)
        assert (await limits.hit("somebody", policy)).allowed


async def test_a_thousand_at_once_admit_exactly_the_limit(limits: RateLimiter, redis_namespace: str) -> None:
    policy = Policy(redis_namespace, limit=100, window=60)
    verdicts = await asyncio.gather(*(limits.hit("somebody", policy) for _ in range(1_000)))
    assert sum(verdict.allowed for verdict in verdicts) == 100


async def test_a_thousand_at_once_over_several_clients_admit_exactly_the_limit(
    redis_address: str, redis_namespace: str
) -> None:
    policy = Policy(redis_namespace, limit=100, window=60)
    async with AsyncExitStack() as stack:
        clients = [DistributedRateLimiter(await stack.enter_async_context(connected(redis_address))) for _ in range(8)]
        verdicts = await asyncio.gather(*(clients[number % 8].hit("somebody", policy) for number in range(1_000)))
    assert sum(verdict.allowed for verdict in verdicts) == 100


HIT_250_TIMES = """
import asyncio, sys
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.windows import Policy
from tests.support.redis_twins import connected

async def main(address: str, route: str) -> None:
    async with connected(address) as redis:
        limits, policy = DistributedRateLimiter(redis), Policy(route, limit=100, window=60)
        verdicts = await asyncio.gather(*(limits.hit("somebody", policy) for _ in range(250)))
        print(sum(verdict.allowed for verdict in verdicts))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_thousand_at_once_over_four_processes_admit_exactly_the_limit(
    redis_address: str, redis_namespace: str
) -> None:
    command = (sys.executable, "-c", HIT_250_TIMES, redis_address, redis_namespace)
    processes = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(4)]
    admitted = [int((await process.communicate())[0]) for process in processes]
    assert sum(admitted) == 100


def exceeded(admitted: Sequence[tuple[float, float, int]], policy: Policy) -> bool:
    """Whether hits that certainly lie within one window are more than the limit.

    Each hit was admitted at some moment between its two times.
    """
    for first, _, _ in admitted:
        within = [cost for begun, ended, cost in admitted if begun >= first and ended < first + policy.window]
        if sum(within) > policy.limit:
            return True
    return False


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.generate],  # real time passes: shrinking would take minutes and find something else
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=st.integers(1, 5),
    window=st.sampled_from([0.1, 0.2, 0.35]),
    walk=st.lists(st.tuples(st.floats(0, 0.03), st.integers(1, 3)), min_size=20, max_size=60),
)
async def test_no_interval_of_real_time_admits_more_than_the_limit(
    distributed: RateLimiter,
    redis_namespace: str,
    limit: int,
    window: float,
    walk: Sequence[tuple[float, int]],
) -> None:
    policy = Policy(f"{redis_namespace}{secrets.token_hex(4)}", limit, window)
    admitted: list[tuple[float, float, int]] = []
    for pause, cost in walk:
        await asyncio.sleep(pause)
        begun = time.monotonic()
        if (await distributed.hit("somebody", policy, cost)).allowed:
            admitted.append((begun, time.monotonic(), cost))
    assert not exceeded(admitted, policy)


@settings(max_examples=300, deadline=None)
@given(
    limit=st.integers(1, 5),
    window=st.sampled_from([0.05, 1.0, 60.0]),
    walk=st.lists(st.tuples(st.floats(0, 0.6), st.integers(1, 3)), max_size=80),
)
async def test_no_interval_of_a_turned_clock_admits_more_than_the_limit(
    limit: int, window: float, walk: Sequence[tuple[float, int]]
) -> None:
    clock, policy = ManualClock(), Policy("route", limit, window)
    limiter = EmbeddedRateLimiter(clock)
    admitted: list[tuple[float, float, int]] = []
    for pause, cost in walk:
        clock.advance(pause * window)
        if limiter.hit_soon("somebody", policy, cost).allowed:
            admitted.append((clock.monotonic(), clock.monotonic(), cost))
    assert not exceeded(admitted, policy)


async def test_only_the_embedded_twin_answers_without_awaiting(
    embedded: RateLimiter, distributed: RateLimiter, two_a_minute: Policy
) -> None:
    assert [_allowed(embedded, two_a_minute) for _ in range(3)] == [True, True, False]
    assert not (await embedded.hit("somebody", two_a_minute)).allowed
    assert distributed.hit_soon("somebody", two_a_minute) is None


def _allowed(limits: RateLimiter, policy: Policy) -> bool:
    verdict = limits.hit_soon("somebody", policy)
    assert verdict is not None
    return verdict.allowed


async def test_a_counter_in_redis_goes_away_by_itself(
    redis_address: str, distributed: RateLimiter, redis_namespace: str
) -> None:
    policy = Policy(redis_namespace, limit=2, window=0.2)
    async with administering(redis_address) as client:

        async def counted() -> bool:
            for _ in range(3):
                await distributed.hit("somebody", policy)
            return await client.exists(f"ratelimit:{redis_namespace}:somebody") == 1

        async def gone() -> bool:
            return await client.exists(policy.key("somebody")) == 0

        await eventually(counted)  # again where this process stood still for longer than a window
        await eventually(gone)


async def test_a_window_that_was_configured_anew_forgets_its_old_buckets(
    distributed: RateLimiter, redis_namespace: str
) -> None:
    for window in (60.0, 10.0, 900.0):
        policy = Policy(redis_namespace, limit=2, window=window)
        assert [(await distributed.hit("somebody", policy)).allowed for _ in range(3)] == [True, True, False]
