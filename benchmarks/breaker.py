"""How soon a breaker opens, when it probes, how fast it refuses meanwhile, and what asking it costs."""

import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from benchmarks.doors import Process, door
from benchmarks.figures import Rounds, json_line, percentile, table, verdict
from benchmarks.timing import microseconds
from benchmarks.workshop import Workshop
from refract.kernel.clock import SystemClock
from refract.services.gateway.domain.breaker import Breaker, BreakerPolicy, State

ROWS = {
    "links": "/r/aB3xK9q",
    "analytics": "/api/stats/aB3xK9q",
    "notifications": "/api/notifications",
    "projects": "/api/projects",
}
FAILURES = 5
CALLS = 100_000
PAUSE = 0.01
LONGEST_WAIT = 45.0
OPENS_MILLISECONDS, PROBE_SECONDS, TOLERANCE, REFUSES_MILLISECONDS, ALLOW_MICROSECONDS = 500.0, 30.0, 1.0, 5.0, 2.0


class Failing:
    """A service that answers 500 until it is mended, and notes when it was last asked for its work."""

    def __init__(self) -> None:
        self.status = 500
        self.asked_at = 0.0
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # the answer in one piece: in two, the second would wait for the other side's delayed ACK

            def do_GET(self) -> None:
                if self.path != "/health":  # which a gateway asks for at its start
                    service.asked_at = time.monotonic()
                self.send_response(service.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @contextmanager
    def running(self) -> Iterator["Failing"]:
        """Answer in threads of this process."""
        Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


@dataclass
class Seen:
    """What one breaker did, in seconds."""

    opened_after: float = 0.0
    opened_at: float = 0.0
    probed_after: float = 0.0
    refusals: list[float] = field(default_factory=list)


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    print(f"breaker: services that fail behind a gateway, {len(ROWS)} targets at once; takes {PROBE_SECONDS:g} s")
    with ExitStack() as stack:
        services = {target: stack.enter_context(Failing().running()) for target in ROWS}
        ports = {target: service.port for target, service in services.items()}
        gateway = stack.enter_context(door(workshop, ports, {"RATE_LIMIT_REDIRECT": "0"}))
        seen = _watch(gateway, services)
    rows = [
        (
            target,
            f"{1000 * each.opened_after:.1f}",
            f"{each.probed_after:.2f}",
            f"{1000 * percentile(each.refusals, 0.99):.2f}",
            f"{len(each.refusals):,}",
        )
        for target, each in seen.items()
    ]
    print(table(("", "opens after ms", "probes after s", "p99 of refusals ms", "refusals"), rows))
    costs = _costs(workshop.options.rounds)
    print(table(("", "µs each"), [(name, cost.shown()) for name, cost in costs.items()]))
    print(json_line("breaker", _judge(seen, costs)))


def _judge(seen: Mapping[str, Seen], costs: Mapping[str, Rounds]) -> dict[str, Any]:
    opens = Rounds.of(1000 * each.opened_after for each in seen.values())
    probes = Rounds.of(each.probed_after for each in seen.values())
    tail = 1000 * percentile([one for each in seen.values() for one in each.refusals], 0.99)
    allow = max(cost.median for name, cost in costs.items() if name.startswith("allow"))
    met = max(opens.values) < OPENS_MILLISECONDS
    print(verdict(f"open within {OPENS_MILLISECONDS:g} ms of the first of {FAILURES} failures", met=met))
    met = all(abs(value - PROBE_SECONDS) <= TOLERANCE for value in probes.values)
    print(verdict(f"a probe {PROBE_SECONDS:g} ± {TOLERANCE:g} s later", met=met))
    print(verdict(f"p99 of refusals under {REFUSES_MILLISECONDS:g} ms", met=tail < REFUSES_MILLISECONDS))
    print(verdict(f"allow under {ALLOW_MICROSECONDS:g} µs", met=allow < ALLOW_MICROSECONDS))
    return {
        "opens_after_ms": opens.as_json(),
        "probes_after_s": probes.as_json(),
        "refusal_p99_ms": round(tail, 3),
        "us": {name: cost.as_json() for name, cost in costs.items()},
    }


def _watch(gateway: Process, services: Mapping[str, Failing]) -> dict[str, Seen]:
    """Let all breakers open, mend the services, and go on asking until each has been probed."""
    seen = {target: Seen() for target in services}
    client = _Client(gateway)
    try:
        for target, each in seen.items():
            _open(client, target, each)
        for service in services.values():
            service.status = 200
        deadline = time.monotonic() + LONGEST_WAIT
        waiting = set(seen)
        while waiting:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no probe of {', '.join(waiting)} within {LONGEST_WAIT:g} s")
            for target in sorted(waiting):
                begun = time.monotonic()
                status = client.ask(target)
                if status == 503:
                    seen[target].refusals.append(time.monotonic() - begun)
                    continue
                seen[target].probed_after = services[target].asked_at - seen[target].opened_at
                waiting.remove(target)
                if status != 200 or client.ask(target) != 200:
                    raise RuntimeError(f"{target} works again, and its breaker is not closed")
            time.sleep(PAUSE)
    finally:
        client.close()
    return seen


def _open(client: "_Client", target: str, seen: Seen) -> None:
    """From the answer that is the first failure to the first refusal."""
    first = 0.0
    for number in range(FAILURES):
        status = client.ask(target)
        if status != 500:
            raise RuntimeError(f"{target} answered {status} to request {number + 1}")
        first = first or time.monotonic()
    seen.opened_at = time.monotonic()
    if (status := client.ask(target)) != 503:
        raise RuntimeError(f"{target} answered {status} after {FAILURES} failures")
    seen.opened_after = time.monotonic() - first


class _Client:
    """One connection of somebody with a token."""

    def __init__(self, gateway: Process) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        self._headers = {"Authorization": f"Bearer {gateway.token()}"}

    def ask(self, target: str) -> int:
        self._connection.request("GET", ROWS[target], headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()


def _costs(rounds: int) -> dict[str, Rounds]:
    """Of the state machine alone; a result is handed in for each request that was let through."""
    closed = Breaker(BreakerPolicy(), SystemClock())
    opened = Breaker(BreakerPolicy(pause=3600), SystemClock())
    while opened.state is not State.OPEN:
        opened.failed(opened.allow() or 0)
    works = {
        "allow, closed": lambda _: closed.allow(),
        "allow, open": lambda _: opened.allow(),
        "allow and succeeded": lambda _: closed.succeeded(closed.allow() or 0),
    }
    seen: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seen[name].append(microseconds(work, range(CALLS)))
    return {name: Rounds.of(values) for name, values in seen.items()}
