"""Looks for addresses of clients wherever a platform may have left one: files, tables, keys, events, logs, metrics."""

import asyncio
import hashlib
import random
import re
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import aio_pika
import asyncpg
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage

from refract.kernel.events import FANOUT_EXCHANGES, LEGACY_MAIL_EXCHANGE, LINK_EXCHANGE, PLATFORM_EXCHANGE
from refract.runtime.embedded.packing import unpacked
from tests.support.platforms import DistributedPlatform, EmbeddedPlatform, Platform

Place = tuple[str, bytes]
"""Where something was found, and what it was."""

# How they look in the networks below. Of an address of IPv6 the first half is enough: what may be kept is less.
LOOKS = re.compile(rb"(?:198\.1[89]|127\.[2-9]\d)\.\d{1,3}\.\d{1,3}|2001:0?db8(?::[0-9a-f]{1,4}){2}", re.IGNORECASE)
DIGEST = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?![0-9a-f])", re.IGNORECASE)
READ_AT_ONCE = 1 << 20
PACKED = 20
"""So many addresses are looked for in sixteen bytes each; all of them would take hours."""


@dataclass
class Strangers:
    """Addresses from which clients come, in networks that no program and no other test uses."""

    chance: random.Random = field(default_factory=random.Random)
    known: list[str] = field(default_factory=list)

    def peer(self) -> str:
        """One that this machine can send from."""
        return self._met(f"127.{self._octet(20, 99)}.{self._octet()}.{self._octet(1)}")

    def behind_proxy(self) -> str:
        """One that a proxy speaks for."""
        return self._met(f"198.{self._octet(18, 19)}.{self._octet()}.{self._octet(1)}")

    def behind_proxy_6(self) -> str:
        """One of IPv6."""
        parts = (f"{self.chance.randrange(1, 0x10000):x}" for _ in range(6))
        return self._met(f"2001:db8:{':'.join(parts)}")

    def texts(self) -> set[bytes]:
        """What each of them looks like."""
        halves = {address if "." in address else ":".join(address.split(":")[:4]) for address in self.known}
        return {half.encode() for half in halves}

    def digests(self) -> set[bytes]:
        """What anybody could try out who has a list of all addresses: hashes without a salt."""
        return {
            hashlib.new(name, address.encode()).hexdigest().encode()
            for name in ("md5", "sha1", "sha256")
            for address in self.known
        }

    def packed(self) -> list[bytes]:
        """The addresses of IPv6 in sixteen bytes; the four of IPv4 are found by chance in any large file."""
        return [ip.packed for ip in map(ip_address, self.known) if isinstance(ip, IPv6Address)]

    def networks(self) -> set[bytes]:
        """What may be kept of them."""
        kept = set()
        for address in self.known:
            ip = ip_address(address)
            bits = 8 if isinstance(ip, IPv4Address) else 80
            kept.add(str(type(ip)(int(ip) >> bits << bits)).encode())
        return kept

    def _octet(self, least: int = 0, most: int = 254) -> int:
        return self.chance.randint(least, most)

    def _met(self, address: str) -> str:
        self.known.append(address)
        return address


@dataclass
class Search:
    """What was found of addresses, and where something was seen that may be there."""

    strangers: Strangers
    wanted: frozenset[bytes] = frozenset()
    """What has to be seen, or nobody looked where something is."""
    traces: list[str] = field(default_factory=list)
    seen: dict[bytes, set[str]] = field(default_factory=dict)
    bytes_read: int = 0

    def __post_init__(self) -> None:
        """The forms of an address are many, and made once."""
        self._texts, self._digests = self.strangers.texts(), self.strangers.digests()
        self._packed = self.strangers.packed()[:PACKED]

    def look(self, name: str, content: bytes) -> None:
        """Look through one place."""
        self.bytes_read += len(content)
        for it in LOOKS.finditer(content):
            if _plain(it[0]) in self._texts:
                self.traces.append(f"{name}: {content[max(0, it.start() - 60) : it.end() + 20]!r}")
        self.traces += [f"{name}: {it[0]!r}" for it in DIGEST.finditer(content) if it[0].lower() in self._digests]
        self.traces += [f"{name}: {address!r}" for address in self._packed if address in content]
        for word in self.wanted:
            if word in content:
                self.seen.setdefault(word, set()).add(name)


def _plain(text: bytes) -> bytes:
    """In small letters and without the zeros that may stand before a group."""
    groups = text.lower().split(b":")
    return b":".join(group.lstrip(b"0") for group in groups) if len(groups) > 1 else text


@dataclass
class Listener:
    """What is said on the wires of distributed mode while the platform runs, to be searched afterwards."""

    commands: bytearray = field(default_factory=bytearray)
    """Every command to Redis, with its keys and arguments: keys of a minute are gone when anybody looks for them."""
    events: list[bytes] = field(default_factory=list)
    """Every message of every exchange: header fields and body."""

    async def hear(self, message: AbstractIncomingMessage) -> None:
        """Note a message."""
        words = f"{message.exchange} {message.routing_key} {message.headers} "
        self.events.append(words.encode() + message.body)

    def places(self) -> Iterator[Place]:
        """What was heard."""
        yield "Redis", bytes(self.commands)
        yield "RabbitMQ", b"\n".join(self.events)


@asynccontextmanager
async def listening(platform: Platform) -> AsyncIterator[Listener]:
    """Listen to a distributed platform; an embedded one has no wires."""
    listener = Listener()
    if not isinstance(platform, DistributedPlatform):
        yield listener
        return
    variables = platform.environments["links"]
    task = asyncio.create_task(_hear_commands(variables["REDIS_ADDR"], listener.commands))
    connection = await aio_pika.connect(variables["RABBITMQ_URL"])
    try:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        for name in (LINK_EXCHANGE, PLATFORM_EXCHANGE, LEGACY_MAIL_EXCHANGE):
            kind = ExchangeType.FANOUT if name in FANOUT_EXCHANGES else ExchangeType.TOPIC
            await queue.bind(await channel.declare_exchange(name, kind, durable=True), "#")
        await queue.consume(listener.hear, no_ack=True)
        yield listener
    finally:
        task.cancel()
        await connection.close()


async def _hear_commands(address: str, heard: bytearray) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"MONITOR\r\n")
        while data := await reader.read(READ_AT_ONCE):
            heard += data
    finally:
        writer.close()


async def search(platform: Platform, listener: Listener, strangers: Strangers, *wanted: bytes) -> Search:
    """Look through everything that the platform has written down or said, and the metrics of those that run."""
    found = Search(strangers, frozenset(wanted))
    for name, text in (await platform.metrics()).items():
        found.look(f"metrics of {name}", text)
    await asyncio.to_thread(_look_through, found, listener.places())
    await asyncio.to_thread(_look_through, found, _left_by(platform))
    if isinstance(platform, DistributedPlatform):
        for name, variables in platform.environments.items():
            if "DATABASE_DSN" in variables:
                for table, rows in await _postgresql(variables["DATABASE_DSN"]):
                    found.look(f"{name}: {table}", rows)
    return found


async def tables_of(platform: Platform) -> list[Place]:
    """Every table of every service, and of the embedded bus, with all its values."""
    if isinstance(platform, EmbeddedPlatform):
        return await asyncio.to_thread(lambda: list(sqlite_tables(platform.data.path)))
    assert isinstance(platform, DistributedPlatform)
    dsns = {name: it["DATABASE_DSN"] for name, it in platform.environments.items() if "DATABASE_DSN" in it}
    return [
        (f"{name}: {table.removeprefix('public.')}", rows)
        for name, dsn in dsns.items()
        for table, rows in await _postgresql(dsn)
    ]


def _look_through(found: Search, places: Iterable[Place]) -> None:
    for name, content in places:
        found.look(name, content)


def _left_by(platform: Platform) -> Iterator[Place]:
    for path in platform.outputs:
        yield str(path.relative_to(platform.folder)), path.read_bytes()
    if isinstance(platform, EmbeddedPlatform):
        yield from files_in(platform.data.path)
        yield from sqlite_tables(platform.data.path)
    elif isinstance(platform, DistributedPlatform):
        yield from files_in(Path(platform.environments["links"]["CLICK_SPOOL_DIR"]))
        for server in platform.servers:
            yield from files_in(server.folder)


def files_in(folder: Path) -> Iterator[Place]:
    """Each file as it is, with what was deleted and not yet written over."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                yield f"{folder.name}/{path.relative_to(folder)}", path.read_bytes()
        except FileNotFoundError:  # a server that runs tidies up
            continue


def sqlite_tables(folder: Path) -> Iterator[Place]:
    """Each table of each file, whatever page its values are on, and however they are packed."""
    for path in sorted(folder.glob("*.sqlite3")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                rows = connection.execute(f'SELECT * FROM "{table}"')
                values = (value for row in rows for value in row if value is not None)
                texts = (unpacked(value) if isinstance(value, bytes) else str(value).encode() for value in values)
                yield f"{path.stem}: {table}", b"\n".join(texts)


async def _postgresql(dsn: str) -> list[Place]:
    """Each table in the binary form of COPY: every value as its bytes are."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'public'"
        )
        places = []
        for (table,) in tables:
            rows = bytearray()

            async def keep(data: bytes, rows: bytearray = rows) -> None:
                rows += data

            await connection.copy_from_query(f"SELECT * FROM {table}", output=keep, format="binary")
            places.append((table, bytes(rows)))
        return places
    finally:
        await connection.close()
