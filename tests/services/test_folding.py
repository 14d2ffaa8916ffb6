"""Folding: days from hours, months from days, and no click more or less whatever happens meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refract.runtime.ports import Database
from refract.services.analytics.commands import folding, merging
from refract.services.analytics.commands.folding import GRACE
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.domain.tallies import OTHER
from tests.support.clocks import START
from tests.support.databases import open_database
from tests.support.periods import KnownClicks, PeriodsWorld, a_click, event_of, people_of, periods, visitors_of

__all__ = ["periods"]

TODAY = datetime(2026, 3, 1, tzinfo=UTC)
YESTERDAY = datetime(2026, 2, 28, tzinfo=UTC)
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)
HOURS = timedelta(hours=1)
DAYS = timedelta(days=1)


async def fold(world: PeriodsWorld) -> int:
    return await world.house().folding.fold()


async def test_a_day_that_is_over_becomes_a_row(periods: PeriodsWorld) -> None:
    await periods.count(
        a_click(YESTERDAY + 3 * HOURS, visitor=1, country="DE", browser="Firefox 140"),
        a_click(YESTERDAY + 3 * HOURS, visitor=2, country="DE"),
        a_click(YESTERDAY + 23 * HOURS, visitor=1, country="FR"),
        a_click(YESTERDAY + 23 * HOURS, visitor=9, country="DE", bot=True),
        a_click(TODAY, visitor=7, country="PL"),
    )
    assert await fold(periods) == 2
    [day] = await periods.rows(DAY)
    assert (day["short_code"], day["starts_at"], day["clicks"], day["bot_clicks"]) == ("abc", YESTERDAY, 4, 1)
    assert people_of(day, "country") == {"DE": 2, "FR": 1}
    assert people_of(day, "browser") == {"Firefox 140": 1}
    assert day["by_city"] is None
    assert visitors_of(day) == 2
    assert await periods.answer("abc", YESTERDAY, TODAY) == periods.recount("abc", YESTERDAY, TODAY)
    state = await periods.folding()
    assert (state[DAY]["closed"], state[DAY]["until"], state[DAY]["at"]) == (TODAY, TODAY, None)
    assert await fold(periods) == 0


async def test_a_month_that_is_over_becomes_a_row(periods: PeriodsWorld) -> None:
    await periods.count(*(a_click(FEBRUARY + number * DAYS, visitor=number % 5) for number in range(28)))
    assert await fold(periods) == 28 + 1
    [month] = await periods.rows(MONTH)
    assert (month["starts_at"], month["clicks"]) == (FEBRUARY, 28)
    assert visitors_of(month) == 5
    state = await periods.folding()
    assert (state[MONTH]["closed"], state[MONTH]["until"]) == (TODAY, TODAY)


async def test_a_day_is_left_alone_until_it_has_been_over_for_a_while(periods: PeriodsWorld) -> None:
    await periods.count(a_click(START))
    tomorrow = TODAY + DAYS
    periods.pass_to(tomorrow + GRACE - timedelta(microseconds=1))
    assert await fold(periods) == 0
    assert (await periods.folding())[DAY]["closed"] < TODAY
    periods.pass_to(tomorrow + GRACE)
    assert await fold(periods) == 1
    assert await periods.rows(MONTH) == []


async def test_a_late_click_marks_what_it_changes_until_it_is_folded_again(periods: PeriodsWorld) -> None:
    await periods.count(a_click(YESTERDAY, country="DE"), a_click(YESTERDAY, "other"))
    await fold(periods)
    await periods.count(a_click(YESTERDAY + 5 * HOURS, country="FR", visitor=3))
    assert await periods.marks() == [("abc", DAY, YESTERDAY), ("abc", MONTH, FEBRUARY)]
    assert (await periods.answer("abc", FEBRUARY, TODAY)).clicks == 2
    assert await fold(periods) == 2
    assert await periods.marks() == []
    for span in (DAY, MONTH):
        [row] = await periods.rows(span, "abc")
        assert (row["clicks"], people_of(row, "country"), visitors_of(row)) == (2, {"DE": 1, "FR": 1}, 2)
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)


async def test_a_late_click_on_a_day_without_any_is_folded_into_its_month(periods: PeriodsWorld) -> None:
    await periods.count(a_click(FEBRUARY))
    await fold(periods)
    await periods.count(a_click(FEBRUARY + 20 * DAYS), a_click(FEBRUARY - 3 * DAYS))
    await fold(periods)
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [1, 2]
    assert len(await periods.rows(DAY)) == 3


async def test_a_laptop_that_slept_for_weeks_folds_them_all(periods: PeriodsWorld) -> None:
    periods.pass_to(datetime(2026, 6, 20, 9, tzinfo=UTC))
    moments = [TODAY + number * timedelta(hours=31) for number in range(80)]
    await periods.count(*(a_click(moment, visitor=number % 7) for number, moment in enumerate(moments)))
    await fold(periods)
    assert [row["starts_at"].month for row in await periods.rows(MONTH)] == [3, 4, 5]
    end = datetime(2026, 7, 1, tzinfo=UTC)
    assert await periods.answer("abc", TODAY, end) == periods.recount("abc", TODAY, end)
    assert await fold(periods) == 0


async def test_many_links_are_folded_in_chunks(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "PAGE", 7)
    monkeypatch.setattr(folding, "CHUNK_LINKS", 5)
    monkeypatch.setattr(folding, "CHUNK_CLICKS", 12)
    codes = [f"code-{number:02}" for number in range(40)]
    for number, code in enumerate(codes):
        hours = [(number * 7 + each * 5) % 24 for each in range(1 + number % 6)]
        await periods.count(*(a_click(YESTERDAY + hour * HOURS, code, visitor=hour) for hour in hours))
    chunks: list[int] = []
    write = folding.Folding._write

    async def noted(self: folding.Folding, turn: Any, chunk: folding._Chunk) -> int:
        chunks.append(len(chunk.codes))
        return await write(self, turn, chunk)

    monkeypatch.setattr(folding.Folding, "_write", noted)
    assert await fold(periods) == 2 * len(codes)
    assert sum(chunks) == 2 * len(codes)
    assert max(chunks) <= 5
    assert len(chunks) > 2 * len(codes) / 5
    for code in codes:
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


async def test_one_link_with_very_many_clicks_is_a_chunk_of_its_own(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is read column by column."""
    monkeypatch.setattr(folding, "CHUNK_CLICKS", 3)
    monkeypatch.setattr(merging, "MUCH", 3)
    await periods.count(
        *(
            a_click(YESTERDAY + number * HOURS, code, visitor=number % 3, os=f"OS {number % 2}", bot=number == 2)
            for number, code in enumerate("abbbbbc")
        )
    )
    written: list[list[str]] = []
    write = folding.Folding._write

    async def noted(self: folding.Folding, turn: Any, chunk: folding._Chunk) -> int:
        written.append(list(chunk.codes))
        return await write(self, turn, chunk)

    monkeypatch.setattr(folding.Folding, "_write", noted)
    await fold(periods)
    assert written[:3] == [["a"], ["b"], ["c"]]
    for code in "abc":
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


async def test_a_click_that_lands_while_its_day_is_read_is_not_lost(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await periods.count(a_click(YESTERDAY), a_click(YESTERDAY, "zzz"))
    merge = merging.Merging.merge

    async def interrupted(self: merging.Merging, span: int, *rest: Any) -> merging.Merged:
        merged = await merge(self, span, *rest)
        if span == DAY:
            await periods.count(a_click(YESTERDAY + HOURS, visitor=8))
        return merged

    with monkeypatch.context() as patched:
        patched.setattr(merging.Merging, "merge", interrupted)
        await fold(periods)
    assert [row["clicks"] for row in await periods.rows(DAY, "abc")] == [1]
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)
    await fold(periods)
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(DAY, "abc")] == [2]
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)


@pytest.mark.parametrize("interrupted_span", [DAY, MONTH])
async def test_a_click_that_lands_while_its_mark_is_worked_off_is_not_lost(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, interrupted_span: int
) -> None:
    await periods.count(a_click(YESTERDAY))
    await fold(periods)
    await periods.count(a_click(YESTERDAY))
    merge = merging.Merging.merge

    async def interrupted(self: merging.Merging, span: int, *rest: Any) -> merging.Merged:
        merged = await merge(self, span, *rest)
        if span == interrupted_span:
            await periods.count(a_click(YESTERDAY))
        return merged

    with monkeypatch.context() as patched:
        patched.setattr(merging.Merging, "merge", interrupted)
        await fold(periods)
    assert (await periods.answer("abc", FEBRUARY, TODAY)).clicks == 3
    await fold(periods)
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows()] == [3, 3, 3]


async def test_all_marks_of_a_link_go_at_once_however_many(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a backlog of yesterday's clicks there is one for each transaction."""
    monkeypatch.setattr(folding, "PAGE", 3)
    await periods.count(a_click(YESTERDAY))
    await fold(periods)
    for codes in ("a", "ab", "abc", "bc", "b", "b", "b", "b", "bd", "d"):
        await periods.count(*(a_click(YESTERDAY, code) for code in codes))
    await fold(periods)
    assert await periods.marks() == []
    for code in "abcd":
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("late", [FEBRUARY, FEBRUARY + 20 * DAYS])
async def test_a_click_that_lands_between_the_days_and_their_month_is_not_lost(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, late: datetime, *, is_closed: bool
) -> None:
    """On a day that had clicks, and on one that had none; before its month is closed, and after."""
    await periods.count(a_click(FEBRUARY))
    if is_closed:
        await fold(periods)
    fold_due = folding.Folding._fold_due

    async def interrupted(self: folding.Folding, turn: Any, span: int) -> int:
        folded = await fold_due(self, turn, span)
        if span == DAY:
            await periods.count(a_click(late, visitor=3))
        return folded

    with monkeypatch.context() as patched:
        patched.setattr(folding.Folding, "_fold_due", interrupted)
        await fold(periods)
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)
    await fold(periods)
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [2]


@pytest.mark.parametrize("late_on", [YESTERDAY + HOURS, YESTERDAY - 3 * DAYS])
async def test_a_click_of_a_writer_who_knew_the_day_as_open_is_in_it(periods: PeriodsWorld, late_on: datetime) -> None:
    """The watermark waits for whoever is on the way, also to a day before that had none: PostgreSQL has two at once."""
    if periods.database.dialect == "sqlite":
        return
    await periods.count(a_click(YESTERDAY))
    ready, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        late = a_click(late_on, visitor=4)
        async with periods.database.transaction() as tx:
            await Ingesting(KnownClicks([late]), periods.clock).ingest(tx, [event_of(late)])
            ready.set()
            await go_on.wait()
        periods.counted.append(late)

    writing = asyncio.create_task(slowly())
    await ready.wait()
    folding_too = asyncio.create_task(fold(periods))
    await asyncio.sleep(0.05)
    assert not folding_too.done()
    go_on.set()
    await writing
    await folding_too
    assert sum(row["clicks"] for row in await periods.rows(DAY)) == 2
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)


async def test_several_processes_fold_at_once(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "CHUNK_LINKS", 2)
    codes = [f"code-{number:02}" for number in range(12)]
    await periods.count(*(a_click(FEBRUARY + number * DAYS, code) for number in range(20) for code in codes))
    databases: list[Database] = [await open_database(periods.location) for _ in range(3)]
    late = a_click(FEBRUARY + 3 * DAYS, codes[4], visitor=1, country="CH")

    async def count_late() -> int:
        await periods.count(late)
        return 0

    houses = [periods.house(database).folding.fold() for database in databases]
    folded = await asyncio.gather(*houses, count_late())
    await fold(periods)
    for database in databases:
        await database.close()
    # All of it once, but for what was begun by one who was overtaken, and the late click's day and month.
    assert sum(folded) + 1 >= 20 * len(codes)
    assert await periods.marks() == []
    assert len(await periods.rows(DAY)) == 20 * len(codes)
    assert len(await periods.rows(MONTH)) == len(codes)
    for code in codes:
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


async def test_one_who_was_overtaken_writes_nothing_old(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await periods.count(a_click(YESTERDAY))
    await fold(periods)
    await periods.count(a_click(YESTERDAY))
    merge = merging.Merging.merge

    async def overtaken(self: merging.Merging, *rest: Any) -> merging.Merged:
        merged = await merge(self, *rest)
        monkeypatch.setattr(merging.Merging, "merge", merge)
        await periods.count(a_click(YESTERDAY))
        await fold(periods)
        return merged

    monkeypatch.setattr(merging.Merging, "merge", overtaken)
    assert await fold(periods) == 0
    assert [row["clicks"] for row in await periods.rows(DAY)] == [3]
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [3]


async def test_values_that_did_not_fit_an_hour_are_exact_once_it_is_folded(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 4)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 4)
    monkeypatch.setattr(merging, "MOST_IN_LONGER", 6)
    # The room is taken when the one that is to be the most frequent comes, click by click.
    for number in range(6):
        await periods.count(a_click(YESTERDAY, referer=f"https://{number}.example/"))
    for _ in range(5):
        await periods.count(a_click(YESTERDAY, referer="https://late.example/"))
    await periods.count(a_click(YESTERDAY + HOURS, referer="https://5.example/"))
    [hour, _] = await periods.rows(HOUR)
    assert OTHER in people_of(hour, "referer")
    await fold(periods)
    [hour, _] = await periods.rows(HOUR)
    assert sorted(people_of(hour, "referer").items()) == [
        (OTHER, 4),
        ("https://0.example/", 1),
        ("https://1.example/", 1),
        ("https://late.example/", 5),
    ]
    [day] = await periods.rows(DAY)
    exact = people_of(day, "referer")
    assert (exact["https://late.example/"], exact["https://5.example/"], exact[OTHER]) == (5, 2, 2)
    assert sum(exact.values()) == day["clicks"] == 12


async def test_hours_are_made_exact_in_the_order_in_which_clicks_lock_them(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever counts a late click meanwhile holds one of these hours, and may want the next."""
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 2)
    for code in ("b", "a"):
        for hour, dimension in enumerate(["os", "city", "browser", "referer", "os"]):
            values: list[dict[str, Any]] = [{dimension: f"{number}"} for number in range(4)]
            clicks = (a_click(YESTERDAY + hour * HOURS, code, **value) for value in values)
            await periods.count(*clicks)
    merged = await merging.Merging(periods.database, periods.clock, 9 * DAYS).merge(DAY, YESTERDAY, ["a", "b"])
    rows = [(one.short_code, one.starts_at) for one in merged.corrections]
    assert rows == [(code, YESTERDAY + hour * HOURS) for code in ("a", "b") for hour in range(5)]


async def test_values_that_are_too_long_for_an_hour_are_too_long_for_its_day(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 10)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 10)
    monkeypatch.setattr(merging, "MOST_IN_LONGER", 20)
    for number in range(12):
        referer = f"https://{number:02}.example/{'x' * 279}"
        await periods.count(*(a_click(YESTERDAY, referer=referer) for _ in range(number + 1)))
    await fold(periods)
    for row, kept in zip(await periods.rows(), (3, 6, 6), strict=True):
        counts = people_of(row, "referer")
        assert sorted(counts.values()) == sorted([*range(13 - kept, 13), sum(range(13 - kept))])
        assert OTHER in counts


@pytest.mark.parametrize("reason", ["too many clicks", "clicks are gone"])
async def test_values_that_cannot_be_counted_again_stay_as_they_are(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 2)
    if reason == "too many clicks":
        monkeypatch.setattr(merging, "EXACT_CLICKS", 3)
    else:
        periods.kept["clicks_kept"] = timedelta(hours=36)
    for number in range(4):
        await periods.count(a_click(YESTERDAY, city=f"city {number}"))
    [before] = await periods.rows(HOUR)
    await fold(periods)
    [hour] = await periods.rows(HOUR)
    [day] = await periods.rows(DAY)
    assert hour == before
    assert sum(people_of(day, "city").values()) == 4
    assert OTHER in people_of(day, "city")


async def test_an_hour_that_has_got_a_click_since_it_was_counted_is_not_corrected(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 3)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 3)
    for number in range(5):
        await periods.count(a_click(YESTERDAY, city=f"city {number}"))
    merge = merging.Merging.merge

    async def interrupted(self: merging.Merging, span: int, *rest: Any) -> merging.Merged:
        merged = await merge(self, span, *rest)
        if span == DAY:
            assert merged.corrections
            await periods.count(a_click(YESTERDAY, city="city 9"))
        return merged

    with monkeypatch.context() as patched:
        patched.setattr(merging.Merging, "merge", interrupted)
        await fold(periods)
    [hour] = await periods.rows(HOUR)
    assert sum(people_of(hour, "city").values()) == hour["clicks"] == 6
    await fold(periods)
    [hour] = await periods.rows(HOUR)
    assert sum(people_of(hour, "city").values()) == hour["clicks"] == 6
