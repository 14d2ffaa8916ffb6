"""How long a page of the list of links takes."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.asking import call, fetch
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.links import seed_links
from benchmarks.workshop import MODES, Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, write_requests

CONNECTIONS = 10
PAGES = 50
TARGET_MILLISECONDS = 15.0
VIEWS: dict[str, dict[str, str]] = {
    "newest first": {},
    "by clicks": {"sort": "clicks"},
    "text": {"q": "articles/777"},
}
AT_ONCE = {"text": 1}
"""The searches of one owner take turns (ADR 0051): over ten connections the wait for them would be measured."""


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    links = seed_links()
    options = workshop.options
    print(
        f"listing: pages of GET /urls among {len(links):,} links of one owner, {CONNECTIONS} connections "
        f"(one that searches), {options.rounds} rounds of {options.seconds} s"
    )
    seen: dict[tuple[str, str], list[Reached]] = {}
    for mode in MODES:
        with workshop.either(mode, links) as ready:
            files = {view: pages(ready, workshop.folder / f"pages-{mode}", query) for view, query in VIEWS.items()}
            for _ in range(options.rounds):
                for view, file in files.items():
                    reached = send(ready, file, connections=AT_ONCE.get(view, CONNECTIONS), seconds=options.seconds)
                    seen.setdefault((mode, view), []).append(reached)
    rates = {name: Rounds.of(reached.rate for reached in each) for name, each in seen.items()}
    costs = {name: Rounds.of(reached.cpu for reached in each) for name, each in seen.items()}
    tails = {name: Rounds.of(reached.p99 for reached in each) for name, each in seen.items()}
    rows = [
        (", ".join(name), rates[name].shown(",.0f"), tails[name].shown(), costs[name].shown(",.0f")) for name in seen
    ]
    print(table(("", "pages a second", "p99 ms", "CPU µs each"), rows))
    for (mode, view), tail in tails.items():
        met = tail.median < TARGET_MILLISECONDS
        print(verdict(f"{mode}, {view}: p99 of a page under {TARGET_MILLISECONDS:g} ms", met=met))
    figures: dict[str, dict[str, object]] = {}
    for mode, view in seen:
        shown = {"rps": rates[mode, view], "p99_ms": tails[mode, view], "cpu_us": costs[mode, view]}
        figures.setdefault(mode, {})[view] = {name: rounds.as_json() for name, rounds in shown.items()}
    print(json_line("listing", figures))


def pages(ready: Ready, file: Path, query: dict[str, str]) -> Path:
    """Requests for the first pages of the list, as a client walks through them."""
    return write_requests(
        file.with_name(f"{file.name}-{len(query)}-{query.get('sort', '')}"), _walk(ready, dict(query))
    )


def _walk(ready: Ready, query: dict[str, str]) -> Iterator[bytes]:
    for _ in range(PAGES):
        target = f"{ready.api}/urls?{urlencode(query)}".rstrip("?")
        yield call("GET", target, ready.token)
        page = fetch(ready.port, "GET", target, ready.token)
        if "next_cursor" not in page:
            return
        query["after"] = page["next_cursor"]
