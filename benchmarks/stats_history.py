"""Months of clicks in a database of analytics, written in bulk: rows as ingest and folding leave them behind.

Hours and days are put together by the code that counts clicks, from all clicks of the period at once, and copied.
Months are folded, and what is over its time is forgotten, by the product itself. A test sees that the answers are the
same as of clicks that came one by one (tests/services/test_stats_history.py).
"""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import uvloop

from benchmarks.links import EMAIL, OWNER, seed_links
from benchmarks.services import execute
from benchmarks.stats_clicks import LINE_COLUMNS, Maker, Plan
from benchmarks.warming import read_once
from refract.kernel.clock import Clock, SystemClock
from refract.runtime.distributed.database import PostgresDatabase
from refract.services.analytics.commands.expiring import Expiry
from refract.services.analytics.commands.folding import GRACE, Folding
from refract.services.analytics.commands.partitioning import Partitions
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, start_of
from refract.services.analytics.domain.quarters import quarters_of
from refract.services.analytics.domain.rollups import COLUMNS, Period, row_with
from refract.services.analytics.settings import AnalyticsSettings
from refract.services.analytics.store.expiry import make_partition
from refract.services.analytics.store.folding import QUARTERS

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

LINKS = 5_000
DAYS = 60
WORKERS = 2
LONG = 3_600.0
"""Seconds that a statement over everything may take."""

_ROLLUP_COLUMNS = (*Period._fields, *COLUMNS, QUARTERS)
_SETTINGS = AnalyticsSettings()


@dataclass(frozen=True)
class History:
    """What was made, and how long each part of it took."""

    codes: Sequence[str]
    clicks: int
    hottest: int
    seconds: dict[str, float]
    bytes_raw: int
    bytes_rolled_up: int
    rows: dict[str, int]


def days(now: datetime, count: int = DAYS) -> list[datetime]:
    """The days that have clicks, the last one being today as far as it has gone."""
    today = start_of(now, DAY)
    return [today - timedelta(days=back) for back in reversed(range(count))]


def make_history(dsn: str, clicks: int) -> History:
    """Fill a database that has its tables."""
    now = datetime.now(UTC)
    plan = Plan([link.short_code for link in seed_links(LINKS)], clicks, days(now), now)
    begun = time.monotonic()
    asyncio.run(prepare(dsn))
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(WORKERS) as pool:
        # From the latest day on, which is the shortest: the last to be written shall not be one alone.
        pool.map(_write_some, [(dsn, plan, plan.days[number::WORKERS]) for number in range(WORKERS)])
    seconds = {"written": time.monotonic() - begun}
    seconds |= uvloop.run(_finish(dsn, plan))
    return asyncio.run(_described(dsn, plan.codes, seconds))


async def prepare(dsn: str) -> None:
    """What is not written ahead is written once; nothing here has to outlive the power."""
    await execute(dsn, "ALTER TABLE rollups SET UNLOGGED")


def _write_some(work: tuple[str, Plan, Sequence[datetime]]) -> None:
    gc.disable()  # millions of objects without a ring among them
    dsn, plan, some = work
    uvloop.run(write_days(dsn, plan, some))


async def write_days(dsn: str, plan: Plan, some: Iterable[datetime]) -> None:
    """Write the clicks, hours and days of some days."""
    maker = Maker(plan)
    connection = await asyncpg.connect(dsn, command_timeout=LONG)
    try:
        await connection.execute("SET synchronous_commit = off")
        await connection.execute("SET maintenance_work_mem = '256MB'")
        for day in some:
            await _write_day(connection, plan, maker, day)
    finally:
        await connection.close()


async def _write_day(connection: "Connection", plan: Plan, maker: Maker, day: datetime) -> None:
    table = f"clicks_{day:%Y%m%d}"
    make, attach = make_partition(table, day.isoformat(), (day + timedelta(days=1)).isoformat())
    await connection.execute(make.sql)
    await connection.execute(f"ALTER TABLE {table} SET UNLOGGED")
    is_detailed = day >= hours_from(plan.now)
    whole_day: dict[str, list[Click]] = {}
    for hour in maker.day(day):
        await connection.copy_to_table(
            table, source=_Lines(hour.lines), columns=LINE_COLUMNS, format="text", encoding="utf-8"
        )
        rows = []
        for code, clicks in hour.by_code.items():
            rows.append(_row(code, HOUR, hour.start, clicks, is_detailed=is_detailed))
            whole_day.setdefault(code, []).extend(clicks)
        await connection.copy_records_to_table("rollups", columns=_ROLLUP_COLUMNS, records=rows)
    if day < days_until(plan.now):
        rows = [_row(code, DAY, day, clicks, is_detailed=is_detailed) for code, clicks in whole_day.items()]
        await connection.copy_records_to_table("rollups", columns=_ROLLUP_COLUMNS, records=rows)
    # An index of all at once, and before it is a partition: then nobody waits for it.
    await connection.execute(f"CREATE INDEX ON {table} (short_code, clicked_at, event_id)")
    await connection.execute(attach.sql)


class _Lines:
    """Lines as asyncpg takes what it copies: in pieces of some size."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    async def __aiter__(self) -> Any:
        for place in range(0, len(self._lines), 1_000):
            yield "".join(self._lines[place : place + 1_000]).encode()


def _row(code: str, span: int, start: datetime, clicks: Sequence[Click], *, is_detailed: bool) -> tuple[Any, ...]:
    """Hours that are over their time have only their counts; and then days have lost their quarters, too."""
    row = row_with(clicks, span, None, whole=is_detailed or span == DAY)
    quarters = quarters_of(clicks) if span == DAY and is_detailed else None
    return code, span, start, *(row[name] for name in COLUMNS), quarters


def hours_from(now: datetime) -> datetime:
    """The first day whose hours are kept with all they know."""
    return start_of(now - _SETTINGS.hours_kept, DAY)


def days_until(now: datetime) -> datetime:
    """The first day that is not folded yet."""
    return start_of(now - GRACE, DAY)


async def _finish(dsn: str, plan: Plan) -> dict[str, float]:
    begun = time.monotonic()
    await sum_up(dsn, plan)
    summed = time.monotonic()
    await keep_house(dsn, SystemClock())
    return {"summed up": summed - begun, "folded": time.monotonic() - summed}


async def sum_up(dsn: str, plan: Plan) -> None:
    """Totals, links and watermarks."""
    connection = await asyncpg.connect(dsn, command_timeout=LONG)
    try:
        await connection.execute("ANALYZE rollups")
        await connection.execute(
            """
            INSERT INTO totals (short_code, clicks, bot_clicks, first_clicked_at, last_clicked_at)
            SELECT short_code, sum(clicks), sum(bot_clicks),
                (SELECT min(clicked_at) FROM clicks WHERE clicks.short_code = rollups.short_code),
                (SELECT max(clicked_at) FROM clicks WHERE clicks.short_code = rollups.short_code)
            FROM rollups WHERE span = 1 GROUP BY short_code
            """
        )
        await connection.execute(
            "INSERT INTO links (short_code, user_id, user_email) SELECT short_code, $1, $2 FROM totals", OWNER, EMAIL
        )
        await connection.execute("UPDATE folding SET closed = $1, until = $1 WHERE span = 2", days_until(plan.now))
        await connection.execute("UPDATE folding SET expired = $1 WHERE span = 1", hours_from(plan.now))
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


async def keep_house(dsn: str, clock: Clock) -> None:
    """What the product does by itself, once a minute."""
    database = await PostgresDatabase.open(dsn, service="bench")
    try:
        await Folding(database, clock, clicks_kept=_SETTINGS.clicks_kept).fold()
        kept = {HOUR: _SETTINGS.hours_kept, DAY: _SETTINGS.days_kept, MONTH: _SETTINGS.months_kept}
        await Expiry(database, clock, kept).expire()
        await Partitions(database, clock, kept=_SETTINGS.clicks_kept).drop()
    finally:
        await database.close()


async def _described(dsn: str, codes: Sequence[str], seconds: dict[str, float]) -> History:
    connection = await asyncpg.connect(dsn, command_timeout=LONG)
    try:
        await connection.execute("VACUUM ANALYZE rollups")
        await read_once(connection, "rollups", "totals", "links", *await _detailed(connection))
        clicked = {row["short_code"] for row in await connection.fetch("SELECT short_code FROM totals")}
        clicks = await connection.fetchval("SELECT sum(clicks)::bigint FROM totals")
        hottest = await connection.fetchval("SELECT max(clicks) FROM totals")
        raw = await connection.fetchval(
            "SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits WHERE inhparent = 'clicks'::regclass"
        )
        rolled_up = await connection.fetchval("SELECT pg_total_relation_size('rollups')")
        spans = await connection.fetch("SELECT span::text, count(*) AS rows FROM rollups GROUP BY span ORDER BY span")
    finally:
        await connection.close()
    known = [code for code in codes if code in clicked]  # of few clicks, not every link has one
    return History(known, clicks, hottest, seconds, raw, rolled_up, {row["span"]: row["rows"] for row in spans})


async def _detailed(connection: "Connection") -> list[str]:
    """The tables with the clicks of days whose hours are kept: those that tell what lies between rows."""
    first = f"clicks_{hours_from(datetime.now(UTC)):%Y%m%d}"
    rows = await connection.fetch(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'clicks'::regclass"
    )
    return [row["relname"] for row in rows if row["relname"] >= first]
