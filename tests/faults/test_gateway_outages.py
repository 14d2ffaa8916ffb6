"""ACCEPTANCE 22 at the gateway: its Redis dies, freezes and comes back while links are followed."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from refract.runtime.distributed.redis_connection import CACHE_DEADLINE
from tests.support.doors import Backstage, Door, one_door
from tests.support.http import Answer, Client, fetch
from tests.support.patient_command import REDIS_PATIENCE
from tests.support.servers import Redis
from tests.support.waiting import eventually

World = tuple[Door, Backstage]

LIMIT = 1_000_000


@pytest.fixture
def redis() -> Iterator[Redis]:
    server = Redis()
    server.start()
    yield server
    server.close()


@pytest.fixture
async def world(tmp_path: Path, redis: Redis) -> AsyncIterator[World]:
    """The gateway waits for Redis no longer than in real life."""
    own = {REDIS_PATIENCE: str(CACHE_DEADLINE)}
    async with one_door(tmp_path, redis.address, RATE_LIMIT_REDIRECT=str(LIMIT), **own) as opened:
        yield opened


def is_counted(answer: Answer) -> bool:
    """Whether a counter was asked: without one, all that is allowed is left each time."""
    return int(answer.headers["x-ratelimit-remaining"]) < LIMIT


class Following:
    """Clients that follow a link without rest, and count what they are told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered: Counter[int] = Counter()
        self.counted = 0
        """Those that left fewer than there were."""
        self.stopping = False

    async def run(self, clients: int = 10) -> None:
        """Go on until told to stop."""
        await asyncio.gather(*(self._follow() for _ in range(clients)))

    async def more(self, requests: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.answered.total() + requests
        await eventually(lambda: self.answered.total() >= wanted, timeout=60)

    async def _follow(self) -> None:
        async with await Client.connect(self._port) as client:
            while not self.stopping:
                answer = await client.get("/r/abc")
                self.answered[answer.status] += 1
                self.counted += is_counted(answer)


async def counts(door: Door) -> bool:
    return is_counted(await fetch(door.port, "/r/abc"))


async def outage(redis: Redis, door: Door, following: Following, requests: int) -> None:
    """Kill Redis, go on without it, and bring it back."""
    await following.more(requests)
    await asyncio.to_thread(redis.kill)
    await following.more(requests)
    await asyncio.to_thread(redis.start)
    await eventually(lambda: counts(door))
    await following.more(requests)


async def test_links_are_followed_while_redis_is_killed_and_frozen(world: World, redis: Redis) -> None:
    door, _ = world
    following = Following(door.port)
    task = asyncio.create_task(following.run())
    await outage(redis, door, following, 200)
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        await following.more(200)
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    await eventually(lambda: counts(door))
    following.stopping = True
    await task
    assert set(following.answered) == {200}, "every one was answered"
    assert 0 < following.counted < following.answered.total(), "with the limit while it could be counted"
    lines = [line["msg"] for line in door.log if "redis" in line["msg"]]
    both = ("redis unavailable; cache disabled", "redis is back")
    # A busy machine may take a pause of its own for another, and have it at this moment.
    assert lines == [both[number % 2] for number in range(len(lines))]
    assert len(lines) >= 4


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_links_are_followed_through_ten_deaths_of_redis(world: World, redis: Redis) -> None:
    door, backstage = world
    following = Following(door.port)
    task = asyncio.create_task(following.run(20))
    for _ in range(10):
        await outage(redis, door, following, 500)
    following.stopping = True
    await task
    assert set(following.answered) == {200}
    assert following.answered.total() >= 15_000
    assert backstage.reached["/abc"] >= following.answered.total()
