"""The public answers of analytics (M4 §11.5), who may read them, and what is said to whoever may not."""

from datetime import datetime, timedelta

import pytest

from refract.runtime.statements import Statement
from refract.services.analytics.queries.links import KnownLink
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.statements import FIND_LINK
from tests.support.clocks import START
from tests.support.http import Client
from tests.support.periods import STALE
from tests.support.stats import STRANGER, StatsWorld, closed_stats, stats

__all__ = ["closed_stats", "stats"]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
NOTHING = {
    "short_code": "abc",
    "total_clicks": 0,
    "clicks_last_24h": 0,
    "clicks_last_7d": 0,
    "top_referers": [],
    "bot_clicks": 0,
}


# M4 §11.5: TestStats_*


async def test_stats(stats: StatsWorld) -> None:
    await stats.click(*[START - HOUR] * 5, *[START - 3 * DAY] * 15, *[START - 20 * DAY] * 22)
    assert await stats.read("abc", user=None) == {
        "short_code": "abc",
        "total_clicks": 42,
        "clicks_last_24h": 5,
        "clicks_last_7d": 20,
        "top_referers": [],
        "bot_clicks": 0,
    }


async def test_stats_with_referers_the_most_frequent_first(stats: StatsWorld) -> None:
    for number, referer in enumerate(["b", "a", "c"], start=2):
        await stats.click(*[START] * number, referer=f"https://{referer}.example/")
    await stats.click(START, START)
    assert (await stats.read("abc"))["top_referers"] == [
        {"referer": "https://c.example/", "count": 4},
        {"referer": "https://a.example/", "count": 3},
        {"referer": "https://b.example/", "count": 2},
    ]


async def test_five_referers_at_most_of_the_whole_life_of_bots_too(stats: StatsWorld) -> None:
    for number in range(1, 7):
        await stats.click(START - number * 40 * DAY, referer=f"https://{number}.example/")
        await stats.click(*[START] * number, referer=f"https://{number}.example/", bot=True)
    await stats.fold()
    shown = (await stats.read("abc"))["top_referers"]
    assert [(one["referer"], one["count"]) for one in shown] == [
        (f"https://{number}.example/", number + 1) for number in (6, 5, 4, 3, 2)
    ]


async def test_no_week_has_more_clicks_than_a_life(stats: StatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clicks come in while an answer is made."""
    await stats.click(START - 3 * DAY)
    find = Reader.find

    async def find_in_time(self: Reader, short_code: str) -> KnownLink:
        found = await find(self, short_code)
        await stats.click(START - 3 * DAY, START - 2 * DAY, bot=True)
        return found

    monkeypatch.setattr(Reader, "find", find_in_time)
    shown = await stats.read("abc")
    assert shown["clicks_last_7d"] > 1
    assert (shown["total_clicks"], shown["bot_clicks"]) == (shown["clicks_last_7d"], shown["clicks_last_7d"] - 1)


async def test_a_link_with_many_marks_is_read_as_fast_as_one_with_few(stats: StatsWorld) -> None:
    await stats.click(START - DAY)
    await stats.fold()
    for _ in range(5):
        await stats.click(START - DAY)
    assert len(await stats.database.fetch(STALE)) == 5 * 2
    assert len(await stats.database.fetch(FIND_LINK, short_code="abc")) == 4 + 2
    assert (await stats.read("abc"))["clicks_last_7d"] == 6


async def test_zero_clicks_are_zeros_and_never_null(stats: StatsWorld) -> None:
    assert await stats.read("abc", user=None) == NOTHING
    await stats.create()
    assert await stats.read("abc", user=None) == NOTHING
    assert await stats.read("abc") == NOTHING


async def test_a_database_that_fails_is_an_error_without_details(stats: StatsWorld) -> None:
    async with stats.database.transaction() as tx:
        await tx.execute(Statement("break", "Takes a table away.", "ALTER TABLE totals RENAME TO gone"))
    answer = await stats.get("abc", user=None)
    assert (answer.status, answer.json) == (500, {"error": "internal server error"})


async def test_every_click_counts_and_bots_are_shown(stats: StatsWorld) -> None:
    await stats.click(START, START, START - 2 * DAY, bot=True)
    await stats.click(START)
    shown = await stats.read("abc")
    assert (shown["total_clicks"], shown["bot_clicks"]) == (4, 3)
    assert (shown["clicks_last_24h"], shown["clicks_last_7d"]) == (3, 4)


@pytest.mark.parametrize("folded", [False, True], ids=["unfolded", "folded"])
async def test_the_last_day_and_week_are_exact_to_the_microsecond(stats: StatsWorld, folded: bool) -> None:
    stats.periods.clock.advance(1234.567891)
    now = stats.now
    for days in (1, 7):
        await stats.click(now - days * DAY - MICROSECOND, now - days * DAY, now - days * DAY + MICROSECOND)
    await stats.click(now + timedelta(seconds=59))  # the clock of a redirect may be ahead of ours
    if folded:
        await stats.fold()
    shown = await stats.read("abc")
    assert (shown["total_clicks"], shown["clicks_last_24h"], shown["clicks_last_7d"]) == (7, 3, 6)


# TestTimeline_*


async def test_a_timeline_of_days(stats: StatsWorld) -> None:
    await stats.click(*[datetime.fromisoformat("2026-02-27T23:59:59.999999Z")] * 3)
    await stats.click(*[datetime.fromisoformat("2026-02-28T00:00:00Z")] * 2, bot=True)
    await stats.click(datetime.fromisoformat("2025-11-30T10:00:00Z"))
    expected = [("2025-11-30", 1, 0), ("2026-02-27", 3, 0), ("2026-02-28", 2, 2)]
    for _ in range(2):
        shown = await stats.read("abc/timeline", user=None, interval="day")
        assert shown == {
            "short_code": "abc",
            "interval": "day",
            "points": [{"period": period, "clicks": clicks, "bot_clicks": bots} for period, clicks, bots in expected],
        }
        await stats.fold()  # and the same from the rows of months


async def test_a_timeline_of_hours(stats: StatsWorld) -> None:
    await stats.click(*[datetime.fromisoformat("2026-02-27T14:10:00Z")] * 2)
    await stats.click(datetime.fromisoformat("2026-02-27T15:00:00Z"), bot=True)
    for _ in range(2):
        shown = await stats.read("abc/timeline", user=None, interval="hour")
        assert shown["interval"] == "hour"
        assert shown["points"] == [
            {"period": "2026-02-27T14:00:00Z", "clicks": 2, "bot_clicks": 0},
            {"period": "2026-02-27T15:00:00Z", "clicks": 1, "bot_clicks": 1},
        ]
        await stats.fold()


@pytest.mark.parametrize("interval", ["week", "month", "Day", "minute", "day;", "'day'", "hour "])
async def test_any_other_interval_is_refused(stats: StatsWorld, interval: str) -> None:
    answer = await stats.get("abc/timeline", user=None, interval=interval)
    assert (answer.status, answer.json) == (400, {"error": "interval must be 'day' or 'hour'"})


async def test_the_interval_is_a_day_by_default(stats: StatsWorld) -> None:
    await stats.click(START)
    for query in ({}, {"interval": ""}):
        shown = await stats.read("abc/timeline", user=None, **query)
        assert (shown["interval"], shown["points"][0]["period"]) == ("day", "2026-03-01")


async def test_no_points_are_a_list(stats: StatsWorld) -> None:
    assert (await stats.read("abc/timeline"))["points"] == []


async def test_the_timeline_reaches_back_over_years_whatever_is_kept(stats: StatsWorld) -> None:
    years = [START - years * 366 * DAY for years in range(9)]
    await stats.click(*years)
    for _ in range(3):
        await stats.fold()
    shown = await stats.read("abc/timeline")
    assert [point["period"] for point in shown["points"]] == sorted(f"{moment:%Y-%m-%d}" for moment in years)
    hours = await stats.read("abc/timeline", interval="hour")
    assert [point["period"] for point in hours["points"]] == sorted(f"{moment:%Y-%m-%dT12:00:00Z}" for moment in years)
    assert (await stats.read("abc"))["total_clicks"] == 9


async def test_health(stats: StatsWorld) -> None:
    async with await Client.connect(stats.server.port) as client:
        answer = await client.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok", "service": "analytics-service"})


# Who may read (decision 12).


async def test_head_is_answered_as_get_is_without_a_body(stats: StatsWorld) -> None:
    await stats.click(START)
    for path in ("abc", "abc/timeline"):
        answer = await stats.get(path, method="HEAD", user=None)
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", ["abc", "abc/timeline"])
async def test_a_closed_link_is_its_owners(stats: StatsWorld, path: str) -> None:
    await stats.create(stats_public=False)
    await stats.click(START)
    assert (await stats.get(path)).status == 200
    stranger, nobody = await stats.get(path, user=STRANGER), await stats.get(path, user=None)
    assert (stranger.status, stranger.json) == (403, {"error": "forbidden"})
    assert (nobody.status, nobody.json) == (401, {"error": "unauthorized"})
    await stats.update(stats_public=True)
    assert (await stats.get(path, user=None)).status == 200


@pytest.mark.parametrize("path", ["abc", "abc/timeline"])
async def test_a_closed_instance_shows_links_to_their_owners_only(closed_stats: StatsWorld, path: str) -> None:
    await closed_stats.create(stats_public=True)
    await closed_stats.click(START)
    assert (await closed_stats.get(path)).status == 200
    assert (await closed_stats.get(path, user=STRANGER)).status == 403
    assert (await closed_stats.get(path, user=None)).status == 401
    unknown = path.replace("abc", "unheard-of")
    assert (await closed_stats.get(unknown)).status == 404
    assert (await closed_stats.get(unknown, user=None)).status == 401


@pytest.mark.parametrize("path", ["abc", "abc/timeline"])
@pytest.mark.parametrize("public", [True, False])
async def test_after_a_deletion_only_the_owner_reads_on(stats: StatsWorld, path: str, public: bool) -> None:
    await stats.create(stats_public=public)
    await stats.click(START)
    before = await stats.read(path)
    await stats.delete()
    assert await stats.read(path) == before
    for user in (None, STRANGER):
        answer = await stats.get(path, user=user)
        assert (answer.status, answer.json) == (410, {"error": "this link is no longer active"})
    await stats.click(START)  # one that was still on its way
    assert (await stats.get(path, user=None)).status == 410


async def test_a_link_that_is_known_by_its_clicks_alone_is_public(stats: StatsWorld) -> None:
    await stats.click(START)
    assert (await stats.read("abc", user=None))["total_clicks"] == 1
    assert (await stats.read("abc", user=STRANGER))["total_clicks"] == 1


async def test_a_token_that_is_sent_has_to_be_a_good_one(stats: StatsWorld) -> None:
    await stats.click(START)
    async with await Client.connect(stats.server.port) as client:
        for header in ("Bearer nonsense", "Basic YTpi", "bearer x", "Bearer "):
            answer = await client.get("/stats/abc", f"Authorization: {header}")
            assert (answer.status, answer.json) == (401, {"error": "unauthorized"}), header


async def test_links_of_the_same_beginning_are_told_apart(stats: StatsWorld) -> None:
    await stats.click(START, code="abc")
    await stats.click(START, START, code="abcd")
    await stats.click(START, START, START, code="ABC")
    assert [(await stats.read(code))["total_clicks"] for code in ("abc", "abcd", "ABC", "ab")] == [1, 2, 3, 0]


@pytest.mark.parametrize("code", ["%00", "a%00b", "%F0%9F%98%80", "x" * 3_000, "a%27%20OR%201=1--", "%252F"])
async def test_odd_codes_have_no_clicks_or_are_refused(stats: StatsWorld, code: str) -> None:
    await stats.click(START)
    answer = await stats.get(code, user=None)
    assert answer.status in {200, 400}
    if answer.status == 200:
        assert answer.json["total_clicks"] == 0
