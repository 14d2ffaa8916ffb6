"""A clock that stands still until a test turns it."""

from datetime import UTC, datetime

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class ManualClock:
    """Moments and durations move together but where the clock is set, and only when told to."""

    def __init__(self, start: datetime = START) -> None:
        self._microseconds = round(start.timestamp() * 1_000_000)
        self._passed = 0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._microseconds / 1_000_000, UTC)

    def milliseconds(self) -> int:
        return self._microseconds // 1_000

    def monotonic(self) -> float:
        return self._passed / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass, to the microsecond."""
        self._microseconds += round(seconds * 1_000_000)
        self._passed += round(seconds * 1_000_000)

    def set_forward(self, seconds: float) -> None:
        """Somebody sets the clock, or wakes a machine that slept: no time has passed for durations."""
        self._microseconds += round(seconds * 1_000_000)
