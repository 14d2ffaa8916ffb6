"""The load: wrk over keep-alive connections, for a bounded time."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.servers.packages import APT_GET, MissingSoftware

MARGIN = 10.0


def ensure_wrk() -> None:
    """Install wrk where it is missing and we may, or say that it is missing."""
    if shutil.which("wrk"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingSoftware("wrk is missing: install the Debian package wrk")
    print("Installing wrk with apt-get …")
    for arguments in (("update",), ("install", "--yes", "--no-install-recommends", "wrk")):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run([*APT_GET, *arguments], check=False, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise MissingSoftware(f"{done.stdout}{done.stderr}apt-get {' '.join(arguments)} failed")


@contextmanager
def load(url: str, *, connections: int, seconds: int) -> Iterator[Callable[[], float]]:
    """Ask for the URL as often as it is answered; what is given waits for the end and says how often in a second."""
    command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield lambda: _rate(process.communicate(timeout=seconds + MARGIN)[0])
    finally:
        process.kill()
        process.wait()


def _rate(report: str) -> float:
    reached = re.search(r"^Requests/sec:\s+([\d.]+)$", report, re.MULTILINE)
    if reached is None or "Socket errors" in report:
        raise RuntimeError(f"wrk did not get through:\n{report}")
    return float(reached[1])
