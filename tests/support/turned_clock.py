"""The `refract` command under a clock that is wrong, and that a signal turns on.

`python -m tests.support.turned_clock SECONDS run gateway`: so many seconds from the right time; SIGUSR1 adds `STEP`.
"""

import signal
import sys
import time
from datetime import UTC, datetime

STEP = 31.0
"""Seconds: a little more than an open breaker waits."""

TURNED = "the clock was turned"
"""What standard error says each time."""


def main() -> None:
    """Turn the clock, and run the command."""
    wrong_by = float(sys.argv.pop(1))
    right = {name: getattr(time, name) for name in ("time", "monotonic", "time_ns", "monotonic_ns")}

    def turn_on(*_: object) -> None:
        nonlocal wrong_by
        wrong_by += STEP
        print(TURNED, file=sys.stderr, flush=True)

    # Before anything of ours is imported: whoever takes a function from the module takes these.
    time.time = lambda: right["time"]() + wrong_by
    time.monotonic = lambda: right["monotonic"]() + wrong_by
    time.time_ns = lambda: right["time_ns"]() + round(wrong_by * 1e9)
    time.monotonic_ns = lambda: right["monotonic_ns"]() + round(wrong_by * 1e9)
    from refract.apps import cli  # noqa: PLC0415
    from refract.kernel.clock import SystemClock  # noqa: PLC0415
    from tests.support.patient_command import be_patient  # noqa: PLC0415

    def now(_: SystemClock) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)

    SystemClock.now = now  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, turn_on)
    be_patient()
    cli.main()


if __name__ == "__main__":
    main()
