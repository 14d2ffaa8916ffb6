"""Partitions: there before their day, gone after their time, and no click fails for want of one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.commands import partitioning
from refract.services.analytics.commands.partitioning import Partitions
from refract.services.analytics.queries.clicks import ClickQueries, ClicksRequest
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.store.expiry import PARTITIONS
from refract.services.analytics.store.periods import BE_BRIEF
from tests.support.clocks import START
from tests.support.databases import open_database
from tests.support.periods import DAYS, TODAY, PeriodsWorld, a_click, open_periods, periods
from tests.support.waiting import eventually

__all__ = ["periods"]

WAITING = Statement(
    "waiting",
    "Who waits for a lock.",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)
IN_DEFAULT = Statement("in_default", "Counts them.", "SELECT count(*) AS clicks FROM clicks_default")


@pytest.fixture
async def partitioned(fresh_database: str) -> AsyncIterator[PeriodsWorld]:
    async with open_periods(fresh_database) as world:
        yield world


async def names(world: PeriodsWorld) -> list[str]:
    return [row["name"] for row in await world.database.fetch(PARTITIONS)]


def name(day: datetime) -> str:
    return f"clicks_{day:%Y%m%d}"


async def in_default(world: PeriodsWorld) -> int:
    row = await world.database.fetch_one(IN_DEFAULT)
    assert row is not None
    count: int = row["clicks"]
    return count


async def test_partitions_are_there_a_week_ahead(partitioned: PeriodsWorld) -> None:
    await partitioned.house().prepare()
    week = [name(TODAY + number * DAYS) for number in range(8)]
    assert await names(partitioned) == [*week, "clicks_default"]
    partitioned.clock.advance(DAYS.total_seconds())
    assert await partitioned.house().partitions.make() == 1
    assert await names(partitioned) == [*week, name(TODAY + 8 * DAYS), "clicks_default"]
    await partitioned.count(
        a_click(START), a_click(TODAY + DAYS), a_click(TODAY + 2 * DAYS - timedelta(microseconds=1))
    )
    assert await in_default(partitioned) == 0
    assert len(await partitioned.raw()) == 3


async def test_a_file_has_no_partitions_to_make_or_drop(tmp_path: Path) -> None:
    async with open_periods(tmp_path / "analytics.db") as world:
        assert await world.house().partitions.make() == 0
        assert await world.house().partitions.drop() == 0
        assert await names(world) == []


async def test_a_click_of_a_day_without_a_partition_is_kept_and_counted(partitioned: PeriodsWorld) -> None:
    await partitioned.house().prepare()
    old = datetime(2025, 12, 31, 23, 59, 59, 999_999, UTC)
    await partitioned.count(a_click(old), a_click(datetime(1, 1, 1, tzinfo=UTC)), a_click(START))
    assert await in_default(partitioned) == 2
    assert len(await partitioned.raw()) == 3


async def test_clicks_that_came_before_their_partition_move_into_it(partitioned: PeriodsWorld) -> None:
    """PostgreSQL refuses a partition while the default one holds what belongs there."""
    early = [a_click(TODAY), a_click(START), a_click(TODAY + DAYS - timedelta(microseconds=1), "b")]
    others = [a_click(TODAY - timedelta(microseconds=1)), a_click(TODAY - 1000 * DAYS)]
    await partitioned.count(*early, *others)
    before = await partitioned.raw()
    assert await partitioned.house().partitions.make() == 8
    assert await partitioned.raw() == before, "none is lost and none is there twice"
    assert await in_default(partitioned) == len(others)
    await partitioned.count(a_click(START))
    assert await in_default(partitioned) == len(others), "and others of the day go there, too"


async def test_a_day_with_too_many_clicks_to_move_stays_in_the_default_partition(
    partitioned: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioning, "MOST_MOVED", 2)
    await partitioned.count(*(a_click(START) for _ in range(3)), *(a_click(START + DAYS) for _ in range(2)))
    assert await partitioned.house().partitions.make() == 7
    assert name(TODAY) not in await names(partitioned)
    await partitioned.count(a_click(START))
    assert await in_default(partitioned) == 4
    assert await partitioned.house().partitions.make() == 0
    assert len(await partitioned.raw()) == 6


async def test_a_click_that_is_counted_while_its_partition_is_made_is_not_lost(
    partitioned: PeriodsWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition is refused, whole, and made the next time."""
    house = partitioned.house()
    look = house.partitions._in_default

    async def look_too_soon(day: datetime) -> int:
        found = await look(day)
        if day == TODAY:
            await partitioned.count(a_click(START))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(house.partitions, "_in_default", look_too_soon)
        assert await house.partitions.make() == 0
    assert "partition not made; will retry" in caplog.messages
    assert await names(partitioned) == ["clicks_default"]
    assert await house.partitions.make() == 8
    assert (await in_default(partitioned), await partitioned.raw()) == (0, [START])


async def test_clicks_over_their_time_go(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "DELETE_BATCH", 1)
    monkeypatch.setattr(partitioning, "PAGE", 2)
    house = periods.house()
    await house.prepare()
    old = TODAY - 1000 * DAYS
    codes = ("a", "b", "c", "d", "e")
    await periods.count(
        *(a_click(old + number * timedelta(hours=12), code) for number in range(3) for code in codes),
        *(a_click(START, code) for code in codes),
    )
    periods.pass_to(old + timedelta(days=1826, hours=23))
    await house.partitions.drop()
    assert len(await periods.raw()) == 20, "days go as a whole"
    periods.pass_to(old + timedelta(days=1827))
    assert await house.partitions.drop() == 10
    assert await periods.raw() == [old + timedelta(days=1)] * 5 + [START] * 5
    totals = Statement("totals", "Reads totals.", "SELECT clicks FROM totals")
    assert [row["clicks"] for row in await periods.database.fetch(totals)] == [4] * 5


async def test_a_partition_goes_when_its_last_moment_is_over_its_time(partitioned: PeriodsWorld) -> None:
    house = partitioned.house()
    await house.prepare()
    await partitioned.count(a_click(START), a_click(START + DAYS))
    partitioned.pass_to(TODAY + DAYS + timedelta(days=1826) - timedelta(microseconds=1))
    await house.partitions.drop()
    assert name(TODAY) in await names(partitioned)
    partitioned.pass_to(TODAY + DAYS + timedelta(days=1826))
    assert await house.partitions.drop() == 1
    assert name(TODAY) not in await names(partitioned)
    assert await partitioned.raw() == [START + DAYS]


async def test_retention_is_the_operators_choice(periods: PeriodsWorld) -> None:
    periods.kept["clicks_kept"] = timedelta(days=7)
    await periods.house().prepare()
    await periods.count(a_click(START), a_click(TODAY - DAYS))
    periods.clock.advance(timedelta(days=8).total_seconds())
    await periods.house().keep_house()
    assert await periods.raw() == []
    assert sum(row["clicks"] for row in await periods.rows(2)) == 2


async def test_somebody_who_reads_at_length_is_not_waited_for(
    partitioned: PeriodsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    house = partitioned.house()
    await house.prepare()
    partitioned.pass_to(TODAY + timedelta(days=1830))
    reader = await open_database(partitioned.location)
    async with reader.transaction() as tx:
        await tx.fetch(Statement("read_all", "Reads all clicks.", "SELECT * FROM clicks"))
        assert await house.partitions.drop() == 0
        await house.partitions.make()
    await reader.close()
    assert "partition not dropped; will retry" in caplog.messages
    assert "partition not made; will retry" in caplog.messages
    assert await house.partitions.make() == 8
    assert await house.partitions.drop() == 4


async def test_whoever_wants_a_lock_of_the_schema_gives_up_soon(partitioned: PeriodsWorld) -> None:
    """All others wait behind it; and only in its own transaction, because the connection serves others next."""
    patience = Statement("patience", "How long one waits.", "SELECT current_setting('lock_timeout') AS patience")
    seen = []
    for brief in (True, False):
        async with partitioned.database.transaction() as tx:
            if brief:
                await tx.execute(BE_BRIEF)
            seen += [row["patience"] for row in await tx.fetch(patience)]
    assert seen == ["1s", "5s"]


async def test_what_others_attach_is_left_alone(partitioned: PeriodsWorld) -> None:
    async with partitioned.database.transaction() as tx:
        for number, other in enumerate(("clicks_archive", "clicks_20011399")):
            begin = f"{2001 + number}-01-01T00:00Z"
            end = f"{2001 + number}-02-01T00:00Z"
            sql = f"CREATE TABLE {other} PARTITION OF clicks FOR VALUES FROM ('{begin}') TO ('{end}')"
            await tx.execute(Statement("archive", "An operator's own.", sql))
    house = partitioned.house()
    await house.prepare()
    await house.partitions.drop()
    assert {"clicks_archive", "clicks_20011399"} <= set(await names(partitioned))


class Hesitant:
    """A database whose transactions wait before they commit, once one of them has attached a partition."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.attached, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield tx
            self.attached.set()
            await self.go_on.wait()


async def test_whoever_reads_or_counts_while_clicks_move_misses_none(partitioned: PeriodsWorld) -> None:
    """Whoever had looked up the partitions, and then waited for the default one, would look for them there in vain."""
    early = [a_click(START, country="DE"), a_click(START + timedelta(minutes=1), country="DE")]
    await partitioned.count(*early)
    hesitant = Hesitant(partitioned.database)
    making = asyncio.create_task(Partitions(hesitant, partitioned.clock, kept=1826 * DAYS).make())
    await hesitant.attached.wait()
    readers = [await open_database(partitioned.location) for _ in range(3)]
    reader = Reader(readers[0])
    edge = RangeRequest.read(START, start="2026-03-01T12:00:00Z", end="2026-03-01T12:00:30Z")

    async def export() -> list[str]:
        queries = ClickQueries(readers[1], Reader(readers[1]))
        pages = await queries.export("owner", "abc", ClicksRequest())
        return [row["event_id"] async for rows in pages for row in rows]

    async def breakdown() -> int:
        return (await OwnerQueries(reader).breakdown("owner", "abc", edge, "country", limit=5, bots=False)).clicks

    another = PeriodsWorld(partitioned.location, readers[2], partitioned.clock, partitioned.kept)
    reading = [asyncio.create_task(export()), asyncio.create_task(breakdown())]
    counting = asyncio.create_task(another.count(a_click(START + timedelta(hours=1))))
    try:
        await eventually(lambda: _waiting(partitioned, 3), timeout=10.0)
    finally:
        hesitant.go_on.set()
    assert [await one for one in reading] == [[click.event_id for click in early], 1]
    await counting
    assert await making == 8
    assert (len(await partitioned.raw()), await in_default(partitioned)) == (3, 0)
    for database in readers:
        await database.close()


async def _waiting(world: PeriodsWorld, most: int) -> bool:
    """Whether so many wait for a lock."""
    return len(await world.database.fetch(WAITING)) >= most
