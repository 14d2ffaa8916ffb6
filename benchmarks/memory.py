"""What an embedded instance takes of the memory once every link is in it, and whether that grows under load."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

from benchmarks.asking import redirects
from benchmarks.figures import json_line, short_form, table, verdict
from benchmarks.instances import resident_megabytes
from benchmarks.links import seed_links, shuffled
from benchmarks.steady_load import steadily
from benchmarks.workshop import Workshop
from benchmarks.wrk import ensure_wrk, send_once, write_requests

CONNECTIONS = 64
RATE = 2_000
SAMPLE_SECONDS = 1.0
TARGET_MEGABYTES = 250.0
FLAT_PERCENT = 5.0
PARTS = 5
FULL_MINUTES = 10.0
"""So long it has to stay flat; what fills a cache in the first seconds says nothing of that."""


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    links = seed_links()
    minutes = workshop.options.minutes
    print(f"memory: refract serve with {len(links):,} links, then {RATE:,} redirects a second for {minutes:g} minutes")
    requests = write_requests(workshop.folder / "memory", redirects((*shuffled(links), *links[:1000])))
    with workshop.embedded(links) as ready:
        fresh = resident_megabytes(ready.pid)
        send_once(ready, requests, connections=CONNECTIONS)
        warm = resident_megabytes(ready.pid)
        samples = [warm]
        with ThreadPoolExecutor(1) as sender:
            load = sender.submit(steadily, ready.port, RATE, requests, connections=CONNECTIONS, seconds=60 * minutes)
            while not load.done():
                time.sleep(SAMPLE_SECONDS)
                samples.append(resident_megabytes(ready.pid))
            reached = load.result()["rate"]
    parts = in_parts(samples)
    first, last = parts[0], parts[-1]
    growth = 100 * (last - first) / first
    rows = [
        ("after the start", f"{fresh:.0f}"),
        ("with every link in memory", f"{warm:.0f}"),
        *((f"fifth {number} of the load", f"{part:.1f}") for number, part in enumerate(parts, start=1)),
        ("most", f"{max(samples):.0f}"),
    ]
    print(table(("", "MB resident"), rows))
    print(f"  {growth:+.1f} % from the first to the last, at {reached:,.0f} redirects a second")
    _judge(minutes, max(samples), growth)
    figures = {"start_mb": fresh, "warm_mb": warm, "first_mb": first, "last_mb": last, "most_mb": max(samples)}
    shown = {name: round(value, 1) for name, value in figures.items()}
    shown["growth_percent"] = round(growth, 2)
    steps = [round(part, 1) for part in parts]
    print(
        json_line(
            "memory",
            {**shown, "fifths_mb": steps, "minutes": minutes, "full": minutes >= FULL_MINUTES, "rps": round(reached)},
        )
    )


def _judge(minutes: float, most: float, growth: float) -> None:
    size, flat = f"under {TARGET_MEGABYTES:g} MB", f"flat: under {FLAT_PERCENT:g} % of growth"
    if minutes < FULL_MINUTES:
        print(short_form(f"{size}, {flat} in {FULL_MINUTES:g} minutes", f"memory --minutes {FULL_MINUTES:g}"))
        return
    print(verdict(size, met=most < TARGET_MEGABYTES))
    print(verdict(flat, met=growth < FLAT_PERCENT))


def in_parts(samples: Sequence[float]) -> list[float]:
    """The median of each fifth of the load: caches that fill come to rest, and a leak goes on to the end."""
    bounds = [len(samples) * part // PARTS for part in range(PARTS + 1)]
    return [median(samples[begin : max(end, begin + 1)]) for begin, end in pairwise(bounds)]
