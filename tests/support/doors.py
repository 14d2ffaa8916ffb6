"""Gateways as distributed mode runs them, in processes of their own, before services that the test plays."""

import asyncio
import re
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refract.kernel.clock import SystemClock
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.server import ServerLimits
from refract.runtime.tokens import TokenSigner
from refract.services.gateway.settings import URL_VARIABLES
from tests.support.applications import read_body
from tests.support.commands import logged_in
from tests.support.fronts import send_answer
from tests.support.http import Client, fetch, running
from tests.support.servers.places import free_port
from tests.support.stack import inherited
from tests.support.turned_clock import TURNED
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PATIENT = ServerLimits(receive=120, send=120, idle=300)


class Backstage:
    """Plays every service behind the gateway, and notes what reached it; how it answers is up to the test."""

    def __init__(self) -> None:
        self.statuses: dict[str, int] = {}
        """By path; anything else is a 200."""
        self.reached: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None
        """While there is one that is not set, answers wait."""
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path == "/revocations":
            await send_answer(send, 200, b'{"revocations": []}')
            return
        if path != "/health":
            self.reached[path] += 1
            await read_body(receive)
        if self.gate is not None and path != "/health":
            self.waiting += 1
            try:
                await self._opened(self.gate, receive)
            finally:
                self.waiting -= 1
        await send_answer(send, self.statuses.get(path, 200), b"{}")

    async def _opened(self, gate: asyncio.Event, receive: Receive) -> None:
        """Wait for the gate, or for the end of whoever asks."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.create_task(gate.wait()), asyncio.create_task(gone())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


@dataclass
class Door:
    """One gateway, as its clients, its operator and its neighbours know it."""

    port: int
    metrics_port: int
    secret: str
    folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it wrote, line by line."""
        return logged_in(self.folder / "stdout")

    @property
    def authorization(self) -> str:
        """The header field of somebody with a good token."""
        return f"Authorization: Bearer {TokenSigner(self.secret, SystemClock()).sign('u-1', 'u@example.com').token}"

    async def turn_clock(self) -> None:
        """Let it think that `turned_clock.STEP` seconds have passed."""
        errors = self.folder / "stderr"
        before = errors.read_text().count(TURNED)
        self.process.send_signal(signal.SIGUSR1)
        await eventually(lambda: errors.read_text().count(TURNED) > before)

    async def metric(self, series: str) -> float:
        """The value of one series, which begins with these characters."""
        text = (await fetch(self.metrics_port, "/metrics")).text
        found = re.search(rf"^{re.escape(series)}\S* (\S+)$", text, re.MULTILINE)
        assert found is not None, f"no {series} in\n{text}"
        return float(found[1])

    def memory(self) -> int:
        """What it holds, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


@asynccontextmanager
async def doors(
    folder: Path, upstream: int, redis: str, changes: Mapping[str, str] | None = None, wrong_by: Sequence[float] = (0,)
) -> AsyncIterator[list[Door]]:
    """As many gateways as there are clocks, all before the same services and with the same counters."""
    shared = {
        "HOST": "127.0.0.1",
        "SERVICE_NAME": "gateway",
        "JWT_SECRET": secrets.token_urlsafe(48),
        "CLICK_SALT": secrets.token_hex(8),  # under which no other test counts
        "REDIS_ADDR": redis,
        "RATE_LIMIT_REDIRECT": "0",
        "RATE_LIMIT_SHORTEN": "0",
        **dict.fromkeys(URL_VARIABLES.values(), f"http://127.0.0.1:{upstream}"),
        **(changes or {}),
    }
    opened = [_start(folder / f"gateway-{number}", shared, seconds) for number, seconds in enumerate(wrong_by)]
    try:
        for door in opened:
            await eventually(lambda door=door: _answers(door), timeout=60)  # type: ignore[misc]
        yield opened
    finally:
        for door in opened:
            door.process.kill()
            door.process.wait()


@asynccontextmanager
async def one_door(folder: Path, redis: str, **changes: str) -> AsyncIterator[tuple[Door, Backstage]]:
    """A gateway, and what is behind it."""
    async with AsyncExitStack() as stack:
        backstage = Backstage()
        server = await stack.enter_async_context(running(backstage, limits=PATIENT))
        (door,) = await stack.enter_async_context(doors(folder, server.port, redis, changes))
        yield door, backstage


def _start(folder: Path, variables: dict[str, str], wrong_by: float) -> Door:
    folder.mkdir(parents=True)
    port, metrics_port = free_port(), free_port()
    own = {"PORT": str(port), "METRICS_ADDR": f"127.0.0.1:{metrics_port}"}
    command = [sys.executable, "-m", "tests.support.turned_clock", str(wrong_by), "run", "gateway"]
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env={**inherited(), **variables, **own},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=ROOT,
        )
    return Door(port, metrics_port, variables["JWT_SECRET"], folder, process)


async def _answers(door: Door) -> bool:
    assert door.process.poll() is None, (door.folder / "stderr").read_text()
    return (await fetch(door.port, "/health")).status == 200


async def ask_all(port: int, connections: int, requests: int, target: str, *headers: str) -> Counter[int]:
    """So many requests over so many connections at once: how often each status came."""

    async def ask(number: int) -> list[int]:
        share = requests // connections + (number < requests % connections)
        async with await Client.connect(port) as client:
            return [(await client.get(target, *headers)).status for _ in range(share)]

    answered = await asyncio.gather(*map(ask, range(connections)))
    return Counter(status for some in answered for status in some)
