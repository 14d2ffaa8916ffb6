"""Ranges that reach back beyond what is kept: what is said to be counted is what was counted."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.services.analytics.commands.partitioning import Partitions
from tests.support.clocks import START
from tests.support.periods import DAYS, TODAY, PeriodsWorld, periods
from tests.support.stats import StatsWorld, stats

__all__ = ["periods", "stats"]

MINUTES = timedelta(minutes=1)
HOURS = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def keep_house(stats: StatsWorld) -> None:
    """Until nothing is left to do."""
    for _ in range(4):
        await stats.fold()


def counted(shown: Any) -> tuple[str, str, int]:
    """What an answer says that it has counted, and how much that is."""
    return shown["from"], shown["to"], shown["clicks"] if "clicks" in shown else shown["visitors"]


# Clicks are gone, and hours know everything yet.


@pytest.fixture
async def forgetful(stats: StatsWorld) -> StatsWorld:
    """Clicks are kept for a week, hours for a month; all that is over is gone."""
    stats.periods.kept["clicks_kept"] = 7 * DAYS
    await stats.click(at("2026-02-10T18:20:00Z"), visitor=1, country="FR")
    await stats.click(at("2026-02-10T18:40:20Z"), at("2026-02-10T20:40:00Z"), visitor=2, country="DE")
    await stats.click(START, visitor=3)
    await keep_house(stats)
    assert await stats.periods.raw() == [START]
    return stats


@pytest.mark.parametrize(
    ("start", "end", "clicks", "told"),
    [
        ("2026-02-10T18:10:00Z", "2026-02-10T20:50:00Z", 3, ("2026-02-10T18:00:00Z", "2026-02-10T21:00:00Z")),
        ("2026-02-10T18:35:00Z", "2026-02-10T20:20:00Z", 0, ("2026-02-10T19:00:00Z", "2026-02-10T20:00:00Z")),
        ("2026-02-10T18:25:00Z", "2026-02-10T18:26:00Z", 2, ("2026-02-10T18:00:00Z", "2026-02-10T19:00:00Z")),
        ("2026-02-10T18:50:00Z", "2026-02-10T19:10:00Z", 2, ("2026-02-10T18:00:00Z", "2026-02-10T20:00:00Z")),
        ("2026-02-10T18:20:00Z", "2026-02-28T11:11:11Z", 3, ("2026-02-10T18:00:00Z", "2026-02-28T11:11:11Z")),
    ],
)
async def test_edges_whose_clicks_are_gone_move_to_the_nearest_hour(
    forgetful: StatsWorld, start: str, end: str, clicks: int, told: tuple[str, str]
) -> None:
    shown = await forgetful.read("abc/breakdown", by="country", from_=start, to=end)
    assert counted(shown) == (*told, clicks)
    seen = await forgetful.read("abc/visitors", interval="month", from_=start, to=end)
    assert counted(seen) == (*told, {3: 2, 2: 2, 0: 0}[clicks])


async def test_days_of_a_zone_at_half_an_hour_whose_clicks_are_gone(forgetful: StatsWorld) -> None:
    asked = {"tz": "Asia/Kolkata", "from_": "2026-02-11", "to": "2026-02-11"}
    told = ("2026-02-10T18:00:00Z", "2026-02-11T18:00:00Z")
    assert counted(await forgetful.read("abc/breakdown", by="country", **asked)) == (*told, 3)
    assert counted(await forgetful.read("abc/visitors", **asked)) == (*told, 2)
    # Counts are known by the minute for ever.
    assert counted(await forgetful.read("abc/series", **asked)) == ("2026-02-10T18:30:00Z", "2026-02-11T18:30:00Z", 2)


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ("18:40:20.5Z", "20:40:31Z", ("18:40:00Z", "20:41:00Z", 2)),
        ("18:40:30Z", "20:40:29Z", ("18:40:00Z", "20:40:00Z", 1)),
        ("18:40:20Z", "18:40:21Z", ("18:40:00Z", "18:41:00Z", 1)),
        ("18:20:00Z", "18:41:00Z", ("18:20:00Z", "18:41:00Z", 2)),
    ],
)
async def test_a_series_whose_clicks_are_gone_is_of_whole_minutes(
    forgetful: StatsWorld, start: str, end: str, told: tuple[str, str, int]
) -> None:
    day = "2026-02-10T"
    shown = await forgetful.read("abc/series", from_=day + start, to=day + end, interval="hour")
    assert counted(shown) == (day + told[0], day + told[1], told[2])
    assert sum(point["clicks"] for point in shown["points"]) == told[2]


async def test_the_last_days_are_counted_also_where_their_clicks_are_gone(stats: StatsWorld) -> None:
    """By whole minutes: of the first of them it is not known what came before the moment and what after."""
    stats.periods.kept["clicks_kept"] = timedelta(days=1)
    week_ago = START - 7 * DAYS + 20 * MINUTES
    await stats.click(week_ago - MINUTES, week_ago, week_ago + MINUTES, START - 2 * DAYS)
    stats.periods.pass_to(START + 20 * MINUTES + timedelta(seconds=20))
    for _ in range(2):
        assert (await stats.read("abc"))["clicks_last_7d"] == (await stats.read("summary"))["clicks_last_7d"]
        await keep_house(stats)
    assert await stats.periods.raw() == []
    assert (await stats.read("abc"))["clicks_last_7d"] == 3
    assert (await stats.read("summary"))["clicks_last_7d"] == 3


async def test_clicks_that_went_do_not_come_back_with_a_longer_retention(forgetful: StatsWorld) -> None:
    forgetful.periods.kept["clicks_kept"] = 100 * DAYS
    await keep_house(forgetful)
    shown = await forgetful.read("abc/breakdown", by="country", from_="2026-02-10T18:35:00Z", to="2026-02-11")
    assert counted(shown) == ("2026-02-10T19:00:00Z", "2026-02-12T00:00:00Z", 1)


async def test_nobody_expects_clicks_that_are_about_to_go(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before the first of them goes; whoever then dies has taken none too many."""
    periods.kept["clicks_kept"] = 7 * DAYS

    async def killed(_self: Partitions, _before: datetime) -> int:
        raise Unavailable("database", "nobody answers")

    monkeypatch.setattr(Partitions, "_delete", killed)
    with pytest.raises(Unavailable):
        await periods.house().partitions.drop()
    assert (await periods.folding())[0]["expired"] == TODAY - 7 * DAYS


# Months are over their time, and know nothing but counts.


@pytest.fixture
async def aged(stats: StatsWorld) -> StatsWorld:
    """Months are kept for little more than a year."""
    stats.periods.kept["months_kept"] = timedelta(days=400)
    await stats.click(at("2022-05-20T10:20:00Z"), visitor=1, country="DE", referer="https://a.example/")
    await stats.click(at("2025-01-20T10:20:00Z"), visitor=2, country="FR", referer="https://b.example/")
    await stats.click(at("2026-02-27T10:00:00Z"), visitor=3, country="FR", referer="https://b.example/")
    await keep_house(stats)
    return stats


async def test_where_months_are_gone_an_answer_begins_with_the_first_that_is_kept(aged: StatsWorld) -> None:
    asked = {"from_": "2022-01-01", "to": "2026-03-01"}
    told = ("2025-01-01T00:00:00Z", "2026-03-02T00:00:00Z")
    shown = await aged.read("abc/breakdown", by="country", **asked)
    assert (counted(shown), shown["values"], shown["unknown"]) == ((*told, 2), [{"value": "FR", "clicks": 2}], 0)
    seen = await aged.read("abc/visitors", interval="month", **asked)
    assert counted(seen) == (*told, 2)
    assert [point["period"] for point in seen["points"]][:2] == ["2025-01-01", "2025-02-01"]
    assert [point["visitors"] for point in seen["points"]] == [1, *[0] * 12, 1, 0]
    assert (await aged.read("abc/series", interval="month", **asked))["clicks"] == 3


async def test_of_a_range_of_which_nothing_is_kept_nothing_is_counted(aged: StatsWorld) -> None:
    asked = {"from_": "2022-05-01", "to": "2022-06-30"}
    shown = await aged.read("abc/breakdown", by="country", **asked)
    assert (counted(shown), shown["values"], shown["unknown"]) == (("2022-07-01T00:00:00Z",) * 2 + (0,), [], 0)
    for interval in ("day", "month"):
        seen = await aged.read("abc/visitors", interval=interval, **asked)
        assert (counted(seen), seen["points"]) == (("2022-07-01T00:00:00Z",) * 2 + (0,), [])
    assert (await aged.read("abc/series", **asked))["clicks"] == 1


async def test_the_referers_of_a_life_are_those_of_the_months_that_are_kept(aged: StatsWorld) -> None:
    shown = await aged.read("abc")
    assert (shown["total_clicks"], shown["top_referers"]) == (3, [{"referer": "https://b.example/", "count": 2}])
    await aged.click(at("2022-05-20T10:20:00Z"), code="old", referer="https://a.example/")
    assert (await aged.read("old"))["top_referers"] == []
