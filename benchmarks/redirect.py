"""How many redirects a second one core gives with every click stored, beside nginx, which stores nothing."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asking import BROWSER, check_redirects, redirects
from benchmarks.clicks import stored_clicks
from benchmarks.disk import sync_times
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import Quiet, standing_still, wait_until_quiet
from benchmarks.links import SeedLink, seed_links, shuffled
from benchmarks.nginx import Nginx
from benchmarks.steady_load import steadily
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import Listening, Reached, ensure_wrk, send, send_once, write_requests

STEADY_CONNECTIONS = 100
STEADY_SECONDS = DISK_SECONDS = 5
REST_SECONDS = 8.0
NGINX, COMMIT, ASYNC = "nginx", "commit", "async"
DURABILITY = "CLICK_DURABILITY"

LEAST, LEAST_256, LEAST_ASYNC, AIM, AIM_ASYNC = 0.30, 0.45, 0.5, 0.6, 0.75
P99_MILLISECONDS = 5.0


@dataclass(frozen=True)
class Run:
    """One column of the comparison: who is asked, over how many connections, with which headers."""

    subject: str
    connections: int
    headers: str = ""

    @property
    def name(self) -> str:
        """What it is called in the table."""
        what = "nginx, map and return 301" if self.subject == NGINX else f"refract, clicks {self.subject}"
        return f"{what}, {self.connections}{', headers of a browser' if self.headers else ''}"


RUNS = (
    Run(NGINX, 64),
    Run(COMMIT, 64),
    Run(ASYNC, 64),
    Run(NGINX, 256),
    Run(COMMIT, 256),
    Run(NGINX, 64, BROWSER),
    Run(COMMIT, 64, BROWSER),
)


@dataclass
class Contest:
    """Those who are asked for the same links, one at a time on the same core, and what was seen."""

    subjects: Mapping[str, Listening]
    files: Mapping[str, Path]
    tidy: Sequence[Callable[[], None]]
    """What clears away whatever a run has left behind."""
    seen: dict[Run, list[Reached]] = field(default_factory=lambda: {run: [] for run in RUNS})
    rests: list[Quiet] = field(default_factory=list)

    def play(self, rounds: int, seconds: int) -> None:
        """All runs in turn, so often."""
        for _ in range(rounds):
            for run in RUNS:
                self.seen[run].append(self.send(run.subject, self.files[run.headers], run.connections, seconds))
                self.rest()

    def send(self, subject: str, requests: Path, connections: int, seconds: int) -> Reached:
        """Ask one of them as fast as it answers, while the others do nothing."""
        with self.alone(subject):
            return send(self.subjects[subject], requests, connections=connections, seconds=seconds)

    @contextmanager
    def alone(self, *subjects: str) -> Iterator[None]:
        """The others stand still: an embedded instance counts and announces its clicks for a minute after a run."""
        others = [one.pid for name, one in self.subjects.items() if name not in {*subjects, NGINX}]
        with standing_still(others):
            yield

    def rest(self) -> None:
        """Wait until none of them works any more, or a little."""
        pids = [subject.pid for subject in self.subjects.values()]
        self.rests.append(wait_until_quiet(pids, at_most=REST_SECONDS))
        for clear_away in self.tidy:
            clear_away()

    def rate(self, run: Run) -> Rounds:
        """Its requests a second."""
        return Rounds.of(reached.rate for reached in self.seen[run])

    def ratio(self, run: Run) -> Rounds:
        """Its share of nginx in the same round, over as many connections, with the same headers."""
        yardstick = self.seen[Run(NGINX, run.connections, run.headers)]
        return Rounds.of(ours.rate / other.rate for ours, other in zip(self.seen[run], yardstick, strict=True))

    def rows(self) -> list[tuple[str, ...]]:
        """The table."""
        return [
            (
                run.name,
                self.rate(run).shown(",.0f"),
                self.ratio(run).shown(),
                f"{Rounds.of(reached.p50 for reached in seen).median:.2f}",
                f"{Rounds.of(reached.p99 for reached in seen).median:.2f}",
                f"{Rounds.of(reached.cpu for reached in seen).median:.1f}",
            )
            for run, seen in self.seen.items()
        ]


def measure(workshop: Workshop) -> None:
    """Print the figures of an embedded instance."""
    ensure_wrk()
    links = seed_links()
    print(f"redirect: refract serve over SQLite, data on {workshop.disk}")
    with ExitStack() as stack:
        ready = {
            durability: stack.enter_context(workshop.embedded(links, {DURABILITY: durability}))
            for durability in (COMMIT, ASYNC)
        }
        _measure("redirect", workshop, links, ready, stack, tidy=(_write_back,))


def measure_distributed(workshop: Workshop) -> None:
    """Print the figures of the service over PostgreSQL, Redis and RabbitMQ."""
    ensure_wrk()
    links = seed_links()
    print(f"redirect-distributed: refract run links over PostgreSQL, Redis and RabbitMQ, data on {workshop.disk};")
    print("  these servers share the core of the load")
    with ExitStack() as stack:
        ready = {}
        for durability in (COMMIT, ASYNC):
            dsn = stack.enter_context(workshop.database(links))
            ready[durability] = stack.enter_context(workshop.links_service(dsn, {DURABILITY: durability}))
        _measure("redirect-distributed", workshop, links, ready, stack, tidy=(workshop.empty_queues, _write_back))


def _write_back() -> None:
    """Let the disk have what was written: else the kernel writes it in the midst of a later run, half a minute after it
    was made, and a commit that falls into that waits for 50 ms."""
    os.sync()


def _measure(
    name: str,
    workshop: Workshop,
    links: Sequence[SeedLink],
    ready: Mapping[str, Ready],
    stack: ExitStack,
    *,
    tidy: Sequence[Callable[[], None]],
) -> None:
    options = workshop.options
    nginx = stack.enter_context(Nginx(links))
    print(
        f"  {len(links):,} links, server on one core and load on the other, limiter on, log to /dev/null; "
        f"nginx {nginx.version()}; {options.rounds} rounds of {options.seconds} s"
    )
    subjects: dict[str, Listening] = {NGINX: nginx, **ready}
    files = {
        headers: write_requests(workshop.folder / f"redirects-{bool(headers)}", redirects(shuffled(links), headers))
        for headers in ("", BROWSER)
    }
    _warm(workshop, links, subjects.values())
    stored = stored_clicks(ready[COMMIT].database)
    contest = Contest(subjects, files, tidy)
    contest.rest()
    contest.play(options.rounds, options.seconds)
    print(table(("", "requests a second", "of nginx", "p50 ms", "p99 ms", "CPU µs each"), contest.rows()))
    _check_clicks(contest, stored_clicks(ready[COMMIT].database) - stored)
    others = Rounds.of(100 * rest.others for rest in contest.rests)
    print(
        f"  clicks were sent on until {max(rest.seconds for rest in contest.rests):.1f} s after a run at most, and the "
        "other instance stands still in a run; ",
        end="",
    )
    print(f"others had {others.shown('.0f')} % of the machine between runs")
    figures = _figures(contest) | _steadily(contest, workshop)
    figures["others_percent"] = others.as_json()
    figures |= {"disk": workshop.disk, "rounds": options.rounds, "seconds": options.seconds}
    _judge(figures)
    print(json_line(name, figures))


def _warm(workshop: Workshop, links: Sequence[SeedLink], subjects: Iterable[Listening]) -> None:
    """Every link is asked for once, in the order of their making, so that each is in memory; wrk leaves out a few."""
    in_order = write_requests(workshop.folder / "warm", redirects((*links, *links[:1000])))
    for subject in subjects:
        check_redirects(subject.port, links[:20])
        send_once(subject, in_order, connections=64)


def _check_clicks(contest: Contest, stored: int) -> None:
    """Whoever was answered was counted; at the end of a run a few are counted whose answer wrk does not wait for."""
    answered = sum(reached.requests for run, seen in contest.seen.items() if run.subject == COMMIT for reached in seen)
    if stored < answered:
        raise RuntimeError(f"{answered:,} redirects were answered, and only {stored:,} clicks are stored")
    print(f"  clicks commit: {answered:,} redirects answered, {stored:,} clicks stored")


def _figures(contest: Contest) -> dict[str, Any]:
    durable, asynchronous, many, browser = Run(COMMIT, 64), Run(ASYNC, 64), Run(COMMIT, 256), Run(COMMIT, 64, BROWSER)
    ratios = {
        "ratio": contest.ratio(durable),
        "ratio_256": contest.ratio(many),
        "ratio_async": contest.ratio(asynchronous),
        "ratio_browser": contest.ratio(browser),
    }
    rates = {
        "rps": contest.rate(durable),
        "rps_256": contest.rate(many),
        "rps_async": contest.rate(asynchronous),
        "nginx_rps": contest.rate(Run(NGINX, 64)),
        "nginx_rps_256": contest.rate(Run(NGINX, 256)),
    }
    figures: dict[str, Any] = {name: round(ratio.median, 3) for name, ratio in ratios.items()}
    figures |= {name: round(rate.median) for name, rate in rates.items()}
    figures["cpu_us"] = {
        run.name: round(Rounds.of(reached.cpu for reached in seen).median, 2) for run, seen in contest.seen.items()
    }
    return figures | {"spread": {name: rounds.as_json() for name, rounds in (ratios | rates).items()}}


def _steadily(contest: Contest, workshop: Workshop) -> dict[str, Any]:
    """Latency at half of the rate that the same instance reaches over as many connections, in several rounds; in turns
    with it nginx at that rate, and the disk by itself: where these have long tails, so has a click that waits."""
    requests = contest.files[""]
    full = Rounds.of(contest.send(COMMIT, requests, STEADY_CONNECTIONS, 2).rate for _ in range(2)).median
    contest.rest()

    def steady(subject: str, rate: float) -> dict[str, float]:
        port = contest.subjects[subject].port
        with contest.alone(subject):
            seen = steadily(port, rate, requests, connections=STEADY_CONNECTIONS, seconds=STEADY_SECONDS)
        contest.rest()
        return seen

    most = steady(NGINX, 0.0)["rate"]

    def disk() -> dict[str, float]:
        with contest.alone():
            return sync_times(workshop.folder, DISK_SECONDS)

    turns = [(steady(NGINX, full / 2), steady(COMMIT, full / 2), disk()) for _ in range(workshop.options.rounds)]
    print(
        f"at {full / 2:,.0f} a second, half of the {full:,.0f} reached over {STEADY_CONNECTIONS} connections, "
        f"from when each request was due; the sender itself reaches {most:,.0f}:"
    )
    seen = dict(zip(("nginx", "refract, clicks commit", "fdatasync, alone"), zip(*turns, strict=True), strict=True))
    parts = ("p50", "p99", "max")
    rows = [(name, *(Rounds.of(each[part] for each in turn).shown() for part in parts)) for name, turn in seen.items()]
    print(table(("", *(f"{part} ms" for part in parts)), rows))
    if most < full:
        print("  the sender is not well above that rate: the latency is partly its own")
    floor, ours, synced = ({part: Rounds.of(each[part] for each in turn) for part in parts} for turn in seen.values())
    return {
        "p99_ms": round(ours["p99"].median, 2),
        "steady_rps": round(full / 2),
        "steady": {"nginx": _short(floor), "refract": _short(ours), "disk": _short(synced), "sender_rps": round(most)},
    }


def _judge(figures: Mapping[str, Any]) -> None:
    for what, key, least, aim in (
        ("of nginx with durable clicks at 64 connections", "ratio", LEAST, AIM),
        ("of nginx with durable clicks at 256 connections", "ratio_256", LEAST_256, AIM),
        ("of nginx with CLICK_DURABILITY=async", "ratio_async", LEAST_ASYNC, AIM_ASYNC),
    ):
        print(verdict(f"at least {least:.2f} {what}", met=figures[key] >= least))
        print(verdict(f"aim of {aim:.2f} {what}", met=figures[key] >= aim))
    met = figures["p99_ms"] < P99_MILLISECONDS
    print(verdict(f"p99 under {P99_MILLISECONDS:g} ms at half of its own saturation", met=met))


def _short(figures: Mapping[str, Rounds]) -> dict[str, dict[str, float]]:
    return {name: rounds.as_json() for name, rounds in figures.items()}
