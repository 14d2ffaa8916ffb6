"""Redirects through the gateway of distributed mode while workers of links die: all are answered, and counted once."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from refract.apps.directory import SERVICES
from tests.support.commands import running
from tests.support.instances import DistributedInstance, distributed
from tests.support.ledger import Ledger, Verdict
from tests.support.load import Following
from tests.support.servers import Kafka
from tests.support.servers.places import free_port
from tests.support.stack import variables
from tests.support.waiting import eventually
from tests.support.workers import children, has_begun, sockets_that_listen, that_listen

CONNECTIONS = 32
WORKERS = 2


@dataclass
class Front:
    """A gateway, and links of several workers behind it."""

    port: int
    links: DistributedInstance

    @property
    def parent(self) -> int:
        """The process that starts the workers of links."""
        return self.links.process.process.pid

    async def workers(self) -> list[int]:
        """They, the elder one first, once all of them listen."""
        return await eventually(lambda: that_listen(self.parent, self.links.port, WORKERS), timeout=60)

    async def kill(self, worker: int) -> None:
        """SIGKILL; returns when the parent knows."""
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: worker not in children(self.parent), timeout=60)

    async def check(self, ledger: Ledger, following: Following) -> None:
        """Each visit was answered with its link, and is one click."""
        await self.links.drained()
        assert (following.unanswered, following.refused, following.wrong) == (0, Counter(), [])
        found = [int(click.query.removeprefix("n=")) for click in await self.links.clicks()]
        assert ledger.compare(found) == Verdict()
        assert ledger.answered == ledger.attempted


@contextmanager
def gateway(links: DistributedInstance, folder: Path) -> Iterator[int]:
    """The port of a gateway that knows where links is, and counts nobody's requests."""
    ports = {name: free_port() for name in SERVICES} | {"links": links.port}
    servers = {**links.servers, Kafka.variable: "127.0.0.1:1"}
    settings = variables(servers, ports, {})["gateway"]
    settings |= {"JWT_SECRET": links.secret, "RATE_LIMIT_REDIRECT": "0", "REDIRECT_LOG_SAMPLE": "0"}
    address = f"http://127.0.0.1:{ports['gateway']}"
    with running("run", "gateway", address=address, folder=folder / "gateway", variables=settings):
        yield ports["gateway"]


@asynccontextmanager
async def fronted(folder: Path, postgres: str, redis: str, rabbitmq: str) -> AsyncIterator[Front]:
    """Both of them, when they answer."""
    servers = {"postgres": postgres, "redis": redis, "rabbitmq": rabbitmq}
    async with distributed(folder, **servers, WORKERS=str(WORKERS), REDIRECT_LOG_SAMPLE="0") as links:
        with gateway(links, folder) as port:
            yield Front(port, links)


@pytest.fixture
async def front(fresh_database: str, redis_address: str, rabbitmq_url: str, tmp_path: Path) -> AsyncIterator[Front]:
    """Both of them on servers that others use as well."""
    async with fronted(tmp_path, fresh_database, redis_address, rabbitmq_url) as both:
        yield both


async def follow_and_kill(front: Front, folder: Path, redirects: int, kills: int) -> None:
    """Clients follow links through the gateway while one worker after another is killed, the elder one each time."""
    places = await front.links.make_links(20)
    with Ledger(folder / "ledger") as ledger:
        following = Following(front.port, ledger, redirects, places=places)
        async with following.running(CONNECTIONS) as done:
            for kill in range(1, kills + 1):
                elder, _ = await front.workers()
                await following.answered(kill * redirects // (kills + 1))
                await front.kill(elder)
            await done
        await front.check(ledger, following)


async def test_workers_of_links_that_die_lose_no_visit_and_count_none_twice(front: Front, tmp_path: Path) -> None:
    await follow_and_kill(front, tmp_path, 6_000, 3)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_twenty_workers_of_links_that_die(front: Front, tmp_path: Path) -> None:
    await follow_and_kill(front, tmp_path, 200_000, 20)


async def test_a_worker_that_is_slow_to_come_back_closes_no_redirects(front: Front, tmp_path: Path) -> None:
    """What is queued for it is reset after a while, dozens of connections at once: that says nothing of the others."""
    places = await front.links.make_links(20)
    with Ledger(tmp_path / "ledger") as ledger:
        following = Following(front.port, ledger, places=places)
        async with following.running(CONNECTIONS):
            elder, younger = await front.workers()
            await following.answered(500)
            await front.kill(elder)
            [successor] = await eventually(lambda: [pid for pid in children(front.parent) if pid != younger])
            await eventually(lambda: has_begun(successor), interval=0.002)
            os.kill(successor, signal.SIGSTOP)
            try:
                await eventually(lambda: len(sockets_that_listen(front.links.port)) == 1, timeout=30)
                await following.answered(ledger.answered + 1_000)
            finally:
                os.kill(successor, signal.SIGCONT)
            await front.workers()
            await following.answered(ledger.answered + 500)
        await front.check(ledger, following)
