"""Links as processes of their own in either mode: killed, started again on the same data, and read from outside."""

import asyncio
import re
import secrets
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES
from refract.kernel.clock import SystemClock
from refract.kernel.events import LINK_EXCHANGE, EventDecoder, LinkEvent
from refract.runtime.embedded.packing import unpacked
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.ports import EventBus
from refract.runtime.tokens import TokenSigner
from refract.services.links.api import UrlClicked, UrlCreated, UrlDeleted, UrlUpdated
from tests.support.buses import Buses, EmbeddedBuses, RabbitBuses
from tests.support.commands import PATIENT, Running, running
from tests.support.http import Answer, Client
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.waiting import eventually

EVENTS = (UrlCreated, UrlUpdated, UrlDeleted, UrlClicked)
PENDING = "SELECT count(*) FROM outbox WHERE published_at IS NULL"

_decoder = EventDecoder(*EVENTS)


class Instance(ABC):
    """One instance of links. A queue of the test's own takes every event that it publishes."""

    mode: str
    api: str

    def __init__(self, folder: Path, buses: Buses, changes: Mapping[str, str]) -> None:
        self.folder = folder
        self.buses = buses
        self.changes = dict(changes)
        self.port = free_port()
        self.secret = secrets.token_urlsafe(48)
        self.domain = f"{buses.prefix}.example"
        """Of the addresses of its users, by which its events are told from those of others on the same bus."""
        own = tuple(Binding(LINK_EXCHANGE, event.routing_key()) for event in EVENTS)
        # By the last binding comes the message after which there is nothing more.
        self.queue = buses.using(Queue(f"{buses.prefix}.ledger", (*own, Binding(buses.exchange, "end")), 5_000))
        self.starts = 0
        self._process = ExitStack()
        self._running: Running | None = None

    @property
    def process(self) -> Running:
        """The process as it runs, or ran last."""
        assert self._running is not None
        return self._running

    async def start(self) -> None:
        """Start it on the data of the one before, and wait until it answers."""
        self._process.close()
        self.starts += 1
        folder = self.folder / f"process-{self.port}-{self.starts}"
        address = f"http://127.0.0.1:{self.port}"
        variables = self._variables() | self.changes
        entering = running(*self._command(), address=address, folder=folder, variables=variables, command=PATIENT)
        self._running = await asyncio.to_thread(self._process.enter_context, entering)

    async def kill(self) -> None:
        """SIGKILL."""
        self.process.process.kill()
        await asyncio.to_thread(self.process.process.wait)

    async def stop(self) -> int:
        """SIGTERM; its exit status, which has to come in time."""
        return await asyncio.to_thread(self.process.stop)

    async def close(self) -> None:
        """Leave nothing behind."""
        await asyncio.to_thread(self._process.close)

    def token(self, user: str = "alice") -> str:
        """A token of a user, who is the same every time."""
        email = f"{user}@{self.domain}"
        return TokenSigner(self.secret, SystemClock()).sign(str(uuid.uuid5(uuid.NAMESPACE_URL, email)), email).token

    async def call(self, method: str, target: str, body: Any = None, *headers: str, user: str = "alice") -> Answer:
        """One request of a user to the API, by the path that the service itself knows."""
        lines = (f"Authorization: Bearer {self.token(user)}", *headers)
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(f"{self.api}{target}", *lines, method=method)
            return await client.post(f"{self.api}{target}", msgspec.json.encode(body), *lines, method=method)

    async def make_links(self, number: int, prefix: str = "https://example.com/to/") -> dict[str, str]:
        """New links: where each code leads."""
        urls = [f"{prefix}{index}" for index in range(number)]
        answer = await self.call("POST", "/shorten/bulk", {"urls": urls})
        assert answer.status == 200, answer.body
        return {row["short_code"]: url for row, url in zip(answer.json["results"], urls, strict=True)}

    async def drained(self, timeout: float = 60) -> None:
        """Wait until everything that was saved is on the bus."""

        async def is_empty() -> bool:
            return not self.spooled and (await self.fetch(PENDING))[0][0] == 0

        await eventually(is_empty, timeout=timeout, interval=0.1)

    async def events(self) -> list[LinkEvent]:
        """Everything that reached the bus, each event once, in the order in which it first came."""
        found: dict[str, LinkEvent] = {}
        for message in await self.messages():
            for event in _decoder.decode(message.routing_key, message.body):
                assert isinstance(event, LinkEvent)
                found.setdefault(event.event_id, event)
        return list(found.values())

    async def messages(self) -> list[Message]:
        """All messages that lie in the queue; they are taken out of it."""
        bus = await self._open_bus()
        end = Message(self.buses.exchange, "end", b"", secrets.token_hex(8))
        await bus.publish(end)
        messages: dict[str, list[Message]] = {}
        async with bus.reader(self.queue) as reader:
            while end.message_id not in messages:  # it need not be the last: others may use the same bus
                batch = await reader.next_batch()
                await reader.acknowledge(batch)
                for delivery in batch:
                    messages.setdefault(delivery.message.message_id, []).append(delivery.message)
        return [one for same in messages.values() for one in same if self.domain.encode() in one.body]

    async def clicks(self) -> list[UrlClicked]:
        """The clicks among the events."""
        return [event for event in await self.events() if isinstance(event, UrlClicked)]

    async def declare(self) -> None:
        """Make the queue, before anything is published."""
        bus = await self._open_bus()
        await bus.declare(self.queue)

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = (await asyncio.to_thread(self.process.get, "/metrics"))[1].decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    @property
    @abstractmethod
    def spooled(self) -> list[Path]:
        """The files of the spool."""

    @abstractmethod
    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of links."""

    @abstractmethod
    def _command(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _variables(self) -> dict[str, str]: ...

    @abstractmethod
    async def _open_bus(self) -> EventBus: ...


class EmbeddedInstance(Instance):
    """`refract serve`. Its files can be read while it runs, its queues only when it does not."""

    mode = "embedded"
    api = "/api"

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self.data = DataDirectory(folder / "data")
        self.data.prepare()
        buses = EmbeddedBuses(folder)
        buses.path = self.data.bus
        super().__init__(folder, buses, changes)

    @property
    def spooled(self) -> list[Path]:
        """The files of the spool."""
        return sorted(self.data.spool.glob("*"))

    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of links."""
        return await asyncio.to_thread(self._fetch, query)

    def _fetch(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.data.database("links"), timeout=30)
        try:
            return [tuple(map(_as_saved, row)) for row in connection.execute(query)]
        finally:
            connection.close()

    def _command(self) -> tuple[str, ...]:
        return "serve", "--data-dir", str(self.data.path), "--port", str(self.port)

    def _variables(self) -> dict[str, str]:
        return {
            "JWT_SECRET": self.secret,
            "RATE_LIMIT_SHORTEN": "0",
            "RATE_LIMIT_REDIRECT": "0",
            "TRUSTED_PROXIES": "127.0.0.1",
        }

    async def _open_bus(self) -> EventBus:
        return await self.buses.open()

    async def metric(self, name: str) -> float:
        """There is none to be seen here without METRICS_ADDR."""
        raise NotImplementedError

    async def messages(self) -> list[Message]:
        """All messages that lie in the queue; the process has to have ended."""
        assert self.process.process.poll() is not None
        found = await super().messages()
        await self.buses.close()
        self.buses._open.clear()
        return found

    async def declare(self) -> None:
        """Make the queue, and let the file go."""
        await super().declare()
        await self.buses.close()
        self.buses._open.clear()


class DistributedInstance(Instance):
    """`refract run links`, which sends what is in its outbox itself."""

    mode = "distributed"
    api = ""

    def __init__(self, folder: Path, servers: Mapping[str, str], dsn: str, changes: Mapping[str, str]) -> None:
        self.dsn = dsn
        self.servers = servers
        self.spool = folder / "spool"
        super().__init__(folder, RabbitBuses(servers[RabbitMQ.variable]), changes)

    def sibling(self) -> "DistributedInstance":
        """Another process on the same database, as on another machine: with a spool of its own."""
        other = DistributedInstance(self.folder / "sibling", self.servers, self.dsn, self.changes)
        other.secret, other.domain = self.secret, self.domain
        return other

    @property
    def spooled(self) -> list[Path]:
        """The files of the spool."""
        return sorted(self.spool.glob("*"))

    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of links."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    def _command(self) -> tuple[str, ...]:
        return "run", "links"

    def _variables(self) -> dict[str, str]:
        return {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "SERVICE_NAME": SERVICES["links"].wire_name,
            "DATABASE_DSN": self.dsn,
            "RABBITMQ_URL": self.servers[RabbitMQ.variable],
            "REDIS_ADDR": self.servers[Redis.variable],
            "JWT_SECRET": self.secret,
            "TRUSTED_PROXIES": "127.0.0.1",
            "BASE_URL": f"http://127.0.0.1:{self.port}",
            "CLICK_SPOOL_DIR": str(self.spool),
        }

    async def _open_bus(self) -> EventBus:
        return await self.buses.open()

    async def close(self) -> None:
        """Leave nothing behind."""
        await super().close()
        await self.buses.close()


@asynccontextmanager
async def embedded(folder: Path, **changes: str) -> AsyncIterator[EmbeddedInstance]:
    """An embedded instance that answers."""
    async with _started(EmbeddedInstance(folder, changes)) as instance:
        yield instance


@asynccontextmanager
async def distributed(
    folder: Path, *, postgres: str, redis: str, rabbitmq: str, **changes: str
) -> AsyncIterator[DistributedInstance]:
    """Links of distributed mode, alone."""
    servers = {PostgreSQL.variable: postgres, Redis.variable: redis, RabbitMQ.variable: rabbitmq}
    async with _started(DistributedInstance(folder, servers, postgres, changes)) as instance:
        yield instance


@asynccontextmanager
async def beside(instance: DistributedInstance) -> AsyncIterator[DistributedInstance]:
    """A second process on the same database."""
    other = instance.sibling()
    try:
        await other.start()
        yield other
    finally:
        await other.close()


@asynccontextmanager
async def _started(instance: Any) -> AsyncIterator[Any]:
    try:
        await instance.declare()
        await instance.start()
        yield instance
    finally:
        await instance.close()


@pytest.fixture(params=["embedded", "distributed"])
def servers(request: pytest.FixtureRequest) -> dict[str, str] | None:
    """The servers of distributed mode, or None for the other one."""
    if request.param == "embedded":
        return None
    return {
        "postgres": request.getfixturevalue("fresh_database"),
        "redis": request.getfixturevalue("redis_address"),
        "rabbitmq": request.getfixturevalue("rabbitmq_url"),
    }


@asynccontextmanager
async def started(folder: Path, servers: Mapping[str, str] | None, **changes: str) -> AsyncIterator[Instance]:
    """An instance in the mode of the servers, with settings of its own."""
    settings = {"REDIRECT_LOG_SAMPLE": "0", **changes}
    starting: AbstractAsyncContextManager[Instance] = (
        embedded(folder, **settings) if servers is None else distributed(folder, **servers, **settings)
    )
    async with starting as instance:
        yield instance


@pytest.fixture
async def instance(servers: dict[str, str] | None, tmp_path: Path) -> AsyncIterator[Instance]:
    """Links in either mode, for a test that needs nothing special of it."""
    async with started(tmp_path, servers) as instance:
        yield instance


def _as_saved(value: Any) -> Any:
    """A payload as the text that it was; everything else as it is."""
    return unpacked(value).decode() if isinstance(value, bytes) else value
