"""The command `python -m benchmarks [NAME…]`: the measurements named, or all of them, over servers of the tests."""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from benchmarks import health, idle, relay, start
from tests.support.servers.packages import MissingSoftware
from tests.support.servers.selection import environment, in_use
from tests.support.servers.server import ServerError

ALONE = {"start": start.measure}
OVER_SERVERS = {"health": health.measure, "relay": relay.measure, "idle": idle.measure}
NAMES = (*ALONE, *OVER_SERVERS)


def run(names: Sequence[str]) -> None:
    """Those that need no servers first, while none runs."""
    for name, measure in ALONE.items():
        if name in names:
            measure()
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
    names = parser.parse_args(arguments).names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no {', '.join(unknown)}; expected {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, _leave)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe shall show each line at once, too
    try:
        run(names)
    except (MissingSoftware, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _leave(number: int, _: object) -> NoReturn:
    """By an exception, so that everything started is stopped on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
