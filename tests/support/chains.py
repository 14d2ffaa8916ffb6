"""From the redirect to the count: links and analytics as processes in either mode, and what they have counted."""

import asyncio
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiormq

from refract.apps.builders import QUEUES
from refract.apps.directory import SERVICES
from refract.kernel.events import EventDecoder
from refract.services.analytics.reactions import CLICKS
from refract.services.links.api import UrlClicked
from tests.support.databases import administer
from tests.support.http import Answer, Client
from tests.support.instances import DistributedInstance, EmbeddedInstance, Instance
from tests.support.load import Following
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.waiting import eventually

SAVED = "SELECT payload FROM outbox WHERE event_type = 'url.clicked'"
COUNTED = "SELECT count(*) FROM clicks"
AGENTS = "SELECT user_agent FROM clicks"
BY_LINK = "SELECT short_code, count(*), max(clicked_at) FROM clicks GROUP BY short_code"
TOTALS = "SELECT short_code, clicks, last_clicked_at FROM totals"
HOURS = "SELECT short_code, sum(clicks) FROM rollups WHERE span = 1 GROUP BY short_code"
SHOWN = "SELECT short_code, total_clicks, last_clicked_at FROM links WHERE total_clicks > 0"
MILESTONES = "SELECT short_code, milestone FROM milestones"
ANNOUNCED = "SELECT payload FROM outbox WHERE event_type = 'milestone.reached'"
THRESHOLDS = (10, 100, 1_000, 10_000, 100_000)

AGENT = "ledger "
QUIET = {"REDIRECT_LOG_SAMPLE": "0"}

_decoder = EventDecoder(UrlClicked)


@dataclass
class Numbered(Following):
    """Clients that follow links, each time as another browser: its name is a number, which a click keeps."""

    async def _ask(self, client: Client, number: int) -> Answer:
        return await client.get(f"/{self.code(number)}", f"User-Agent: {AGENT}{number}")


class Chain(ABC):
    """All processes between a redirect and its count."""

    links: Instance
    """The one that redirects."""
    victims: Sequence[Instance]
    """Those that may be killed, in turn."""

    @abstractmethod
    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query to the database of analytics."""

    @abstractmethod
    async def dead(self) -> list[str]:
        """Why letters of the queue of clicks were buried; asked when everything has ended."""

    async def kill(self, number: int) -> None:
        """Kill the one whose turn it is, and start it again."""
        victim = self.victims[number % len(self.victims)]
        await victim.kill()
        await victim.start()

    async def stop(self) -> list[int]:
        """SIGTERM to all; their exit statuses."""
        return [await victim.stop() for victim in self.victims]

    async def saved(self) -> int:
        """How many clicks links has saved."""
        payloads = [str(row[0]).encode() for row in await self.links.fetch(SAVED)]
        return len({event.event_id for payload in payloads for event in _decoder.decode("url.clicked", payload)})

    async def settled(self, timeout: float = 60) -> None:
        """Wait until everything that links has saved is counted, and links has been told."""
        await self.links.drained(timeout)
        saved = await self.saved()

        async def counted() -> bool:
            [[clicks]] = await self.fetch(COUNTED)
            return bool(clicks >= saved)

        async def told() -> bool:
            return rows(await self.links.fetch(SHOWN)) == rows(await self.fetch(TOTALS))

        await eventually(counted, timeout=timeout, interval=0.1)
        await eventually(told, timeout=timeout, interval=0.1)

    async def numbers(self) -> list[int]:
        """The numbers of the clients that were counted, each as often as it was."""
        agents = [str(row[0]) for row in await self.fetch(AGENTS)]
        return [int(agent.removeprefix(AGENT)) for agent in agents if agent.startswith(AGENT)]

    async def check_sums(self) -> None:
        """Everything that is added up of clicks agrees with the clicks, and each milestone was told once."""
        by_link = rows(await self.fetch(BY_LINK))
        assert rows(await self.fetch(TOTALS)) == by_link
        assert rows(await self.links.fetch(SHOWN)) == by_link
        assert {code: int(clicks) for code, clicks in await self.fetch(HOURS)} == {row[0]: row[1] for row in by_link}
        reached = {(code, threshold) for code, clicks, _ in by_link for threshold in THRESHOLDS if threshold <= clicks}
        assert Counter(map(tuple, await self.fetch(MILESTONES))) == Counter(reached)
        assert len(await self.fetch(ANNOUNCED)) == len(reached)


def rows(found: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows of either engine, sorted."""
    return sorted(map(tuple, found))


class EmbeddedChain(Chain):
    """One process."""

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self.links = self._instance = EmbeddedInstance(folder, changes)
        self.victims = [self.links]

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query to the database of analytics."""
        return await asyncio.to_thread(self._fetch, query)

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._instance.data.database("analytics"), timeout=30)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    async def dead(self) -> list[str]:
        """Why letters were buried."""
        bus = await self.links.buses.open()
        return [letter.reason for letter in await bus.dead_letters(CLICKS.name, 100)]


class Analytics(DistributedInstance):
    """`refract run analytics`."""

    def _command(self) -> tuple[str, ...]:
        return "run", "analytics"

    def _variables(self) -> dict[str, str]:
        return super()._variables() | {"SERVICE_NAME": SERVICES["analytics"].wire_name}


class DistributedChain(Chain):
    """Links that redirects, another links whose relay shares the outbox, and analytics."""

    links: DistributedInstance

    def __init__(
        self, folder: Path, servers: Mapping[str, str], dsns: Sequence[str], changes: Mapping[str, str]
    ) -> None:
        self.links = DistributedInstance(folder / "links", servers, dsns[0], changes)
        self.relay = self.links.sibling()
        self.analytics = Analytics(folder / "analytics", servers, dsns[1], changes)
        self.victims = [self.links, self.analytics, self.relay]

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query to the database of analytics."""
        return [tuple(row) for row in await self.analytics.fetch(query)]

    async def dead(self) -> list[str]:
        """Why letters were buried."""
        bus = await self.analytics.buses.open()
        return [letter.reason for letter in await bus.dead_letters(CLICKS.name, 100)]


@asynccontextmanager
async def chained(folder: Path, servers: tuple[str, str, str] | None, **changes: str) -> AsyncIterator[Chain]:
    """A chain of processes that answer: over PostgreSQL, Redis and RabbitMQ, or embedded without any.

    The broker has to be the test's own: queues have their real names, and another's analytics would read them too.
    """
    settings = QUIET | changes
    async with AsyncExitStack() as stack:
        chain: Chain = EmbeddedChain(folder, settings)
        if servers is not None:
            names = PostgreSQL.variable, Redis.variable, RabbitMQ.variable
            await _empty(servers[-1])
            dsns = [await stack.enter_async_context(_database(servers[0])) for _ in range(2)]
            chain = DistributedChain(folder, dict(zip(names, servers, strict=True)), dsns, settings)
        for victim in reversed(chain.victims):
            stack.push_async_callback(victim.close)
            await victim.start()
        yield chain


async def _empty(url: str) -> None:
    """Take away what a test that failed may have left in the queues."""
    async with aiormq.connect(url) as connection:
        channel = await connection.channel()
        for queue in QUEUES:
            await channel.queue_delete(queue.name)
            await channel.queue_delete(queue.dead)


@asynccontextmanager
async def _database(dsn: str) -> AsyncIterator[str]:
    """An empty database that is dropped after the test."""
    name = f"test_{secrets.token_hex(8)}"
    await administer(dsn, f"CREATE DATABASE {name} TEMPLATE template0")
    yield urlsplit(dsn)._replace(path=f"/{name}").geturl()
    await administer(dsn, f"DROP DATABASE {name} WITH (FORCE)")
