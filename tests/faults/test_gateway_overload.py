"""ACCEPTANCE 26 in full: a minute of five times what a service behind the gateway can do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import pytest

from refract.runtime.edge import Receive, Scope, Send
from tests.support.doors import PATIENT, Backstage, Door, doors
from tests.support.http import Client, running

pytestmark = pytest.mark.full

SECONDS = 60.0
MIB = 1024 * 1024


class Workshop(Backstage):
    """A service that does so much at once and no more: two requests of 20 ms, or 100 a second.

    That is little, so that five times as much is nothing to the clients, who share the machine with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places = asyncio.Semaphore(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in turn; whether it is well can be said at once."""
        if scope["path"] != "/abc":
            await super().__call__(scope, receive, send)
            return
        async with self._places:
            await asyncio.sleep(0.02)
        await super().__call__(scope, receive, send)


@dataclass
class Offered:
    """Requests at a steady rate, whether or not the last ones were answered, and what came of them."""

    port: int
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Anything that is neither."""
    _idle: list[Client] = field(default_factory=list)
    _asking: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, rate: float, seconds: float) -> None:
        """Offer so many a second for so long."""
        begun = time.perf_counter()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(begun + number / rate - time.perf_counter())
            self._asking.append(asyncio.create_task(self._ask()))

    async def answered(self) -> None:
        """Wait for what is still to come, and hang up."""
        await asyncio.gather(*self._asking)
        for client in self._idle:
            client.close()

    async def _ask(self) -> None:
        client = self._idle.pop() if self._idle else await Client.connect(self.port)
        begun = time.perf_counter()
        try:
            answer = await client.get("/r/abc")
        except (OSError, EOFError, TimeoutError) as error:
            self.odd.append(repr(error))
            client.close()
            return
        taken = time.perf_counter() - begun
        if answer.status == 503 and "retry-after" in answer.headers:
            self.refused.append(taken)
        elif answer.status == 200:
            self.served.append(taken)
        else:
            self.odd.append(str(answer))
        self._idle.append(client)


@pytest.fixture
async def door(tmp_path: Path, redis_address: str) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(Workshop(), limits=PATIENT))
        (opened,) = await stack.enter_async_context(doors(tmp_path, server.port, redis_address))
        yield opened


async def peak(port: int, seconds: float = 10.0) -> float:
    """Answers a second to a few clients that never rest."""
    answered, end = 0, time.perf_counter() + seconds

    async def ask() -> None:
        nonlocal answered
        async with await Client.connect(port) as client:
            while time.perf_counter() < end:
                assert (await client.get("/r/abc")).status == 200
                answered += 1

    await asyncio.gather(*(ask() for _ in range(20)))
    return answered / seconds


def p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98]


@pytest.mark.timeout(300)
async def test_a_minute_of_five_times_too_much(door: Door) -> None:
    best = await peak(door.port)
    flood, quiet, before = Offered(door.port), Offered(door.port), door.memory()
    await flood.run(5 * best, SECONDS)
    after = door.memory()
    goodput = len(flood.served) / SECONDS
    await asyncio.sleep(10)
    await quiet.run(best / 2, 10)
    await quiet.answered()
    await flood.answered()

    print(
        f"peak {best:.0f}/s, goodput {goodput:.0f}/s, served p99 {p99(flood.served):.2f} s, "
        f"{len(flood.refused)} refused with p99 {p99(flood.refused) * 1e3:.1f} ms and at most "
        f"{max(flood.refused) * 1e3:.1f} ms, memory {before / MIB:.0f} to {after / MIB:.0f} MiB, "
        f"afterwards p99 {p99(quiet.served) * 1e3:.1f} ms"
    )
    assert flood.odd == []
    assert goodput >= 0.9 * best
    assert p99(flood.refused) < 0.1
    # It climbs by some 80 MiB, while what waits for long gets old before the collector comes, and stays there.
    assert after - before < 128 * MIB
    assert (quiet.odd, quiet.refused) == ([], []), "within ten seconds it is as before"
    assert p99(quiet.served) < 0.25
