"""Work that comes round again: the same pause after each, and only what is away is waited for."""

import logging

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.rounds import repeat

log = logging.getLogger("refract.test")


class Stop(Exception):
    """The end of a test: the work itself never ends."""


async def test_work_goes_on_for_ever_with_the_same_pause_after_each_round(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []

    async def work() -> None:
        told.append("work")

    async def pause(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 6:
            raise Stop

    with pytest.raises(Stop):
        await repeat(work, 30.0, log=log, trouble="not done", pause=pause)
    assert told == ["work", 30.0] * 3
    assert [one for one in caplog.records if one.name == log.name] == []


async def test_what_is_away_is_told_and_tried_at_the_next_round(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[float] = []

    async def work() -> None:
        if len(rounds) < 2:
            raise Unavailable("database", "nobody answers")

    async def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 4:
            raise Stop

    with pytest.raises(Stop):
        await repeat(work, 30.0, log=log, trouble="not done; will retry", pause=pause)
    assert rounds == [30.0] * 4
    ours = [one for one in caplog.records if one.name == log.name]
    warnings = [(one.levelname, one.getMessage(), one.__dict__["error"]) for one in ours]
    assert warnings == [("WARNING", "not done; will retry", "database is unavailable: nobody answers")] * 2


async def test_a_mistake_is_for_whoever_runs_it() -> None:
    async def work() -> None:
        raise ValueError("a mistake")

    async def pause(_seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    with pytest.raises(ValueError, match="a mistake"):
        await repeat(work, 30.0, log=log, trouble="not done", pause=pause)
