"""How long an event waits in the outbox between the write that caused it and its publication."""

import asyncio
import sqlite3
from pathlib import Path

import asyncpg

from benchmarks.asking import redirects
from benchmarks.figures import json_line, percentile, table, verdict
from benchmarks.instances import wait_until_quiet
from benchmarks.links import seed_links, shuffled
from benchmarks.shorten import new_urls
from benchmarks.steady_load import steadily
from benchmarks.workshop import MODES, Ready, Workshop
from benchmarks.wrk import write_requests

CONNECTIONS = 16
LINKS = 10_000
SECONDS = 5
SHORTENED_A_SECOND = 200
FOLLOWED_A_SECOND = 2_000
TARGET_SECONDS = 1.0

LAGS = "SELECT event_type, published_at - created_at FROM outbox"
LAGS_IN_POSTGRESQL = "SELECT event_type, extract(epoch FROM published_at - created_at)::float8 FROM outbox"

Lags = dict[str, list[float]]


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    links = seed_links(LINKS)
    print(
        f"outbox-lag: {SHORTENED_A_SECOND} new links a second and then {FOLLOWED_A_SECOND:,} redirects a second, "
        f"{SECONDS} s each; milliseconds from the write to published_at, for each row of the outbox"
    )
    seen: dict[str, Lags] = {}
    for mode in MODES:
        with workshop.either(mode, links) as ready:
            new = new_urls(ready, workshop.folder / "lag", SHORTENED_A_SECOND * (SECONDS + 1))
            follow = write_requests(workshop.folder / "follow", redirects(shuffled(links)))
            for rate, file in ((SHORTENED_A_SECOND, new), (FOLLOWED_A_SECOND, follow)):
                steadily(ready.port, rate, file, connections=CONNECTIONS, seconds=SECONDS)
                wait_until_quiet([ready.pid])
            seen[mode] = _lags(ready)
    rows = []
    figures: dict[str, dict[str, object]] = {mode: {} for mode in MODES}
    for mode, lags in seen.items():
        for event, values in sorted(lags.items()):
            p50, p99, worst = (1000 * percentile(values, share) for share in (0.5, 0.99, 1.0))
            rows.append((f"{mode}, {event}", f"{len(values):,}", f"{p50:.1f}", f"{p99:.1f}", f"{worst:.1f}"))
            figures[mode][event] = {"rows": len(values), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
    print(table(("", "rows", "p50", "p99", "max"), rows))
    tails = [percentile(values, 0.99) for lags in seen.values() for values in lags.values()]
    print(verdict(f"p99 under {TARGET_SECONDS:g} s", met=max(tails) < TARGET_SECONDS))
    print(json_line("outbox-lag", figures))


def _lags(ready: Ready) -> Lags:
    """Seconds for each row, by the kind of event; a row that was not published is an error."""
    if isinstance(ready.database, Path):
        connection = sqlite3.connect(ready.database)
        try:
            rows = [(event, None if lag is None else lag / 1e6) for event, lag in connection.execute(LAGS)]
        finally:
            connection.close()
    else:
        rows = asyncio.run(_rows(ready.database))
    lags: Lags = {}
    for event, lag in rows:
        if lag is None:
            raise RuntimeError(f"an event {event} was not published")
        lags.setdefault(event, []).append(lag)
    return lags


async def _rows(dsn: str) -> list[tuple[str, float | None]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [(event, lag) for event, lag in await connection.fetch(LAGS_IN_POSTGRESQL)]
    finally:
        await connection.close()
