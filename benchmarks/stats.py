"""How long every answer about a link takes, among millions of clicks; and how many bytes a click has on the disk."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from benchmarks.asking import call, fetch
from benchmarks.cores import server_core
from benchmarks.figures import Rounds, json_line, short_form, table, verdict
from benchmarks.instances import wait_until_quiet
from benchmarks.services import new_database, service
from benchmarks.stats_history import DAYS, LINKS, History, days, make_history
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, write_requests
from refract.services.analytics.domain.dimensions import DIMENSIONS

CONNECTIONS = (1, 16)
TARGETS = {1: 10.0, 16: 50.0}
BASE_CLICKS = 10_000_000
"""What the targets are for; with more clicks it may take GROWTH times as long."""
GROWTH = 1.5
HOTTEST, ANY = WHOSE = ("hottest", "any link")

NEW_YORK, KOLKATA = ({"tz": name} for name in ("America/New_York", "Asia/Kolkata"))


@dataclass(frozen=True)
class Question:
    """A path behind the code, and its parameters."""

    path: str
    parameters: Mapping[str, str]

    def target(self, code: str) -> str:
        """The request's target."""
        return f"/stats/{code}{self.path}?{urlencode(self.parameters)}".rstrip("?")


def questions() -> dict[str, Question]:
    """The whole time, and a stretch of it whose edges lie inside hours; in zones of whole hours and of others."""
    whole = {"from": _moment(0), "to": _moment(DAYS)}
    part = {"from": _moment(20.37), "to": _moment(DAYS - 3.29)}
    asked = {
        "stats": Question("", {}),
        "timeline, day": Question("/timeline", {"interval": "day"}),
        "timeline, hour": Question("/timeline", {"interval": "hour"}),
        "series, day": Question("/series", {"interval": "day", **whole}),
        "series, day, part": Question("/series", {"interval": "day", **part, **NEW_YORK}),
        "series, hour, part": Question("/series", {"interval": "hour", **part}),
        "series, hour, half": Question("/series", {"interval": "hour", **part, **KOLKATA}),
        "series, month": Question("/series", {"interval": "month", **whole, **NEW_YORK}),
        "visitors": Question("/visitors", whole),
        "visitors, part": Question("/visitors", part),
        "visitors, half": Question("/visitors", {**part, **KOLKATA}),
    }
    for dimension in DIMENSIONS:
        asked[f"breakdown, {dimension}"] = Question("/breakdown", {"by": dimension, **whole})
    asked["breakdown, referer, part"] = Question("/breakdown", {"by": "referer", **part})
    return asked


def _moment(day: float) -> str:
    return (days(datetime.now(UTC))[0] + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ")


Seen = dict[tuple[str, str, int], list[Reached]]
Tails = dict[tuple[str, str, int], Rounds]


def measure(workshop: Workshop) -> None:
    """Print the figures: of as many clicks as the targets are for, and of more if more are asked for."""
    ensure_wrk()
    clicks = workshop.options.clicks
    figures: dict[str, Any] = {}
    before: Tails | None = None
    for some in (BASE_CLICKS, clicks) if clicks > BASE_CLICKS else (clicks,):
        print(f"stats: {some:,} clicks of {DAYS} days over {LINKS:,} links, {workshop.storage}")
        with new_database(workshop.servers, "analytics") as dsn:
            history = make_history(dsn, some)
            describe(history)
            tails = ask(workshop, workshop.servers, dsn, history)
        figures[str(some)] = report(some, history, tails, before)
        before = tails
    print(json_line("stats", figures))


def describe(history: History) -> None:
    """Say what was made."""
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


def ask(workshop: Workshop, servers: Mapping[str, str], dsn: str, history: History) -> Tails:
    """Ask a service over this database everything, in rounds."""
    with service(workshop, servers, "analytics", dsn, core=server_core()) as ready:
        seen = _ask(workshop, ready, history)
    return {key: Rounds.of(reached.p99 for reached in each) for key, each in seen.items()}


def _ask(workshop: Workshop, ready: Ready, history: History) -> Seen:
    asked = questions()
    files = {
        (name, whose): write_requests(
            workshop.folder / f"{name}-{whose}".replace(" ", "-"), _calls(ready, history, question, whose)
        )
        for name, question in asked.items()
        for whose in WHOSE
    }
    # A service that is in use has its connections, and these know the statements.
    for (name, whose), file in files.items():
        if whose == HOTTEST:
            fetch(ready.port, "GET", asked[name].target(history.codes[0]), ready.token)
            send(ready, file, connections=max(CONNECTIONS), seconds=1)
    wait_until_quiet([ready.pid])
    seen: Seen = {}
    for _ in range(workshop.options.rounds):
        for (name, whose), file in files.items():
            if whose == HOTTEST:  # the first look does not count: what is over is put together with it
                fetch(ready.port, "GET", asked[name].target(history.codes[0]), ready.token)
            for connections in CONNECTIONS:
                reached = send(ready, file, connections=connections, seconds=workshop.options.seconds)
                seen.setdefault((name, whose, connections), []).append(reached)
                wait_until_quiet([ready.pid])  # what wrk no longer waits for is still worked on
    return seen


def _calls(ready: Ready, history: History, question: Question, whose: str) -> Iterator[bytes]:
    """Of any link: so many that few are asked about twice, and hardly anything of them can be remembered."""
    codes = history.codes[:1] if whose == HOTTEST else random.Random(1).sample(list(history.codes), len(history.codes))
    for code in codes:
        yield call("GET", question.target(code), ready.token)


def report(asked: int, history: History, tails: Tails, before: Tails | None) -> dict[str, Any]:
    """Print a table and, of as many clicks as the targets are for, the verdicts; returns the figures."""
    names = list(dict.fromkeys(name for name, _, _ in tails))
    columns = [(whose, connections) for whose in WHOSE for connections in CONNECTIONS]
    rows = [(name, *(tails[name, whose, connections].shown() for whose, connections in columns)) for name in names]
    print("p99 in milliseconds, the middle of the rounds:")
    print(table(("", *(f"{whose}, {connections}" for whose, connections in columns)), rows))
    for connections, target in TARGETS.items():
        allowed = target if before is None else GROWTH * target
        worst = max((tails[key].median, key[0], key[1]) for key in tails if key[2] == connections)
        told = f"{connections} connection{'s' if connections > 1 else ''}: every p99 under {allowed:g} ms"
        told += f" (worst {worst[0]:.1f}, {worst[1]} of {worst[2]})"
        if asked < BASE_CLICKS:
            print(short_form(f"{told} of {BASE_CLICKS:,} clicks", f"stats --clicks {BASE_CLICKS}"))
        else:
            print(verdict(told, met=worst[0] < allowed))
    if before is not None:
        grown = max((tails[key].median / before[key].median, key) for key in tails)
        print(f"  at most {grown[0]:.2f} times as long as with fewer clicks ({', '.join(map(str, grown[1]))})")
    return {
        "clicks": history.clicks,
        "full": asked >= BASE_CLICKS,
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
