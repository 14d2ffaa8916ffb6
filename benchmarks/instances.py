"""What is measured: an embedded instance, or the distributed services, on free ports and gone afterwards."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import asyncpg

from benchmarks.cores import pinned
from refract.apps.directory import SERVICES
from tests.support.servers import PostgreSQL, ServerError
from tests.support.servers.places import free_port
from tests.support.stack import Stack, create_databases, inherited, running, variables

SECONDS_TO_START = 30.0
SECONDS_TO_STOP = 15.0
POLL_SECONDS = 0.002
QUIET_SHARE = 0.05
QUIET_SECONDS = 0.4
SECONDS_TO_SETTLE = 30.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Instance:
    """One `refract` process that listens, from its start on; whoever launched it stops it.

    Under load its log goes nowhere: where it is kept, and at what price, is the business of whoever collects it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        port: int,
        errors: Path,
        environment: Mapping[str, str] | None = None,
        *,
        core: int | None = None,
    ) -> None:
        self.port = port
        self._errors = errors
        self._name = " ".join(("refract", *arguments[:2]))
        command = [sys.executable, "-m", "refract.apps.cli", *arguments]
        with errors.open("ab") as output:
            self._begun = time.monotonic()
            self.process = subprocess.Popen(
                command if core is None else pinned(core, command),
                env={**inherited(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def wait_until_healthy(self) -> float:
        """Seconds from the start of the process to its first 200 on /health."""
        while not _healthy(self.port):
            if self.process.poll() is not None:
                raise ServerError(f"{self._name} ended while starting:\n{self._errors.read_text()}")
            if time.monotonic() - self._begun > SECONDS_TO_START:
                raise ServerError(f"{self._name} does not answer within {SECONDS_TO_START:g} s")
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


InstanceT = TypeVar("InstanceT", bound=Instance)


class Embedded(Instance):
    """One `refract serve`."""

    def __init__(self, data: Path, environment: Mapping[str, str] | None = None, *, core: int | None = None) -> None:
        port = free_port()
        arguments = ("serve", "--data-dir", str(data), "--port", str(port))
        super().__init__(arguments, port, data.with_suffix(".log"), environment, core=core)


@contextmanager
def embedded(
    data: Path, environment: Mapping[str, str] | None = None, *, core: int | None = None
) -> Iterator[Embedded]:
    """An embedded instance that answers."""
    with answering(Embedded(data, environment, core=core)) as instance:
        yield instance


@contextmanager
def answering(instance: InstanceT) -> Iterator[InstanceT]:
    """The instance once it answers; it is stopped at the end."""
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


def family_cpu_seconds(pid: int) -> float:
    """The same of a process and its living children: the worker of nginx, the workers of a service."""
    with suppress(FileNotFoundError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return cpu_seconds(pid) + sum(map(family_cpu_seconds, children))
    return 0.0


def resident_megabytes(pid: int) -> float:
    """What a process has in memory, in millions of bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(f"process {pid} has ended")


@dataclass(frozen=True)
class Quiet:
    """How long the processes went on after a load, and what share of the machine others had while ours rested."""

    seconds: float
    others: float


@contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """Hold processes meanwhile, so that what they put off is not done at the cost of another."""
    pids = tuple(pids)
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def wait_until_quiet(pids: Iterable[int], *, at_most: float | None = None) -> Quiet:
    """Wait until the processes have done what they put off under load, such as sending clicks on.

    What one of them still does would be taken from the next one's figure where they share a core. Whoever sees to that
    otherwise says how long to wait at most.
    """
    pids = tuple(pids)
    begun = time.monotonic()
    while True:
        before, since, machine = sum(map(cpu_seconds, pids)), time.monotonic(), _machine_seconds()
        time.sleep(QUIET_SECONDS)
        busy, passed = (after - earlier for after, earlier in zip(_machine_seconds(), machine, strict=True))
        quiet = Quiet(since - begun, busy / passed)
        if sum(map(cpu_seconds, pids)) - before <= QUIET_SHARE * (time.monotonic() - since):
            return quiet
        if at_most is not None and quiet.seconds > at_most:
            return quiet
        if quiet.seconds > SECONDS_TO_SETTLE:
            print(f"  not quiet {SECONDS_TO_SETTLE:g} s after the load: the next figure may be disturbed")
            return quiet


def _machine_seconds() -> tuple[float, float]:
    """What all processors have worked, for us, for others and for other machines on the same host; and all time."""
    with Path("/proc/stat").open() as lines:
        spent = [int(field) for field in lines.readline().split()[1:9]]
    idle, waiting = spent[3:5]
    return float(sum(spent) - idle - waiting), float(sum(spent))


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
