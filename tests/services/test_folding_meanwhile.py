"""No click more or less, whoever counts and whoever else folds while days and months are folded."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.analytics.commands import folding, merging
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.domain.tallies import OTHER
from refract.services.analytics.store.rollups import save_rollups
from refract.services.analytics.store.turns import Overtaken
from tests.support.clocks import START
from tests.support.databases import open_database
from tests.support.periods import (
    DAYS,
    FEBRUARY,
    HOURS,
    TODAY,
    YESTERDAY,
    KnownClicks,
    PeriodsWorld,
    a_click,
    event_of,
    people_of,
    periods,
)
from tests.support.waiting import eventually

__all__ = ["periods"]

WAITING = Statement(
    "waiting",
    "Who waits for a lock.",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)

pytestmark = pytest.mark.usefixtures("patient_folding", "patient_locks")


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
        await periods.fold()
    assert [row["clicks"] for row in await periods.rows(DAY, "abc")] == [1]
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)
    await periods.fold()
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows(DAY, "abc")] == [2]
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)


@pytest.mark.parametrize("interrupted_span", [DAY, MONTH])
async def test_a_click_that_lands_while_its_mark_is_worked_off_is_not_lost(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, interrupted_span: int
) -> None:
    await periods.count(a_click(YESTERDAY))
    await periods.fold()
    await periods.count(a_click(YESTERDAY))
    merge = merging.Merging.merge

    async def interrupted(self: merging.Merging, span: int, *rest: Any) -> merging.Merged:
        merged = await merge(self, span, *rest)
        if span == interrupted_span:
            await periods.count(a_click(YESTERDAY))
        return merged

    with monkeypatch.context() as patched:
        patched.setattr(merging.Merging, "merge", interrupted)
        await periods.fold()
    assert (await periods.answer("abc", FEBRUARY, TODAY)).clicks == 3
    await periods.fold()
    assert await periods.marks() == []
    assert [row["clicks"] for row in await periods.rows()] == [3, 3, 3]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("late", [FEBRUARY, FEBRUARY + 20 * DAYS])
async def test_a_click_that_lands_between_the_days_and_their_month_is_not_lost(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, late: datetime, *, is_closed: bool
) -> None:
    """On a day that had clicks, and on one that had none; before its month is closed, and after."""
    await periods.count(a_click(FEBRUARY))
    if is_closed:
        await periods.fold()
    fold_due = folding.Folding._fold_due

    async def interrupted(self: folding.Folding, turn: Any, span: int) -> AsyncIterator[int]:
        async for rows in fold_due(self, turn, span):
            yield rows
        if span == DAY:
            await periods.count(a_click(late, visitor=3))

    with monkeypatch.context() as patched:
        patched.setattr(folding.Folding, "_fold_due", interrupted)
        await periods.fold()
    assert await periods.answer("abc", FEBRUARY, TODAY) == periods.recount("abc", FEBRUARY, TODAY)
    await periods.fold()
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
    folding_too = asyncio.create_task(periods.fold())
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

    houses = [periods.house(database).folding.fold() for database in databases]
    await asyncio.gather(*houses, periods.count(late))
    # Whoever is overtaken leaves it to the one that overtook, and the last of these gets to the end.
    assert len(await periods.rows(DAY)) == 20 * len(codes)
    await periods.fold()
    for database in databases:
        await database.close()
    assert await periods.marks() == []
    assert len(await periods.rows(DAY)) == 20 * len(codes)
    assert len(await periods.rows(MONTH)) == len(codes)
    for code in codes:
        assert await periods.answer(code, FEBRUARY, TODAY) == periods.recount(code, FEBRUARY, TODAY)


async def test_one_who_was_overtaken_writes_nothing_old(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await periods.count(a_click(YESTERDAY))
    await periods.fold()
    await periods.count(a_click(YESTERDAY))
    merge = merging.Merging.merge

    async def overtaken(self: merging.Merging, *rest: Any) -> merging.Merged:
        merged = await merge(self, *rest)
        monkeypatch.setattr(merging.Merging, "merge", merge)
        await periods.count(a_click(YESTERDAY))
        await periods.fold()
        return merged

    monkeypatch.setattr(merging.Merging, "merge", overtaken)
    assert await periods.fold() == 0
    assert [row["clicks"] for row in await periods.rows(DAY)] == [3]
    assert [row["clicks"] for row in await periods.rows(MONTH)] == [3]


@pytest.mark.parametrize("end", [Overtaken(), Unavailable("database", "nobody answers")])
async def test_what_was_written_before_is_told(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: Exception
) -> None:
    """By whomever the rest is done, and when."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(folding, "CHUNK_LINKS", 2)
    await periods.count(*(a_click(YESTERDAY, f"code-{number}") for number in range(5)))
    merge, merged = merging.Merging.merge, 0

    async def ended(self: merging.Merging, *rest: Any) -> merging.Merged:
        nonlocal merged
        merged += 1
        if merged == 3:
            raise end
        return await merge(self, *rest)

    monkeypatch.setattr(merging.Merging, "merge", ended)
    with suppress(Unavailable):
        assert await periods.fold() == 4
    assert len(await periods.rows(DAY)) == 4
    assert [record.__dict__["rows"] for record in caplog.records if record.msg == "periods folded"] == [4]


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
        await periods.fold()
    [hour] = await periods.rows(HOUR)
    assert sum(people_of(hour, "city").values()) == hour["clicks"] == 6
    await periods.fold()
    [hour] = await periods.rows(HOUR)
    assert sum(people_of(hour, "city").values()) == hour["clicks"] == 6


async def test_an_hour_is_not_corrected_between_its_reading_and_its_saving(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever counts a click has locked the hour: else an exact tally would be put there, and the old one over it."""
    if periods.database.dialect == "sqlite":
        return
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 3)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 3)
    for number in range(5):
        await periods.count(a_click(TODAY, city=f"city {number}"))
    periods.pass_to(START + DAYS)
    merge = merging.Merging.merge
    ready, go_on = asyncio.Event(), asyncio.Event()
    counting: list[asyncio.Task[None]] = []

    async def slowly(*rest: Any) -> None:
        ready.set()
        await go_on.wait()
        await save_rollups(*rest)

    async def interrupted(self: merging.Merging, *rest: Any) -> merging.Merged:
        merged = await merge(self, *rest)
        if not counting:
            assert merged.corrections
            counting.append(asyncio.create_task(periods.count(a_click(TODAY, city="city 9"))))
            await ready.wait()
        return merged

    with monkeypatch.context() as patched:
        patched.setattr(merging.Merging, "merge", interrupted)
        patched.setattr("refract.services.analytics.commands.ingesting.save_rollups", slowly)
        folding_too = asyncio.create_task(periods.fold())
        await ready.wait()
        try:
            await eventually(lambda: _is_waited_for(periods, folding_too), timeout=10.0)
            assert not folding_too.done(), "it waits until the click is counted"
        finally:
            go_on.set()
        await asyncio.gather(folding_too, *counting)
    [hour] = await periods.rows(HOUR)
    assert people_of(hour, "city") == {"city 0": 1, "city 1": 1, OTHER: 4}, "which was counted before that click"
    await periods.fold()
    [hour] = await periods.rows(HOUR)
    assert sum(people_of(hour, "city").values()) == hour["clicks"] == 6
    assert await periods.marks() == []


async def _is_waited_for(periods: PeriodsWorld, task: asyncio.Task[int]) -> bool:
    """Whether somebody waits for a lock, or need not."""
    return task.done() or bool(await periods.database.fetch(WAITING))
