"""ACCEPTANCE 22 and 32 at identity: guesses are bounded while its Redis is away, dies, freezes or comes back empty."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.migrations import migrate
from refract.runtime.tokens import TokenSigner
from refract.services.identity.commands.throttling import BY_ACCOUNT, BY_ADDRESS
from tests.support.buses import EmbeddedBuses
from tests.support.clocks import ManualClock
from tests.support.databases import open_database
from tests.support.identity import EMAIL, PASSWORD, SECRET, CountingHasher, IdentityWorld
from tests.support.redis_twins import PATIENT, impatient
from tests.support.servers import Redis
from tests.support.waiting import eventually

WRONG = "a wrong password"
HERE, THERE = "X-Forwarded-For: 203.0.113.7", "X-Forwarded-For: 198.51.100.1"


@pytest.fixture
def redis() -> Iterator[Redis]:
    server = Redis()
    server.start()
    yield server
    server.close()


@pytest.fixture
async def identity(redis: Redis, tmp_path: Path) -> AsyncIterator[IdentityWorld]:
    """Identity that counts in a Redis of its own, which the test may kill, and has users Alice and Bob."""
    clock = ManualClock()
    location = tmp_path / "identity.db"
    await migrate("identity", location)
    async with AsyncExitStack() as stack:
        database = await open_database(location)
        stack.push_async_callback(database.close)
        connection = RedisConnection(redis.address, deadline=PATIENT)
        await connection.start()
        stack.push_async_callback(connection.close)
        buses = EmbeddedBuses(tmp_path)
        stack.push_async_callback(buses.close)
        hasher = CountingHasher()
        stack.callback(hasher.close)
        limiter = DistributedRateLimiter(connection)
        world = IdentityWorld(database, clock, limiter, hasher, TokenSigner(SECRET, clock), buses, stack)
        await world.add()
        await world.add("bob@example.com")
        await world.serve()
        yield world


async def guess(identity: IdentityWorld, times: int, email: str = EMAIL, *headers: str) -> Counter[int]:
    """So many wrong passwords at once: how often each status came."""
    answers = await asyncio.gather(*(identity.login(email, WRONG, *(headers or (HERE,))) for _ in range(times)))
    return Counter(answer.status for answer in answers)


async def counted_by_redis(identity: IdentityWorld) -> bool:
    await identity.limiter.ping()
    return True


async def test_an_account_is_closed_after_ten_guesses_although_redis_died(
    identity: IdentityWorld, redis: Redis
) -> None:
    assert await guess(identity, 4) == {401: 4}
    await asyncio.to_thread(redis.kill)
    # What Redis knew is gone with it; from here on this process counts, and a burst does not slip past.
    assert await guess(identity, 100) == {401: BY_ACCOUNT.limit, 429: 100 - BY_ACCOUNT.limit}
    assert identity.hasher.calls == ["compare"] * (4 + BY_ACCOUNT.limit)
    for address in (HERE, THERE):
        refused = await identity.login(EMAIL, PASSWORD, address)
        assert (refused.status, refused.json) == (429, {"error": "rate limit exceeded"})
        assert 0 < int(refused.headers["retry-after"]) <= 945
    assert (await identity.login("bob@example.com", PASSWORD, HERE)).status == 200
    assert len(identity.hasher.calls) == 4 + BY_ACCOUNT.limit + 1


async def test_an_address_is_closed_after_fifty_guesses_although_redis_died(
    identity: IdentityWorld, redis: Redis
) -> None:
    await asyncio.to_thread(redis.kill)
    guesses = (identity.login(f"user{number}@example.com", WRONG, HERE) for number in range(120))
    statuses = Counter(answer.status for answer in await asyncio.gather(*guesses))
    assert statuses == {401: BY_ADDRESS.limit, 429: 120 - BY_ADDRESS.limit}
    assert identity.hasher.calls == ["compare_nothing"] * BY_ADDRESS.limit, "none of them is known"
    assert (await identity.login("bob@example.com", PASSWORD, HERE)).status == 429
    assert (await identity.login("bob@example.com", PASSWORD, THERE)).status == 200


async def test_nobody_waits_for_a_redis_that_is_frozen(identity: IdentityWorld, redis: Redis) -> None:
    assert isinstance(identity.limiter, DistributedRateLimiter)
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        # Each of them waiting its deadline would take longer.
        async with asyncio.timeout(60):
            with impatient(identity.limiter._redis, 1.0):
                assert await guess(identity, 100) == {401: BY_ACCOUNT.limit, 429: 100 - BY_ACCOUNT.limit}
                assert (await identity.login("bob@example.com", PASSWORD, HERE)).status == 200
    finally:
        os.kill(redis.pid, signal.SIGCONT)


async def test_no_death_of_redis_in_mid_burst_lets_guesses_slip_past(identity: IdentityWorld, redis: Redis) -> None:
    """Whatever each knew when the other took over, one limit's worth of guesses for each is all there can be."""
    burst = asyncio.create_task(guess(identity, 150))
    await eventually(lambda: len(identity.hasher.calls) >= 3)
    await asyncio.to_thread(redis.kill)
    statuses = await burst
    assert set(statuses) <= {401, 429}
    await asyncio.to_thread(redis.start)  # empty, as it keeps nothing
    await eventually(lambda: counted_by_redis(identity))
    statuses += await guess(identity, 150)
    assert len(identity.hasher.calls) == statuses[401]
    assert statuses[401] <= 3 * BY_ACCOUNT.limit
    assert await guess(identity, 20) == {429: 20}
