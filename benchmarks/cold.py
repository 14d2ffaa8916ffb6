"""Redirects of links that nobody has asked for before: each one a miss in memory and in Redis."""

from benchmarks.asking import redirects
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.links import seed_links, shuffled
from benchmarks.workshop import MODES, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send_once, write_requests

LINKS = 200_000
CONNECTIONS = 64
ROUNDS_AT_MOST = 3
TARGET = 15_000
TARGET_MILLISECONDS = 20.0


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    links = seed_links(LINKS)
    rounds = min(ROUNDS_AT_MOST, workshop.options.rounds)
    print(f"cold: each of {LINKS:,} links once, {CONNECTIONS} connections, clicks commit, {rounds} fresh starts")
    requests = write_requests(workshop.folder / "cold", redirects(shuffled(links)))
    seen: dict[str, list[Reached]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            with workshop.either(mode, links) as ready:
                seen[mode].append(send_once(ready, requests, connections=CONNECTIONS))
    rates = {mode: Rounds.of(reached.rate for reached in each) for mode, each in seen.items()}
    costs = {name: Rounds.of(reached.cpu for reached in each) for name, each in seen.items()}
    tails = {mode: Rounds.of(reached.p99 for reached in each) for mode, each in seen.items()}
    rows = [(mode, rates[mode].shown(",.0f"), tails[mode].shown(), costs[mode].shown(".0f")) for mode in MODES]
    print(table(("", "redirects a second", "p99 ms", "CPU µs each"), rows))
    for mode in MODES:
        print(verdict(f"{mode}: at least {TARGET:,} a second", met=rates[mode].median >= TARGET))
        print(verdict(f"{mode}: p99 under {TARGET_MILLISECONDS:g} ms", met=tails[mode].median < TARGET_MILLISECONDS))
    figures = {
        mode: {"rps": rates[mode].as_json(), "p99_ms": tails[mode].as_json(), "cpu_us": costs[mode].as_json()}
        for mode in MODES
    }
    print(json_line("cold", figures))
