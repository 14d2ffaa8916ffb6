"""A load at a constant rate: runs steady.py on the core of the load."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.cores import load_core, pinned

PROGRAM = Path(__file__).with_name("steady.py")
MARGIN = 60.0


def steadily(port: int, rate: float, requests: Path, *, connections: int, seconds: float) -> dict[str, float]:
    """Send at that rate, or with 0 as fast as the sender can; what steady.py printed."""
    command = [sys.executable, "-I", str(PROGRAM), *map(str, (port, connections, rate, seconds, requests))]
    done = subprocess.run(pinned(load_core(), command), check=True, stdout=subprocess.PIPE, timeout=seconds + MARGIN)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen
