"""The whole platform as its users know it: one process, or one for each service over a broker of its own."""

import asyncio
import secrets
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES
from tests.support.commands import PATIENT, Running, logged_in, running
from tests.support.http import Answer, Client, fetch
from tests.support.servers import PostgreSQL, RabbitMQ, Redis, Server
from tests.support.servers.places import free_port
from tests.support.servers.selection import started
from tests.support.stack import create_databases, drop_databases, variables
from tests.support.turned_clock import TURNED
from tests.support.waiting import eventually

PASSWORD = "a password of some length"
TURNABLE = (sys.executable, "-m", "tests.support.turned_clock", "0")
BEHIND = ("links", "analytics", "identity", "notifications")
"""The services of these stories; the gateway is started after them, because it asks for them when it starts."""


class Platform(ABC):
    """A platform that answers at its front door."""

    mode: str

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.port = free_port()
        self._processes = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start everything, and wait until it answers."""

    @abstractmethod
    async def kill(self, name: str) -> None:
        """SIGKILL the process of a service, and start another."""

    @abstractmethod
    async def metrics(self) -> dict[str, bytes]:
        """What each process counts."""

    @property
    def outputs(self) -> list[Path]:
        """Where each process writes its log, and what else it has to say."""
        return sorted(path for name in ("stdout", "stderr") for path in self.folder.glob(f"*/{name}"))

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of all processes."""
        files = [path for path in self.outputs if path.name == "stdout"]
        return [line for file in files for line in logged_in(file)]

    def close(self) -> None:
        """End what runs."""
        self._processes.close()

    async def call(
        self, method: str, target: str, body: Any = None, *headers: str, token: str = "", source: str = ""
    ) -> Answer:
        """One request at the front door, from an address of this machine if it matters from which."""
        lines = (*headers, f"Authorization: Bearer {token}") if token else headers
        place = (source, 0) if source else None
        async with Client(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=place)) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            return await client.post(target, msgspec.json.encode(body), *lines, method=method)

    async def sign_up(self, *headers: str, source: str = "") -> tuple[str, str]:
        """A new account: its address and a token."""
        email = f"{secrets.token_hex(6)}@example.com"
        credentials = {"email": email, "password": PASSWORD}
        for path, status in (("register", 201), ("login", 200)):
            answer = await self.call("POST", f"/api/auth/{path}", credentials, *headers, source=source)
            assert answer.status == status, answer.body
        token: str = answer.json["token"]
        return email, token

    async def shorten(self, token: str, url: str, *headers: str, source: str = "") -> str:
        """The code of a new link."""
        answer = await self.call("POST", "/api/shorten", {"url": url}, *headers, token=token, source=source)
        assert answer.status == 201, answer.body
        code: str = answer.json["short_code"]
        return code

    async def stats(self, code: str, clicks: int, *headers: str) -> dict[str, Any]:
        """The public statistics, once they know of so many clicks."""

        async def counted() -> dict[str, Any] | None:
            answer = await self.call("GET", f"/api/stats/{code}", None, *headers)
            stats: dict[str, Any] = answer.json
            return stats if (answer.status, stats["total_clicks"]) == (200, clicks) else None

        found = await eventually(counted, timeout=60)
        assert found is not None
        return dict(found)

    async def notifications(self, token: str) -> list[dict[str, Any]]:
        """What a user has been told."""
        answer = await self.call("GET", "/api/notifications", token=token)
        assert answer.status == 200, answer.body
        told: list[dict[str, Any]] = answer.json["notifications"]
        return told

    def lines_of(self, correlation_id: str) -> list[dict[str, Any]]:
        """What the logs say under a correlation id."""
        return [line for line in self.log if line["correlation_id"] == correlation_id]


class EmbeddedPlatform(Platform):
    """`refract serve`."""

    mode = "embedded"

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.data = DataDirectory(folder / "data")
        self._metrics_port = free_port()

    def start(self) -> None:
        """The one process, perhaps again on the same data."""
        number = len(list(self.folder.glob("process-*")))
        self.process = self._processes.enter_context(
            running(
                *("serve", "--data-dir", str(self.data.path), "--port", str(self.port)),
                address=f"http://127.0.0.1:{self.port}",
                folder=self.folder / f"process-{number}",
                variables={"METRICS_ADDR": f"127.0.0.1:{self._metrics_port}"} | self.settings,
                command=PATIENT,
            )
        )

    async def kill(self, name: str) -> None:
        """There is only one."""
        await _kill(self.process)
        await asyncio.to_thread(self.start)

    async def metrics(self) -> dict[str, bytes]:
        """Of the one process."""
        return {"embedded": await _metrics(self._metrics_port)}


class DistributedPlatform(Platform):
    """`refract run` for each service; the clock of its gateway can be turned."""

    mode = "distributed"

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        environments: Mapping[str, Mapping[str, str]],
        servers: Sequence[Server],
    ) -> None:
        super().__init__(folder, settings)
        self.servers = servers
        """Those that no other platform uses."""
        self._metrics_port = free_port()
        self.environments = {name: {**environments[name], **settings} for name in (*BEHIND, "gateway")}
        self.environments["gateway"]["METRICS_ADDR"] = f"127.0.0.1:{self._metrics_port}"
        self.port = int(self.environments["gateway"]["PORT"])
        self.services: dict[str, Running] = {}

    def start(self) -> None:
        """Those behind the gateway all at once, and then the gateway."""
        with ThreadPoolExecutor(len(BEHIND)) as starters:
            list(starters.map(self.start_service, BEHIND))
        self.start_service("gateway")

    def start_service(self, name: str) -> None:
        """Start one of them, perhaps again."""
        number = len(list(self.folder.glob(f"{name}-*")))
        self.services[name] = self._processes.enter_context(
            running(
                *("run", name),
                address=f"http://127.0.0.1:{self.environments[name]['PORT']}",
                folder=self.folder / f"{name}-{number}",
                variables=self.environments[name],
                command=TURNABLE if name == "gateway" else PATIENT,
            )
        )

    async def kill(self, name: str) -> None:
        """That service alone."""
        await _kill(self.services[name])
        await asyncio.to_thread(self.start_service, name)

    async def stop_service(self, name: str) -> None:
        """SIGTERM, and wait until it is gone."""
        assert await asyncio.to_thread(self.services[name].stop) == 0

    async def turn_clock(self) -> None:
        """Let the gateway think that half a minute has passed, and a little more."""
        gateway = self.services["gateway"]
        turned = gateway.said.count(TURNED)
        gateway.process.send_signal(signal.SIGUSR1)
        await eventually(lambda: gateway.said.count(TURNED) > turned)

    async def metrics(self) -> dict[str, bytes]:
        """Of each process: the gateway's are nowhere else, the others have them on their own port."""
        ports = {name: int(self.environments[name]["PORT"]) for name in BEHIND} | {"gateway": self._metrics_port}
        return {name: await _metrics(port) for name, port in ports.items()}


async def _kill(running: Running) -> None:
    running.process.kill()
    await asyncio.to_thread(running.process.wait)


async def _metrics(port: int) -> bytes:
    answer = await fetch(port, "/metrics")
    assert answer.status == 200, answer.body
    return answer.body


@contextmanager
def platform_in(
    mode: str, folder: Path, request: pytest.FixtureRequest, own: Sequence[type[Server]] = (RabbitMQ,), **settings: str
) -> Iterator[Platform]:
    """A platform with fresh data that answers, and is gone with its data at the end.

    Its broker is its own, because the queues have the same names everywhere: another platform would take its clicks.
    """
    with ExitStack() as stack:
        if mode == "embedded":
            platform: Platform = EmbeddedPlatform(folder, settings)
        else:
            private = stack.enter_context(started(own))
            servers = {server.variable: server.address for server in private}
            if PostgreSQL not in own:
                servers[PostgreSQL.variable] = request.getfixturevalue("postgres_dsn")
            if Redis not in own:
                servers[Redis.variable] = request.getfixturevalue("redis_address")
            databases = stack.enter_context(_databases(servers[PostgreSQL.variable]))
            environments = variables(servers, {name: free_port() for name in SERVICES}, databases)
            platform = DistributedPlatform(folder, settings, environments, private)
        stack.callback(platform.close)
        platform.start()
        yield platform


@contextmanager
def _databases(dsn: str) -> Iterator[dict[str, str]]:
    databases = asyncio.run(create_databases(dsn, f"platform_{secrets.token_hex(4)}_"))
    try:
        yield databases
    finally:
        asyncio.run(drop_databases(dsn, databases))
