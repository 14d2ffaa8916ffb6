"""Where a click came from: the same number on both engines, in every partition, and after an upgrade."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import refract.services.analytics
from refract.runtime import migrations
from refract.runtime.migrations import migrate
from refract.services.analytics.queries.clicks import ClickQueries, ClicksRequest
from refract.services.analytics.queries.reading import Reader
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, open_database
from tests.support.periods import DAYS, KEPT, PeriodsWorld, a_click, periods
from tests.support.stats import StatsWorld, stats

__all__ = ["periods", "stats"]

BERLIN = (52.5196, 13.4069)


async def test_coordinates_are_shown_as_they_were_found(stats: StatsWorld) -> None:
    """In the partition of today, which is made when somebody keeps house, and in that of all other days."""
    await stats.periods.house().prepare()
    for moment in (START, START - 100 * DAYS):
        await stats.click(moment, latitude=BERLIN[0], longitude=BERLIN[1])
    await stats.click(START + timedelta(seconds=1), latitude=-33.856159, longitude=151.215256)
    shown = (await stats.read("abc/clicks"))["clicks"]
    assert [(click["latitude"], click["longitude"]) for click in shown] == [(-33.856159, 151.215256), BERLIN, BERLIN]
    assert b",52.5196,13.4069," in (await stats.get("abc/export")).body


async def test_coordinates_of_before_are_read_as_they_were_found(
    fresh_database: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were kept with half of the digits, which are all that anybody had found."""
    folder = Path(refract.services.analytics.__path__[0]) / "migrations"
    some = shutil.copytree(folder, tmp_path / "migrations", ignore=shutil.ignore_patterns("0005*", "__pycache__"))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_folder", lambda _: some)
        await migrate("analytics", fresh_database)
    database = await open_database(fresh_database)
    world = PeriodsWorld(fresh_database, database, ManualClock(START), dict(KEPT))
    await world.house().prepare()
    clicks = [a_click(moment, latitude=BERLIN[0], longitude=BERLIN[1]) for moment in (START - 100 * DAYS, START)]
    await world.count(*clicks, a_click(START + DAYS))
    await migrate("analytics", fresh_database)
    queries = ClickQueries(database, Reader(database))
    rows = [row async for page in await queries.export("owner", "abc", ClicksRequest()) for row in page]
    assert [(row["latitude"], row["longitude"]) for row in rows] == [BERLIN, BERLIN, (None, None)]
    await database.close()
