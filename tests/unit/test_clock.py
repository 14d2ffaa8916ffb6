"""The clock of this machine: moments know their zone, and its two ways to tell the time agree."""

from datetime import UTC

from refract.kernel.clock import Clock, SystemClock


def test_moments_and_milliseconds_are_the_same_time() -> None:
    clock: Clock = SystemClock()
    before, now, after = clock.milliseconds(), clock.now(), clock.milliseconds()
    assert now.tzinfo is UTC
    assert before <= now.timestamp() * 1000 < after + 1


def test_durations_never_go_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
