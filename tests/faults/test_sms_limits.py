"""ACCEPTANCE 20 to 23 at sms: no message over the limit, whatever Redis does, and whatever clocks say."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from refract.kernel.clock import SystemClock
from refract.services.sms.domain.copies import key_of
from tests.support import sms as support
from tests.support.databases import Location, empty_location
from tests.support.http import Answer
from tests.support.redis_twins import administering
from tests.support.servers import Redis
from tests.support.sms import Burst, SmsWorld, locked_sms, new_user, sms_world
from tests.support.waiting import eventually

__all__ = ["empty_location", "locked_sms"]

ON_SERVERS = pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
LIMIT = 60
PARALLEL = 500


@pytest.fixture
def redis() -> Iterator[Redis]:
    """One that the test may kill; nothing that it knows outlives a kill."""
    server = Redis()
    server.start()
    yield server
    server.close()


@pytest.fixture
async def mortal(empty_location: Location, redis: Redis, request: pytest.FixtureRequest) -> AsyncIterator[SmsWorld]:
    """An SMS gateway on that Redis."""
    async with sms_world(empty_location, request, redis=redis.address) as world:
        yield world


async def answers(world: SmsWorld) -> bool:
    """Whether Redis does."""
    await world.state.ping()
    return True


def published(worlds: list[SmsWorld], user_id: int) -> int:
    """How many messages left."""
    return sum(len(world.messages(user_id)) for world in worlds)


@ON_SERVERS
@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_a_redis_that_dies_and_comes_back_empty_lets_nothing_more_through(
    mortal: SmsWorld, redis: Redis, algorithm: str
) -> None:
    user = await mortal.user(LIMIT, algorithm=algorithm)
    burst = Burst([mortal], user)
    await burst.send(LIMIT // 3)
    assert burst.said == {200: LIMIT // 3}
    sending = asyncio.create_task(burst.send(LIMIT // 3))
    await asyncio.to_thread(redis.kill)
    await sending
    assert burst.said == {200: 2 * (LIMIT // 3)}, "the same requests went on behind the lock"
    await burst.send(2)
    await asyncio.to_thread(redis.start)
    await eventually(lambda: answers(mortal))
    assert await mortal.copy(user) == {}
    await burst.send(2 * LIMIT)
    assert burst.said[200] == published([mortal], user) == LIMIT
    assert set(burst.said) == {200, 429}


@ON_SERVERS
async def test_a_redis_that_is_killed_again_and_again_in_mid_load(mortal: SmsWorld, redis: Redis) -> None:
    """At moments that nobody chose: between its word and the database's, too."""
    users = [await mortal.user(LIMIT, algorithm=algorithm) for algorithm in ("fixed", "sliding")]
    bursts = [Burst([mortal], user) for user in users]
    sending = asyncio.gather(*(burst.send(6 * LIMIT) for burst in bursts))
    for _ in range(3):
        await asyncio.to_thread(redis.kill)
        await asyncio.to_thread(redis.start)
    await sending
    for user, burst in zip(users, bursts, strict=True):
        await burst.send(LIMIT)
        assert burst.said[200] == published([mortal], user) == LIMIT
        assert set(burst.said) == {200, 429}


@ON_SERVERS
@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_a_redis_restored_from_an_old_copy_lets_nothing_more_through(
    mortal: SmsWorld, redis: Redis, algorithm: str
) -> None:
    user = await mortal.user(LIMIT, algorithm=algorithm)
    burst = Burst([mortal], user)
    await burst.send(1)
    async with administering(redis.address) as client:
        old = await client.dump(key_of(user))
        assert old is not None
        for _ in range(5):
            await burst.send(LIMIT // 3)
            await client.restore(key_of(user), 600_000, old, replace=True)
        await client.flushall()
        await burst.send(LIMIT)
        await client.hset(key_of(user), mapping={"currentCount": "-1000000", "rateLimit": "1000000"})
        await burst.send(LIMIT)
    assert burst.said[200] == published([mortal], user) == LIMIT
    assert set(burst.said) == {200, 429}


@ON_SERVERS
async def test_without_redis_the_database_limits(mortal: SmsWorld, redis: Redis) -> None:
    """Never unlimited (22)."""
    await asyncio.to_thread(redis.kill)
    user = await mortal.user(LIMIT)
    burst = Burst([mortal], user)
    await burst.send(4 * LIMIT)
    assert burst.said == {200: LIMIT, 429: 3 * LIMIT}
    assert {attempt["path"] for attempt in mortal.noted(user)} == {"row-lock"}


async def test_five_hundred_at_once_on_the_row_lock(locked_sms: SmsWorld, empty_location: Location) -> None:
    users = [await locked_sms.user(100), await locked_sms.user(LIMIT, algorithm="sliding")]
    bursts = [Burst([locked_sms], user) for user in users]
    await asyncio.gather(*(burst.send(PARALLEL, at_once=PARALLEL) for burst in bursts))
    for user, burst, limit in zip(users, bursts, (100, LIMIT), strict=True):
        assert burst.said == {200: limit, 429: PARALLEL - limit}
        assert published([locked_sms], user) == limit
        assert (await locked_sms.limit(user)).current_count == limit
    if isinstance(empty_location, str):
        assert await deadlocks(empty_location) == 0


async def deadlocks(dsn: str) -> int:
    """How many PostgreSQL has found in this database."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(
            await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        )
    finally:
        await connection.close()


class FastClock(SystemClock):
    """A clock that is wrong."""

    ahead = timedelta(seconds=61)

    def now(self) -> datetime:
        """A minute and a second too late."""
        return super().now() + self.ahead

    def milliseconds(self) -> int:
        """The same."""
        return super().milliseconds() + round(self.ahead.total_seconds() * 1000)


@ON_SERVERS
@pytest.mark.parametrize("fast_path", [True, False])
async def test_four_gateways_with_clocks_a_minute_apart_admit_the_limit_together(
    empty_location: Location, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, fast_path: bool
) -> None:
    """Some by the quick way and some behind the lock, if their settings differ. Windows are one minute long (20)."""
    async with AsyncExitStack() as stack:
        worlds = []
        for index in range(4):
            if index % 2:
                monkeypatch.setattr(support, "SystemClock", FastClock)
            quick = fast_path or index > 1
            worlds.append(await stack.enter_async_context(sms_world(empty_location, request, fast_path=quick)))
            monkeypatch.undo()
        for algorithm in ("fixed", "sliding"):
            user = await worlds[0].user(100, minutes=1, algorithm=algorithm)
            burst = Burst(worlds, user)
            await burst.send(1_000, at_once=200)
            assert burst.said == {200: 100, 429: 900}
            assert published(worlds, user) == 100


# Whoever waits as long as they are told to is let through (23).


def seconds_to_wait(answer: Answer) -> int:
    assert answer.status == 429
    return int(answer.headers["retry-after"])


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_retry_after_is_long_enough(
    empty_location: Location, request: pytest.FixtureRequest, algorithm: str
) -> None:
    """A hundred users, each at another moment of their window; time passes by moving what was counted."""
    async with sms_world(empty_location, request) as sms:

        async def wait_and_send(number: int) -> tuple[int, int]:
            # What was counted in slices moves by whole ones, which in a window of a minute last a second.
            limit, minutes = 1 + number % 4, 1 + number % 3 if algorithm == "fixed" else 1
            user = await sms.user(limit, minutes, algorithm)
            for _ in range(limit):
                assert (await sms.send(user)).status == 200
                await sms.age(user, number * minutes * 0.59 / limit)
            refused = await sms.send(user)
            while refused.status == 200:  # on a busy machine time has passed as well
                refused = await sms.send(user)
            wait = seconds_to_wait(refused)
            assert 1 <= wait <= minutes * 61, "a window, and the slice that is begun"
            await sms.age(user, wait)
            return wait, (await sms.send(user)).status

        outcomes = await asyncio.gather(*(wait_and_send(number) for number in range(100)))
    assert Counter(status for _, status in outcomes) == {200: 100}
    assert len({wait for wait, _ in outcomes}) > 20, "they did not differ"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_who_really_waits_succeeds(
    empty_location: Location, request: pytest.FixtureRequest, algorithm: str, *, fast_path: bool
) -> None:
    """The same with real minutes, in which copies expire."""
    async with sms_world(empty_location, request, fast_path=fast_path) as sms:

        async def wait_and_send(number: int) -> int:
            await asyncio.sleep(number * 0.3)
            user = await sms.user(2, 1, algorithm)
            for pause in (number * 0.1, 0):
                assert (await sms.send(user)).status == 200
                await asyncio.sleep(pause)
            await asyncio.sleep(seconds_to_wait(await sms.send(user)))
            return (await sms.send(user)).status

        statuses = await asyncio.gather(*(wait_and_send(number) for number in range(100)))
    assert Counter(statuses) == {200: 100}


@pytest.mark.parametrize("limit", [0, -1, 1 << 31, "1", 1.0, None, True])
async def test_a_limit_of_nothing_is_refused_and_changes_nothing(locked_sms: SmsWorld, limit: Any) -> None:
    user = new_user()
    body = msgspec.json.encode({"userId": user, "rateLimit": limit, "timeWindow": 1})
    answer = await locked_sms.post("/api/config", body)
    assert (answer.status, answer.text) == (400, "Missing/Invalid Arguments")
    assert (await locked_sms.send(user)).status == 404
