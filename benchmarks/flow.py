"""Redirects at a constant rate, and how far behind them the rollups are; no click that was answered may be missing."""

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import asyncpg

from benchmarks.cores import pinned
from benchmarks.instances import family_cpu_seconds
from benchmarks.steady_load import PROGRAM

CONNECTIONS = 64
SAMPLE_SECONDS = 0.5
SECONDS_TO_DRAIN = 120.0
BEHIND_SECONDS = 2.0
"""A pipeline that keeps up is never further behind than this at the end."""

COUNTED = "SELECT coalesce(sum(clicks), 0) FROM totals"
PENDING = "SELECT count(*) FROM outbox WHERE published_at IS NULL"

Count = Callable[[], Awaitable[int]]


@dataclass(frozen=True)
class Flow:
    """Where redirects are answered, how many clicks are rolled up, how many rows wait in the outbox, and who works."""

    port: int
    counted: Count
    pending: Count
    pids: Mapping[str, int]
    core: int | None = None
    """Where the load runs; anywhere, where the servers do too."""


@dataclass
class Run:
    """One load and what became of it."""

    rate: float
    seconds: float
    answers: int = 0
    answered_rate: float = 0.0
    p99: float = 0.0
    drained_after: float = 0.0
    pending: list[int] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    """Clicks that were sent and not rolled up, at each look."""
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def keeps_up(self) -> bool:
        """Whether it was answered at that rate, and neither the outbox nor the way behind it grew to the end."""
        if self.answered_rate < 0.97 * self.rate or len(self.behind) < 6:
            return False
        third = len(self.behind) // 3
        middle = mean(self.behind[third : 2 * third]) / self.rate
        grows = self.behind_at_the_end > 1.5 * middle + 0.25
        return not grows and max(self.behind_at_the_end, self.drained_after) <= BEHIND_SECONDS

    @property
    def behind_at_the_end(self) -> float:
        """Seconds, as a mean over the last third of the load."""
        return mean(self.behind[-(len(self.behind) // 3 or 1) :]) / self.rate if self.behind else 0.0

    def row(self) -> tuple[str, ...]:
        """For the table."""
        return (
            f"{self.rate:,.0f} a second for {self.seconds:.0f} s",
            f"{self.answered_rate:,.0f}",
            f"{self.p99:.1f}",
            f"{self.behind_at_the_end:.2f}",
            f"{max(self.pending, default=0):,}",
            f"{self.pending[-1] if self.pending else 0:,}",
            f"{self.drained_after:.1f}",
            "yes" if self.keeps_up else "no",
        )


HEADER = ("", "answered", "p99 ms", "behind s", "outbox most", "at the end", "drained s", "keeps up")


async def send(flow: Flow, requests: Path, rate: float, seconds: float) -> Run:
    """Send at that rate for so long, then wait until every click is rolled up; one that is not is an error."""
    before, used = await flow.counted(), _cpu(flow.pids)
    command = [sys.executable, "-I", str(PROGRAM), *map(str, (flow.port, CONNECTIONS, rate, seconds, requests))]
    run, over = Run(rate, seconds), asyncio.Event()
    process = await asyncio.create_subprocess_exec(
        *(command if flow.core is None else pinned(flow.core, command)), stdout=asyncio.subprocess.PIPE
    )
    watching = asyncio.create_task(_watch(flow, run, before, over))
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
        over.set()
        await watching
    ended = time.monotonic()
    if process.returncode:  # it could not be answered at this rate, or not at all: what it was is not known
        await _settle(flow)
        return run
    seen = json.loads(output)
    run.answers, run.answered_rate, run.p99 = seen["answers"], seen["rate"], seen["p99"]
    run.pending.append(await flow.pending())
    run.drained_after = await _drain(flow, run, before) - ended
    run.cpu = {name: (late - used[name]) / run.answers * 1e6 for name, late in _cpu(flow.pids).items()}
    return run


async def _watch(flow: Flow, run: Run, before: int, over: asyncio.Event) -> None:
    begun = time.monotonic()
    while not over.is_set():
        run.pending.append(await flow.pending())
        counted = await flow.counted() - before
        run.behind.append(max(0.0, run.rate * (time.monotonic() - begun) - counted))
        await asyncio.sleep(SAMPLE_SECONDS)


async def _settle(flow: Flow) -> None:
    """Wait until nothing changes any more."""
    before = -1
    while True:
        counted = await flow.counted()
        if counted == before:
            return
        before = counted
        await asyncio.sleep(4 * SAMPLE_SECONDS)


async def _drain(flow: Flow, run: Run, before: int) -> float:
    """When all were there."""
    deadline = time.monotonic() + SECONDS_TO_DRAIN
    while (counted := await flow.counted() - before) < run.answers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{run.answers:,} redirects were answered, and {counted:,} clicks are rolled up")
        await asyncio.sleep(0.05)
    drained = time.monotonic()
    await asyncio.sleep(SAMPLE_SECONDS)  # for one too many
    if (counted := await flow.counted() - before) != run.answers:
        raise RuntimeError(f"{run.answers:,} redirects were answered, and {counted:,} clicks are rolled up")
    return drained


async def climb(flow: Flow, requests: Path, rates: Sequence[float], seconds: float) -> list[Run]:
    """One rate after the other, until it does not keep up."""
    runs = []
    for rate in rates:
        runs.append(await send(flow, requests, rate, seconds))
        if not runs[-1].keeps_up:
            break
    return runs


def _cpu(pids: Mapping[str, int]) -> dict[str, float]:
    return {name: family_cpu_seconds(pid) for name, pid in pids.items()}


def asking_postgresql(connection: "asyncpg.Connection[asyncpg.Record]", statement: str) -> Count:
    """A number, from a connection of its own."""

    async def ask() -> int:
        return int(await connection.fetchval(statement))

    return ask


def asking_sqlite(file: Path, statement: str) -> Count:
    """The same from a file that others write to."""

    async def ask() -> int:
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5)
        try:
            return int(connection.execute(statement).fetchone()[0])
        finally:
            connection.close()

    return ask
