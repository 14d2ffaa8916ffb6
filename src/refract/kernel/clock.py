"""Time as an argument: whoever needs the time is given a clock, and tests give a clock they can turn."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where a moment or a duration comes from."""

    def now(self) -> datetime:
        """The current moment, in UTC."""

    def milliseconds(self) -> int:
        """The current moment as whole milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back: for durations, never for moments."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The current moment, in UTC."""
        return datetime.now(UTC)

    def milliseconds(self) -> int:
        """The current moment as whole milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back."""
        return time.monotonic()
