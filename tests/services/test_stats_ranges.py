"""What the owner of a link reads over any range: series, breakdowns, visitors; whose they are, and bad parameters."""

from datetime import UTC, datetime, timedelta
from typing import Any

from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.queries.clicks import Place
from refract.services.analytics.queries.ranges import RangeRequest
from tests.support.clocks import START
from tests.support.http import Client
from tests.support.stats import OWNER, STRANGER, StatsWorld, stats

__all__ = ["stats"]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
OWNERS = ("series", "breakdown?by=country", "visitors", "clicks", "export", "live")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def points(shown: Any) -> list[tuple[str, int]]:
    return [(point["period"], point["clicks"]) for point in shown["points"]]


# Whose they are.


async def test_only_the_owner_reads_them(stats: StatsWorld) -> None:
    await stats.create()
    for path in OWNERS:
        for user, status, message in ((None, 401, "unauthorized"), (STRANGER, 403, "forbidden")):
            answer = await stats.get(f"abc/{path}", user=user)
            assert (answer.status, answer.json) == (status, {"error": message}), path
        answer = await stats.get(f"unheard-of/{path}")
        assert (answer.status, answer.json) == (404, {"error": "not found"}), path
    assert (await stats.get("summary", user=None)).status == 401


async def test_of_a_deleted_link_too_and_of_one_whose_owner_left_nobody(stats: StatsWorld) -> None:
    await stats.click(START)
    await stats.delete()
    assert (await stats.read("abc/series"))["clicks"] == 1
    await stats.create("left", user="")
    await stats.click(START, code="left")
    for user in (OWNER, STRANGER):
        assert (await stats.get("left/series", user=user)).status == 403
    assert (await stats.read("left", user=None))["total_clicks"] == 1


async def test_a_token_comes_before_everything_else(stats: StatsWorld) -> None:
    for query in ("series?interval=nonsense", "breakdown", "clicks?limit=0", "export?format=xml"):
        assert (await stats.get(f"abc/{query}", user=None)).status == 401


# Bad parameters.

MOMENT = "must be a date such as 2026-03-01, or a moment such as 2026-03-01T12:00:00Z"
BAD_MOMENTS = (
    "yesterday",
    "2026-02-31",
    "2026-13-01",
    "20260301",
    "2026-3-1",
    "2026-03-01T12:00:00",
    "2026-03-01T25:00:00Z",
    "2026-03-01T12:00Z",
    "1999-12-31",
    "2100-01-01",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "2026-03-01T12:00:00Z\0",
    "\u0662\u0660\u0662\u0666-03-01",
    "1e9",
    "-1",
)


async def test_bad_parameters_are_named(stats: StatsWorld) -> None:
    await stats.create()
    intervals = "interval must be one of hour, day, week, month"
    zones = "tz must be the name of a time zone, such as Europe/Berlin"
    limits = "limit must be a positive integer"
    cases: list[tuple[str, dict[str, str], str]] = [
        *(("series", {"interval": bad}, intervals) for bad in ("minute", "Day", "day ", "year")),
        *(("visitors", {"interval": bad}, intervals) for bad in ("minute", "%")),
        *((path, {"tz": bad}, zones) for path in OWNERS[:1] for bad in ("Mars/Olympus", "../../etc/passwd", "Europe")),
        *(("clicks", {"tz": bad}, zones) for bad in ("x" * 900, "a\0b", "+01:00")),
        *(
            ("series", {name: bad}, f"{word} {MOMENT}")
            for name, word in (("from_", "from"), ("to", "to"))
            for bad in BAD_MOMENTS
        ),
        *(("export", {"from_": bad}, f"from {MOMENT}") for bad in BAD_MOMENTS[:3]),
        *(
            (path, {"bots": bad}, "bots must be true or false")
            for path in ("series", "clicks")
            for bad in ("1", "True", "no")
        ),
        *(("clicks", {"limit": bad}, limits) for bad in ("0", "-1", "1.5", "ten", "٣", "00", "1e3")),
        ("breakdown", {"by": "country", "limit": "0"}, limits),
        *(
            ("breakdown", {"by": bad}, f"by must be one of {', '.join(DIMENSIONS)}")
            for bad in ("", "user_id", "visitor", "1")
        ),
        *(("clicks", {"after": bad}, "after is not a cursor") for bad in ("x", "MTc3", "====", "é", "a" * 700)),
        ("clicks", {"after": Place(datetime.max.replace(tzinfo=UTC)).write()}, "after is not a cursor"),
        *(("export", {"format": bad}, "format must be one of csv, jsonl") for bad in ("xml", "CSV", "json")),
        ("series", {"from_": "2026-03-02", "to": "2026-03-01"}, "from must be before to"),
        ("series", {"from_": "2026-03-02"}, "from must be before to"),
        ("clicks", {"from_": "2026-03-02", "to": "2026-03-01"}, "from must be before to"),
        *(
            (
                path,
                {"from_": "2020-01-01", "interval": interval},
                "more than 1000 points: choose a shorter range or a longer interval",
            )
            for path, interval in (("series", "hour"), ("series", "day"), ("visitors", "hour"))
        ),
    ]
    for path, query, message in cases:
        answer = await stats.get(f"abc/{path}", **query)
        assert (answer.status, answer.json) == (400, {"error": message}), (path, query)


# Series.


async def test_a_series_is_filled_with_zeros(stats: StatsWorld) -> None:
    await stats.click(START - DAY, START - DAY, START - 3 * DAY)
    await stats.click(START - DAY, bot=True)
    for _ in range(2):
        shown = await stats.read("abc/series", from_="2026-02-25", to="2026-03-01")
        assert points(shown) == [
            ("2026-02-25", 0),
            ("2026-02-26", 1),
            ("2026-02-27", 0),
            ("2026-02-28", 2),
            ("2026-03-01", 0),
        ]
        assert (shown["clicks"], shown["bot_clicks"], shown["tz"], shown["interval"]) == (3, 1, "UTC", "day")
        assert (shown["from"], shown["to"]) == ("2026-02-25T00:00:00Z", "2026-03-02T00:00:00Z")
        with_bots = await stats.read("abc/series", from_="2026-02-25", to="2026-03-01", bots="true")
        assert (with_bots["clicks"], with_bots["points"][3]) == (
            4,
            {"period": "2026-02-28", "clicks": 3, "bot_clicks": 1},
        )
        await stats.fold()


async def test_days_of_a_zone_through_a_change_of_its_clocks(stats: StatsWorld) -> None:
    """Clocks in Berlin went from 02:00 to 03:00 on 30 March 2025, and from 03:00 to 02:00 on 26 October."""
    changes = (
        ("2025-03-29T23:00Z", "2025-03-30T21:59:59Z", "2025-03-30"),
        ("2025-10-25T22:00Z", "2025-10-26T22:59:59Z", "2025-10-26"),
    )
    for first, last, _ in changes:
        await stats.click(at(first), at(last), at(first) - timedelta(seconds=1), at(last) + timedelta(seconds=1))
    for _ in range(2):
        for first, last, day in changes:
            around: dict[str, Any] = {
                "from_": (at(first) - DAY).date(),
                "to": (at(last) + DAY).date(),
                "tz": "Europe/Berlin",
            }
            shown = dict(points(await stats.read("abc/series", **around)))
            assert shown[day] == 2
            assert sum(shown.values()) == 4
            hours = points(await stats.read("abc/series", from_=day, to=day, tz="Europe/Berlin", interval="hour"))
            assert len(hours) == (23 if "03-30" in day else 25)
            assert sum(clicks for _, clicks in hours) == 2
        await stats.fold()


async def test_hours_of_zones_with_odd_offsets(stats: StatsWorld) -> None:
    await stats.click(at("2026-02-10T05:14:59.999999Z"), at("2026-02-10T05:15:00Z"), at("2026-02-10T06:14:00Z"))
    for _ in range(2):
        span = {"from_": "2026-02-10T04:00:00Z", "to": "2026-02-10T07:00:00Z", "interval": "hour"}
        assert points(await stats.read("abc/series", tz="Asia/Kathmandu", **span)) == [
            ("2026-02-10T03:15:00Z", 0),
            ("2026-02-10T04:15:00Z", 1),
            ("2026-02-10T05:15:00Z", 2),
            ("2026-02-10T06:15:00Z", 0),
        ]
        await stats.fold()


async def test_weeks_begin_on_monday_and_ranges_cut_periods(stats: StatsWorld) -> None:
    await stats.click(at("2026-02-22T23:59:59Z"), at("2026-02-23T00:00:00Z"), at("2026-02-25T12:00:00.5Z"))
    shown = await stats.read("abc/series", interval="week", from_="2026-02-16", to="2026-02-25T12:00:00.5Z")
    assert points(shown) == [("2026-02-16", 1), ("2026-02-23", 1)]
    months = await stats.read("abc/series", interval="month", from_="2026-01-01", to="2026-02-28")
    assert points(months) == [("2026-01-01", 0), ("2026-02-01", 3)]


async def test_ranges_by_default(stats: StatsWorld) -> None:
    await stats.create()
    for interval, count, first in (
        ("hour", 13, "2026-03-01T00:00:00Z"),
        ("day", 30, "2026-01-31"),
        ("week", 12, "2025-12-08"),
        ("month", 13, "2025-03-01"),
    ):
        shown = points(await stats.read("abc/series", interval=interval))
        assert (len(shown), shown[0][0]) == (count, first), interval
    # A plus sign in a URL is a space.
    async with await Client.connect(stats.server.port) as client:
        header = f"Authorization: Bearer {stats.token()}"
        answer = await client.get("/stats/abc/series?from=2026-02-28T00:00:00+01:00&interval=hour", header)
    assert answer.json["from"] == "2026-02-27T23:00:00Z"


async def test_now_is_in_the_range_and_what_comes_after_it_is_not(stats: StatsWorld) -> None:
    now = stats.now
    await stats.click(now - timedelta(microseconds=1), now, now + timedelta(seconds=30))
    assert (await stats.read("abc/series", to=now.strftime("%Y-%m-%dT%H:%M:%SZ")))["clicks"] == 1
    assert (await stats.read("abc/series", to="2026-03-01"))["clicks"] == 3


# Breakdowns.


async def test_a_breakdown_by_every_dimension(stats: StatsWorld) -> None:
    values = {name: f"some {name}" for name in DIMENSIONS}
    await stats.click(START, START, **values)
    await stats.click(START - DAY, START - DAY, START - DAY, **{name: f"another {name}" for name in DIMENSIONS})
    await stats.click(START, bot=True, **values)
    await stats.click(START, device="")
    for name in DIMENSIONS:
        shown = await stats.read("abc/breakdown", by=name)
        assert shown["values"] == [
            {"value": f"another {name}", "clicks": 3},
            {"value": f"some {name}", "clicks": 2},
        ]
        assert (shown["by"], shown["clicks"], shown["other"], shown["unknown"]) == (name, 6, 0, 1)
        with_bots = await stats.read("abc/breakdown", by=name, bots="true", limit=1)
        assert with_bots["values"] == [{"value": f"another {name}", "clicks": 3}]
        assert (with_bots["clicks"], with_bots["other"], with_bots["unknown"]) == (7, 3, 1)


async def test_a_breakdown_is_exact_to_the_microsecond_where_hours_are_kept(stats: StatsWorld) -> None:
    moment = at("2026-02-20T10:20:30.5Z")
    await stats.click(moment - timedelta(microseconds=1), moment, moment + HOUR, moment + HOUR, country="DE")
    for _ in range(2):
        shown = await stats.read(
            "abc/breakdown", by="country", from_="2026-02-20T10:20:30.5Z", to="2026-02-20T11:20:30.5Z"
        )
        assert (shown["values"], shown["clicks"]) == ([{"value": "DE", "clicks": 1}], 1)
        assert (shown["from"], shown["to"]) == ("2026-02-20T10:20:30.500000Z", "2026-02-20T11:20:30.500000Z")
        await stats.fold()


async def test_further_back_a_breakdown_is_of_whole_days_and_months(stats: StatsWorld) -> None:
    days_ago, year_ago = at("2025-12-10T10:20:00Z"), at("2024-05-20T10:20:00Z")
    await stats.click(days_ago, days_ago - DAY, year_ago, year_ago - 10 * DAY, country="DE")
    for _ in range(3):
        await stats.fold()
    cases = {
        ("2025-12-10T10:00:00Z", "2025-12-10T11:00:00Z"): ("2025-12-10T00:00:00Z", "2025-12-11T00:00:00Z", 1),
        ("2025-12-09T03:00:00Z", "2025-12-10T20:00:00Z"): ("2025-12-09T00:00:00Z", "2025-12-11T00:00:00Z", 2),
        ("2024-05-20", "2024-05-20"): ("2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z", 2),
        ("2024-04-20", "2024-06-10"): ("2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z", 2),
        ("2024-04-10", "2026-03-01"): ("2024-04-01T00:00:00Z", "2026-03-02T00:00:00Z", 4),
    }
    for (start, end), (counted_from, counted_to, clicks) in cases.items():
        shown = await stats.read("abc/breakdown", by="country", from_=start, to=end)
        assert (shown["from"], shown["to"], shown["clicks"]) == (counted_from, counted_to, clicks), start
        assert sum(value["clicks"] for value in shown["values"]) == clicks


async def test_the_rest_of_many_values_is_other(stats: StatsWorld) -> None:
    for number in range(30):
        await stats.click(START, city=f"city {number:02d}")
    shown = await stats.read("abc/breakdown", by="city")
    assert (len(shown["values"]), shown["other"], shown["unknown"]) == (20, 10, 0)
    assert [value["value"] for value in shown["values"]][:2] == ["city 00", "city 01"]
    assert len((await stats.read("abc/breakdown", by="city", limit=99_999_999_999_999_999_999))["values"]) == 30


# Visitors.


async def test_a_visitor_counts_once_in_any_range(stats: StatsWorld) -> None:
    for day in range(10):
        await stats.click(START - day * DAY, START - day * DAY - HOUR, visitor=1)
        await stats.click(START - day * DAY, visitor=100 + day)
    await stats.click(START, visitor=7, bot=True)
    for _ in range(2):
        shown = await stats.read("abc/visitors", from_="2026-02-20", to="2026-03-01")
        assert (shown["visitors"], [point["visitors"] for point in shown["points"]]) == (11, [2] * 10)
        weeks = await stats.read("abc/visitors", from_="2026-02-20", to="2026-03-01", interval="week")
        assert [(point["period"], point["visitors"]) for point in weeks["points"]] == [
            ("2026-02-16", 4),
            ("2026-02-23", 8),
        ]
        assert (await stats.read("abc/visitors", bots="true"))["visitors"] == 12
        await stats.fold()


async def test_visitors_of_days_of_a_zone_at_half_an_hour(stats: StatsWorld) -> None:
    """Midnight in Kolkata is 18:30 in UTC: the hour that it cuts is counted click by click."""
    await stats.click(at("2026-02-20T18:29:59.999999Z"), visitor=1)
    await stats.click(at("2026-02-20T18:30:00Z"), at("2026-02-21T18:29:00Z"), visitor=2)
    for _ in range(2):
        shown = await stats.read("abc/visitors", from_="2026-02-20", to="2026-02-22", tz="Asia/Kolkata")
        assert [(point["period"], point["visitors"]) for point in shown["points"]] == [
            ("2026-02-20", 1),
            ("2026-02-21", 1),
            ("2026-02-22", 0),
        ]
        assert (shown["visitors"], shown["from"]) == (2, "2026-02-19T18:30:00Z")
        await stats.fold()


async def test_far_back_the_days_of_a_zone_are_those_of_utc(stats: StatsWorld) -> None:
    await stats.click(at("2025-12-10T12:00Z"), visitor=1)
    await stats.click(at("2025-12-11T12:00Z"), visitor=2)
    for _ in range(2):
        await stats.fold()
    shown = await stats.read("abc/visitors", from_="2025-12-10", to="2025-12-11", tz="Europe/Berlin")
    assert [(point["period"], point["visitors"]) for point in shown["points"]] == [("2025-12-10", 1), ("2025-12-11", 1)]
    assert (shown["from"], shown["to"]) == ("2025-12-10T00:00:00Z", "2025-12-12T00:00:00Z")


async def test_many_visitors_are_counted_within_two_percent(stats: StatsWorld) -> None:
    clicks = [(START - timedelta(seconds=number * 37), number) for number in range(6_000)]
    await stats.periods.count(*[stats.made(moment, visitor=number) for moment, number in clicks])
    shown = await stats.read("abc/visitors", from_="2026-02-20", to="2026-03-01")
    assert abs(shown["visitors"] - 6_000) < 120
    days = {moment.date().isoformat(): 0 for moment, _ in clicks}
    for moment, _ in clicks:
        days[moment.date().isoformat()] += 1
    for point in shown["points"]:
        assert abs(point["visitors"] - days.get(point["period"], 0)) <= 0.02 * days.get(point["period"], 0)


# Late clicks.


async def test_a_late_click_is_counted_before_its_day_is_folded_again(stats: StatsWorld) -> None:
    """The rows of its day and month do not know it yet; those of its hours do."""
    days_ago, weeks_ago = START - 3 * DAY, START - 15 * DAY
    await stats.click(days_ago, weeks_ago, country="DE", visitor=1)
    await stats.fold()
    await stats.click(days_ago, weeks_ago, weeks_ago, country="FR", visitor=2)
    assert await stats.periods.marks(), "they are marked to be folded again"
    for _ in range(2):
        shown = await stats.read("abc")
        assert (shown["total_clicks"], shown["clicks_last_7d"]) == (5, 2)
        for interval in ("day", "hour"):
            timeline = await stats.read("abc/timeline", interval=interval)
            assert [point["clicks"] for point in timeline["points"]] == [3, 2]
        series = dict(points(await stats.read("abc/series", from_="2026-02-01", interval="month")))
        assert series == {"2026-02-01": 5, "2026-03-01": 0}
        breakdown = await stats.read("abc/breakdown", by="country", from_="2026-02-01")
        assert [(value["value"], value["clicks"]) for value in breakdown["values"]] == [("FR", 3), ("DE", 2)]
        assert (await stats.read("abc/visitors", from_="2026-02-01", interval="month"))["visitors"] == 2
        assert (await stats.read("summary"))["clicks_last_7d"] == 2
        assert len((await stats.read("abc/clicks"))["clicks"]) == 5
        await stats.fold()
    assert not await stats.periods.marks()


# Summary.


async def test_the_summary_adds_up_all_links_of_a_user(stats: StatsWorld) -> None:
    empty = {"links": 0, "total_clicks": 0, "bot_clicks": 0, "clicks_last_24h": 0, "clicks_last_7d": 0, "top_links": []}
    assert await stats.read("summary") == empty
    await stats.create("quiet", title="Quiet")
    await stats.create("theirs", user=STRANGER)
    for number in range(12):
        code = f"code-{number:02d}"
        await stats.create(code, title=f"Link {number}")
        await stats.click(*[START - number * HOUR * 4] * (number + 1), code=code, bot=number == 3)
    await stats.click(START, START, code="theirs")
    await stats.click(*[START] * 50, code="gone")
    await stats.delete("gone")
    for _ in range(2):
        shown = await stats.read("summary")
        assert (shown["links"], shown["total_clicks"], shown["bot_clicks"]) == (13, 78 + 50, 4)
        assert shown["clicks_last_24h"] == 50 + sum(number + 1 for number in range(12) if number * 4 <= 24)
        assert shown["clicks_last_7d"] == 128
        assert [link["short_code"] for link in shown["top_links"]] == [
            f"code-{number:02d}" for number in range(11, 1, -1)
        ]
        assert shown["top_links"][0]["title"] == "Link 11"
        await stats.fold()
    assert (await stats.read("summary", user=STRANGER))["total_clicks"] == 2


def test_a_range_needs_no_database() -> None:
    request = RangeRequest.read(START, start="2026-02-01", tz="Europe/Berlin")
    assert (request.span.start, request.span.end) == (at("2026-01-31T23:00Z"), START + timedelta(seconds=1))
