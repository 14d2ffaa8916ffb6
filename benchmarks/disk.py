"""What the disk does by itself: small writes, each made durable before the next, as often as clicks are committed."""

import os
import time
from pathlib import Path

from benchmarks.figures import percentile

WRITE_BYTES = 24 * 1024
"""About what one commit of clicks writes at 20,000 a second."""

FILE_BYTES = 8 * 1024 * 1024
"""Written before, and then over and over, as a write-ahead log is."""

PAUSE_SECONDS = 0.001


def sync_times(folder: Path, seconds: float) -> dict[str, float]:
    """Milliseconds of a write with its `fdatasync`, while nothing of ours runs: median, p99 and most."""
    content = os.urandom(WRITE_BYTES)
    path = folder / "synced"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(FILE_BYTES), 0)
        os.fsync(descriptor)
        taken: list[float] = []
        place, ends = 0, time.perf_counter() + seconds
        while (begun := time.perf_counter()) < ends:
            os.pwrite(descriptor, content, place)
            os.fdatasync(descriptor)
            taken.append(1000 * (time.perf_counter() - begun))
            place = (place + WRITE_BYTES) % (FILE_BYTES - WRITE_BYTES)
            time.sleep(PAUSE_SECONDS)
    finally:
        os.close(descriptor)
        path.unlink()
    return {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99), "max": max(taken)}
