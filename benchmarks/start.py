"""How long `refract serve` takes from nothing to its first answer, with and without migrations to run."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import Embedded, cpu_seconds
from tests.support.stack import inherited

ROUNDS = 5
TARGET_SECONDS = 2.0

INTERPRETER = ""
IMPORTS = "import uvloop, refract.apps.commands, refract.apps.embedded"
WITH_MIGRATIONS = f"{IMPORTS}, refract.runtime.upgrading"


def measure() -> None:
    """Print the figures."""
    print(f"start: refract serve in an empty data directory, {ROUNDS} rounds after one that warms the caches")
    _start_twice()
    starts = [_start_twice() for _ in range(ROUNDS)]
    first, again = ([pair[index] for pair in starts] for index in (0, 1))
    rows = [_row("first start, with migrations", first), _row("second start", again)]
    print(table(("", "seconds to the first 200", "of them CPU"), rows))
    spent = {name: Rounds.of(_cpu_of(code) for _ in range(ROUNDS)) for name, code in _PARTS.items()}
    print("where the CPU seconds go (each includes those above it):")
    print(table(("", "CPU seconds"), [(name, seconds.shown()) for name, seconds in spent.items()]))
    slowest = Rounds.of(seconds for seconds, _ in first)
    print(verdict(f"first answer under {TARGET_SECONDS:g} s", met=slowest.median < TARGET_SECONDS))
    figures = {"first": _as_json(first), "again": _as_json(again)}
    print(json_line("start", {**figures, "cpu_of_parts": {name: part.as_json() for name, part in spent.items()}}))


_PARTS = {
    "interpreter alone": INTERPRETER,
    "imports of refract serve": IMPORTS,
    "imports of the first start": WITH_MIGRATIONS,
}


def _start_twice() -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds and CPU seconds of a first and of a second start."""
    with tempfile.TemporaryDirectory(prefix="refract-bench-") as folder:
        data = Path(folder) / "data"
        return _start(data), _start(data)


def _start(data: Path) -> tuple[float, float]:
    instance = Embedded(data)
    try:
        return instance.wait_until_healthy(), cpu_seconds(instance.process.pid)
    finally:
        instance.stop()


def _cpu_of(code: str) -> float:
    """What an interpreter has used once it has run the code."""
    command = [sys.executable, "-c", f"{code}\nimport time; print(time.process_time())"]
    done = subprocess.run(command, check=True, env=inherited(), stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def _row(name: str, starts: list[tuple[float, float]]) -> tuple[str, str, str]:
    return name, Rounds.of(wall for wall, _ in starts).shown(), Rounds.of(cpu for _, cpu in starts).shown()


def _as_json(starts: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "seconds": Rounds.of(wall for wall, _ in starts).as_json(),
        "cpu_seconds": Rounds.of(cpu for _, cpu in starts).as_json(),
    }
