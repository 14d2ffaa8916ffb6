"""What the gateway costs: its rate beside HAProxy's, the latency that it adds, and how many it refuses a second."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.added_latency import added_latency
from benchmarks.asking import call
from benchmarks.doors import Process, door
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.haproxy import HAProxy
from benchmarks.instances import Quiet, wait_until_quiet
from benchmarks.links import seed_links
from benchmarks.refusals import refusals
from benchmarks.upstream import Upstream
from benchmarks.workshop import Workshop
from benchmarks.wrk import Listening, Reached, ensure_wrk, send, write_requests

CONNECTIONS = 32
PATHS = 1_000
SERVICE, HAPROXY, GATEWAY = "service", "haproxy", "gateway"
NAMES = {SERVICE: "the service itself", HAPROXY: "HAProxy", GATEWAY: "gateway"}
PUBLIC, TOKEN, COUNTED, VARIED = KINDS = ("public", "with a token", "counted in Redis", "in ever other words")
"""A row that asks for nothing, one that wants a token, a redirect, counted by address, and the first again from
clients whose heads differ from each request to the next: nothing is known by its head."""

LEAST, AIM = 0.2, 0.8
FULL_SHARE = 0.9


@dataclass(frozen=True)
class Run:
    """Who is asked, and for what."""

    subject: str
    kind: str

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"{NAMES[self.subject]}, {self.kind}"


RUNS = (Run(SERVICE, PUBLIC), *(Run(subject, kind) for kind in KINDS for subject in (HAPROXY, GATEWAY)))


@dataclass
class Contest:
    """HAProxy and the gateway before the same service, one at a time on the same core, and what was seen."""

    subjects: Mapping[str, Listening]
    files: Mapping[str, Path]
    seen: dict[Run, list[Reached]] = field(default_factory=lambda: {run: [] for run in RUNS})
    rests: list[Quiet] = field(default_factory=list)

    def play(self, rounds: int, seconds: int) -> None:
        """All runs in turn, so often."""
        for _ in range(rounds):
            for run in RUNS:
                self.seen[run].append(self.ask(run, seconds))
                self.rests.append(wait_until_quiet([subject.pid for subject in self.subjects.values()]))

    def ask(self, run: Run, seconds: int) -> Reached:
        """One of them, once."""
        return send(self.subjects[run.subject], self.files[run.kind], connections=CONNECTIONS, seconds=seconds)

    def rate(self, run: Run) -> Rounds:
        """Its requests a second."""
        return Rounds.of(reached.rate for reached in self.seen[run])

    def ratio(self, kind: str) -> Rounds:
        """The gateway's share of HAProxy's rate with the same requests in the same round."""
        pairs = zip(self.seen[Run(GATEWAY, kind)], self.seen[Run(HAPROXY, kind)], strict=True)
        return Rounds.of(ours.rate / other.rate for ours, other in pairs)

    def cost(self, run: Run) -> Rounds:
        """Processor time for a request, in microseconds."""
        return Rounds.of(reached.cpu for reached in self.seen[run])

    def busy(self, run: Run) -> Rounds:
        """The share of its core that it used: below one, it waited for the core of the load."""
        return Rounds.of(reached.cpu * reached.rate / 1e6 for reached in self.seen[run])

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The table."""
        for run, seen in self.seen.items():
            ratio = self.ratio(run.kind).shown() if run.subject == GATEWAY else ""
            p99 = Rounds.of(reached.p99 for reached in seen)
            yield (
                run.name,
                self.rate(run).shown(",.0f"),
                ratio,
                f"{p99.median:.2f}",
                f"{self.cost(run).median:.1f}",
                f"{100 * self.busy(run).median:.0f}",
            )


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    figures = _rates(workshop) | added_latency(workshop) | refusals(workshop)
    figures |= {"rounds": workshop.options.rounds, "seconds": workshop.options.seconds}
    print(json_line("gateway", figures))


def _rates(workshop: Workshop) -> dict[str, Any]:
    options = workshop.options
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream())
        haproxy = stack.enter_context(HAProxy(upstream.port))
        gateway = stack.enter_context(door(workshop, {"links": upstream.port, "analytics": upstream.port}))
        print(
            f"gateway: before a service that answers 200 at once (nginx), {CONNECTIONS} connections; gateway or "
            f"HAProxy {haproxy.version()} on one core,\n  service, Redis and load on the other; "
            f"{options.rounds} rounds of {options.seconds} s"
        )
        subjects: dict[str, Listening] = {SERVICE: upstream, HAPROXY: haproxy, GATEWAY: gateway}
        contest = Contest(subjects, _requests(workshop, gateway))
        for run in RUNS:
            contest.ask(run, 1)
        contest.play(options.rounds, options.seconds)
    print(
        table(("", "requests a second", "of HAProxy", "p99 ms", "CPU µs each", "% of its core"), list(contest.rows()))
    )
    return _judge(contest)


def _judge(contest: Contest) -> dict[str, Any]:
    for kind in KINDS:
        if (busy := contest.busy(Run(HAPROXY, kind)).median) < FULL_SHARE:
            print(f"  {kind}: HAProxy used {100 * busy:.0f} % of its core and waited for the core of the load")
    others = Rounds.of(100 * rest.others for rest in contest.rests)
    print(f"  others had {others.shown('.0f')} % of the machine between runs")
    ratios = {kind: contest.ratio(kind) for kind in KINDS}
    for kind in KINDS[:2]:
        print(verdict(f"at least {LEAST:.1f} of HAProxy, {kind}", met=ratios[kind].median >= LEAST))
        print(verdict(f"aim of {AIM:.1f} of HAProxy, {kind}", met=ratios[kind].median >= AIM))
    return {
        "ratio": round(ratios[PUBLIC].median, 3),
        "ratio_token": round(ratios[TOKEN].median, 3),
        "ratio_counted": round(ratios[COUNTED].median, 3),
        "ratio_varied": round(ratios[VARIED].median, 3),
        "ratio_cpu": round(contest.cost(Run(HAPROXY, PUBLIC)).median / contest.cost(Run(GATEWAY, PUBLIC)).median, 3),
        "rps": {run.name: contest.rate(run).as_json() for run in RUNS},
        "cpu_us": {run.name: contest.cost(run).as_json() for run in RUNS},
        "ratio_spread": {kind: ratio.as_json() for kind, ratio in ratios.items()},
        "others_percent": others.as_json(),
    }


def _requests(workshop: Workshop, gateway: Process) -> dict[str, Path]:
    codes = [link.short_code for link in seed_links(PATHS)]
    token = gateway.token()
    lines = "HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    requests = {
        PUBLIC: [f"GET /api/stats/{code} {lines}".encode() for code in codes],
        TOKEN: [call("GET", f"/api/urls/{code}", token) for code in codes],
        COUNTED: [f"GET /r/{code} {lines}".encode() for code in codes],
        VARIED: [
            f"GET /api/stats/{code} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Number: {number}\r\n\r\n".encode()
            for number, code in enumerate(codes)
        ],
    }
    return {
        kind: write_requests(workshop.folder / f"gateway-{number}", each)
        for number, (kind, each) in enumerate(requests.items())
    }
