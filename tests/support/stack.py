"""All seven services as separate processes over local servers: what `make stack` runs, and what journeys test."""

import argparse
import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from refract.apps.directory import SERVICES
from tests.support import warden
from tests.support.databases import administer
from tests.support.servers import Kafka, PostgreSQL, RabbitMQ, Redis
from tests.support.servers.packages import MissingSoftware
from tests.support.servers.selection import configured, environment, in_use
from tests.support.servers.server import ServerError

SECONDS_TO_START = 90.0
SECONDS_TO_STOP = 40.0


@dataclass
class Stack:
    """The running services by package name."""

    ports: Mapping[str, int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def address(self, name: str) -> str:
        """Where a service answers."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def stop(self) -> dict[str, int]:
        """SIGTERM to all of them; their exit statuses. One that does not end in time is killed."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_STOP
        statuses = {}
        for name, process in self.processes.items():
            try:
                statuses[name] = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                statuses[name] = process.wait()
        return statuses


def variables(
    servers: Mapping[str, str], ports: Mapping[str, int], databases: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The environment of each service, by package name."""
    shared = {
        "HOST": "127.0.0.1",
        "RABBITMQ_URL": servers[RabbitMQ.variable],
        "REDIS_ADDR": servers[Redis.variable],
        "KAFKA_BOOTSTRAP": servers.get(Kafka.variable) or configured(Kafka) or "",
        "JWT_SECRET": secrets.token_urlsafe(48),
        "LOG_LEVEL": os.environ.get("LOG_LEVEL", "info"),
    }
    wanted = {}
    for name, service in SERVICES.items():
        wanted[name] = shared | {"PORT": str(ports[name]), "SERVICE_NAME": service.wire_name}
        if name in databases:
            wanted[name]["DATABASE_DSN"] = databases[name]
            wanted[name]["TRUSTED_PROXIES"] = "127.0.0.1"  # the gateway, which says who the client is
    wanted["links"]["BASE_URL"] = wanted["identity"]["BASE_URL"] = f"http://127.0.0.1:{ports['gateway']}"
    wanted["links"]["CLICK_SPOOL_DIR"] = tempfile.mkdtemp(dir=_spools().name)
    for name, service in SERVICES.items():
        if service.url_variable:
            wanted["gateway"][service.url_variable] = f"http://127.0.0.1:{ports[name]}"
    return wanted


@cache
def _spools() -> "tempfile.TemporaryDirectory[str]":
    """Removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="refract-spools-")


async def create_databases(dsn: str, prefix: str) -> dict[str, str]:
    """One database per service that has one; those that exist are kept, with what is in them."""
    connection = await asyncpg.connect(dsn)
    try:
        databases = {}
        for name, service in SERVICES.items():
            if not service.has_database:
                continue
            database = f"{prefix}{name}"
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", database):
                await connection.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')
            databases[name] = urlsplit(dsn)._replace(path=f"/{database}").geturl()
        return databases
    finally:
        await connection.close()


async def drop_databases(dsn: str, databases: Mapping[str, str]) -> None:
    """Remove what was created; whoever is connected is cut off."""
    names = [urlsplit(database).path[1:] for database in databases.values()]
    await administer(dsn, *(f'DROP DATABASE "{name}" WITH (FORCE)' for name in names))


@contextmanager
def running(
    environments: Mapping[str, Mapping[str, str]], ports: Mapping[str, int], *, logs: Path | None = None
) -> Iterator[Stack]:
    """Start every service, wait until each answers, stop them all at the end."""
    stack = Stack(ports)
    try:
        for name, values in environments.items():
            with (logs / f"{name}.log").open("ab") if logs else open(os.devnull, "wb") as output:  # noqa: PTH123
                stack.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "refract.apps.cli", "run", name],
                    env={**inherited(), **values},
                    stdin=subprocess.DEVNULL,
                    stdout=output if logs else None,
                    stderr=output if logs else None,
                    # Ctrl-C in a terminal is for us; the services are stopped in order by us.
                    start_new_session=True,
                )
        for name in environments:
            _wait_until_healthy(stack, name)
        yield stack
    finally:
        stack.stop()


def inherited() -> dict[str, str]:
    """Our own environment without what would be read as a setting of a service."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "TERM", warden.VARIABLE)
    return {name: os.environ[name] for name in kept if name in os.environ}


def health(address: str) -> str:
    """The body of /health."""
    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
        return str(answer.read().decode())


def _wait_until_healthy(stack: Stack, name: str) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        if stack.processes[name].poll() is not None:
            raise ServerError(f"{name} ended while starting with status {stack.processes[name].returncode}")
        try:
            health(stack.address(name))
        except OSError:
            if time.monotonic() > deadline:
                raise ServerError(f"{name} does not answer within {SECONDS_TO_START:g} s") from None
            time.sleep(0.05)
        else:
            return


def main(arguments: Sequence[str]) -> int:
    """Run the stack on the ports of the specification until told to stop."""
    parser = argparse.ArgumentParser(prog="make stack", description=__doc__)
    parser.add_argument("--prefix", default="refract_", help="in front of the names of the databases")
    options = parser.parse_args(arguments)
    ports = {name: service.port for name, service in SERVICES.items()}
    # Both signals become the same exception: a blocked signal would be blocked in the services, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run_until_interrupted(options.prefix, ports)
    except (MissingSoftware, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before everything was up
        return 128 + signal.SIGINT


def _run_until_interrupted(prefix: str, ports: Mapping[str, int]) -> int:
    with in_use() as used:
        servers = environment(used)
        databases = asyncio.run(create_databases(servers[PostgreSQL.variable], prefix))
        with running(variables(servers, ports, databases), ports) as stack:
            for name, service in SERVICES.items():
                print(f"{service.wire_name:22} {stack.address(name)}", flush=True)
            print("Ctrl-C stops all of it.", flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                failed = {name: status for name, status in stack.stop().items() if status != 0}
    for name, status in failed.items():
        print(f"{name} ended with status {status}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
