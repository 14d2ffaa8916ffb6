"""How many requests a second the gateway refuses on one core: without a token, over the limit, to an open breaker."""

import http.client
import re
import secrets
import subprocess
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cores import load_core, pinned
from benchmarks.doors import Process, door, signed
from benchmarks.figures import Rounds, table, verdict
from benchmarks.instances import family_cpu_seconds
from benchmarks.upstream import Upstream
from benchmarks.workshop import Workshop

CONNECTIONS = 32
MARGIN = 10.0
TARGET = 20_000
TRIES = 20
LEAST_REFUSED = 0.999
"""Of all: when an open breaker's time is over, one request is let through."""


@dataclass(frozen=True)
class Flood:
    """Requests that get nowhere."""

    name: str
    status: int
    path: str
    token: str = field(default="", repr=False)
    judged: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """What each of them brings."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True)
class Refused:
    """What one flood reached: answers a second, and what each cost the gateway in microseconds of a processor."""

    rate: float
    cpu: float


def refusals(workshop: Workshop) -> dict[str, Any]:
    """Print the figures of this part, and return them."""
    options = workshop.options
    print(f"refusals, {CONNECTIONS} connections, {options.rounds} rounds of {options.seconds} s:")
    with Upstream() as upstream, door(workshop, {"links": upstream.port}, {"RATE_LIMIT_REDIRECT": "1"}) as gateway:
        floods = _floods(gateway)
        seen: dict[Flood, list[Refused]] = {flood: [] for flood in floods}
        for _ in range(options.rounds):
            for flood in floods:
                seen[flood].append(_send(gateway, flood, options.seconds))
    rates = {flood: Rounds.of(one.rate for one in each) for flood, each in seen.items()}
    costs = {flood: Rounds.of(one.cpu for one in each) for flood, each in seen.items()}
    rows = [(flood.name, rates[flood].shown(",.0f"), costs[flood].shown(".1f")) for flood in floods]
    print(table(("", "refused a second", "CPU µs each"), rows))
    for flood in floods:
        if flood.judged:
            met = rates[flood].median >= TARGET
            print(verdict(f"{flood.name}: at least {TARGET:,} a second on one core", met=met))
    return {
        "refused_rps": {flood.name: rates[flood].as_json() for flood in floods},
        "refused_cpu_us": {flood.name: costs[flood].as_json() for flood in floods},
    }


def _floods(gateway: Process) -> list[Flood]:
    """The three that the target speaks of; a forged token has to be checked before it can be refused."""
    forged = signed(secrets.token_urlsafe(48))
    return [
        Flood("401", 401, "/api/me"),
        Flood("429", 429, "/r/aB3xK9q"),
        Flood("503", 503, "/api/stats/aB3xK9q"),
        Flood("503, with a token", 503, "/api/notifications", gateway.token(), judged=False),
        Flood("401, forged token", 401, "/api/me", forged, judged=False),
    ]


def _send(gateway: Process, flood: Flood, seconds: int) -> Refused:
    _ask_until_refused(gateway.port, flood)
    headers = [part for name, value in flood.headers.items() for part in ("--header", f"{name}: {value}")]
    command = ["wrk", "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{seconds}s", *headers]
    url = f"http://127.0.0.1:{gateway.port}{flood.path}"
    spent = family_cpu_seconds(gateway.pid)
    done = subprocess.run(
        pinned(load_core(), [*command, url]), check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + MARGIN
    )
    spent = family_cpu_seconds(gateway.pid) - spent
    _ask_until_refused(gateway.port, flood)
    return _read(done.stdout, spent)


def _read(report: str, spent: float) -> Refused:
    rate = re.search(r"^Requests/sec:\s+([\d.]+)$", report, re.MULTILINE)
    total = re.search(r"^\s*(\d+) requests in ", report, re.MULTILINE)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    if rate is None or total is None or refused is None or "Socket errors" in report:
        raise RuntimeError(f"wrk did not get through:\n{report}")
    if int(refused[1]) < LEAST_REFUSED * int(total[1]):
        raise RuntimeError(f"not all were refused:\n{report}")
    return Refused(float(rate[1]), 1e6 * spent / int(total[1]))


def _ask_until_refused(port: int, flood: Flood) -> None:
    """A limit has to be reached first, and a breaker to open."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    seen = []
    try:
        for _ in range(TRIES):
            connection.request("GET", flood.path, headers=flood.headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status == flood.status:
                return
            seen.append(answer.status)
    finally:
        connection.close()
    raise RuntimeError(f"GET {flood.path} should be refused with {flood.status}, and answered {seen}")
