"""The command `python -m benchmarks [NAME…]`: the measurements named, or all of them, over servers of the tests."""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from benchmarks import (
    breaker,
    click_lag,
    codes,
    cold,
    enriching,
    gateway,
    health,
    idle,
    ingest,
    limiter,
    listing,
    login,
    me,
    memory,
    notifications,
    others_away,
    outbox_lag,
    pipeline,
    redirect,
    relay,
    scale,
    shorten,
    sms,
    start,
    stats,
    tokens,
)
from benchmarks.workshop import Options, Workshop
from tests.support.servers.packages import MissingSoftware
from tests.support.servers.selection import environment, in_use
from tests.support.servers.server import ServerError

ALONE = {"start": start.measure}
IN_WORKSHOP = {
    "redirect": redirect.measure,
    "redirect-distributed": redirect.measure_distributed,
    "cold": cold.measure,
    "listing": listing.measure,
    "shorten": shorten.measure,
    "outbox-lag": outbox_lag.measure,
    "codes": codes.measure,
    "enriching": enriching.measure,
    "ingest": ingest.measure,
    "pipeline": pipeline.measure,
    "embedded-pipeline": pipeline.measure_embedded,
    "click-lag": click_lag.measure,
    "others-away": others_away.measure,
    "stats": stats.measure,
    "memory": memory.measure,
    "notifications": notifications.measure,
    "scale": scale.measure,
    "gateway": gateway.measure,
    "me": me.measure,
    "breaker": breaker.measure,
    "tokens": tokens.measure,
    "limiter": limiter.measure,
    "login": login.measure,
    "sms": sms.measure,
}
OVER_SERVERS = {"health": health.measure, "relay": relay.measure, "idle": idle.measure}
NAMES = (*ALONE, *IN_WORKSHOP, *OVER_SERVERS)
WHEN_ALL = Options(rounds=2, seconds=2, minutes=0.2, links=200_000, clicks=1_000_000)
"""Shorter, where everything is measured one after the other: what is asked of more or longer gets no verdict then."""


def run(names: Sequence[str], options: Options) -> None:
    """Those that need no servers first, while none runs."""
    for name, measure in ALONE.items():
        if name in names:
            measure()
    with Workshop(options) as workshop:
        for name, measure_in in IN_WORKSHOP.items():
            if name in names:
                measure_in(workshop)
    chosen = [measure for name, measure in OVER_SERVERS.items() if name in names]
    if not chosen:
        return
    with in_use() as used:
        print(f"over {', '.join(map(str, used))}")
        for measure_over in chosen:
            measure_over(environment(used))


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; all if left out")
    for name, kind, meaning in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, help=meaning)
    given = vars(parser.parse_args(arguments))
    names = given.pop("names")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no {', '.join(unknown)}; expected {', '.join(NAMES)}")
    options = replace(
        Options() if names else WHEN_ALL, **{name: value for name, value in given.items() if value is not None}
    )
    signal.signal(signal.SIGTERM, _leave)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe shall show each line at once, too
    try:
        run(names or NAMES, options)
    except (MissingSoftware, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


_OPTIONS = (
    ("rounds", int, "how often each is measured in turn"),
    ("seconds", int, "how long each time"),
    ("minutes", float, "how long memory is watched"),
    ("links", int, "how many links scale makes"),
    ("clicks", int, "how many clicks stats makes"),
)


def _leave(number: int, _: object) -> NoReturn:
    """By an exception, so that everything started is stopped on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
