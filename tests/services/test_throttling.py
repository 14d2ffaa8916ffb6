"""Failed sign-ins: bursts try no more passwords than one after the other could, and Redis is not needed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from refract.kernel.errors import Limited, Unavailable
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.fairness import Turns
from refract.runtime.ports import RateLimiter
from refract.runtime.windows import Policy, Verdict
from refract.services.identity.commands import throttling
from refract.services.identity.commands.throttling import BY_ACCOUNT, BY_ADDRESS, Attempt, Throttle
from tests.support.clocks import ManualClock
from tests.support.redis_twins import administering, connected
from tests.support.waiting import eventually

EMAIL = "alice@example.com"
ADDRESS = "203.0.113.7"


@pytest.fixture(params=["embedded", "distributed", "away"])
async def limiter(request: pytest.FixtureRequest) -> AsyncIterator[RateLimiter]:
    """In memory, in Redis, and in Redis while nobody answers there."""
    if request.param == "embedded":
        yield EmbeddedRateLimiter()
    elif request.param == "distributed":
        async with connected(request.getfixturevalue("redis_address")) as redis:
            yield DistributedRateLimiter(redis)
    else:
        redis = RedisConnection("127.0.0.1:9", deadline=0.01)  # a port that nobody listens on
        await redis.start()
        yield DistributedRateLimiter(redis)
        await redis.close()


@pytest.fixture
def throttle(limiter: RateLimiter, redis_namespace: str) -> Throttle:
    return Throttle(limiter, f"salt {redis_namespace}")


class Guesses:
    """Attempts whose passwords are looked at until the test says what came of them."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self.looked_at: list[asyncio.Future[bool]] = []

    async def guess(self, email: str = EMAIL, address: str = ADDRESS) -> str:
        """One attempt; it is right or wrong when its future says so."""
        try:
            async with self._throttle.attempt(email, address) as attempt:
                right: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                self.looked_at.append(right)
                if await right:
                    return "right"
                attempt.failed()
        except Limited:
            return "refused"
        return "wrong"

    def begin(self, number: int, email: str = EMAIL, address: str = ADDRESS) -> list[asyncio.Task[str]]:
        """Many at once."""
        return [asyncio.create_task(self.guess(email, address)) for _ in range(number)]

    def settle(self, right: bool, number: int | None = None) -> None:
        """What came of those that are being looked at, the oldest first."""
        waiting = [future for future in self.looked_at if not future.done()]
        for future in waiting if number is None else waiting[:number]:
            future.set_result(right)


async def fail(throttle: Throttle, times: int, email: str = EMAIL, address: str = ADDRESS) -> None:
    for _ in range(times):
        async with throttle.attempt(email, address) as attempt:
            attempt.failed()


async def is_refused(throttle: Throttle, email: str = EMAIL, address: str = ADDRESS) -> bool:
    try:
        async with throttle.attempt(email, address):
            return False
    except Limited:
        return True


async def test_ten_failures_of_an_account_are_enough(throttle: Throttle) -> None:
    await fail(throttle, 9)
    assert not await is_refused(throttle)
    await fail(throttle, 1)
    assert await is_refused(throttle)
    assert await is_refused(throttle, address="198.51.100.1")
    assert not await is_refused(throttle, email="bob@example.com")


async def test_fifty_failures_of_an_address_are_enough(throttle: Throttle) -> None:
    for number in range(50):
        await fail(throttle, 1, email=f"user{number}@example.com")
    assert await is_refused(throttle)
    assert not await is_refused(throttle, address="198.51.100.1")


async def test_the_addresses_of_one_ipv6_network_are_one_client(throttle: Throttle) -> None:
    for number in range(50):
        await fail(throttle, 1, email=f"user{number}@example.com", address=f"2001:db8:1:2::{number:x}")
    assert await is_refused(throttle, address="2001:db8:1:2:ffff::1")
    assert not await is_refused(throttle, address="2001:db8:1:3::1")


async def test_a_refusal_is_not_counted_and_says_when_to_come_back(throttle: Throttle) -> None:
    await fail(throttle, 10)
    waits = []
    for _ in range(5):
        with pytest.raises(Limited) as limited:
            await fail(throttle, 1)
        waits.append(limited.value.retry_after)
    assert all(0 < wait <= 15 * 60 * 21 / 20 for wait in waits)
    assert waits == sorted(waits, reverse=True)


async def test_whoever_waits_as_told_is_let_in_again() -> None:
    clock = ManualClock()
    throttle = Throttle(EmbeddedRateLimiter(clock), "salt")
    await fail(throttle, 10)
    with pytest.raises(Limited) as limited:
        await fail(throttle, 1)
    clock.advance(limited.value.retry_after - 1)
    assert await is_refused(throttle)
    clock.advance(1)
    await fail(throttle, 10)
    assert await is_refused(throttle)


async def test_an_error_of_ours_is_nobodys_failure(throttle: Throttle) -> None:
    for _ in range(20):
        with pytest.raises(Unavailable):
            async with throttle.attempt(EMAIL, ADDRESS):
                raise Unavailable("database", "it is away")
    assert not await is_refused(throttle)


async def test_a_failure_counts_also_when_an_error_leaves_the_block(throttle: Throttle) -> None:
    async def fail_loudly() -> None:
        async with throttle.attempt(EMAIL, ADDRESS) as attempt:
            attempt.failed()
            raise ValueError("no")

    for _ in range(10):
        with pytest.raises(ValueError, match="no"):
            await fail_loudly()
    assert await is_refused(throttle)


async def test_a_burst_of_guesses_tries_ten_passwords(throttle: Throttle) -> None:
    guesses = Guesses(throttle)
    tasks = guesses.begin(100)
    await eventually(lambda: len(guesses.looked_at) == 10)
    await eventually(lambda: sum(gate.waiting for gate in throttle._gates.values()) == 90)
    guesses.settle(right=False)
    outcomes = await asyncio.gather(*tasks)
    assert (outcomes.count("wrong"), outcomes.count("refused"), len(guesses.looked_at)) == (10, 90, 10)
    assert throttle._gates == {}


async def test_a_burst_over_many_accounts_tries_fifty_passwords(throttle: Throttle) -> None:
    guesses = Guesses(throttle)
    tasks = [task for number in range(120) for task in guesses.begin(1, f"user{number}@example.com")]
    await eventually(lambda: len(guesses.looked_at) == 50)
    guesses.settle(right=False)
    outcomes = await asyncio.gather(*tasks)
    assert (outcomes.count("wrong"), outcomes.count("refused"), len(guesses.looked_at)) == (50, 70, 50)


async def test_failures_one_by_one_let_nobody_slip_past(throttle: Throttle) -> None:
    guesses = Guesses(throttle)
    tasks = guesses.begin(40)
    for settled in range(10):
        await eventually(lambda: len(guesses.looked_at) == 10)
        guesses.settle(right=False, number=1)
        await eventually(lambda settled=settled: sum(task.done() for task in tasks) > settled)  # type: ignore[misc]
    outcomes = await asyncio.gather(*tasks)
    assert (outcomes.count("wrong"), outcomes.count("refused"), len(guesses.looked_at)) == (10, 30, 10)


async def test_whoever_knows_the_password_only_waits(throttle: Throttle) -> None:
    guesses = Guesses(throttle)
    tasks = guesses.begin(50)
    for turn in range(1, 6):
        await eventually(lambda turn=turn: len(guesses.looked_at) == 10 * turn)  # type: ignore[misc]
        guesses.settle(right=True)
    assert await asyncio.gather(*tasks) == ["right"] * 50
    assert not await is_refused(throttle)
    assert throttle._gates == {}


async def test_a_place_is_free_again_when_somebody_is_cut_off(throttle: Throttle) -> None:
    guesses = Guesses(throttle)
    tasks = guesses.begin(11)
    await eventually(lambda: len(guesses.looked_at) == 10)
    await eventually(lambda: sum(gate.waiting for gate in throttle._gates.values()) == 1)
    tasks[0].cancel()
    await eventually(lambda: len(guesses.looked_at) == 11)
    guesses.settle(right=True)
    assert (await asyncio.gather(*tasks[1:])) == ["right"] * 10
    assert throttle._gates == {}


async def test_whoever_is_refused_by_address_leaves_no_trace_at_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = EmbeddedRateLimiter(ManualClock())
    throttle = Throttle(limiter, "salt")
    for number in range(50):
        await fail(throttle, 1, email=f"user{number}@example.com")
    counters = len(limiter._windows)
    assert counters == 51
    for number in range(100):
        assert await is_refused(throttle, email=f"other{number}@example.com")
    monkeypatch.setattr(throttling, "MOST_WAITING", 0)  # nor by standing in too long a line
    assert await is_refused(throttle, email="another@example.com", address="198.51.100.1")
    assert len(limiter._windows) == counters


async def test_too_long_a_line_is_refused(throttle: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "MOST_WAITING", 5)
    guesses = Guesses(throttle)
    first = guesses.begin(1)
    await eventually(lambda: len(guesses.looked_at) == 1)
    tasks = guesses.begin(40)
    await eventually(lambda: sum(task.done() for task in tasks) >= 26)
    guesses.settle(right=True)
    await asyncio.gather(*first)
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        guesses.settle(right=True)
    assert {task.result() for task in tasks} == {"right", "refused"}


class Behind:
    """A limiter whose answer to a question is as old as it can be: others go on before the asker hears it."""

    def __init__(self) -> None:
        self._limiter = EmbeddedRateLimiter(ManualClock())
        self.hold: asyncio.Event | None = None

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        verdict = await self._limiter.hit(who, policy, cost)
        if cost == 0 and policy is BY_ACCOUNT and self.hold is not None:
            hold, self.hold = self.hold, None
            await hold.wait()
        return verdict

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict | None:
        return None

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_an_answer_from_before_a_failure_is_not_believed() -> None:
    limiter = Behind()
    throttle = Throttle(limiter, "salt")
    await fail(throttle, 9)
    guesses = Guesses(throttle)
    [last] = guesses.begin(1)
    await eventually(lambda: len(guesses.looked_at) == 1)
    limiter.hold = hold = asyncio.Event()
    [late] = guesses.begin(1)
    await eventually(lambda: limiter.hold is None)  # it was told that one more fits
    guesses.settle(right=False)
    assert await last == "wrong"
    hold.set()
    await eventually(lambda: late.done() or len(guesses.looked_at) == 2)
    assert len(guesses.looked_at) == 1
    assert await late == "refused"


async def test_what_is_counted_in_redis_is_no_address_and_no_account(redis_address: str, redis_namespace: str) -> None:
    async with connected(redis_address) as redis, administering(redis_address) as client:
        before = set(await client.keys("ratelimit:login-*"))
        throttle = Throttle(DistributedRateLimiter(redis), redis_namespace)
        await fail(throttle, 1)
        keys = list(map(str, set(await client.keys("ratelimit:login-*")) - before))
    assert len(keys) >= 2
    assert not any(EMAIL in key or ADDRESS in key for key in keys)


async def test_processes_share_what_is_counted(redis_address: str, redis_namespace: str) -> None:
    async with connected(redis_address) as one, connected(redis_address) as other:
        here, there = (Throttle(DistributedRateLimiter(redis), redis_namespace) for redis in (one, other))
        await fail(here, 5)
        await fail(there, 5)
        assert await is_refused(here)
        assert await is_refused(there)


async def test_a_client_takes_turns_with_itself_and_the_rest_of_its_line_is_refused() -> None:
    clients, here, go_on = Turns(2, 3), 0, asyncio.Event()

    async def come(address: str = ADDRESS) -> None:
        nonlocal here
        async with clients.turn(address):
            here += 1
            await go_on.wait()

    tasks = [asyncio.create_task(come()) for _ in range(6)]
    other = asyncio.create_task(come("198.51.100.1"))
    await eventually(lambda: here == 3 and tasks[5].done())
    assert isinstance(tasks[5].exception(), Limited)
    tasks[0].cancel()  # whoever leaves makes room for the next, whether they worked or waited
    tasks[4].cancel()
    await eventually(lambda: here == 4)
    go_on.set()
    await asyncio.gather(*tasks[1:4], other)
    assert (here, clients._places) == (5, {})


def test_the_figures_are_those_of_the_decision() -> None:
    assert (BY_ACCOUNT.limit, BY_ACCOUNT.window, BY_ACCOUNT.when_away) == (10, 900.0, "local")
    assert (BY_ADDRESS.limit, BY_ADDRESS.window, BY_ADDRESS.when_away) == (50, 900.0, "local")
    assert not Attempt().has_failed
