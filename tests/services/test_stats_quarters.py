"""Visitors by days of zones that begin with half an hour or a quarter: told by the quarters of folded days."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.runtime.statements import Statement
from refract.services.analytics.commands import merging
from refract.services.analytics.domain.calendars import Interval, Range
from refract.services.analytics.domain.periods import DAY, start_of
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from tests.support.periods import DAYS, HOURS, YESTERDAY, PeriodsWorld, a_click, periods, quarters_of

__all__ = ["periods"]

pytestmark = pytest.mark.usefixtures("patient_folding", "patient_locks")

NOW = datetime(2026, 4, 10, 12, tzinfo=UTC)
"""Five days ago two of these zones changed their clocks, one of them by half an hour."""
ZONES = ("Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Chatham", "America/St_Johns", "UTC")
SECONDS = 12 * 86_400
FEW = 4

FORGET = Statement(
    "forget_some",
    "A day as it was folded before days knew their quarters.",
    "UPDATE rollups SET quarter_visitors = NULL WHERE span = 2 AND starts_at = :day",
)
EMPTY_CLICKS = Statement("empty_clicks", "As if nobody had clicked.", "DELETE FROM clicks")
EMPTY_HOURS = Statement("empty_hours", "As if hours knew nobody.", "UPDATE rollups SET visitors = NULL WHERE span = 1")

ages = st.one_of(
    st.integers(0, SECONDS),
    # Beside the edges of quarters, of which some are those of days.
    st.builds(lambda quarter, second: 900 * quarter + second, st.integers(0, SECONDS // 900), st.integers(-1, 1)),
)
clicks = st.builds(
    lambda age, visitor, bot: a_click(NOW - timedelta(seconds=max(age, 0)), visitor=visitor, bot=bot),
    ages,
    st.integers(0, 5),
    st.booleans(),
)
batches = st.lists(st.lists(clicks, min_size=1, max_size=20), min_size=1, max_size=4)


def asked(start: datetime, seconds: int, zone: str, interval: Interval) -> RangeRequest:
    return RangeRequest(Range(start, start + timedelta(seconds=seconds)), ZoneInfo(zone), interval)


async def check(world: PeriodsWorld, request: RangeRequest, *, bots: bool) -> None:
    shown = await OwnerQueries(Reader(world.database)).visitors("owner", "abc", request, bots=bots)
    people = [click for click in world.counted if bots or not click.bot]
    expected = [
        (
            period.name,
            len({click.visitor for click in people if period.start <= click.occurred_at < period.end}),
        )
        for period in request.divided().periods()
    ]
    assert [(point.period, point.visitors) for point in shown.points] == expected
    start, end = request.span
    assert shown.visitors == len({click.visitor for click in people if start <= click.occurred_at < end})


async def test_visitors_are_what_a_recount_gives(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days that know their quarters, that have too many clicks for it, that were folded before, that are stale."""
    monkeypatch.setattr(merging, "MOST_CLICKS", FEW)
    periods.pass_to(NOW)
    loop = asyncio.get_running_loop()

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(
        stream=batches,
        span=st.tuples(ages, st.integers(1, SECONDS)),
        zone=st.sampled_from(ZONES),
        bots=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    def examples(stream: Any, span: tuple[int, int], zone: str, bots: bool, seed: int) -> None:
        async def one() -> None:
            chance = random.Random(seed)
            await periods.begin_again()
            for batch in stream:
                await periods.count(*batch)
                if chance.random() < 0.7:
                    await periods.fold()
                if chance.random() < 0.3:
                    day = start_of(chance.choice(batch).occurred_at, DAY)
                    async with periods.database.transaction() as tx:
                        await tx.execute(FORGET, day=day)
            for interval in Interval:
                await check(periods, asked(NOW - timedelta(seconds=span[0]), span[1], zone, interval), bots=bots)
            whole = asked(NOW - timedelta(seconds=SECONDS), SECONDS, zone, Interval.DAY)
            await check(periods, whole, bots=bots)

        asyncio.run_coroutine_threadsafe(one(), loop).result(60)

    await asyncio.to_thread(examples)


async def test_neither_hours_nor_clicks_are_read_where_days_know_their_quarters(periods: PeriodsWorld) -> None:
    await periods.count(
        *(a_click(YESTERDAY - back * DAYS + 18 * HOURS, visitor=back) for back in range(5)),
        *(a_click(YESTERDAY - back * DAYS + 18.5 * HOURS, visitor=back) for back in range(5)),
        *(a_click(YESTERDAY - back * DAYS + 19 * HOURS, visitor=9, bot=True) for back in range(5)),
    )
    await periods.fold()
    async with periods.database.transaction() as tx:
        await tx.execute(EMPTY_CLICKS)
        await tx.execute(EMPTY_HOURS)
    start = YESTERDAY - 4 * DAYS + 18.5 * HOURS
    for bots in (False, True):
        await check(periods, asked(start, 3 * 86_400, "Asia/Kolkata", Interval.DAY), bots=bots)
        # Whoever came in two quarters of a day is one visitor.
        await check(periods, asked(start - HOURS, 3 * 3_600, "Asia/Kathmandu", Interval.WEEK), bots=bots)


async def test_a_day_is_told_by_its_hours_where_it_has_too_many_clicks(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MOST_CLICKS", FEW)
    await periods.count(*(a_click(YESTERDAY + number * HOURS, visitor=number) for number in range(FEW)))
    await periods.fold()
    [day] = await periods.rows(DAY)
    assert quarters_of(day) is not None
    await periods.count(a_click(YESTERDAY + 20 * HOURS, visitor=20))
    await check(periods, asked(YESTERDAY - DAYS, 3 * 86_400, "Asia/Kolkata", Interval.DAY), bots=False)
    await periods.fold()
    [day] = await periods.rows(DAY)
    assert quarters_of(day) is None
    await check(periods, asked(YESTERDAY - DAYS, 3 * 86_400, "Asia/Kolkata", Interval.DAY), bots=False)


async def test_days_do_not_say_what_only_some_of_their_clicks_tell(periods: PeriodsWorld) -> None:
    """Clicks that are kept for less time than hours are gone when a late one comes."""
    periods.kept["clicks_kept"] = 3 * DAYS
    day = start_of(periods.clock.now(), DAY) - 5 * DAYS
    await periods.count(a_click(day + 2 * HOURS, visitor=1))
    await periods.fold()
    [row] = await periods.rows(DAY)
    assert (quarters_of(row), row["clicks"]) == (None, 1)


async def test_nor_what_is_left_of_them_when_they_are_to_be_kept_for_longer(periods: PeriodsWorld) -> None:
    """Those that were dropped do not come back with a longer retention."""
    periods.kept["clicks_kept"] = 3 * DAYS
    day = start_of(periods.clock.now(), DAY) - 10 * DAYS
    await periods.count(*(a_click(day + number * HOURS, visitor=number) for number in range(20)))
    await periods.house().keep_house()
    periods.kept["clicks_kept"] = 1_826 * DAYS
    await periods.count(a_click(day + 5 * HOURS, visitor=50))
    await periods.house().keep_house()
    [row] = await periods.rows(DAY)
    assert (quarters_of(row), row["clicks"]) == (None, 21)
    await check(periods, asked(day - DAYS, 3 * 86_400, "Europe/Berlin", Interval.DAY), bots=False)


async def test_quarters_go_with_the_hours_of_their_day(periods: PeriodsWorld) -> None:
    await periods.count(a_click(YESTERDAY, visitor=1), a_click(YESTERDAY - DAYS, visitor=2, bot=True))
    await periods.fold()
    assert [quarters_of(row) is not None for row in await periods.rows(DAY)] == [True, True]
    periods.pass_to(YESTERDAY + 30 * DAYS)
    await periods.house().keep_house()
    assert [quarters_of(row) is not None for row in await periods.rows(DAY)] == [False, True]
    # A click that comes now goes straight to its day, which nobody asks about by the quarter any more.
    await periods.count(a_click(YESTERDAY - DAYS + HOURS, visitor=3))
    start, end = YESTERDAY - DAYS, YESTERDAY + DAYS
    assert await periods.answer("abc", start, end) == periods.recount("abc", start, end)
    await check(periods, asked(start, 86_400, "UTC", Interval.DAY), bots=True)
