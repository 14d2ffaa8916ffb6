"""How long until a click is a row, a chart and on a live stream, a tenth a milestone, and an event a notification."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from benchmarks.asking import call
from benchmarks.figures import json_line, percentile, table, verdict
from benchmarks.flow import COUNTED, PENDING, Flow, asking_postgresql, send
from benchmarks.instances import wait_until_quiet
from benchmarks.links import OWNER, SeedLink, seed_links, seed_postgresql
from benchmarks.services import new_database, service
from benchmarks.storage import Storage
from benchmarks.visits import Visits
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import ensure_wrk, write_requests
from benchmarks.wrk import send as ask_in_turn
from tests.support.servers import PostgreSQL
from tests.support.servers.selection import SERVERS, started

LINKS = 5_000
PROBES, SLOW_PROBES = 240, 60
RATE = 1_000
PROBES_A_SECOND = 6.0
MARGIN = 10.0
LOOK_SECONDS = 0.01
CHART_SECONDS = 0.05
"""Between two looks. An answer costs the service milliseconds: who looks too often slows down what it waits for."""
PATIENCE = 30.0
NOTIFICATIONS = 10_000
TENTH = 10

ROW, CHART = "click to row", "click to chart"
SHOWN, LIVE = "10th click to live stream", "its commit to live stream"
MILESTONE, TOLD = "10th click to milestone", "10th click to notification"
CREATED = "new link to notification"
TARGETS = {ROW: 0.5, CHART: 1.0, LIVE: 1.0, MILESTONE: 2.0, TOLD: 2.0, CREATED: 2.0}
"""Of a stream it is asked from the commit on. From the click on, the way to the commit is in it: shown, not judged."""
LIST_MILLISECONDS = 20.0

MORE = """
INSERT INTO notifications (id, user_id, event_type, event_id, title, short_code, payload, created_at, sent_at)
SELECT gen_random_uuid(), user_id, event_type, event_id || '-' || number, title, short_code, payload,
       created_at - number * interval '1 second', sent_at
FROM (SELECT * FROM notifications WHERE user_id = $1 LIMIT 1) AS one, generate_series(1, $2) AS number
"""


@dataclass(frozen=True)
class Services:
    """Those that a click passes, and a look into their databases."""

    links: Ready
    analytics: Ready
    notifications: Ready
    clicks: "asyncpg.Pool[asyncpg.Record]"
    told: "asyncpg.Pool[asyncpg.Record]"
    lags: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (SHOWN, *TARGETS)})


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    print(
        f"click-lag: {RATE:,} clicks a second over links, analytics and notifications, the servers and the load beside "
        f"them; {PROBES} clicks are followed, seconds from when they were sent"
    )
    links = seed_links(LINKS)
    with ExitStack() as stack:
        servers = {server.variable: server.address for server in stack.enter_context(started(SERVERS))}
        print(f"  {Storage.of(servers[PostgreSQL.variable])}")
        ready = {}
        for name in ("links", "analytics", "notifications"):
            dsn = stack.enter_context(new_database(servers, name))
            if name == "links":
                asyncio.run(seed_postgresql(dsn, links))
            ready[name] = stack.enter_context(service(workshop, servers, name, dsn, {"TRUSTED_PROXIES": "127.0.0.1"}))
        lags = asyncio.run(_follow(workshop, ready["links"], ready["analytics"], ready["notifications"], links))
        tails = _list(workshop, ready["notifications"])
    _report(lags, tails)


async def _follow(
    workshop: Workshop, links: Ready, analytics: Ready, notifications: Ready, seeded: Sequence[SeedLink]
) -> dict[str, list[float]]:
    """Probes among a load that goes on a little longer than they do."""
    codes = [link.short_code for link in seeded]
    probes, slow, others = codes[:PROBES], codes[PROBES : PROBES + SLOW_PROBES], codes[PROBES + SLOW_PROBES :]
    requests = write_requests(workshop.folder / "lag-visits", Visits(others).requests(20_000))
    async with AsyncExitStack() as stack:
        clicks = await stack.enter_async_context(asyncpg.create_pool(str(analytics.database), min_size=2, max_size=4))
        told = await stack.enter_async_context(asyncpg.create_pool(str(notifications.database), min_size=1, max_size=2))
        to_links = await asyncpg.connect(str(links.database))
        stack.push_async_callback(to_links.close)
        services = Services(links, analytics, notifications, clicks, told)
        await _first_nine(services, slow)
        streams = [await stack.enter_async_context(_watching(services, code)) for code in slow]
        looking = await asyncpg.connect(str(analytics.database))
        stack.push_async_callback(looking.close)
        flow = Flow(links.port, asking_postgresql(looking, COUNTED), asking_postgresql(to_links, PENDING), {})
        await send(flow, requests, RATE, 2.0)
        seconds = PROBES / PROBES_A_SECOND + MARGIN
        load = asyncio.create_task(_load(flow, requests, seconds))
        await asyncio.sleep(1.0)
        await asyncio.gather(
            _in_turn(lambda number: _click(services, probes[number]), PROBES, PROBES_A_SECOND),
            _in_turn(
                lambda number: _tenth(services, slow[number], streams[number]),
                SLOW_PROBES,
                PROBES_A_SECOND * SLOW_PROBES / PROBES,
            ),
            _in_turn(lambda number: _shorten(services, number), SLOW_PROBES, PROBES_A_SECOND * SLOW_PROBES / PROBES),
        )
        load.cancel()
        await asyncio.wait([load])
        return services.lags


async def _load(flow: Flow, requests: Path, seconds: float) -> None:
    await send(flow, requests, RATE, seconds)


async def _in_turn(probe: Callable[[int], Awaitable[None]], count: int, a_second: float) -> None:
    """One after the other is begun, and none waits for the one before."""
    begun, under_way = time.monotonic(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / a_second - time.monotonic()))
        under_way.append(asyncio.ensure_future(probe(number)))
    await asyncio.gather(*under_way)


async def _first_nine(services: Services, codes: Sequence[str]) -> None:
    for code in codes:
        for _ in range(TENTH - 1):
            await _ask(services.links.port, _redirect(code))
    expected = (TENTH - 1) * len(codes)
    await _seen(lambda: _is(services.clicks, f"SELECT sum(clicks) >= {expected} FROM totals"))


async def _click(services: Services, code: str) -> None:
    begun = time.monotonic()
    await _ask(services.links.port, _redirect(code))
    stats = f"GET /stats/{code} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()

    async def charted() -> bool:
        answer = await _ask(services.analytics.port, stats)
        return bool(json.loads(answer.partition(b"\r\n\r\n")[2])["total_clicks"])

    row, chart = await asyncio.gather(
        _seen(lambda: _is(services.clicks, "SELECT true FROM clicks WHERE short_code = $1", code)),
        _seen(charted, every=CHART_SECONDS),
    )
    services.lags[ROW].append(row - begun)
    services.lags[CHART].append(chart - begun)


@asynccontextmanager
async def _watching(services: Services, code: str) -> AsyncIterator[asyncio.StreamReader]:
    """The owner's open stream of a link that had nine clicks, up to where it says so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", services.analytics.port)
    try:
        writer.write(call("GET", f"/stats/{code}/live", services.analytics.token))
        await _shown(reader, TENTH - 1)
        yield reader
    finally:
        writer.close()


async def _shown(stream: asyncio.StreamReader, clicks: int) -> float:
    """When a stream said that there are so many."""
    async with asyncio.timeout(PATIENCE):
        await stream.readuntil(b'"total_clicks":%d,' % clicks)
    return time.monotonic()


async def _tenth(services: Services, code: str, stream: asyncio.StreamReader) -> None:
    begun = time.monotonic()
    await _ask(services.links.port, _redirect(code))
    kind = "milestone.reached"
    looks = [begun]

    async def reached() -> bool:
        looks.append(time.monotonic())
        return await _is(services.clicks, "SELECT true FROM milestones WHERE short_code = $1", code)

    live, milestone, notification = await asyncio.gather(
        _shown(stream, TENTH),
        _seen(reached),
        _seen(lambda: _is(services.told, _TOLD, code, kind)),
    )
    services.lags[SHOWN].append(live - begun)
    services.lags[LIVE].append(live - looks[-2])  # the last look that saw nothing: the commit was not before it
    services.lags[MILESTONE].append(milestone - begun)
    services.lags[TOLD].append(notification - begun)


_TOLD = "SELECT true FROM notifications WHERE short_code = $1 AND event_type = $2"


async def _shorten(services: Services, number: int) -> None:
    body = {"url": f"https://example.com/new/{number}"}
    request = call("POST", "/shorten", services.links.token, body).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    answer = await _ask(services.links.port, request)
    begun = time.monotonic()
    code = json.loads(answer.partition(b"\r\n\r\n")[2])["short_code"]
    services.lags[CREATED].append(await _seen(lambda: _is(services.told, _TOLD, code, "url.created")) - begun)


def _redirect(code: str) -> bytes:
    return f"GET /{code} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()


async def _ask(port: int, request: bytes) -> bytes:
    """The whole answer, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 3")):
        raise RuntimeError(f"refused: {answer[:300]!r}")
    return answer


async def _is(pool: "asyncpg.Pool[asyncpg.Record]", question: str, *values: str) -> bool:
    return bool(await pool.fetchval(question, *values))


async def _seen(condition: Callable[[], Awaitable[bool]], *, every: float = LOOK_SECONDS) -> float:
    """When it was first seen to hold."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await condition():
                return time.monotonic()
            await asyncio.sleep(every)


def _list(workshop: Workshop, notifications: Ready) -> dict[int, float]:
    """Milliseconds, by the number of connections, for the first page of an owner who has very many."""
    asyncio.run(_fill(str(notifications.database)))
    requests = write_requests(workshop.folder / "told", [call("GET", "/notifications", notifications.token)])
    wait_until_quiet([notifications.pid])
    seconds = workshop.options.seconds
    return {
        connections: ask_in_turn(notifications, requests, connections=connections, seconds=seconds).p99
        for connections in (1, 16)
    }


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(MORE, OWNER, NOTIFICATIONS)
        await connection.execute("VACUUM ANALYZE notifications")
    finally:
        await connection.close()


def _report(lags: dict[str, list[float]], tails: dict[int, float]) -> None:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    seen = {name: {share: percentile(values, part) for share, part in shares.items()} for name, values in lags.items()}
    rows = [
        (f"{name}, {len(lags[name])}", *(f"{1000 * value:,.0f}" for value in figures.values()))
        for name, figures in seen.items()
    ]
    print(table(("milliseconds", *shares), rows))
    for name, target in TARGETS.items():
        print(verdict(f"{name}: p99 under {target:g} s", met=seen[name]["p99"] < target))
    for connections, tail in tails.items():
        told = f"GET /notifications among {NOTIFICATIONS:,}, {connections} at once: p99 {tail:.1f} ms"
        print(verdict(f"{told}, under {LIST_MILLISECONDS:g}", met=tail < LIST_MILLISECONDS))
    figures = {
        "ms": {name: {share: round(1000 * value, 1) for share, value in each.items()} for name, each in seen.items()},
        "notifications_p99_ms": {str(connections): round(tail, 2) for connections, tail in tails.items()},
    }
    print(json_line("click-lag", figures))
