"""How long every answer about a link takes, among millions of clicks; and how many bytes a click has on the disk."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.asking import call, fetch
from benchmarks.cores import server_core
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.history import DAYS, LINKS, History, days, make_history
from benchmarks.instances import wait_until_quiet
from benchmarks.services import new_database, service
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, write_requests
from refract.services.analytics.domain.dimensions import DIMENSIONS

CONNECTIONS = (1, 16)
TARGETS = {1: 10.0, 16: 50.0}
SAMPLE = 400
HOTTEST, ANY = WHOSE = ("hottest", "any link")

ZONE = {"tz": "America/New_York"}


@dataclass(frozen=True)
class Question:
    """A path behind the code, and its parameters."""

    path: str
    parameters: Mapping[str, str]

    def target(self, code: str) -> str:
        """The request's target."""
        return f"/stats/{code}{self.path}?{urlencode(self.parameters)}".rstrip("?")


def _questions() -> dict[str, Question]:
    """The whole time and a stretch of it whose edges lie inside days."""
    whole = {"from": _moment(0), "to": _moment(DAYS)}
    part = {"from": _moment(20.37), "to": _moment(DAYS - 3.29)}
    asked = {
        "stats": Question("", {}),
        "timeline, day": Question("/timeline", {"interval": "day"}),
        "timeline, hour": Question("/timeline", {"interval": "hour"}),
        "series, day": Question("/series", {"interval": "day", **whole}),
        "series, day, part": Question("/series", {"interval": "day", **part, **ZONE}),
        "series, hour, part": Question("/series", {"interval": "hour", **part}),
        "series, month": Question("/series", {"interval": "month", **whole, **ZONE}),
        "visitors": Question("/visitors", whole),
        "visitors, part": Question("/visitors", part),
    }
    for dimension in DIMENSIONS:
        asked[f"breakdown, {dimension}"] = Question("/breakdown", {"by": dimension, **whole})
    asked["breakdown, referer, part"] = Question("/breakdown", {"by": "referer", **part})
    return asked


def _moment(day: float) -> str:
    return (days()[0] + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ")


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    options = workshop.options
    print(f"stats: {options.clicks:,} clicks of {DAYS} days over {LINKS:,} links, data on {workshop.disk}")
    with new_database(workshop.servers, "analytics") as dsn:
        history = make_history(dsn, options.clicks)
        _describe(history)
        with service(workshop, workshop.servers, "analytics", dsn, core=server_core()) as ready:
            seen = _ask(workshop, ready, history)
    _report(history, seen, options.rounds)


def _describe(history: History) -> None:
    took = ", ".join(f"{name} in {seconds:.0f} s" for name, seconds in history.seconds.items())
    print(f"  {history.clicks:,} clicks, the hottest link has {history.hottest:,}; {took}")
    rows = ", ".join(
        f"{history.rows.get(span, 0):,} {name}" for span, name in (("1", "hours"), ("2", "days"), ("3", "months"))
    )
    print(f"  rows: {rows}")
    print(
        f"  on the disk {history.bytes_raw / history.clicks:.0f} bytes a click raw, "
        f"{history.bytes_rolled_up / history.clicks:.0f} rolled up"
    )


Seen = dict[tuple[str, str, int], list[Reached]]


def _ask(workshop: Workshop, ready: Ready, history: History) -> Seen:
    files = {
        (name, whose): _requests(workshop.folder / f"{name}-{whose}".replace(" ", "-"), ready, history, question, whose)
        for name, question in _questions().items()
        for whose in WHOSE
    }
    seen: Seen = {}
    for _ in range(workshop.options.rounds):
        for (name, whose), file in files.items():
            for connections in CONNECTIONS:
                reached = send(ready, file, connections=connections, seconds=workshop.options.seconds)
                seen.setdefault((name, whose, connections), []).append(reached)
                wait_until_quiet([ready.pid])  # what wrk no longer waits for is still worked on
    return seen


def _requests(file: Path, ready: Ready, history: History, question: Question, whose: str) -> Path:
    """The same question about one link, or about many in turn; it is answered once before it counts."""
    fetch(ready.port, "GET", question.target(history.codes[0]), ready.token)
    return write_requests(file, _calls(ready, history, question, whose))


def _calls(ready: Ready, history: History, question: Question, whose: str) -> Iterator[bytes]:
    codes = history.codes[:1] if whose == HOTTEST else random.Random(1).sample(list(history.codes), SAMPLE)
    for code in codes:
        yield call("GET", question.target(code), ready.token)


def _report(history: History, seen: Seen, rounds: int) -> None:
    tails = {key: Rounds.of(reached.p99 for reached in each) for key, each in seen.items()}
    names = list(dict.fromkeys(name for name, _, _ in seen))
    columns = [(whose, connections) for whose in WHOSE for connections in CONNECTIONS]
    rows = [(name, *(tails[name, whose, connections].shown() for whose, connections in columns)) for name in names]
    print(f"p99 in milliseconds, the middle of {rounds} rounds:")
    print(table(("", *(f"{whose}, {connections}" for whose, connections in columns)), rows))
    for connections, target in TARGETS.items():
        worst = max((tails[key].median, key[0]) for key in tails if key[2] == connections)
        told = f"{connections} connection{'s' if connections > 1 else ''}: every p99 under {target:g} ms"
        print(verdict(f"{told} (worst {worst[0]:.1f}, {worst[1]})", met=worst[0] < target))
    figures = {
        "clicks": history.clicks,
        "hottest": history.hottest,
        "bytes_raw": round(history.bytes_raw / history.clicks, 1),
        "bytes_rolled_up": round(history.bytes_rolled_up / history.clicks, 1),
        "seconds": {name: round(value, 1) for name, value in history.seconds.items()},
        "rows": history.rows,
        "p99_ms": {
            name: {
                f"{whose}, {connections}": round(tails[name, whose, connections].median, 2)
                for whose, connections in columns
            }
            for name in names
        },
    }
    print(json_line("stats", figures))
