"""How long it takes to be told who one is: no database, only a token that is checked."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.asking import call
from benchmarks.cores import load_core, server_core
from benchmarks.doors import door, identity, signed
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.steady_load import steadily
from benchmarks.workshop import Workshop
from benchmarks.wrk import Listening, Reached, ensure_wrk, send, write_requests

CONNECTIONS = 50
STEADY_RATE = 100
STEADY_CONNECTIONS = 4
STEADY_SECONDS = 5
TARGET_MILLISECONDS = 5.0
SERVICE, GATEWAY, EMBEDDED = "identity itself", "through the gateway", "embedded"


@dataclass
class Subject:
    """Somebody who is asked, and what was seen."""

    listening: Listening
    requests: Path
    steady: list[dict[str, float]] = field(default_factory=list)
    full: list[Reached] = field(default_factory=list)

    def play(self, seconds: int) -> None:
        """One round."""
        port = self.listening.port
        self.steady.append(
            steadily(port, STEADY_RATE, self.requests, connections=STEADY_CONNECTIONS, seconds=STEADY_SECONDS)
        )
        self.full.append(send(self.listening, self.requests, connections=CONNECTIONS, seconds=seconds))

    @property
    def p99(self) -> Rounds:
        """At the steady rate."""
        return Rounds.of(each["p99"] for each in self.steady)

    @property
    def p99_full(self) -> Rounds:
        """With every connection busy."""
        return Rounds.of(each.p99 for each in self.full)

    @property
    def rate(self) -> Rounds:
        """Answers a second with every connection busy."""
        return Rounds.of(each.rate for each in self.full)


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    options = workshop.options
    print(
        f"me: GET /me at {STEADY_RATE} a second, and over {CONNECTIONS} connections as fast as it is answered (M2); "
        f"{options.rounds} rounds of {options.seconds} s"
    )
    seen: dict[str, Subject] = {}
    with _subjects(workshop) as subjects:
        for _ in range(options.rounds):
            for subject in subjects.values():
                subject.play(options.seconds)
        seen = subjects
    rows = [
        (
            name,
            each.p99.shown(),
            each.p99_full.shown(),
            each.rate.shown(",.0f"),
            f"{Rounds.of(reached.cpu for reached in each.full).median:.0f}",
        )
        for name, each in seen.items()
    ]
    steady, full = f"p99 ms at {STEADY_RATE} a second", f"p99 ms over {CONNECTIONS}"
    print(table(("", steady, full, "answers a second", "CPU µs each"), rows))
    for name, each in seen.items():
        target = f"{name}: p99 under {TARGET_MILLISECONDS:g} ms"
        print(verdict(f"{target} at {STEADY_RATE} a second", met=each.p99.median < TARGET_MILLISECONDS))
        met = each.p99_full.median < TARGET_MILLISECONDS
        print(verdict(f"{target} over {CONNECTIONS} connections", met=met))
    figures = {
        name: {"p99_ms": each.p99.as_json(), "p99_ms_full": each.p99_full.as_json(), "rps_full": each.rate.as_json()}
        for name, each in seen.items()
    }
    print(json_line("me", figures))


@contextmanager
def _subjects(workshop: Workshop) -> Iterator[dict[str, Subject]]:
    """Each has the server's core; behind the gateway, identity shares the core of the load."""
    secret = secrets.token_urlsafe(48)
    with ExitStack() as stack:
        alone = stack.enter_context(identity(workshop, secret, core=server_core()))
        behind = stack.enter_context(identity(workshop, secret, core=load_core()))
        gateway = stack.enter_context(door(workshop, {"identity": behind.port}, secret=secret))
        instance = stack.enter_context(workshop.embedded((), {"JWT_SECRET": secret}))
        bare, public = (
            write_requests(workshop.folder / f"who-am-i{len(path)}", [call("GET", path, signed(secret))])
            for path in ("/me", "/api/me")
        )
        yield {
            SERVICE: Subject(alone, bare),
            GATEWAY: Subject(gateway, public),
            EMBEDDED: Subject(instance, public),
        }
