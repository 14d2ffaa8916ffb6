"""One service in several processes: they share a port, one is replaced when it dies, and they end together."""

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from refract.apps.directory import SERVICES
from tests.support.commands import Running, refract, running
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.stack import variables
from tests.support.waiting import eventually
from tests.support.workers import children, that_listen

SERVICE = "analytics"
"""Any would do; this one needs no Redis."""


@pytest.fixture
def environment(fresh_database: str, postgres_dsn: str, redis_address: str, rabbitmq_url: str) -> dict[str, str]:
    """What three workers need, on ports of their own."""
    servers = {PostgreSQL.variable: postgres_dsn, Redis.variable: redis_address, RabbitMQ.variable: rabbitmq_url}
    ports = {name: free_port() for name in SERVICES}
    return variables(servers, ports, {SERVICE: fresh_database})[SERVICE] | {"WORKERS": "3"}


@pytest.fixture
def parent(environment: dict[str, str], tmp_path: Path) -> Iterator[Running]:
    """A parent whose first worker answers."""
    address = f"http://127.0.0.1:{environment['PORT']}"
    with running("run", SERVICE, address=address, folder=tmp_path, variables=environment) as started:
        yield started


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def working(started: Running) -> list[int]:
    """The workers, once there are three of them and all listen."""
    return that_listen(started.process.pid, int(started.address.rpartition(":")[2]), 3)


def three_free_ports() -> int:
    """The first of three ports in a row that nobody has."""
    while True:
        first = free_port()
        with ExitStack() as stack, suppress(OSError, OverflowError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Requests:
    """Somebody who asks again and again, each time on a new connection."""

    def __init__(self, started: Running) -> None:
        self._started = started
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.answered = 0
        self.failed: list[Exception] = []

    def __enter__(self) -> "Requests":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                assert self._started.get("/health")[0] == 200
                self.answered += 1
            except Exception as error:  # noqa: BLE001  # whatever a request meets is counted
                self.failed.append(error)


async def test_three_workers_answer_and_one_that_is_killed_comes_back(parent: Running) -> None:
    pids = await eventually(lambda: working(parent), timeout=60)
    with Requests(parent) as requests:
        await eventually(lambda: requests.answered > 20, timeout=60)
        os.kill(pids[1], signal.SIGKILL)
        await eventually(lambda: pids[1] not in children(parent.process.pid), timeout=60)
        before = requests.answered
        now = await eventually(lambda: working(parent), timeout=60)
        await eventually(lambda: requests.answered > before + 20, timeout=60)
    assert set(pids) - set(now) == {pids[1]}
    assert len(requests.failed) <= 2  # one that it had in its hands, and one that waited too long on a busy machine
    [line] = [line for line in parent.log if line["msg"] == "worker ended; starting another"]
    assert (line["service"], line["worker"], line["pid"], line["status"]) == ("analytics-service", 1, pids[1], -9)

    assert await asyncio.to_thread(parent.stop) == 0
    assert not any(map(is_running, now))
    assert parent.said == ""


async def test_each_worker_has_its_own_metrics(environment: dict[str, str], tmp_path: Path) -> None:
    first = three_free_ports()
    environment["METRICS_ADDR"] = f"127.0.0.1:{first}"
    address = f"http://127.0.0.1:{environment['PORT']}"
    with running("run", SERVICE, address=address, folder=tmp_path, variables=environment) as parent:
        await eventually(lambda: working(parent), timeout=60)
        asked = 0

        async def all_have_counted() -> bool:
            """Ask twenty times more. The kernel spreads connections by chance, and what was answered counts soon."""
            nonlocal asked
            for _ in range(20):
                await asyncio.to_thread(parent.get, "/health")
            asked += 20
            counts = []
            for port in range(first, first + 3):
                inside = Running(parent.process, f"http://127.0.0.1:{port}", tmp_path)
                text = (await asyncio.to_thread(inside.get, "/metrics"))[1].decode()
                found = re.findall(r'http_requests_total{.*route="/health".* (\S+)', text)
                counts.append(sum(map(float, found)))
            return sum(counts) >= asked >= 60 and all(count >= 5 for count in counts)

        await eventually(all_have_counted, timeout=60)
        assert parent.stop() == 0


async def test_the_end_of_the_parent_is_the_end_of_its_workers(parent: Running) -> None:
    pids = await eventually(lambda: working(parent), timeout=60)
    parent.process.kill()
    parent.process.wait()
    await eventually(lambda: not any(map(is_running, pids)), timeout=60)


def test_with_one_worker_there_is_no_parent(environment: dict[str, str], tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{environment['PORT']}"
    alone = environment | {"WORKERS": "1"}
    with running("run", SERVICE, address=address, folder=tmp_path, variables=alone) as started:
        assert children(started.process.pid) == []
        assert started.stop() == 0


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("WORKERS", "0", 'FATAL: environment variable "WORKERS" is "0"; expected a whole number from 1 to 64\n'),
        ("WORKERS", "65", 'FATAL: environment variable "WORKERS" is "65"; expected a whole number from 1 to 64\n'),
        ("JWT_SECRET", "", 'FATAL: required environment variable "JWT_SECRET" is not set\n'),
        (
            "METRICS_ADDR",
            "127.0.0.1:65534",
            'FATAL: environment variable "METRICS_ADDR" has port 65534; expected at most 65533 for 3 workers\n',
        ),
    ],
)
def test_a_wrong_setting_is_one_line(environment: dict[str, str], variable: str, value: str, line: str) -> None:
    ended = refract("run", SERVICE, variables=environment | {variable: value})
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", line)


def test_what_only_a_worker_finds_out_is_one_line_too(environment: dict[str, str]) -> None:
    nowhere = f"postgres://user:hunter2@127.0.0.1:{free_port()}/nowhere"
    ended = refract("run", SERVICE, variables=environment | {"DATABASE_DSN": nowhere})
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("FATAL: database is unavailable: failed after 5 attempts")
    assert "hunter2" not in ended.stdout + ended.stderr
