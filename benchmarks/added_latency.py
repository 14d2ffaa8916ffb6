"""How much later an answer comes through the gateway than from the service itself, at a rate that strains nobody."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.asking import call
from benchmarks.cores import load_core, pin
from benchmarks.doors import door, identity, signed
from benchmarks.figures import Rounds, table, verdict
from benchmarks.haproxy import HAProxy
from benchmarks.links import SeedLink, seed_links
from benchmarks.steady_load import steadily
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import write_requests

LINKS = 1_000
RATE = 100
CONNECTIONS = 4
SECONDS = 5
TARGET_MILLISECONDS = 2.0
QUIET_MILLISECONDS = 5.0
"""A service that takes longer than this at such a rate is kept from its work by others."""
DIRECTLY, HAPROXY, GATEWAY = "directly", "HAProxy", "gateway"
REDIRECT, ME = "redirect", "/me"


@dataclass(frozen=True)
class Way:
    """One way to a service."""

    what: str
    through: str
    port: int
    requests: Path


def added_latency(workshop: Workshop) -> dict[str, Any]:
    """Print the figures of this part, and return them."""
    rounds = workshop.options.rounds
    print(
        f"latency at {RATE} requests a second from when each was due, {rounds} rounds of {SECONDS} s; the services "
        "share the core of the load:"
    )
    with _ways(workshop) as ways:
        for way in ways:
            _ask(way)
        seen: dict[tuple[str, str], list[Mapping[str, float]]] = {(way.what, way.through): [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                seen[way.what, way.through].append(_ask(way))
    return _show(seen)


def _show(seen: Mapping[tuple[str, str], list[Mapping[str, float]]]) -> dict[str, Any]:
    rows = []
    added: dict[tuple[str, str], Rounds] = {}
    for (what, through), each in seen.items():
        base = seen[what, DIRECTLY]
        parts = {part: Rounds.of(one[part] for one in each) for part in ("p50", "p99", "late_p99")}
        more = Rounds.of(one["p99"] - other["p99"] for one, other in zip(each, base, strict=True))
        shown = ""
        if through != DIRECTLY:
            added[what, through] = more
            shown = more.shown()
        late = f"{max(parts['late_p99'].values):.2f}"
        rows.append((f"{what}, {through}", f"{parts['p50'].median:.2f}", parts["p99"].shown(), shown, late))
    print(table(("", "p50 ms", "p99 ms", "p99 added", "sender late by"), rows))
    for what in (REDIRECT, ME):
        direct = [one["p99"] for one in seen[what, DIRECTLY]]
        if max(direct) - min(direct) > TARGET_MILLISECONDS or max(direct) > QUIET_MILLISECONDS:
            print(f"  {what}: p99 of the service itself was {Rounds.of(direct).shown()} ms: the difference says little")
        met = added[what, GATEWAY].median < TARGET_MILLISECONDS
        print(verdict(f"{what}: under {TARGET_MILLISECONDS:g} ms added to p99 at {RATE} a second", met=met))
    return {
        "added_p99_ms": round(added[REDIRECT, GATEWAY].median, 3),
        "added_p99_ms_me": round(added[ME, GATEWAY].median, 3),
        "added": {f"{what}, {through}": more.as_json() for (what, through), more in added.items()},
        "p99_ms": {
            f"{what}, {through}": Rounds.of(one["p99"] for one in each).as_json()
            for (what, through), each in seen.items()
        },
    }


@contextmanager
def _ways(workshop: Workshop) -> Iterator[list[Way]]:
    secret = secrets.token_urlsafe(48)
    seeded = seed_links(LINKS)
    with ExitStack() as stack:
        links = stack.enter_context(_links_service(workshop, seeded, secret))
        users = stack.enter_context(identity(workshop, secret, core=load_core()))
        haproxy = stack.enter_context(HAProxy(links.port))
        targets = {"links": links.port, "identity": users.port}
        gateway = stack.enter_context(door(workshop, targets, secret=secret))
        bare, public = (_redirects(workshop, seeded, prefix) for prefix in ("", "/r"))
        me, api_me = (
            write_requests(workshop.folder / f"me{len(path)}", [call("GET", path, signed(secret))])
            for path in ("/me", "/api/me")
        )
        yield [
            Way(REDIRECT, DIRECTLY, links.port, bare),
            Way(REDIRECT, HAPROXY, haproxy.port, bare),
            Way(REDIRECT, GATEWAY, gateway.port, public),
            Way(ME, DIRECTLY, users.port, me),
            Way(ME, GATEWAY, gateway.port, api_me),
        ]


@contextmanager
def _links_service(workshop: Workshop, seeded: list[SeedLink], secret: str) -> Iterator[Ready]:
    with workshop.database(seeded) as dsn, workshop.links_service(dsn, {"JWT_SECRET": secret}) as ready:
        pin(ready.pid, load_core())
        yield ready


def _redirects(workshop: Workshop, seeded: list[SeedLink], prefix: str) -> Path:
    requests = (f"GET {prefix}/{link.short_code} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for link in seeded)
    return write_requests(workshop.folder / f"redirects{len(prefix)}", requests)


def _ask(way: Way) -> dict[str, float]:
    return steadily(way.port, RATE, way.requests, connections=CONNECTIONS, seconds=SECONDS)
