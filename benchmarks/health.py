"""How soon /health is answered while another route of the same process is under load."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Rounds, json_line, percentile, table, verdict
from benchmarks.instances import distributed, embedded
from benchmarks.wrk import ensure_wrk, load

ROUNDS = 3
CONNECTIONS = 16
PROBES_A_SECOND = 200
PROBE_SECONDS = 2.5
LEAD_SECONDS = 0.5
LOAD_SECONDS = 4
QUIET = "none"
LOADS = (QUIET, "/ready", "/no/such/page")
TARGET_MILLISECONDS = 10.0
PROBE = Path(__file__).with_name("probe.py")


@dataclass
class Seen:
    """One process under one load, a figure for each round."""

    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)

    def add(self, rate: float, latencies: list[float], lateness: list[float]) -> None:
        """One more round."""
        self.rates.append(rate)
        self.p50.append(percentile(latencies, 0.5))
        self.p99.append(percentile(latencies, 0.99))
        self.worst.append(max(latencies))
        self.lateness.append(percentile(lateness, 0.99))

    def row(self) -> tuple[str, ...]:
        """The figures for a person."""
        rate = f"{Rounds.of(self.rates).median:.0f}"
        p50, p99 = Rounds.of(self.p50), Rounds.of(self.p99)
        return rate, f"{p50.median:.2f}", p99.shown(), f"{max(self.worst):.1f}", f"{max(self.lateness):.1f}"

    def as_json(self) -> dict[str, object]:
        """The same for a program."""
        figures = {"rate": self.rates, "p50_ms": self.p50, "p99_ms": self.p99, "max_ms": self.worst}
        return {name: Rounds.of(values).as_json() for name, values in figures.items()}


def measure(servers: Mapping[str, str]) -> None:
    """Print the figures."""
    ensure_wrk()
    print(
        f"health: {PROBES_A_SECOND} probes a second for {PROBE_SECONDS:g} s beside wrk with {CONNECTIONS} keep-alive "
        f"connections, {ROUNDS} rounds; milliseconds"
    )
    with tempfile.TemporaryDirectory(prefix="refract-bench-") as name:
        folder = Path(name)
        with embedded(folder / "data") as instance, distributed(servers, folder) as stack:
            seen = _probe_all({"embedded": instance.port, **stack.ports})
    header = ("", "load on", "load/s", "p50", "p99", "max", "prober late by")
    print(table(header, [(name, route, *each.row()) for (name, route), each in seen.items()]))
    loaded = [each for (_, route), each in seen.items() if route != QUIET]
    met = all(Rounds.of(each.p99).median < TARGET_MILLISECONDS for each in loaded)
    print(verdict(f"p99 under {TARGET_MILLISECONDS:g} ms on every service under load", met=met))
    figures: dict[str, dict[str, object]] = {}
    for (name, route), each in seen.items():
        figures.setdefault(name, {})[route] = each.as_json()
    print(json_line("health", {"connections": CONNECTIONS, "services": figures}))


def _probe_all(ports: Mapping[str, int]) -> dict[tuple[str, str], Seen]:
    seen = {(name, route): Seen() for name in ports for route in LOADS}
    for _ in range(ROUNDS):
        for (name, route), each in seen.items():
            each.add(*_probe_quiet(ports[name]) if route == QUIET else _probe_loaded(ports[name], route))
    return seen


def _probe_loaded(port: int, route: str) -> tuple[float, list[float], list[float]]:
    url = f"http://127.0.0.1:{port}{route}"
    with load(url, connections=CONNECTIONS, seconds=LOAD_SECONDS) as rate:
        time.sleep(LEAD_SECONDS)
        _, latencies, lateness = _probe_quiet(port)
        return rate(), latencies, lateness


def _probe_quiet(port: int) -> tuple[float, list[float], list[float]]:
    command = [sys.executable, "-I", str(PROBE), str(port), str(PROBE_SECONDS), str(PROBES_A_SECOND)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60)
    seen = json.loads(done.stdout)
    return 0.0, seen["latencies"], seen["lateness"]
