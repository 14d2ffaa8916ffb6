"""Where the measurements of links are made: a folder on a real disk, seeded data, pinned servers, ready instances."""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

import aio_pika
import asyncpg
from redis import Redis as RedisClient

from benchmarks.cores import load_core, pin, server_core
from benchmarks.instances import Embedded, Instance, answering
from benchmarks.links import SeedLink, seed_postgresql, seed_sqlite, token
from benchmarks.storage import Storage, disk_under
from refract.apps.builders import QUEUES
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.migrations import migrate
from refract.services.links.api import WIRE_NAME
from tests.support.servers import Kafka, PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.servers.selection import started
from tests.support.servers.server import Server
from tests.support.stack import inherited

OUT_OF_REACH = "1000000000"
LIMITS = dict.fromkeys(("RATE_LIMIT_REDIRECT", "RATE_LIMIT_SHORTEN", "RATE_LIMIT_BULK"), OUT_OF_REACH)
"""On, so that each request is counted, and never met: by the gateway, and by an embedded instance, which has one.
Links as a process of its own reads that of bulk requests only; it knows no limit of redirects."""
BASE_URL = "http://127.0.0.1:8080"
EMBEDDED, DISTRIBUTED = MODES = ("embedded", "distributed")
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
LOG_FILES = 64


class RoomyPostgreSQL(PostgreSQL):
    """With a quarter of the memory for its tables, as its manual advises where it has a machine for itself.

    As it is shipped it has 128 MB, and reads millions of rows from the disk, or from the system's memory if they are
    still there. And its log is kept in a gigabyte of files that it writes over, as a server does that has run for a
    while: a new one makes each of the first by writing and syncing 16 MB, while a commit waits for a tenth of a second.
    """

    settings: ClassVar = {
        "shared_buffers": f"{MEMORY_BYTES // 4 // 2**20}MB",
        "min_wal_size": "1GB",
        "max_wal_size": "4GB",
    }

    async def write_log_files(self) -> None:
        """Make the files of the log beforehand."""
        connection = await asyncpg.connect(self.address)
        try:
            await connection.execute("CREATE TABLE written (number INTEGER)")
            for number in range(LOG_FILES):
                await connection.execute("INSERT INTO written VALUES ($1)", number)
                await connection.execute("SELECT pg_switch_wal()")
            await connection.execute("DROP TABLE written")
            await connection.execute("CHECKPOINT")  # which lets them be used again
        finally:
            await connection.close()


@dataclass(frozen=True)
class Options:
    """How long it may take; what is measured once has no rounds."""

    rounds: int = 5
    seconds: int = 3
    minutes: float = 0.5
    links: int = 1_000_000
    clicks: int = 10_000_000


@dataclass(frozen=True)
class Ready:
    """An instance with links in it, and the token of their owner."""

    instance: Instance
    token: str
    api: str
    """What stands before the paths of the API here: the gateway's prefix, or nothing at the service itself."""

    database: str | Path
    """The DSN of the links, or their file."""

    @property
    def port(self) -> int:
        """Where it answers."""
        return self.instance.port

    @property
    def pid(self) -> int:
        """Its process."""
        return self.instance.process.pid


@dataclass
class Workshop:
    """What the measurements share; everything in it is gone at the end."""

    options: Options = field(default_factory=Options)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="refract-bench-")))
        self._templates: dict[int, Path] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def disk(self) -> str:
        """The file system under the folder, where SQLite writes; one in memory is refused."""
        return disk_under(self.folder)

    @cached_property
    def storage(self) -> Storage:
        """What the private PostgreSQL commits to. It has its own folder, which TMPDIR need not move with ours."""
        return Storage.of(self.servers[PostgreSQL.variable])

    @cached_property
    def servers(self) -> Mapping[str, str]:
        """Private PostgreSQL, Redis and RabbitMQ on the core of the load, with the queues that readers would have."""
        postgresql, *others = self._start(RoomyPostgreSQL, Redis, RabbitMQ)
        assert isinstance(postgresql, RoomyPostgreSQL)
        asyncio.run(postgresql.write_log_files())
        addresses = {server.variable: server.address for server in (postgresql, *others)}
        asyncio.run(_declare_queues(addresses[RabbitMQ.variable]))
        return addresses

    @cached_property
    def kafka(self) -> str:
        """Where a private Kafka is, for those who need one: it is never quite idle."""
        [kafka] = self._start(Kafka)
        return kafka.address

    def _start(self, *kinds: type[Server]) -> list[Server]:
        running = self._stack.enter_context(started(kinds))
        for server in running:
            pin(server.pid, load_core())
        return running

    @contextmanager
    def embedded(self, links: Sequence[SeedLink], environment: Mapping[str, str] | None = None) -> Iterator[Ready]:
        """A `refract serve` with the links in its SQLite file, on the server's core."""
        self.disk  # noqa: B018  # refuses one in memory
        data = self.folder / f"data-{secrets.token_hex(4)}"
        shutil.copytree(self._template(links), data)
        values = {**LIMITS, "BASE_URL": BASE_URL, "JWT_SECRET": secrets.token_urlsafe(48)}
        try:
            with answering(Embedded(data, {**values, **(environment or {})}, core=server_core())) as instance:
                yield Ready(instance, token(values["JWT_SECRET"]), "/api", data / "links.sqlite3")
        finally:
            shutil.rmtree(data, ignore_errors=True)

    @contextmanager
    def database(self, links: Sequence[SeedLink] = ()) -> Iterator[str]:
        """A database for links in PostgreSQL, with these in it."""
        self.storage  # noqa: B018  # refuses one in memory
        name = f"bench_{secrets.token_hex(4)}"
        server = self.servers[PostgreSQL.variable]
        asyncio.run(_execute(server, f'CREATE DATABASE "{name}" TEMPLATE template0'))
        dsn = urlsplit(server)._replace(path=f"/{name}").geturl()
        try:
            asyncio.run(_migrate_and_seed(dsn, links))
            yield dsn
        finally:
            asyncio.run(_execute(server, f'DROP DATABASE "{name}" WITH (FORCE)'))

    @contextmanager
    def links_service(self, dsn: str, environment: Mapping[str, str] | None = None) -> Iterator[Ready]:
        """A `refract run links` over that database, on the server's core, with nothing in the cache."""
        folder = self.folder / f"links-{secrets.token_hex(4)}"
        folder.mkdir()
        port, secret = free_port(), secrets.token_urlsafe(48)
        values = {
            **LIMITS,
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "SERVICE_NAME": WIRE_NAME,
            "DATABASE_DSN": dsn,
            "REDIS_ADDR": self.servers[Redis.variable],
            "RABBITMQ_URL": self.servers[RabbitMQ.variable],
            "JWT_SECRET": secret,
            "BASE_URL": BASE_URL,
            "CLICK_SPOOL_DIR": str(folder / "spool"),
        }
        instance = Instance(
            ("run", "links"), port, folder / "errors.log", {**values, **(environment or {})}, core=server_core()
        )
        with answering(instance):
            yield Ready(instance, token(secret), "", dsn)

    @contextmanager
    def either(self, mode: str, links: Sequence[SeedLink]) -> Iterator[Ready]:
        """A fresh instance in one of the MODES, with nothing in its memory or in Redis."""
        with ExitStack() as stack:
            if mode == EMBEDDED:
                yield stack.enter_context(self.embedded(links))
                return
            self.empty_cache()
            yield stack.enter_context(self.links_service(stack.enter_context(self.database(links))))

    def empty_cache(self) -> None:
        """Forget everything in Redis."""
        host, _, port = self.servers[Redis.variable].rpartition(":")
        with RedisClient(host=host, port=int(port)) as client:
            client.flushall()

    def empty_queues(self) -> None:
        """Throw away what the broker keeps for readers that are not there.

        Left alone it grows with every run, and the broker takes the core for tens of milliseconds to look through it.
        """
        asyncio.run(_purge_queues(self.servers[RabbitMQ.variable]))

    def _template(self, links: Sequence[SeedLink]) -> Path:
        """A data directory with so many links, made once: filling the search index takes its time."""
        if len(links) not in self._templates:
            data = self.folder / f"template-{len(links)}"
            command = [sys.executable, "-m", "refract.apps.cli", "migrate", "--data-dir", str(data)]
            subprocess.run(command, check=True, env=inherited(), stdout=subprocess.DEVNULL)
            seed_sqlite(data / "links.sqlite3", links)
            self._templates[len(links)] = data
        return self._templates[len(links)]


async def _declare_queues(url: str) -> None:
    """Clicks and links must have a reader's queue, or they would stay in the outbox."""
    bus = RabbitBus(url)
    await bus.start()
    try:
        for queue in QUEUES:
            await bus.declare(queue)
    finally:
        await bus.close()


async def _purge_queues(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection, connection.channel() as channel:
        for queue in QUEUES:
            await (await channel.get_queue(queue.name, ensure=False)).purge()


async def _migrate_and_seed(dsn: str, links: Sequence[SeedLink]) -> None:
    await migrate("links", dsn)
    await seed_postgresql(dsn, links)
    # Else the server looks through what is new a minute later, and writes it to the disk in the midst of some run.
    for statement in ("VACUUM (ANALYZE)", "CHECKPOINT"):
        await _execute(dsn, statement)


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
