"""The history that `stats` is measured on, written in bulk: the same rows and answers as of clicks that came in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stats_clicks import Maker, Plan
from benchmarks.stats_history import days, keep_house, prepare, sum_up, write_days
from refract.runtime.migrations import migrate
from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.sketches import Sketch
from refract.services.analytics.domain.tallies import Tally
from tests.support.clocks import START, ManualClock
from tests.support.databases import open_database
from tests.support.periods import FOLDING, ROLLUPS, open_periods, quarters_of

SKETCHES = ("visitors", "bot_visitors")
CODES = ("hot", "warm", "cool", "cold")
PLAN = Plan(CODES, 1_500, days(START, 70), START, visitors=60)
CLICKS = Statement("clicks", "All clicks.", "SELECT * FROM clicks ORDER BY event_id")
TOTALS = Statement("totals", "All totals.", "SELECT * FROM totals ORDER BY short_code")


def plain(row: Row) -> dict[str, Any]:
    """A row of a rollup without what two rows that say the same may differ in."""
    told = dict(row)
    for name in SKETCHES:
        told[name] = Sketch.decode(row[name]).exact
    told["quarter_visitors"] = quarters_of(row)
    for name in DIMENSIONS:
        tally = Tally.decode(row[f"by_{name}"])
        told[f"by_{name}"] = tally.people, tally.bots
    return told


def watermarks(row: Row) -> dict[str, Any]:
    """How far a span is."""
    return {name: row[name] for name in ("span", "until", "expired")}


TOLD: dict[Statement, Callable[[Row], dict[str, Any]]] = {
    TOTALS: dict,
    CLICKS: dict,
    ROLLUPS: plain,
    FOLDING: watermarks,
}


async def test_rows_are_those_of_clicks_that_came_one_by_one(fresh_database: str, tmp_path: Path) -> None:
    await migrate("analytics", fresh_database)
    await prepare(fresh_database)
    await write_days(fresh_database, PLAN, PLAN.days)
    await sum_up(fresh_database, PLAN)
    await keep_house(fresh_database, ManualClock(START))
    bulk = await open_database(fresh_database)
    async with open_periods(tmp_path / "real.db") as real:
        maker = Maker(PLAN)
        for hour in (hour for day in PLAN.days for hour in maker.day(day)):
            if clicks := [click for group in hour.by_code.values() for click in group]:
                await real.count(*clicks)
        await real.house().keep_house()
        for statement, told in TOLD.items():
            found, expected = [list(map(told, await one.fetch(statement))) for one in (bulk, real.database)]
            assert found == expected
    await bulk.close()
