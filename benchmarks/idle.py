"""What a process costs while nobody asks anything of it."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import cpu_seconds, distributed, embedded

SETTLING_SECONDS = 5.0
WINDOWS = 3
WINDOW_SECONDS = 10.0
TARGET_PERCENT = 2.0


def measure(servers: Mapping[str, str]) -> None:
    """Print the figures."""
    print(f"idle: {WINDOWS} windows of {WINDOW_SECONDS:g} s after {SETTLING_SECONDS:g} s of settling")
    with tempfile.TemporaryDirectory(prefix="refract-bench-") as name:
        folder = Path(name)
        with embedded(folder / "data") as instance, distributed(servers, folder) as stack:
            processes = {"embedded": instance.process.pid}
            processes |= {service: process.pid for service, process in stack.processes.items()}
            shares = _watch(processes)
    print(table(("", "% of a core"), [(name, share.shown()) for name, share in shares.items()]))
    met = all(share.median < TARGET_PERCENT for share in shares.values())
    print(verdict(f"every process under {TARGET_PERCENT:g} % of a core", met=met))
    print(json_line("idle", {"percent_of_a_core": {name: share.as_json() for name, share in shares.items()}}))


def _watch(processes: Mapping[str, int]) -> dict[str, Rounds]:
    """All at once: each has its own count, and none disturbs another."""
    seen: dict[str, list[float]] = {name: [] for name in processes}
    time.sleep(SETTLING_SECONDS)
    for _ in range(WINDOWS):
        begun = time.monotonic()
        before = {name: cpu_seconds(pid) for name, pid in processes.items()}
        time.sleep(WINDOW_SECONDS)
        elapsed = time.monotonic() - begun
        for name, pid in processes.items():
            seen[name].append(100 * (cpu_seconds(pid) - before[name]) / elapsed)
    return {name: Rounds.of(values) for name, values in seen.items()}
