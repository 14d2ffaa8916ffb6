"""A process that is told to stop: what is under way has its time, and then no more; in both modes.

How long that is in real life is a matter of the constants, which add up to less than ten seconds.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from refract.apps import workers
from refract.apps.directory import SERVICES
from refract.runtime import supervisor
from tests.support.commands import Running, running
from tests.support.hasty_command import GRACE
from tests.support.http import Client, head
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.stack import variables
from tests.support.waiting import eventually

HASTY = (sys.executable, "-m", "tests.support.hasty_command")
SERVICE = "identity"
BODY = msgspec.json.encode({"email": "nobody@example.com", "password": "correct horse"})
GUARD = 40
"""Seconds in which a process ends: more than the machine ever stands still, and less than the longest grace here."""


@dataclass
class Command:
    """How a process is started, and where it is asked to sign somebody in."""

    arguments: tuple[str, ...]
    port: int
    login: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, grace: float) -> Iterator[Running]:
        """The process, with so many seconds to stop."""
        address, chosen = f"http://127.0.0.1:{self.port}", {**self.variables, GRACE: str(grace)}
        starting = running(*self.arguments, address=address, folder=self.folder, variables=chosen, command=HASTY)
        with starting as started:
            yield started

    async def half_a_request(self) -> Client:
        """A client that is waited for, and keeps the second half of its body to itself."""
        client = await Client.connect(self.port)
        await client.send(head("POST", self.login, f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await client.send(BODY[:10])
        return client

    async def nobody_listens(self) -> bool:
        """Whether the stop has begun."""
        try:
            (await Client.connect(self.port)).close()
        except OSError:
            return True
        return False


@pytest.fixture(params=["embedded", "distributed"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """All of Refract, or a service that others run beside."""
    port, folder = free_port(), tmp_path / "logs"
    if request.param == "embedded":
        serve = ("serve", "--data-dir", str(tmp_path / "data"), "--port", str(port))
        return Command(serve, port, "/api/auth/login", folder)
    servers = {
        PostgreSQL.variable: request.getfixturevalue("postgres_dsn"),
        Redis.variable: request.getfixturevalue("redis_address"),
        RabbitMQ.variable: request.getfixturevalue("rabbitmq_url"),
    }
    ports = {name: free_port() for name in SERVICES} | {SERVICE: port}
    own = variables(servers, ports, {SERVICE: request.getfixturevalue("fresh_database")})[SERVICE]
    return Command(("run", SERVICE), port, "/login", folder, own)


async def test_what_is_under_way_when_it_is_told_to_stop_is_finished(command: Command) -> None:
    with command.running(grace=10 * GUARD) as started:
        client = await command.half_a_request()
        started.process.send_signal(signal.SIGTERM)
        await eventually(command.nobody_listens, timeout=GUARD)
        await client.send(BODY[10:])
        answer = await client.answer()
        assert (answer.status, answer.closes) == (401, True)
        assert await asyncio.to_thread(started.process.wait, GUARD) == 0
        client.close()
    assert "part did not stop in time" not in [line["msg"] for line in started.log]


async def test_what_does_not_end_is_cut_and_the_process_ends(command: Command) -> None:
    with command.running(grace=1.0) as started:
        client = await command.half_a_request()
        started.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.process.wait, GUARD) == 0
        assert await client.is_closed(), "it was given no answer"
        client.close()


def test_a_process_ends_within_ten_seconds() -> None:
    """A part that does not stop is left behind when the grace is over, and its worker is killed a little later."""
    assert supervisor.MARGIN < supervisor.GRACE < workers.GRACE - 1 < workers.GRACE < 10
