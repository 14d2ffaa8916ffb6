"""Folding: days from hours, months from days, late clicks once more, and many links in chunks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refract.services.analytics.commands import folding, merging
from refract.services.analytics.commands.folding import GRACE
from refract.services.analytics.domain.periods import DAY, MONTH
from tests.support.clocks import START
from tests.support.periods import (
    DAYS,
    FEBRUARY,
    HOURS,
    TODAY,
    YESTERDAY,
    PeriodsWorld,
    a_click,
    people_of,
    periods,
    visitors_of,
)

__all__ = ["periods"]


async def test_a_day_that_is_over_becomes_a_row(periods: PeriodsWorld) -> None:
    await periods.count(
        a_click(YESTERDAY + 3 * HOURS, visitor=1, country="DE", browser="Firefox 140"),
        a_click(YESTERDAY + 3 * HOURS, visitor=2, country="DE"),
        a_click(YESTERDAY + 23 * HOURS, visitor=1, country="FR"),
        a_click(YESTERDAY + 23 * HOURS, visitor=9, country="DE", bot=True),
        a_click(TODAY, visitor=7, country="PL"),
    )
    assert await periods.fold() == 2
    [day] = await periods.rows(DAY)
    assert (day["short_code"], day["starts_at"], day["clicks"], day["bot_clicks"]) == ("abc", YESTERDAY, 4, 1)
    assert people_of(day, "country") == {"DE": 2, "FR": 1}
    assert people_of(day, "browser") == {"Firefox 140": 1}
    assert day["by_city"] is None
    assert visitors_of(day) == 2
    assert await periods.answer("abc", YESTERDAY, TODAY) == periods.recount("abc", YESTERDAY, TODAY)
    state = await periods.folding()
    assert (state[DAY]["closed"], state[DAY]["until"], state[DAY]["at"]) == (TODAY, TODAY, None)
    assert await periods.fold() == 0


async def test_a_month_that_is_over_becomes_a_row(periods: PeriodsWorld) -> None:
    await periods.count(*(a_click(FEBRUARY + number * DAYS, visitor=number % 5) for number in range(28)))
    assert await periods.fold() == 28 + 1
    [month] = await periods.rows(MONTH)
    assert (month["starts_at"], month["clicks"]) == (FEBRUARY, 28)
    assert visitors_of(month) == 5
    state = await periods.folding()
    assert (state[MONTH]["closed"], state[MONTH]["until"]) == (TODAY, TODAY)


async def test_a_day_is_left_alone_until_it_has_been_over_for_a_while(periods: PeriodsWorld) -> None:
    await periods.count(a_click(START))
    tomorrow = TODAY + DAYS
    periods.pass_to(tomorrow + GRACE - timedelta(microseconds=1))
    assert await periods.fold() == 0
    assert (await periods.folding())[DAY]["closed"] < TODAY
    periods.pass_to(tomorrow + GRACE)
    assert await periods.fold() == 1
    assert await periods.rows(MONTH) == []


async def test_a_late_click_marks_what_it_changes_until_it_is_folded_again(periods: PeriodsWorld) -> None:
    await periods.count(a_click(YESTERDAY, country="DE"), a_click(YESTERDAY, "other"))
    await periods.fold()
    await periods.count(a_click(YESTERDAY + 5 * HOURS, country="FR", visitor=3))
    assert await periods.marks() == [("abc", DAY, YESTERDAY), ("abc", MONTH, FEBRUARY)]
    assert (await periods.answer("abc", FEBRUARY, TODAY)).clicks == 2
    assert await periods.fold() == 2
    assert await periods.marks() == []
    for span in (DAY, MONTH):
        [row] = await periods.rows(span, "abc")
        assert (row["clicks"], people_of(row, "country"), visitors_of(row)) == (2, {"DE": 1, "FR": 1}, 2)
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)


async def test_a_late_click_on_a_day_without_any_is_folded_into_its_month(periods: PeriodsWorld) -> None:
    await periods.count(a_click(FEBRUARY))
    await periods.fold()
    await periods.count(a_click(FEBRUARY + 20 * DAYS), a_click(FEBRUARY - 3 * DAYS))
    await periods.fold()
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [1, 2]
    assert len(await periods.rows(DAY)) == 3


async def test_a_laptop_that_slept_for_weeks_folds_them_all(periods: PeriodsWorld) -> None:
    periods.pass_to(datetime(2026, 6, 20, 9, tzinfo=UTC))
    moments = [TODAY + number * timedelta(hours=31) for number in range(80)]
    await periods.count(*(a_click(moment, visitor=number % 7) for number, moment in enumerate(moments)))
    await periods.fold()
    assert [row["starts_at"].month for row in await periods.rows(MONTH)] == [3, 4, 5]
    end = datetime(2026, 7, 1, tzinfo=UTC)
    assert await periods.answer("abc", TODAY, end) == periods.recount("abc", TODAY, end)
    assert await periods.fold() == 0


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
    assert await periods.fold() == 2 * len(codes)
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
    await periods.fold()
    assert written[:3] == [["a"], ["b"], ["c"]]
    for code in "abc":
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


async def test_all_marks_of_a_link_go_at_once_however_many(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a backlog of yesterday's clicks there is one for each transaction."""
    monkeypatch.setattr(folding, "PAGE", 3)
    await periods.count(a_click(YESTERDAY))
    await periods.fold()
    for codes in ("a", "ab", "abc", "bc", "b", "b", "b", "b", "bd", "d"):
        await periods.count(*(a_click(YESTERDAY, code) for code in codes))
    await periods.fold()
    assert await periods.marks() == []
    for code in "abcd":
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)
