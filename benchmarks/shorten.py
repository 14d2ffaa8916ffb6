"""How many links a second are made with their events, one by one and in bulk."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.asking import call, fetch
from benchmarks.cores import on_load_core
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.links import seed_links
from benchmarks.workshop import MODES, Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send_once, write_requests

CONNECTIONS = 32
REQUESTS_A_SECOND = 3_000
"""How many are prepared for each second of a round: each is sent once, so that each makes a link."""
BULK_CONNECTIONS = 4
BULK_URLS = 1_000
BULK_REQUESTS = 20
TARGET, AIM, TARGET_MILLISECONDS = 2_000, 4_000, 50.0
BULK_TARGET = 10_000
CREATED = 201

_numbers = count()


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    options = workshop.options
    links = seed_links()
    print(
        f"shorten: new URLs among {len(links):,} links, {options.rounds} rounds of "
        f"{REQUESTS_A_SECOND * options.seconds:,} requests over {CONNECTIONS} connections, and {BULK_REQUESTS} bulk "
        f"requests of {BULK_URLS:,} URLs over {BULK_CONNECTIONS}"
    )
    print(f"  SQLite's data on {workshop.disk}; {workshop.storage}")
    single: dict[str, list[Reached]] = {mode: [] for mode in MODES}
    bulk: dict[str, list[float]] = {mode: [] for mode in MODES}
    for mode in MODES:
        with workshop.either(mode, links) as ready:
            for _ in range(options.rounds):
                file = new_urls(ready, workshop.folder / "shorten", REQUESTS_A_SECOND * options.seconds)
                single[mode].append(send_once(ready, file, connections=CONNECTIONS))
                bulk[mode].append(_in_bulk(ready))
    figures = _show(single, {mode: Rounds.of(values) for mode, values in bulk.items()})
    print(json_line("shorten", {**figures, "disk": workshop.disk, "postgresql": workshop.storage.as_json()}))


def _show(single: dict[str, list[Reached]], bulk: dict[str, Rounds]) -> dict[str, Any]:
    rates = {mode: Rounds.of(reached.rate for reached in each) for mode, each in single.items()}
    tails = {mode: Rounds.of(reached.p99 for reached in each) for mode, each in single.items()}
    costs = {mode: Rounds.of(reached.cpu for reached in each) for mode, each in single.items()}
    rows = [
        (mode, rates[mode].shown(",.0f"), tails[mode].shown(), costs[mode].shown(",.0f"), bulk[mode].shown(",.0f"))
        for mode in MODES
    ]
    print(table(("", "links a second", "p99 ms", "CPU µs each", "URLs a second in bulk"), rows))
    ours = "distributed"
    print(verdict(f"PostgreSQL: at least {TARGET:,} a second", met=rates[ours].median >= TARGET))
    print(verdict(f"PostgreSQL: aim of {AIM:,} a second", met=rates[ours].median >= AIM))
    print(verdict(f"PostgreSQL: p99 under {TARGET_MILLISECONDS:g} ms", met=tails[ours].median < TARGET_MILLISECONDS))
    print(verdict(f"PostgreSQL: at least {BULK_TARGET:,} URLs a second in bulk", met=bulk[ours].median >= BULK_TARGET))
    return {
        mode: {
            "rps": rates[mode].as_json(),
            "p99_ms": tails[mode].as_json(),
            "cpu_us": costs[mode].as_json(),
            "bulk_urls_a_second": bulk[mode].as_json(),
        }
        for mode in MODES
    }


def new_urls(ready: Ready, file: Path, number: int) -> Path:
    """So many requests to shorten what was never shortened before; one is made at once, to see that it works."""
    fetch(ready.port, "POST", f"{ready.api}/shorten", ready.token, {"url": next(_urls())})
    requests = (
        call("POST", f"{ready.api}/shorten", ready.token, {"url": url})
        for url, _ in zip(_urls(), range(number), strict=False)
    )
    return write_requests(file, requests)


def _urls() -> Iterator[str]:
    for number in _numbers:
        yield f"https://example.org/stories/{number}?utm_source=newsletter&utm_medium=mail"


def _in_bulk(ready: Ready) -> float:
    """URLs a second, from the first request to the last answer."""
    urls = _urls()
    bodies = [{"urls": [next(urls) for _ in range(BULK_URLS)]} for _ in range(BULK_REQUESTS)]
    begun = time.perf_counter()
    with on_load_core(), ThreadPoolExecutor(BULK_CONNECTIONS) as senders:
        answers = list(
            senders.map(lambda body: fetch(ready.port, "POST", f"{ready.api}/shorten/bulk", ready.token, body), bodies)
        )
    seconds = time.perf_counter() - begun
    results = [result for answer in answers for result in answer["results"]]
    if refused := [result for result in results if result["status"] != CREATED]:
        raise RuntimeError(f"{len(refused)} URLs were refused, one of them with {json.dumps(refused[0])}")
    return len(results) / seconds
