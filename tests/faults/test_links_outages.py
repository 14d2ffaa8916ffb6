"""Links while PostgreSQL or Redis is away: cached links are followed, their clicks come back, and none goes astray."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis as RedisClient

from refract.services.links.redirect.memory import FRESH_SECONDS
from tests.support.http import Client
from tests.support.instances import DistributedInstance, beside, distributed
from tests.support.ledger import Ledger, Verdict
from tests.support.load import PAUSE, Following
from tests.support.servers import PostgreSQL, Redis, Server
from tests.support.waiting import eventually

CONNECTIONS = 8
MEGABYTE = 1024 * 1024
QUIET = {"REDIRECT_LOG_SAMPLE": "0"}


async def numbers(instance: DistributedInstance) -> list[int]:
    """The numbers that the clicks carry which reached the bus."""
    return [int(click.query.removeprefix("n=")) for click in await instance.clicks() if click.query.startswith("n=")]


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis of this test's own, which forgets everything when it dies."""
    with Redis() as server:
        yield server


# PostgreSQL


@pytest.fixture
def postgres() -> Iterator[PostgreSQL]:
    """A PostgreSQL of this test's own."""
    with PostgreSQL() as server:
        yield server


async def remember(instance: DistributedInstance, places: dict[str, str]) -> None:
    """Follow each link once, so that the process knows where it leads."""
    for code, place in places.items():
        answer = await instance.call("GET", f"/{code}")
        assert (answer.status, answer.headers["location"]) == (301, place)


@dataclass(frozen=True)
class Outage:
    """How long the database is away: for so many redirects, and so many seconds; and Redis with it or not."""

    redirects: int
    seconds: float = 0.0
    with_redis: bool = False


SHORT = Outage(1_000)
LONG = Outage(100_000, 1.2 * FRESH_SECONDS, with_redis=True)
"""Longer than the process trusts in what it knows of a link when it hears of no drops."""


async def follow_while_away(
    instance: DistributedInstance, away: list[Server], ledger: Ledger, following: Following, outage: Outage
) -> None:
    """Follow links before the servers are killed, while they are away, and after they are back."""
    async with following.running(CONNECTIONS):
        await following.answered(100)
        for server in away:
            await asyncio.to_thread(server.kill)
        over = time.monotonic() + outage.seconds
        await following.answered(ledger.answered + outage.redirects)
        following.rest = PAUSE  # as fast as they can, they would fill the spool before it is over
        await eventually(lambda: time.monotonic() >= over, timeout=outage.seconds + 1)
        assert instance.spooled, "the clicks are not in the spool"
        for server in away:
            await asyncio.to_thread(server.start)
        following.rest = 0.0
        await following.answered(ledger.answered + 100)
    await instance.drained()
    assert (following.unanswered, following.refused, following.wrong) == (0, Counter(), [])


@pytest.mark.parametrize("outage", [SHORT, pytest.param(LONG, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_known_links_are_followed_and_counted_while_postgresql_is_away(
    postgres: PostgreSQL, redis: Redis, rabbitmq_url: str, tmp_path: Path, outage: Outage
) -> None:
    servers = {"postgres": postgres.address, "redis": redis.address, "rabbitmq": rabbitmq_url}
    with Ledger(tmp_path / "ledger") as ledger:
        async with distributed(tmp_path, **servers, **QUIET) as instance:
            places = await instance.make_links(20)
            await remember(instance, places)
            following = Following(instance.port, ledger, places=places)
            await follow_while_away(
                instance, [postgres, redis] if outage.with_redis else [postgres], ledger, following, outage
            )
            assert await instance.metric("clicks_spooled_total") >= outage.redirects
            assert await instance.metric("clicks_shed_total") == 0
            assert await instance.stop() == 0
            assert ledger.compare(await numbers(instance)) == Verdict()


async def test_what_a_process_spooled_before_a_kill_comes_back_after_its_next_start(
    postgres: PostgreSQL, redis_address: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    servers = {"postgres": postgres.address, "redis": redis_address, "rabbitmq": rabbitmq_url}
    with Ledger(tmp_path / "ledger") as ledger:
        async with distributed(tmp_path, **servers, **QUIET) as instance:
            places = await instance.make_links(20)
            await remember(instance, places)
            await asyncio.to_thread(postgres.kill)
            following = Following(instance.port, ledger, places=places, reconnects=False)
            async with following.running(CONNECTIONS):
                await following.answered(500)
                await instance.kill()
            await asyncio.to_thread(postgres.start)
            await instance.start()
            await instance.drained()
            assert await instance.stop() == 0
            assert following.unanswered
            assert ledger.compare(await numbers(instance)) == Verdict()


async def test_a_full_spool_sheds_says_so_and_keeps_the_rest(
    postgres: PostgreSQL, redis_address: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    servers = {"postgres": postgres.address, "redis": redis_address, "rabbitmq": rabbitmq_url}
    with Ledger(tmp_path / "ledger") as ledger:
        async with distributed(tmp_path, **servers, **QUIET, CLICK_SPOOL_MB="1") as instance:
            places = await instance.make_links(20)
            await remember(instance, places)
            await asyncio.to_thread(postgres.kill)
            long = (f"User-Agent: {'a' * 512}", "X-Forwarded-For: 203.0.113.77")
            following = Following(instance.port, ledger, 2_000, places=places, headers=long)
            await following.run(CONNECTIONS)
            assert (following.unanswered, following.refused, following.wrong) == (0, Counter(), [])
            spooled = b"".join(file.read_bytes() for file in instance.spooled)
            assert MEGABYTE - 2_000 < len(spooled) <= MEGABYTE
            assert b"203.0.113.0" in spooled
            assert b"203.0.113.77" not in spooled
            shed = await instance.metric("clicks_shed_total")
            await asyncio.to_thread(postgres.start)
            await instance.drained()
            assert await instance.stop() == 0
            found = await numbers(instance)
            assert shed > 0
            assert len(found) == len(set(found)) == 2_000 - shed
            lines = {line["msg"]: line for line in instance.process.log if line["level"] == "error"}
            assert lines["clicks are being shed"]["reason"] == "the spool is full"
            assert lines["clicks were shed"]["clicks"] == shed


# Redis


@pytest.fixture
async def instance(
    redis: Redis, fresh_database: str, rabbitmq_url: str, tmp_path: Path
) -> AsyncIterator[DistributedInstance]:
    """Links over that Redis."""
    servers = {"postgres": fresh_database, "redis": redis.address, "rabbitmq": rabbitmq_url}
    async with distributed(tmp_path, **servers, **QUIET) as instance:
        yield instance


async def flush(redis: Redis) -> None:
    """Empty it."""
    async with RedisClient(host="127.0.0.1", port=redis.port) as client:
        await client.flushall()


async def change_some(instance: DistributedInstance, places: dict[str, list[str]], round_number: int) -> None:
    """Give every fourth link another destination: both are right until everybody has heard of it, then one is."""
    for code, allowed in list(places.items())[::4]:
        place = f"https://example.com/changed/{round_number}/{code}"
        allowed.append(place)
        answer = await instance.call("PATCH", f"/urls/{code}", {"url": place})
        assert answer.status == 200, answer.body


async def has_heard(instance: DistributedInstance, places: dict[str, list[str]]) -> bool:
    """Whether a process leads to the last destination of every link."""
    async with await Client.connect(instance.port) as client:
        return all([(await client.get(f"/{code}")).headers["location"] == places[code][-1] for code in places])


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_redis_emptied_and_killed_misleads_nobody(
    instance: DistributedInstance, redis: Redis, tmp_path: Path, rounds: int
) -> None:
    places = {code: [place] for code, place in (await instance.make_links(100)).items()}
    with Ledger(tmp_path / "ledger") as ledger:
        async with beside(instance) as other:
            # Two processes: what one of them finds in the database, the other finds in Redis.
            here, there = (Following(process.port, ledger, places=places) for process in (instance, other))

            async def everybody_knows() -> None:
                await eventually(lambda: has_heard(instance, places), timeout=20)
                for allowed in places.values():
                    del allowed[:-1]
                await here.answered(ledger.answered + 300)

            async with here.running(CONNECTIONS // 2), there.running(CONNECTIONS // 2):
                for round_number in range(rounds):
                    await here.answered(ledger.answered + 300)
                    await flush(redis)
                    await here.answered(ledger.answered + 300)
                    await asyncio.to_thread(redis.kill)
                    await change_some(other, places, 2 * round_number)
                    await everybody_knows()  # over the bus, as Redis is away
                    await asyncio.to_thread(redis.start)
                    await here.answered(ledger.answered + 300)
                    await change_some(other, places, 2 * round_number + 1)
                    await everybody_knows()
            assert here.wrong == there.wrong == []
            assert (here.unanswered, here.refused) == (there.unanswered, there.refused) == (0, Counter())
            await instance.drained()
            assert [await process.stop() for process in (instance, other)] == [0, 0]
        assert ledger.compare(await numbers(instance)) == Verdict()
