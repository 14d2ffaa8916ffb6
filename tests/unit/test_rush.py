"""A process has a rush while it answers very many requests, and what can wait waits until it is over."""

from refract.runtime.rush import LOOK_SECONDS, MANY, Rush
from tests.support.clocks import ManualClock


class Process:
    """Answers as many requests as a test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.answered = 0
        self.pauses: list[float] = []
        self.rush = Rush(self.clock, lambda: self.answered, pause=self.pause)

    def answers(self, rate: float, seconds: float = 1.0) -> None:
        """Let time pass at that rate."""
        self.clock.advance(seconds)
        self.answered += round(rate * seconds)

    async def pause(self, seconds: float) -> None:
        """It is calm after the third."""
        self.pauses.append(seconds)
        self.answers(2 * MANY if len(self.pauses) < 3 else MANY / 2, 2 * seconds)


def test_there_is_one_from_many_requests_a_second_on() -> None:
    process = Process()
    for rate, expected in ((0, False), (MANY, False), (MANY + 10, True), (3 * MANY, True), (MANY - 10, False)):
        process.answers(rate)
        assert process.rush.is_on is expected


def test_a_burst_within_a_moment_is_none_yet() -> None:
    process = Process()
    process.answers(100 * MANY, LOOK_SECONDS / 2)
    assert not process.rush.is_on
    process.answers(0, LOOK_SECONDS / 2)
    assert process.rush.is_on, "and with the moment after it, it is"


def test_one_that_follows_a_long_rest_is_seen_at_the_second_look() -> None:
    process = Process()
    process.answers(0, 3600)
    process.answers(2 * MANY, 2 * LOOK_SECONDS)
    assert not process.rush.is_on
    process.answers(2 * MANY, 2 * LOOK_SECONDS)
    assert process.rush.is_on


async def test_it_is_waited_for_in_short_pauses() -> None:
    process = Process()
    process.answers(2 * MANY)
    await process.rush.over()
    assert process.pauses == [LOOK_SECONDS] * 3
    assert not process.rush.is_on


async def test_without_one_nobody_waits() -> None:
    process = Process()
    process.answers(MANY / 2)
    await process.rush.over()
    assert process.pauses == []
    await Rush.never().over()
    assert not Rush.never().is_on
