"""How many redirects a second one core gives with every click stored, beside nginx, which stores nothing."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asking import BROWSER, check_redirects, redirects
from benchmarks.clicks import ClickWatch, Kept
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
FULL_SHARE = 0.9
"""Of its core: below that nginx waited for the core of the load, or for others, and could have answered more."""


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

    def busy(self, run: Run) -> Rounds:
        """The share of its core that it used."""
        return Rounds.of(reached.cpu * reached.rate / 1e6 for reached in self.seen[run])

    def answered(self, subject: str) -> int:
        """Redirects of all its runs; at the end of each a few are counted whose answer wrk does not wait for."""
        return sum(reached.requests for run, seen in self.seen.items() if run.subject == subject for reached in seen)

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
                f"{100 * self.busy(run).median:.0f}",
            )
            for run, seen in self.seen.items()
        ]


@dataclass(frozen=True)
class Stage:
    """Where they compete: an instance for each durability, and what differs between the modes."""

    name: str
    ready: Mapping[str, Ready]
    watches: Mapping[str, ClickWatch]
    limiter: str
    disk: Path
    """A folder on the disk to which clicks are committed."""
    storage: Mapping[str, Any]
    tidy: Sequence[Callable[[], None]]


def measure(workshop: Workshop) -> None:
    """Print the figures of an embedded instance."""
    ensure_wrk()
    links = seed_links()
    print(f"redirect: refract serve over SQLite, data on {workshop.disk}")
    with ExitStack() as stack:
        watches = _watches(workshop)
        ready = {
            durability: stack.enter_context(
                workshop.embedded(links, {DURABILITY: durability, **watches[durability].environment()})
            )
            for durability in (COMMIT, ASYNC)
        }
        limiter, storage = "limiter on", {"disk": workshop.disk}
        stage = Stage("redirect", ready, watches, limiter, workshop.folder, storage, (_write_back,))
        _measure(stage, workshop, links, stack)


def measure_distributed(workshop: Workshop) -> None:
    """Print the figures of the service over PostgreSQL, Redis and RabbitMQ."""
    ensure_wrk()
    links = seed_links()
    storage = workshop.storage
    print(
        "redirect-distributed: refract run links over PostgreSQL, Redis and RabbitMQ, which share the core of the load;"
    )
    print(f"  {storage}")
    with ExitStack() as stack:
        ready, watches = {}, _watches(workshop)
        for durability in (COMMIT, ASYNC):
            dsn = stack.enter_context(workshop.database(links))
            environment = {DURABILITY: durability, **watches[durability].environment()}
            ready[durability] = stack.enter_context(workshop.links_service(dsn, environment))
        # RATE_LIMIT_REDIRECT is the gateway's: what counting there costs is measured by `gateway`.
        limiter = "no limiter (the gateway has it, and the service's own port is asked)"
        figures = {"disk": storage.disk, "postgresql": storage.as_json()}
        tidy = (workshop.empty_queues, _write_back)
        stage = Stage("redirect-distributed", ready, watches, limiter, storage.folder, figures, tidy)
        _measure(stage, workshop, links, stack)


def _watches(workshop: Workshop) -> dict[str, ClickWatch]:
    return {durability: ClickWatch(workshop.folder / f"spool-{durability}") for durability in (COMMIT, ASYNC)}


def _write_back() -> None:
    """Let the disk have what was written: else the kernel writes it in the midst of a later run, half a minute after it
    was made, and a commit that falls into that waits for 50 ms."""
    os.sync()


def _measure(stage: Stage, workshop: Workshop, links: Sequence[SeedLink], stack: ExitStack) -> None:
    options = workshop.options
    nginx = stack.enter_context(Nginx(links))
    print(
        f"  {len(links):,} links, server on one core and load on the other, {stage.limiter}, "
        f"log to /dev/null; nginx {nginx.version()}; {options.rounds} rounds of {options.seconds} s"
    )
    subjects: dict[str, Listening] = {NGINX: nginx, **stage.ready}
    files = {
        headers: write_requests(workshop.folder / f"redirects-{bool(headers)}", redirects(shuffled(links), headers))
        for headers in ("", BROWSER)
    }
    _warm(workshop, links, subjects.values())
    # With `async`, those of the warming are stored later: counted too soon, they would stand in for some that are lost.
    before = _kept(stage)
    contest = Contest(subjects, files, stage.tidy)
    contest.rest()
    contest.play(options.rounds, options.seconds)
    print(
        table(("", "requests a second", "of nginx", "p50 ms", "p99 ms", "CPU µs each", "% of its core"), contest.rows())
    )
    clicks = _check_clicks(contest, before, _kept(stage))
    _tell_idle_nginx(contest)
    others = Rounds.of(100 * rest.others for rest in contest.rests)
    print(
        f"  clicks were sent on until {max(rest.seconds for rest in contest.rests):.1f} s after a run at most, and the "
        "other instance stands still in a run; ",
        end="",
    )
    print(f"others had {others.shown('.0f')} % of the machine between runs")
    figures = _figures(contest) | _steadily(contest, stage.disk, options.rounds)
    figures |= {"clicks": clicks, "others_percent": others.as_json(), **stage.storage}
    figures |= {"rounds": options.rounds, "seconds": options.seconds}
    _judge(figures)
    print(json_line(stage.name, figures))


def _warm(workshop: Workshop, links: Sequence[SeedLink], subjects: Iterable[Listening]) -> None:
    """Every link is asked for once, in the order of their making, so that each is in memory; wrk leaves out a few."""
    in_order = write_requests(workshop.folder / "warm", redirects((*links, *links[:1000])))
    for subject in subjects:
        check_redirects(subject.port, links[:20])
        send_once(subject, in_order, connections=64)


def _kept(stage: Stage) -> dict[str, Kept]:
    return {durability: watch.at_rest(stage.ready[durability].database) for durability, watch in stage.watches.items()}


def _check_clicks(contest: Contest, before: Mapping[str, Kept], after: Mapping[str, Kept]) -> dict[str, dict[str, int]]:
    """Whoever was answered was counted. An instance that sheds clicks has less to do, and its rate is none of ours.

    What is shed is told by the instance, too: a few more are stored than were answered, which could hide a few.
    """
    figures = {}
    for durability, kept in after.items():
        answered, safe = contest.answered(durability), kept.safe - before[durability].safe
        told = (
            f"clicks {durability}: {answered:,} redirects answered, {safe:,} clicks stored "
            f"({kept.spooled:,} of them in the spool), {kept.shed:,} shed"
        )
        if kept.shed or safe < answered:
            raise RuntimeError(told)
        print(f"  {told}")
        figures[durability] = {"answered": answered, "stored": safe, "spooled": kept.spooled, "shed": kept.shed}
    return figures


def _tell_idle_nginx(contest: Contest) -> None:
    for run in (run for run in RUNS if run.subject == NGINX):
        if (busy := contest.busy(run).median) < FULL_SHARE:
            print(
                f"  {run.name}: it used {100 * busy:.0f} % of its core and waited for that of the load, or for "
                "others: the ratio may flatter us"
            )


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
    shares = {
        "nginx_busy": Run(NGINX, 64),
        "nginx_busy_256": Run(NGINX, 256),
        "nginx_busy_browser": Run(NGINX, 64, BROWSER),
    }
    figures |= {name: round(contest.busy(run).median, 3) for name, run in shares.items()}
    return figures | {"spread": {name: rounds.as_json() for name, rounds in (ratios | rates).items()}}


def _steadily(contest: Contest, disk: Path, rounds: int) -> dict[str, Any]:
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

    def synced_alone() -> dict[str, float]:
        with contest.alone():
            return sync_times(disk, DISK_SECONDS)

    turns = [(steady(NGINX, full / 2), steady(COMMIT, full / 2), synced_alone()) for _ in range(rounds)]
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
