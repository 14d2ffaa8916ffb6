"""Expiry: details go when their time is over and a longer row has them; counts stay; late clicks find their place."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from refract.services.analytics.commands import expiring
from refract.services.analytics.domain.periods import (
    DAY,
    EPOCH,
    HOUR,
    MONTH,
    SPANS,
    Place,
    Watermarks,
    end_of,
    start_of,
)
from refract.services.analytics.store.folding import DETAILS
from tests.support.databases import open_database
from tests.support.periods import DAYS, FEBRUARY, HOURS, PeriodsWorld, a_click, people_of, periods, visitors_of

__all__ = ["periods"]

pytestmark = pytest.mark.usefixtures("patient_folding", "patient_locks")

MARCH = datetime(2026, 3, 1, tzinfo=UTC)


async def keep_house(world: PeriodsWorld) -> None:
    house = world.house()
    await house.folding.fold()
    await house.expiry.expire()


async def detailed(world: PeriodsWorld, span: int) -> list[datetime]:
    """The starts of the rows that have details."""
    return [row["starts_at"] for row in await world.rows(span) if any(row[column] is not None for column in DETAILS)]


async def test_hours_lose_their_details_after_thirty_days(periods: PeriodsWorld) -> None:
    await periods.count(
        a_click(FEBRUARY + 23 * HOURS, visitor=1, country="DE"),
        a_click(FEBRUARY + 24 * HOURS, visitor=2, country="FR", bot=True),
    )
    periods.pass_to(FEBRUARY + 31 * DAYS - timedelta(microseconds=1))
    await keep_house(periods)
    assert len(await detailed(periods, HOUR)) == 2
    periods.pass_to(FEBRUARY + 31 * DAYS)
    await keep_house(periods)
    assert await detailed(periods, HOUR) == [FEBRUARY + DAYS]
    [first, _] = await periods.rows(HOUR)
    assert (first["clicks"], first["parts"] is not None) == (1, True)
    assert [people_of(row, "country") for row in await periods.rows(DAY)] == [{"DE": 1}, {}]
    assert await periods.answer("abc", FEBRUARY, MARCH) == periods.recount("abc", FEBRUARY, MARCH)


async def test_days_lose_their_details_after_a_year_and_months_after_five(periods: PeriodsWorld) -> None:
    await periods.count(*(a_click(FEBRUARY + number * DAYS, visitor=number, os="Linux") for number in range(40)))
    periods.pass_to(datetime(2027, 3, 1, tzinfo=UTC))
    await keep_house(periods)
    assert await detailed(periods, DAY) == [MARCH + number * DAYS for number in range(12)]
    periods.pass_to(datetime(2027, 3, 31, tzinfo=UTC))
    await keep_house(periods)
    assert len(await detailed(periods, DAY)) == 12  # the days of a month go together, because it is made of them
    [february, _] = await periods.rows(MONTH)
    assert (people_of(february, "os"), visitors_of(february)) == ({"Linux": 28}, 28)
    periods.pass_to(datetime(2031, 3, 1, tzinfo=UTC) + 2 * DAYS)
    await keep_house(periods)
    assert await detailed(periods, DAY) == []
    assert await detailed(periods, MONTH) == [MARCH]
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [28, 12]
    assert len(await periods.rows(HOUR)) == len(await periods.rows(DAY)) == 40
    assert sum(row["clicks"] for row in await periods.rows(DAY)) == 40


async def test_hours_of_a_day_that_is_not_folded_keep_their_details(periods: PeriodsWorld) -> None:
    await periods.count(a_click(FEBRUARY, country="DE"), a_click(FEBRUARY + 5 * DAYS, country="DE"))
    periods.pass_to(FEBRUARY + 100 * DAYS)
    await periods.house().expiry.expire()
    assert len(await detailed(periods, HOUR)) == 2
    assert (await periods.folding())[HOUR]["expired"] <= FEBRUARY
    await keep_house(periods)
    assert await detailed(periods, HOUR) == []
    [month] = await periods.rows(MONTH)
    assert people_of(month, "country") == {"DE": 2}


async def test_what_waits_to_be_folded_again_keeps_its_details(periods: PeriodsWorld) -> None:
    await periods.count(a_click(FEBRUARY, country="DE"))
    await keep_house(periods)
    await periods.count(a_click(FEBRUARY + HOURS, country="FR"))
    periods.pass_to(FEBRUARY + 100 * DAYS)
    house = periods.house()
    assert await house.expiry.expire() == 0
    assert len(await detailed(periods, HOUR)) == 2
    await house.folding.fold()
    assert await house.expiry.expire() == 2
    assert [people_of(row, "country") for row in await periods.rows(DAY)] == [{"DE": 1, "FR": 1}]


async def test_days_of_a_month_that_is_not_folded_keep_their_details(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await periods.count(a_click(FEBRUARY, country="DE"))
    periods.pass_to(FEBRUARY + 20 * DAYS)
    await keep_house(periods)
    periods.kept["days_kept"] = timedelta(days=1)
    periods.pass_to(FEBRUARY + 60 * DAYS)
    await periods.house().expiry.expire()
    assert await detailed(periods, DAY) == [FEBRUARY]
    await keep_house(periods)
    assert await detailed(periods, DAY) == []
    assert await detailed(periods, MONTH) == [FEBRUARY]


@pytest.mark.parametrize("late", [35, 400, 2000])
async def test_a_click_that_is_later_than_details_are_kept_takes_none_away(periods: PeriodsWorld, late: int) -> None:
    await periods.count(
        a_click(FEBRUARY, visitor=1, country="DE"),
        a_click(FEBRUARY + HOURS, visitor=2, country="FR"),
        a_click(FEBRUARY + 2 * DAYS, visitor=3, country="FR"),
    )
    periods.pass_to(FEBRUARY + late * DAYS)
    await keep_house(periods)
    await periods.count(
        a_click(FEBRUARY + HOURS, visitor=4, country="PL"),
        a_click(FEBRUARY + DAYS, visitor=5, country="PL", bot=True),
    )
    for _ in range(2):
        answer, recount = await periods.answer("abc", FEBRUARY, MARCH), periods.recount("abc", FEBRUARY, MARCH)
        if late < 1826:
            assert answer == recount
        else:
            assert (answer.clicks, answer.bot_clicks, answer.visitors) == (5, 1, 0)
        await keep_house(periods)
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(HOUR)] == [1, 2, 1, 1]
    assert [row["clicks"] for row in await periods.rows(DAY)] == [3, 1, 1]
    assert await detailed(periods, HOUR) == []
    # A day that nobody had seen before is folded into its month like any other.
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [5]


@pytest.mark.parametrize(("now", "late"), [(FEBRUARY + 20 * DAYS, 10), (FEBRUARY + 500 * DAYS, 80)])
async def test_a_late_click_in_a_stretch_without_any_is_not_folded_from_rows_without_details(
    periods: PeriodsWorld, now: datetime, late: int
) -> None:
    periods.kept["hours_kept"] = timedelta(days=5)
    await periods.count(a_click(FEBRUARY, country="DE"))
    periods.pass_to(now)
    await keep_house(periods)
    moment = FEBRUARY + late * DAYS
    await periods.count(a_click(moment, visitor=7, country="PL"))
    for _ in range(2):
        begin, end = start_of(moment, MONTH), end_of(start_of(moment, MONTH), MONTH)
        assert await periods.answer("abc", begin, end) == periods.recount("abc", begin, end)
        await keep_house(periods)


async def test_days_are_kept_at_least_as_long_as_hours(periods: PeriodsWorld) -> None:
    periods.kept.update(hours_kept=timedelta(days=100), days_kept=timedelta(days=35), months_kept=timedelta(days=1))
    await periods.count(a_click(FEBRUARY, country="DE"), a_click(FEBRUARY + DAYS, country="FR"))
    periods.pass_to(FEBRUARY + 80 * DAYS)
    await keep_house(periods)
    await periods.count(a_click(FEBRUARY, visitor=5, country="PL"))
    await keep_house(periods)
    assert await periods.answer("abc", FEBRUARY, MARCH) == periods.recount("abc", FEBRUARY, MARCH)


async def test_the_first_click_ever_may_be_very_old(periods: PeriodsWorld) -> None:
    await keep_house(periods)
    moments = [datetime(1, 1, 1, tzinfo=UTC), EPOCH, datetime(2019, 5, 5, tzinfo=UTC), FEBRUARY - 40 * DAYS]
    await periods.count(*(a_click(moment, country="DE") for moment in moments))
    await keep_house(periods)
    await keep_house(periods)
    assert [(row["starts_at"].year, row["clicks"]) for row in await periods.rows(MONTH)] == [
        (1, 1),
        (1970, 1),
        (2019, 1),
        (2025, 1),
    ]
    assert [row["clicks"] for row in await periods.rows(HOUR)] == [1] * 4


async def test_many_rows_lose_their_details_in_pages(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "PAGE", 4)
    codes = [f"code-{number}" for number in range(5)]
    await periods.count(
        *(a_click(FEBRUARY + hour * HOURS, code, city="Rome") for hour in range(0, 72, 5) for code in codes)
    )
    periods.pass_to(FEBRUARY + 33 * DAYS)
    house = periods.house()
    await house.folding.fold()
    assert await house.expiry.expire() == 15 * len(codes)
    assert await detailed(periods, HOUR) == []
    assert await house.expiry.expire() == 0


async def test_what_somebody_left_half_cleared_is_cleared_by_the_next(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await periods.count(*(a_click(FEBRUARY + number * DAYS, f"code-{number}", city="Rome") for number in range(3)))
    periods.pass_to(FEBRUARY + 40 * DAYS)
    await periods.fold()

    class Killed(BaseException):
        pass

    async def killed(_self: expiring.Expiry, _span: int, expired: datetime) -> int:
        if expired > EPOCH:
            raise Killed
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(expiring.Expiry, "_clear", killed)
        with pytest.raises(Killed):
            await periods.house().expiry.expire()
    assert len(await detailed(periods, HOUR)) == 3
    await periods.house().expiry.expire()
    assert await detailed(periods, HOUR) == []


async def test_several_processes_let_details_expire_at_once(periods: PeriodsWorld) -> None:
    await periods.count(
        *(a_click(FEBRUARY + number * DAYS, code, city="Rome") for number in range(15) for code in ("a", "b"))
    )
    periods.pass_to(FEBRUARY + 50 * DAYS)
    await periods.fold()
    databases = [await open_database(periods.location) for _ in range(3)]
    await asyncio.gather(*(periods.house(database).expiry.expire() for database in databases))
    for database in databases:
        await database.close()
    await periods.house().expiry.expire()
    assert await detailed(periods, HOUR) == []
    assert len(await detailed(periods, DAY)) == 30
    for code in ("a", "b"):
        assert await periods.answer(code, FEBRUARY, MARCH) == periods.recount(code, FEBRUARY, MARCH)


def watermarks(closed: datetime, expired: datetime) -> Watermarks:
    return Watermarks(
        closed=dict.fromkeys(SPANS, closed), until=dict.fromkeys(SPANS, closed), expired=dict.fromkeys(SPANS, expired)
    )


@pytest.mark.parametrize(
    ("moment", "place"),
    [
        (MARCH, Place(HOUR, (), ())),
        (MARCH - HOURS, Place(HOUR, (), ((DAY, MARCH - DAYS), (MONTH, FEBRUARY)))),
        (FEBRUARY, Place(HOUR, (), ((DAY, FEBRUARY), (MONTH, FEBRUARY)))),
        (FEBRUARY - HOURS, Place(None, SPANS, ())),
    ],
)
def test_where_a_click_goes(moment: datetime, place: Place) -> None:
    assert watermarks(MARCH, FEBRUARY).place(moment) == place


def test_where_a_click_goes_between_the_watermarks() -> None:
    marks = Watermarks(
        closed={HOUR: EPOCH, DAY: MARCH, MONTH: FEBRUARY},
        until={HOUR: EPOCH, DAY: MARCH, MONTH: FEBRUARY},
        expired={HOUR: FEBRUARY + 9 * DAYS, DAY: FEBRUARY - 31 * DAYS, MONTH: EPOCH},
    )
    assert marks.place(FEBRUARY + 9 * DAYS) == Place(HOUR, (), ((DAY, FEBRUARY + 9 * DAYS),))
    assert marks.place(FEBRUARY + 8 * DAYS) == Place(DAY, (HOUR,), ())
    january = FEBRUARY - 31 * DAYS
    assert marks.place(january) == Place(DAY, (HOUR,), ((MONTH, january),))
    assert marks.place(january - HOURS) == Place(MONTH, (HOUR, DAY), ())
