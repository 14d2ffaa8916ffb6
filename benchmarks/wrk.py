"""The load: wrk over keep-alive connections, for a bounded time."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.cores import load_core, pinned
from benchmarks.instances import family_cpu_seconds
from benchmarks.software import ensure

MARGIN = 10.0
SECONDS_AT_MOST = 120
THROUGH = "through\n"
SCRIPT = Path(__file__).with_name("requests.lua")


class Listening(Protocol):
    """A process that is asked."""

    @property
    def port(self) -> int:
        """Where it answers."""

    @property
    def pid(self) -> int:
        """Its number."""


@dataclass(frozen=True)
class Reached:
    """What one run of wrk reached; milliseconds from when a request was sent to the end of its answer.

    `cpu` is what a request cost the server in microseconds of a processor, which a busy machine changes least.
    """

    requests: int
    cpu: float
    rate: float
    p50: float
    p99: float
    worst: float


def ensure_wrk() -> None:
    """Install wrk where it is missing and we may, or say that it is missing."""
    ensure("wrk", "wrk")


def write_requests(file: Path, requests: Iterable[bytes]) -> Path:
    """Keep requests as wrk's script reads them."""
    with file.open("wb") as output:
        output.writelines(b"%d\n%b" % (len(request), request) for request in requests)
    return file


def send(target: Listening, requests: Path, *, connections: int, seconds: int, refused: bool = False) -> Reached:
    """Send the requests in turn, over and over, as fast as they are answered, or, if so it should be, refused."""
    return _send(target, [str(requests)], connections, seconds, refused=refused)


def send_once(target: Listening, requests: Path, *, connections: int) -> Reached:
    """Send each of the requests once, as fast as they are answered; the last few may stay without an answer."""
    return _send(target, [str(requests), "once"], connections, SECONDS_AT_MOST)


def _send(target: Listening, arguments: list[str], connections: int, seconds: int, *, refused: bool = False) -> Reached:
    options = _options(connections, seconds)
    command = ["wrk", *options, "--script", str(SCRIPT), f"http://127.0.0.1:{target.port}/", "--", *arguments]
    spent = family_cpu_seconds(target.pid)
    with subprocess.Popen(
        pinned(load_core(), command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(seconds + 2 * MARGIN, process.kill)
        timer.start()
        try:
            report = _read(process)
        finally:
            timer.cancel()
            process.kill()
    spent = family_cpu_seconds(target.pid) - spent
    try:
        seen = json.loads(report.splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"wrk did not get through:\n{report}") from None
    expected = seen["requests"] if refused else 0
    if not seen["requests"] or seen["refused"] != expected or seen["failed"] or seen["late"]:
        raise RuntimeError(f"not every request was answered as it should be:\n{report}")
    return Reached(
        requests=seen["requests"],
        cpu=spent / seen["requests"] * 1e6,
        rate=seen["requests"] / seen["microseconds"] * 1e6,
        p50=seen["p50"] / 1000,
        p99=seen["p99"] / 1000,
        worst=seen["max"] / 1000,
    )


def _read(process: subprocess.Popen[str]) -> str:
    """All that it says; when it has no more to send, it is told to sum up."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == THROUGH:
            process.send_signal(signal.SIGINT)
        lines.append(line)
    return "".join(lines)


@contextmanager
def load(url: str, *, connections: int, seconds: int) -> Iterator[Callable[[], float]]:
    """Ask for the URL as often as it is answered; what is given waits for the end and says how often in a second."""
    process = subprocess.Popen(
        ["wrk", *_options(connections, seconds), url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield lambda: _rate(process.communicate(timeout=seconds + MARGIN)[0])
    finally:
        process.kill()
        process.wait()


def _options(connections: int, seconds: int) -> list[str]:
    return ["--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]


def _rate(report: str) -> float:
    reached = re.search(r"^Requests/sec:\s+([\d.]+)$", report, re.MULTILINE)
    if reached is None or "Socket errors" in report:
        raise RuntimeError(f"wrk did not get through:\n{report}")
    return float(reached[1])
