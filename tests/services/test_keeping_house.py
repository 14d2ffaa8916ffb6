"""Keeping house: every minute, also at the start, and each step whatever becomes of the others."""

import asyncio
from datetime import timedelta

import pytest

from refract.kernel.errors import Misconfigured, Unavailable
from refract.runtime.environment import Environment
from refract.services.analytics.commands.folding import Folding
from refract.services.analytics.commands.keeping import ROUND_SECONDS, Housekeeping
from refract.services.analytics.domain.periods import DAY
from refract.services.analytics.settings import AnalyticsSettings
from tests.support.clocks import START
from tests.support.periods import PeriodsWorld, a_click, periods
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["periods"]


class Rounds:
    """A pause that ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._next = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._next.wait()
        self._next.clear()

    def begin(self) -> None:
        self._next.set()


async def test_house_is_kept_every_minute_and_a_database_that_is_away_is_tried_again(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds()
    house = Housekeeping(periods.database, periods.clock, **periods.kept, pause=rounds)
    await periods.count(a_click(START - timedelta(days=1), country="DE"))
    async with running(house.run):
        await eventually(lambda: rounds.asked == [ROUND_SECONDS] == [60.0])
        assert len(await periods.rows(DAY)) == 1

        async def away(_self: Folding) -> int:
            raise Unavailable("database", "nobody answers")

        periods.clock.advance(timedelta(days=40).total_seconds())
        await periods.count(a_click(START))
        with monkeypatch.context() as patched:
            patched.setattr(Folding, "fold", away)
            rounds.begin()
            await eventually(lambda: len(rounds.asked) == 2)
        assert "housekeeping failed; will retry" in caplog.messages
        assert len(await periods.rows(DAY)) == 1
        rounds.begin()
        await eventually(lambda: len(rounds.asked) == 3)
        assert len(await periods.rows(DAY)) == 2


async def test_what_fails_does_not_keep_the_rest_from_being_done(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await periods.count(a_click(START - timedelta(days=2000)))

    async def away(_self: Folding) -> int:
        raise Unavailable("database", "nobody answers")

    monkeypatch.setattr(Folding, "fold", away)
    await periods.house().keep_house()
    assert await periods.raw() == []


def test_how_long_things_are_kept_where_nobody_says_otherwise() -> None:
    kept = AnalyticsSettings.from_environment(Environment({}))
    assert kept.hours_kept == timedelta(days=30)
    assert kept.days_kept == timedelta(days=365)
    five_years = timedelta(days=5 * 365 + 1)  # one of five is a leap year
    assert kept.months_kept == kept.clicks_kept == five_years


def test_how_long_things_are_kept_is_the_operators_choice() -> None:
    assert AnalyticsSettings.from_environment(Environment({})) == AnalyticsSettings()
    names = {"CLICK": "clicks_kept", "HOUR": "hours_kept", "DAY": "days_kept", "MONTH": "months_kept"}
    for number, (word, field) in enumerate(names.items(), start=1):
        settings = AnalyticsSettings.from_environment(Environment({f"{word}_RETENTION_DAYS": str(number)}))
        assert getattr(settings, field) == timedelta(days=number)
        for wrong in ("0", "-1", "36501", "a week", "1.5"):
            with pytest.raises(Misconfigured, match=f"{word}_RETENTION_DAYS"):
                AnalyticsSettings.from_environment(Environment({f"{word}_RETENTION_DAYS": wrong}))
