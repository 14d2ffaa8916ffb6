"""What is measured: an embedded instance, or the distributed services, on free ports and gone afterwards."""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from refract.apps.directory import SERVICES
from tests.support.servers import PostgreSQL, ServerError
from tests.support.servers.places import free_port
from tests.support.stack import Stack, create_databases, inherited, running, variables

SECONDS_TO_START = 30.0
SECONDS_TO_STOP = 15.0
POLL_SECONDS = 0.002
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Embedded:
    """One `refract serve`, from its start on; whoever launched it stops it."""

    def __init__(self, data: Path) -> None:
        self.port = free_port()
        self._log = data.with_suffix(".log")
        command = [sys.executable, "-m", "refract.apps.cli", "serve", "--data-dir", str(data), "--port", str(self.port)]
        with self._log.open("ab") as output:
            self._begun = time.monotonic()
            self.process = subprocess.Popen(
                command, env=inherited(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def wait_until_healthy(self) -> float:
        """Seconds from the start of the process to its first 200 on /health."""
        while not _healthy(self.port):
            if self.process.poll() is not None:
                raise ServerError(f"refract serve ended while starting:\n{self._log.read_text()}")
            if time.monotonic() - self._begun > SECONDS_TO_START:
                raise ServerError(f"refract serve does not answer within {SECONDS_TO_START:g} s")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - self._begun

    def stop(self) -> None:
        """SIGTERM; one that does not end in time is killed."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def embedded(data: Path) -> Iterator[Embedded]:
    """An embedded instance that answers."""
    instance = Embedded(data)
    try:
        instance.wait_until_healthy()
        yield instance
    finally:
        instance.stop()


@contextmanager
def distributed(servers: Mapping[str, str], logs: Path) -> Iterator[Stack]:
    """All services as processes of their own, each on a free port and with a database that is dropped at the end."""
    ports = dict(zip(SERVICES, _free_ports(len(SERVICES)), strict=True))
    with (
        databases(servers[PostgreSQL.variable]) as dsns,
        running(variables(servers, ports, dsns), ports, logs=logs) as stack,
    ):
        yield stack


@contextmanager
def databases(dsn: str) -> Iterator[Mapping[str, str]]:
    """An empty database for each service that has one, by its name; all are dropped at the end."""
    prefix = f"bench_{secrets.token_hex(4)}_"
    try:
        yield asyncio.run(create_databases(dsn, prefix))
    finally:
        asyncio.run(_drop_databases(dsn, prefix))


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used so far, in user and system mode; exact to ten milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _drop_databases(dsn: str, prefix: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for row in await connection.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", prefix):
            await connection.execute(f'DROP DATABASE "{row["datname"]}" WITH (FORCE)')
    finally:
        await connection.close()


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def _healthy(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(REQUEST)
            return connection.recv(64).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False
