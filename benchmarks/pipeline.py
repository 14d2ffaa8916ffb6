"""How many clicks a second go the whole way, from the redirect to the rollup, while nothing piles up on it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack

import asyncpg

from benchmarks.cores import load_core
from benchmarks.figures import json_line, table, verdict
from benchmarks.flow import COUNTED, HEADER, PENDING, Flow, Run, asking_postgresql, asking_sqlite, climb, send
from benchmarks.links import seed_links, seed_postgresql
from benchmarks.services import new_database, service
from benchmarks.storage import Storage
from benchmarks.visits import Visits
from benchmarks.workshop import Workshop
from benchmarks.wrk import write_requests
from tests.support.servers import PostgreSQL
from tests.support.servers.selection import SERVERS, started

LINKS = 5_000
REQUESTS = 50_000
STEP_SECONDS = 10.0
SUSTAINED_SECONDS = 60.0
RATES = (2_000, 4_000, 6_000, 8_000, 10_000, 12_000, 15_000, 18_000)
EMBEDDED_RATES = (1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 8_000, 10_000)
TARGET, AIM = 6_000, 15_000
EMBEDDED_TARGET, EMBEDDED_AIM = 3_000, 8_000

TRUSTED = {"TRUSTED_PROXIES": "127.0.0.1"}


def measure(workshop: Workshop) -> None:
    """Print the figures of separate processes."""
    print(
        f"pipeline: links and analytics as processes of their own, PostgreSQL, RabbitMQ, Redis and the load beside "
        f"them on the same cores; {LINKS:,} links"
    )
    links = seed_links(LINKS)
    with ExitStack() as stack:
        running = stack.enter_context(started(SERVERS))
        servers = {server.variable: server.address for server in running}
        print(f"  {Storage.of(servers[PostgreSQL.variable])}")
        pids = {server.name: server.pid for server in running}
        analytics_dsn = stack.enter_context(new_database(servers, "analytics"))
        links_dsn = stack.enter_context(new_database(servers, "links"))
        asyncio.run(seed_postgresql(links_dsn, links))
        analytics = stack.enter_context(service(workshop, servers, "analytics", analytics_dsn))
        redirects = stack.enter_context(service(workshop, servers, "links", links_dsn, TRUSTED))
        pids |= {"links": redirects.pid, "analytics": analytics.pid}
        runs = asyncio.run(_over_postgresql(workshop, redirects.port, pids, links_dsn, analytics_dsn))
    _report("pipeline", runs, TARGET, AIM)


def measure_embedded(workshop: Workshop) -> None:
    """Print the figures of one process."""
    print(
        f"embedded-pipeline: refract serve on one core, the load on the other, data on {workshop.disk}; {LINKS:,} links"
    )
    with workshop.embedded(seed_links(LINKS), TRUSTED) as ready:
        assert not isinstance(ready.database, str)
        folder = ready.database.parent
        flow = Flow(
            ready.port,
            asking_sqlite(folder / "analytics.sqlite3", COUNTED),
            asking_sqlite(folder / "links.sqlite3", PENDING),
            {"refract": ready.pid},
            core=load_core(),
        )
        runs = asyncio.run(_runs(workshop, flow, EMBEDDED_RATES))
    _report("embedded-pipeline", runs, EMBEDDED_TARGET, EMBEDDED_AIM)


async def _over_postgresql(
    workshop: Workshop, port: int, pids: Mapping[str, int], links_dsn: str, analytics_dsn: str
) -> list[Run]:
    async with AsyncExitStack() as stack:
        to_analytics = await asyncpg.connect(analytics_dsn)
        stack.push_async_callback(to_analytics.close)
        to_links = await asyncpg.connect(links_dsn)
        stack.push_async_callback(to_links.close)
        flow = Flow(port, asking_postgresql(to_analytics, COUNTED), asking_postgresql(to_links, PENDING), pids)
        return await _runs(workshop, flow, RATES)


async def _runs(workshop: Workshop, flow: Flow, rates: Sequence[float]) -> list[Run]:
    """Higher and higher until it does not keep up; then a minute at the highest rate that it keeps up with."""
    visits = Visits([link.short_code for link in seed_links(LINKS)])
    requests = write_requests(workshop.folder / "visits", visits.requests(REQUESTS))
    await send(flow, requests, rates[0], 2.0)  # every link is in memory, every list is read
    runs = await climb(flow, requests, rates, STEP_SECONDS)
    for rate in sorted({run.rate for run in runs if run.keeps_up}, reverse=True):
        runs.append(await send(flow, requests, rate, SUSTAINED_SECONDS))
        if runs[-1].keeps_up:
            break
    return runs


def _report(name: str, runs: Sequence[Run], target: int, aim: int) -> None:
    print(table(HEADER, [run.row() for run in runs]))
    sustained = [run for run in runs if run.seconds >= SUSTAINED_SECONDS and run.keeps_up]
    reached = max((run.answered_rate for run in sustained), default=0.0)
    if sustained:
        spent = ", ".join(f"{who} {cost:.0f}" for who, cost in sustained[-1].cpu.items())
        print(f"  microseconds of a processor for each click: {spent}")
    answers = sum(run.answers for run in runs)
    print(f"  {answers:,} redirects answered, {answers:,} clicks rolled up: none lost, none twice")
    print(verdict(f"at least {target:,} a second for {SUSTAINED_SECONDS:.0f} s", met=reached >= 0.99 * target))
    print(verdict(f"aim of {aim:,} a second", met=reached >= 0.99 * aim))
    figures = {
        "sustained_a_second": round(reached),
        "lost": 0,
        "answers": answers,
        "runs": [
            {
                "rate": run.rate,
                "seconds": run.seconds,
                "answered": round(run.answered_rate),
                "p99_ms": round(run.p99, 2),
                "behind_s": round(run.behind_at_the_end, 2),
                "outbox": run.pending[-1],
                "drained_s": round(run.drained_after, 2),
                "keeps_up": run.keeps_up,
                "cpu_us": {who: round(cost, 1) for who, cost in run.cpu.items()},
            }
            for run in runs
        ],
    }
    print(json_line(name, figures))
