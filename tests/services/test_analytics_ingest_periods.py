"""The periods that clicks are counted in, on both modes: in any order, late, folded or without dimensions."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from refract.runtime.statements import Statement
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from tests.support.clocks import START
from tests.support.counting import (
    BOT,
    ROLLUPS,
    STALE,
    assert_counted,
    clicked,
    count_of,
    hours_in,
    ingest,
    random_clicks,
    totals_in,
)
from tests.support.following import Between, analytics

__all__ = ["analytics"]

MOVE_WATERMARK = Statement(
    "move_watermark",
    "Says how far periods are closed and expired.",
    "UPDATE folding SET closed = :closed, until = :closed, expired = :expired WHERE span = :span",
)

# It is noon on the first of March; what is older may be folded, or have lost its dimensions.
TODAY = START.replace(hour=0)
THIS_MONTH = TODAY


async def move_watermarks(analytics: Between, **watermarks: datetime) -> None:
    """Move each to the beginning of a day; what is not named stays in 1970."""
    never = datetime(1970, 1, 1, tzinfo=UTC)
    for name, span in (("hour", HOUR), ("day", DAY), ("month", MONTH)):
        async with analytics.database.transaction() as tx:
            await tx.execute(
                MOVE_WATERMARK,
                span=span,
                closed=watermarks.get(f"{name}_closed", never),
                expired=watermarks.get(f"{name}_expired", never),
            )


def spans(rows: Sequence[Any]) -> dict[int, tuple[int, bool]]:
    """By span: how many clicks, and whether it is known of which kind."""
    return {row["span"]: (row["clicks"], row["by_browser"] is not None) for row in rows}


# Open


async def test_clicks_land_in_their_periods_in_any_order(analytics: Between) -> None:
    events = random_clicks(random.Random(7), 300, codes=["a", "b"], days=3)
    for first in range(0, 300, 50):
        await ingest(analytics, *events[first : first + 50])
    await assert_counted(analytics, events)


async def test_an_hour_ends_where_the_next_begins(analytics: Between) -> None:
    edge = START.replace(minute=0)
    moments = [
        edge - timedelta(microseconds=1),
        edge,
        edge + timedelta(minutes=59, seconds=59, microseconds=999_999),
    ]
    analytics.clock.advance(3_600)
    await ingest(analytics, *(clicked(at=moment) for moment in moments))
    hours = await hours_in(analytics.database)
    assert {hour: count.clicks for (_, hour), count in hours.items()} == {edge - timedelta(hours=1): 1, edge: 2}
    assert hours["abc", edge].parts[0][59] == hours["abc", edge].parts[0][0] == 1


async def test_an_offset_is_no_other_time(analytics: Between) -> None:
    """In a zone that is half an hour off, hours begin in the middle of ours."""
    kolkata = timezone(timedelta(hours=5, minutes=30))
    await ingest(analytics, clicked(at=START.astimezone(kolkata)))
    assert set(await hours_in(analytics.database)) == {("abc", START)}


async def test_a_click_from_the_future_counts_now(analytics: Between) -> None:
    soon, later = START + timedelta(seconds=60), START + timedelta(seconds=61)
    await ingest(analytics, clicked("soon", soon), clicked("later", later))
    assert {code: total[3] for code, total in (await totals_in(analytics.database)).items()} == {
        "soon": soon,
        "later": START,
    }


async def test_a_click_of_another_age_is_counted(analytics: Between) -> None:
    """Watermarks begin in 1970, and so do clicks: what a clock says that is not set, every chart can show."""
    events = [clicked(at=datetime(1, 1, 1, tzinfo=UTC)), clicked(at=datetime(1969, 12, 31, 23, 59, tzinfo=UTC))]
    await ingest(analytics, *events)
    assert (await totals_in(analytics.database))["abc"][0] == 2
    rows = await analytics.database.fetch(ROLLUPS)
    assert [(row["span"], row["starts_at"].year, row["clicks"]) for row in rows] == [(HOUR, 1970, 2)]


async def test_first_and_last_are_by_time_and_not_by_arrival(analytics: Between) -> None:
    for minutes in (30, 10, 50, 20):
        await ingest(analytics, clicked(at=START - timedelta(minutes=minutes)))
    total = (await totals_in(analytics.database))["abc"]
    assert total[2:] == (START - timedelta(minutes=50), START - timedelta(minutes=10))


# Folded


async def test_what_is_not_folded_is_not_marked(analytics: Between) -> None:
    await move_watermarks(analytics, day_closed=TODAY, month_closed=THIS_MONTH)
    await ingest(analytics, clicked(at=TODAY))
    assert await analytics.database.fetch(STALE) == []


async def test_a_late_click_marks_its_day_and_its_month(analytics: Between) -> None:
    late = TODAY - timedelta(microseconds=1)
    await move_watermarks(analytics, day_closed=TODAY, month_closed=THIS_MONTH)
    await ingest(analytics, clicked(at=late), clicked(at=late))
    february = [("abc", DAY, datetime(2026, 2, 28, tzinfo=UTC)), ("abc", MONTH, datetime(2026, 2, 1, tzinfo=UTC))]
    assert [tuple(row.values()) for row in await analytics.database.fetch(STALE)] == february
    assert spans(await analytics.database.fetch(ROLLUPS)) == {HOUR: (2, True)}
    await ingest(analytics, clicked(at=late))
    assert len(await analytics.database.fetch(STALE)) == 4, "whoever folds sees that one more has come"


async def test_where_hours_are_thin_the_day_takes_the_click(analytics: Between) -> None:
    old = datetime(2026, 1, 20, 15, 30, tzinfo=UTC)
    await move_watermarks(analytics, hour_expired=TODAY - timedelta(days=30), day_closed=TODAY, month_closed=THIS_MONTH)
    events = [clicked(at=old), clicked(at=old + timedelta(hours=2), user_agent=BOT)]
    await ingest(analytics, *events)
    rows = await analytics.database.fetch(ROLLUPS)
    assert spans(rows) == {HOUR: (1, False), DAY: (2, True)}
    [day] = [count_of(row) for row in rows if row["span"] == DAY]
    assert (day.clicks, day.bot_clicks, day.visitors, day.bot_visitors) == (2, 1, 1, 1)
    quarters = [15 * 4 + 2, 17 * 4 + 2]
    assert [quarter for quarter, clicks in enumerate(day.parts[0]) if clicks] == quarters
    assert day.parts[1][quarters[1]] == 1
    january = ("abc", MONTH, datetime(2026, 1, 1, tzinfo=UTC))
    assert [tuple(row.values()) for row in await analytics.database.fetch(STALE)] == [january]


async def test_where_days_are_thin_the_month_takes_the_click(analytics: Between) -> None:
    old = datetime(2024, 7, 31, 15, 30, tzinfo=UTC)
    await move_watermarks(
        analytics,
        hour_expired=TODAY,
        day_closed=TODAY,
        day_expired=datetime(2025, 3, 1, tzinfo=UTC),
        month_closed=THIS_MONTH,
    )
    await ingest(analytics, clicked(at=old))
    await ingest(analytics, clicked(at=old), clicked(at=old))
    rows = await analytics.database.fetch(ROLLUPS)
    assert spans(rows) == {HOUR: (3, False), DAY: (3, False), MONTH: (3, True)}
    [month] = [count_of(row) for row in rows if row["span"] == MONTH]
    assert month.parts[0][30] == 3
    assert await analytics.database.fetch(STALE) == [], "there is nothing left to fold it from"


async def test_where_months_are_thin_only_numbers_stay(analytics: Between) -> None:
    old = datetime(2019, 7, 31, 15, 30, tzinfo=UTC)
    marks = dict.fromkeys(("hour_expired", "day_closed", "day_expired", "month_closed", "month_expired"), TODAY)
    await move_watermarks(analytics, **marks)
    await ingest(analytics, clicked(at=old))
    assert spans(await analytics.database.fetch(ROLLUPS)) == dict.fromkeys((HOUR, DAY, MONTH), (1, False))
    assert (await totals_in(analytics.database))["abc"][0] == 1


async def test_an_hour_that_has_lost_its_dimensions_keeps_its_count(analytics: Between) -> None:
    hour = START - timedelta(days=40)
    await ingest(analytics, clicked(at=hour))
    await move_watermarks(analytics, hour_expired=TODAY, day_closed=TODAY)
    await ingest(analytics, clicked(at=hour), clicked(at=hour, user_agent=BOT))
    rows = await analytics.database.fetch(ROLLUPS)
    assert [(row["span"], row["clicks"], row["bot_clicks"]) for row in rows] == [(HOUR, 3, 1), (DAY, 2, 1)]
