"""Decides which servers a run uses: those the environment names, else those kept up, else private ones."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.servers import kept, packages
from tests.support.servers.kafka import Kafka
from tests.support.servers.postgresql import PostgreSQL
from tests.support.servers.rabbitmq import RabbitMQ
from tests.support.servers.redis import Redis
from tests.support.servers.server import Server, ServerError

SERVERS: tuple[type[Server], ...] = (PostgreSQL, Redis, RabbitMQ, Kafka)


@dataclass(frozen=True)
class Used:
    """One server of this run, as it described itself."""

    server: type[Server]
    address: str
    origin: str
    version: str

    def __str__(self) -> str:
        return f"{self.server.name} {self.version} ({self.origin})"


def environment(used: Sequence[Used]) -> dict[str, str]:
    """The variables that tell tests and services where the servers are."""
    return {one.server.variable: one.address for one in used}


def configured(server: type[Server]) -> str | None:
    """The address that the environment or a running `make servers` gives, without asking whether it answers."""
    return os.environ.get(server.variable) or kept.addresses().get(server.variable)


@contextmanager
def started(servers: Sequence[type[Server]]) -> Iterator[list[Server]]:
    """Private servers of these kinds, all ready; gone with their data at the end."""
    packages.ensure(servers)
    with ExitStack() as stack:
        private = [stack.enter_context(_closing(server())) for server in servers]
        with ThreadPoolExecutor(max_workers=max(1, len(private))) as starters:
            list(starters.map(lambda server: server.start(), private))
        yield private


@contextmanager
def in_use() -> Iterator[list[Used]]:
    """The servers of this run, each one seen to answer; those started here are gone at the end."""
    named = [_named(server, os.environ[server.variable]) for server in SERVERS if os.environ.get(server.variable)]
    running = _kept_up({one.server for one in named})
    found = {one.server: one for one in (*named, *running)}
    with started([server for server in SERVERS if server not in found]) as private:
        for one in private:
            found[type(one)] = Used(type(one), one.address, "private", one.version())
        yield [found[server] for server in SERVERS]


def _named(server: type[Server], address: str) -> Used:
    try:
        return Used(server, address, f"from {server.variable}", server.version_at(address))
    except Exception as error:
        raise ServerError(f"{server.variable} names a {server.name} that does not answer: {error!r}") from error


def _kept_up(without: set[type[Server]]) -> list[Used]:
    answering = []
    addresses: Mapping[str, str] = kept.addresses()
    for server in SERVERS:
        if server in without or server.variable not in addresses:
            continue
        address = addresses[server.variable]
        try:
            answering.append(Used(server, address, "kept up by make servers", server.version_at(address)))
        except Exception as error:  # noqa: BLE001  # every client has its own family of errors
            print(f"The {server.name} of make servers does not answer, starting another: {error!r}", flush=True)
    return answering


@contextmanager
def _closing(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.close()
