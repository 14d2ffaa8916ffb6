"""The servers of the SMS gateway stopped and started in mid-test: what clients are told, what is counted and sent."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.records import Record
from refract.services.sms.api import OUTBOUND
from refract.services.sms.commands import configuring, sending
from refract.services.sms.domain.copies import key_of
from refract.services.sms.http import auditing
from tests.support.fault_proxy import proxy_before
from tests.support.http import Answer, Client
from tests.support.redis_twins import administering
from tests.support.servers import Kafka, PostgreSQL, Redis, Server
from tests.support.servers.selection import started
from tests.support.sms import DATABASE_AWAY, LIMITED, LOG_AWAY, SENT, Burst, SmsWorld, all_at_once, sms_world
from tests.support.sms_cases import LIMITS_AND_USES, WINDOWS, hundred_cases
from tests.support.waiting import eventually

BOTH_WAYS = pytest.mark.parametrize("fast_path", [True, False], ids=["redis", "row-lock"])


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    """One that the test may stop."""
    with started([Kafka]) as [server]:
        assert isinstance(server, Kafka)
        yield server


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The same."""
    with started([Redis]) as [server]:
        assert isinstance(server, Redis)
        yield server


@pytest.fixture
def postgresql() -> Iterator[PostgreSQL]:
    """The same."""
    with started([PostgreSQL]) as [server]:
        assert isinstance(server, PostgreSQL)
        yield server


@pytest.fixture
async def without_broker(fresh_database: str, request: pytest.FixtureRequest, kafka: Kafka) -> AsyncIterator[SmsWorld]:
    """A gateway behind the lock that had a broker and sent by it, until it was stopped."""
    async with sms_world(fresh_database, request, fast_path=False, kafka=kafka.address) as world:
        assert await world.said(await world.user()) == SENT
        await asyncio.to_thread(kafka.stop)
        yield world


@pytest.fixture
async def without_redis(fresh_database: str, request: pytest.FixtureRequest, redis: Redis) -> AsyncIterator[SmsWorld]:
    """A gateway that counted in its Redis, until it was stopped."""
    async with sms_world(fresh_database, request, redis=redis.address) as world:
        user_id = await world.user()
        assert await world.said(user_id) == SENT
        assert [attempt["path"] for attempt in world.noted(user_id)] == ["redis"]
        await asyncio.to_thread(redis.stop)
        yield world


# The two properties that are about servers which are away.


@hundred_cases
@given(numbers=LIMITS_AND_USES, minutes=WINDOWS, elapsed=st.floats(0, 2))
async def test_property_5_what_a_stopped_broker_does_not_take_is_not_counted(
    without_broker: SmsWorld, numbers: tuple[int, int], minutes: int, elapsed: float
) -> None:
    limit, used = numbers
    user_id = await without_broker.plant(limit, minutes, used - (used == limit), elapsed * 60 * minutes)
    before = await without_broker.limit(user_id)
    assert await without_broker.said(user_id) == LOG_AWAY
    assert await without_broker.limit(user_id) == before


@hundred_cases
@given(numbers=LIMITS_AND_USES, sends=st.integers(1, 5))
async def test_property_11_with_redis_stopped_the_limit_holds(
    without_redis: SmsWorld, numbers: tuple[int, int], sends: int
) -> None:
    limit, used = numbers
    user_id = await without_redis.plant(limit, 10, used, 0)
    answers = await all_at_once(sends, lambda number: without_redis.said(user_id, str(number)))
    fit = min(sends, limit - used)
    assert sorted(answers) == [SENT] * fit + [LIMITED] * (sends - fit)
    assert (await without_redis.limit(user_id)).current_count == used + fit
    assert {attempt["path"] for attempt in without_redis.noted(user_id)} == {"row-lock"}


# Each of them stopped and started again.


async def test_a_redis_that_is_stopped_and_started_is_used_again(without_redis: SmsWorld, redis: Redis) -> None:
    """And nobody has to help: what was counted meanwhile is in the copy."""
    world = without_redis
    user_id = await world.user(limit=4)
    assert [await world.said(user_id) for _ in range(2)] == [SENT, SENT]
    await asyncio.to_thread(redis.start)
    await eventually(world.state.ping_quietly)
    assert [await world.said(user_id) for _ in range(4)] == [SENT, SENT, LIMITED, LIMITED]
    assert [attempt["path"] for attempt in world.noted(user_id)] == ["row-lock"] * 2 + ["redis"] * 4
    assert (await world.state.read(key_of(user_id)))["currentCount"] == "4"


async def test_a_redis_that_fails_over_is_gone_round_and_nothing_of_what_it_missed_is_let_through(
    fresh_database: str, request: pytest.FixtureRequest, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """As a replica it answers and takes nothing; then it is a master again, with a copy that has grown old."""
    async with (
        sms_world(fresh_database, request, redis=redis.address) as world,
        administering(redis.address) as client,
    ):
        user_id = await world.user(limit=4)
        assert await world.said(user_id) == SENT
        await client.slaveof("127.0.0.1", 1)
        assert [await world.said(user_id) for _ in range(2)] == [SENT, SENT]
        await client.slaveof()
        assert [await world.said(user_id) for _ in range(3)] == [SENT, LIMITED, LIMITED]
        paths = [attempt["path"] for attempt in world.noted(user_id)]
        assert paths == ["redis", "row-lock", "row-lock", "redis", "redis", "redis"]
        assert len(world.messages(user_id)) == (await world.limit(user_id)).current_count == 4
    assert [record.getMessage() for record in caplog.records if record.name == "refract.redis"] == [
        "redis refused a command"
    ]


async def test_a_broker_that_is_stopped_and_started_takes_messages_again(
    fresh_database: str, request: pytest.FixtureRequest, kafka: Kafka
) -> None:
    """What it did not take is counted on the quick way only, and what it took is there."""
    async with (
        sms_world(fresh_database, request, kafka=kafka.address) as quick,
        sms_world(fresh_database, request, kafka=kafka.address, fast_path=False) as locked,
    ):
        ways = [(quick, await quick.user(limit=10)), (locked, await locked.user(limit=10))]
        for world, user_id in ways:
            assert await world.said(user_id, "before") == SENT
        await asyncio.to_thread(kafka.stop)
        for world, user_id in ways:
            assert [await world.said(user_id, "away") for _ in range(3)] == [LOG_AWAY] * 3
        assert [(await world.limit(user_id)).current_count for world, user_id in ways] == [4, 1]
        await asyncio.to_thread(kafka.start)
        for world, user_id in ways:
            await eventually(partial(_all_answer, world), timeout=60)
            assert await world.said(user_id, "after") == SENT
            assert await in_topic(world, user_id) == ["before", "after"]
        assert [(await world.limit(user_id)).current_count for world, user_id in ways] == [5, 2]


async def in_topic(world: SmsWorld, user_id: int) -> list[str]:
    """The messages of a user that are in the topic, up to one that is written now: they are in one partition."""
    key, found = str(user_id), list[str]()
    await world.records.publish(Record(OUTBOUND.name, key, b"the end"))
    async with asyncio.timeout(60), world.records.reader(OUTBOUND, f"look for {user_id}") as reader:
        while "the end" not in found:
            batch = await reader.next_batch()
            found += [record.value.decode().removeprefix(f"{key}: ") for record in batch if record.key == key]
    return found[:-1]


CONFIG = {"rateLimit": 9, "timeWindow": 1}
AUDIT = ("/api/audit", "/api/audit/summary")


async def everything(world: SmsWorld, user_id: int) -> list[tuple[int, str]]:
    """What every route says."""
    config = msgspec.json.encode({"userId": user_id, **CONFIG})
    answers: list[Answer] = [await world.send(user_id), await world.post("/api/config", config)]
    async with await Client.connect(world.port) as client:
        answers += [await client.get(target) for target in AUDIT]
    assert {answer.headers["content-type"] for answer in answers if answer.status != 200} <= {
        "text/plain; charset=utf-8"
    }
    return [(answer.status, answer.text) for answer in answers]


@BOTH_WAYS
async def test_a_postgresql_that_is_stopped_and_started_counts_on_from_where_it_was(
    request: pytest.FixtureRequest, postgresql: PostgreSQL, *, fast_path: bool
) -> None:
    async with sms_world(postgresql.address, request, fast_path=fast_path) as world:
        user_id = await world.user(limit=3)
        assert await world.said(user_id) == SENT
        await asyncio.to_thread(postgresql.stop)
        assert await everything(world, user_id) == [DATABASE_AWAY] * 4
        await asyncio.to_thread(postgresql.start)
        await eventually(lambda: _all_answer(world), timeout=60)
        assert await world.said(user_id) == SENT
        assert [await world.said(user_id) for _ in range(2)] == [SENT, LIMITED]
        assert len(world.messages(user_id)) == (await world.limit(user_id)).current_count == 3
        assert [status for status, _ in await everything(world, user_id)] == [429, 200, 200, 200]


@BOTH_WAYS
async def test_a_postgresql_that_falls_silent_is_said_in_the_words_of_the_document_on_every_route(
    fresh_database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, fast_path: bool
) -> None:
    async with (
        proxy_before(fresh_database) as (behind, proxy),
        sms_world(behind, request, fast_path=fast_path) as world,
    ):
        user_id = await world.user()
        proxy.swallow()
        for module in (sending, configuring, auditing):
            monkeypatch.setattr(module, "PATIENCE", 0.3)
        assert await everything(world, user_id) == [DATABASE_AWAY] * 4
        assert world.messages(user_id) == []


# All of them, one after the other, while clients send.


LIMIT = 200


async def test_servers_that_stop_and_start_one_after_the_other_lose_nothing_and_let_nothing_more_through(
    request: pytest.FixtureRequest,
) -> None:
    """In mid-load. What is answered is in the topic, which never has more than the limit."""
    with started([Redis, Kafka, PostgreSQL]) as servers:
        redis, kafka, postgresql = servers
        async with sms_world(postgresql.address, request, redis=redis.address, kafka=kafka.address) as world:
            bursts = [Burst([world], await world.user(LIMIT, algorithm=name)) for name in ("fixed", "sliding")]
            for server in servers:
                await asyncio.gather(_stopping(server), *(burst.send(30) for burst in bursts))
                await asyncio.gather(*(burst.send(10) for burst in bursts))
                await asyncio.to_thread(server.start)
                await eventually(lambda: _all_answer(world), timeout=60)
                await asyncio.gather(*(burst.send(10) for burst in bursts))
            await asyncio.gather(*(burst.send(LIMIT) for burst in bursts))
            for burst in bursts:
                assert set(burst.said) == {200, 429, 503}
                assert (await world.limit(burst.user_id)).current_count == LIMIT
                written = await in_topic(world, burst.user_id)
                assert len(written) <= LIMIT
                assert set(burst.sent) <= set(written)


async def _stopping(server: Server) -> None:
    await asyncio.to_thread(server.stop)


async def _all_answer(world: SmsWorld) -> bool:
    await asyncio.gather(world.state.ping_quietly(), world.records.ping(), world.database.ping())
    return True
