"""Links with many clicks: what is over is put together once, and every answer stays what a recount gives."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.periods import DAY, start_of
from refract.services.analytics.queries import merging
from refract.services.analytics.queries.edges import Asking
from refract.services.analytics.queries.merging import Merging
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.statements import COUNTS, read_rows
from refract.services.analytics.queries.stats import StatsQueries
from refract.services.analytics.store.turns import Turn
from tests.support.clocks import START
from tests.support.periods import PeriodsWorld, a_click, periods

__all__ = ["periods"]

ZONES = ("UTC", "Asia/Kolkata", "America/New_York")


class Watched(Reader):
    """A reader that notes how many rows with details it is given, or what was made of them."""

    details = 0

    async def _rows(self, link: Any, wanted: Any, statement: Statement) -> list[Row]:
        rows = await super()._rows(link, wanted, statement)
        if statement is not read_rows(COUNTS):
            self.details += sum(row.get("sketches", 1) for row in rows)
        return rows

    async def _edges(self, link: Any, edges: Any, asking: Asking) -> list[tuple[int, Row]]:
        rows = await super()._edges(link, edges, asking)
        self.details += len(rows)
        return rows


@pytest.fixture(autouse=True)
def remember_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every link had many clicks."""
    monkeypatch.setattr(merging, "WORTH_REMEMBERING", 1)


def made(chance: random.Random, moment: datetime) -> Click:
    country = chance.choice(("", "DE", "FR"))
    return a_click(moment, visitor=chance.randrange(30), bot=chance.random() < 0.3, country=country)


async def check(queries: OwnerQueries, counted: Sequence[Click], now: datetime, *, bots: bool) -> None:
    """Compare visitors and countries of some ranges with the clicks themselves."""
    for zone in ZONES:
        for days in (1, 9, 40):
            request = RangeRequest.read(now, start=(now - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ"), tz=zone)
            seen = await queries.visitors("owner", "abc", request, bots=bots)
            inside = [one for one in counted if seen.from_ <= one.occurred_at < seen.to and (bots or not one.bot)]
            assert seen.visitors == len({one.visitor for one in inside})
            assert max((point.visitors for point in seen.points), default=0) <= seen.visitors
            assert sum(point.visitors for point in seen.points) >= seen.visitors
            shown = await queries.breakdown("owner", "abc", request, "country", limit=9, bots=bots)
            inside = [one for one in counted if shown.from_ <= one.occurred_at < shown.to and (bots or not one.bot)]
            countries = Counter(one.country for one in inside if one.country)
            assert {one.value: one.clicks for one in shown.values} == countries
            assert shown.clicks == len(inside)


async def test_answers_stay_right_while_clicks_come_late_and_periods_are_folded(periods: PeriodsWorld) -> None:
    chance = random.Random(8)
    reader = Watched(periods.database)
    queries = OwnerQueries(reader, Merging(reader))
    for _ in range(6):
        moments = [START - timedelta(seconds=chance.randrange(50 * 86_400)) for _ in range(15)]
        moments += [START - timedelta(seconds=chance.randrange(7_200)) for _ in range(5)]
        await periods.count(*[made(chance, moment) for moment in moments])
        for bots in (False, True):
            await check(queries, periods.counted, periods.clock.now(), bots=bots)
        if chance.random() < 0.7:
            await periods.house().keep_house()
        await check(queries, periods.counted, periods.clock.now(), bots=False)


@pytest.mark.parametrize("zone", ZONES)
async def test_the_third_look_reads_no_more_than_the_last_hour(periods: PeriodsWorld, zone: str) -> None:
    chance = random.Random(9)
    moments = [START - timedelta(minutes=11 * number) for number in range(1_000)]
    await periods.count(*[made(chance, moment) for moment in moments])
    await periods.house().keep_house()
    reader = Watched(periods.database)
    queries = OwnerQueries(reader, Merging(reader))
    request = RangeRequest.read(START, start="2026-02-20", tz=zone)
    for _ in range(3):
        reader.details = 0
        await queries.visitors("owner", "abc", request, bots=False)
        await queries.breakdown("owner", "abc", request, "country", limit=9, bots=False)
    assert reader.details == 2, "the row of this hour, for each of the two"


async def test_what_many_look_at_at_once_is_put_together_once(periods: PeriodsWorld) -> None:
    """As after a start, when everybody looks at the link of the day again; also if the first one leaves."""
    chance = random.Random(10)
    await periods.count(*[made(chance, START - timedelta(minutes=11 * number)) for number in range(1_000)])
    await periods.house().keep_house()
    request = RangeRequest.read(START, start="2026-02-20", tz="Asia/Kolkata")

    async def look(queries: OwnerQueries) -> tuple[int, int]:
        visitors = await queries.visitors("owner", "abc", request, bots=False)
        countries = await queries.breakdown("owner", "abc", request, "country", limit=9, bots=False)
        return visitors.visitors, countries.clicks

    alone, crowded = Watched(periods.database), Watched(periods.database)
    expected = await look(OwnerQueries(alone, Merging(alone)))
    queries = OwnerQueries(crowded, Merging(crowded))
    looks = [asyncio.create_task(look(queries)) for _ in range(12)]
    await asyncio.sleep(0)
    looks[0].cancel()
    assert await asyncio.gather(*looks[1:]) == [expected] * 11
    # Each reads this hour for itself, twice; and if the first one had begun, that was for nothing.
    assert crowded.details <= 2 * alone.details + 2 * 12
    assert alone.details > 2 * 12


@pytest.mark.parametrize("start", ["2026-02-26", "2026-02-27T09:30:00Z"])
async def test_values_that_did_not_fit_are_remembered_until_they_are_counted_again(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """Where they are too many clicks to be counted from these at every look."""
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 4)
    monkeypatch.setattr("refract.services.analytics.queries.reading.MOST_RECOUNTED", 20)
    hour = datetime(2026, 2, 27, 10, tzinfo=UTC)
    cities = {f"city {number}": 9 - number for number in range(8)}
    for city, clicks in reversed(cities.items()):
        await periods.count(*[a_click(hour + timedelta(minutes=minute), city=city) for minute in range(clicks)])
    await periods.count(a_click(START - timedelta(minutes=5), city="city 0"))
    reader = Watched(periods.database)
    queries = OwnerQueries(reader, Merging(reader))
    request = RangeRequest.read(START, start=start)

    async def look() -> tuple[int, dict[str, int]]:
        reader.details = 0
        shown = await queries.breakdown("owner", "abc", request, "city", limit=9, bots=False)
        return reader.details, {one.value: one.clicks for one in shown.values}

    looks = [await look() for _ in range(4)]
    assert [details for details, _ in looks] == [looks[0][0], looks[0][0], 1, 1], "the row of this hour"
    assert len(looks[0][1]) < len(cities)
    assert looks[0][1] == looks[1][1] == looks[2][1] == looks[3][1]
    await periods.house().keep_house()
    assert (await look())[1] == cities | {"city 0": 10}


@pytest.mark.parametrize("now", ["2026-04-20T12:00:00", "2027-04-20T12:00:00", "2028-01-02T12:00:00"])
async def test_the_last_day_of_a_link_that_nobody_clicks_any_more(periods: PeriodsWorld, now: str) -> None:
    """Its hours are only counts by then, later its days, too; what the longer rows know stays."""
    for day in (13, 27):
        moment = datetime(2026, 2, day, 9, tzinfo=UTC)
        await periods.count(
            *[a_click(moment + timedelta(minutes=11 * number), visitor=number, city="Ulm") for number in range(40)]
        )
    for days in range(3):
        periods.pass_to(START + timedelta(days=days))
        await periods.house().keep_house()
    periods.pass_to(datetime.fromisoformat(now).replace(tzinfo=UTC))
    await periods.house().keep_house()
    queries = OwnerQueries(Reader(periods.database))
    request = RangeRequest.read(periods.clock.now(), start="2026-02-01", end="2026-04-10")
    for _ in range(2):
        shown = await queries.breakdown("owner", "abc", request, "city", limit=9, bots=False)
        assert [(one.value, one.clicks) for one in shown.values] == [("Ulm", 80)]
        assert (shown.clicks, shown.unknown) == (80, 0)
        assert (await queries.visitors("owner", "abc", request, bots=False)).visitors == 40
    stats = await StatsQueries(Reader(periods.database), periods.clock, stats_public=True).stats(None, "abc")
    assert stats.total_clicks == 80


async def test_what_months_know_is_not_mixed_with_what_their_days_knew(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month counts again what did not fit into its days; while another one is marked, versions are told by days."""
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 4)
    monkeypatch.setattr("refract.services.analytics.commands.merging.MOST_IN_HOUR", 4)
    monkeypatch.setattr("refract.services.analytics.commands.merging.MOST_IN_LONGER", 6)
    for day in (25, 26, 27):
        moment = datetime(2026, 2, day, 10, tzinfo=UTC)
        often = [a_click(moment, city=f"city {day} {number % 8}") for number in range(24)]
        await periods.count(*often, *[a_click(moment, city="everywhere") for _ in range(2)])
    await periods.count(a_click(datetime(2026, 3, 1, 11, tzinfo=UTC)))
    reader = Reader(periods.database)
    queries = OwnerQueries(reader, Merging(reader))
    request = RangeRequest.read(START, start="2026-02-01", end="2026-02-28")

    async def first(queries: OwnerQueries) -> tuple[str, int]:
        shown = await queries.breakdown("owner", "abc", request, "city", limit=1, bots=False)
        return shown.values[0].value, shown.values[0].clicks

    periods.kept["months_kept"] = timedelta(days=1_840)  # or else some expire just then, and nothing is remembered
    await periods.house().expiry.expire()
    turn = Turn(periods.database)
    await turn.look()
    async for _ in periods.house().folding._fold_due(turn, DAY):
        pass
    assert (await first(queries))[1] == 3
    periods.pass_to(START + timedelta(days=2))
    await periods.house().keep_house()
    assert await first(queries) == ("everywhere", 6)
    await periods.count(a_click(datetime(2026, 3, 1, 11, 5, tzinfo=UTC)))
    assert await periods.marks()
    assert await first(queries) == await first(OwnerQueries(reader, Merging(reader))) == ("everywhere", 6)


async def test_today_is_added_to_in_little_time(periods: PeriodsWorld) -> None:
    """A period that is partly over, and everybody, are no long lists: every look adds the last hour to them."""
    morning = start_of(START, DAY)
    crowd = [
        a_click(morning + timedelta(hours=hour, seconds=number), visitor=1_250 * hour + number)
        for hour in range(4)
        for number in range(1_500)
    ]
    await periods.count(*crowd, a_click(START - timedelta(minutes=1), visitor=1))
    remembering = Merging(Reader(periods.database))
    queries = OwnerQueries(Reader(periods.database), remembering)
    for zone in ("UTC", "Asia/Kolkata"):
        request = RangeRequest.read(START, start="2026-02-28", tz=zone)
        seen, again = [await queries.visitors("owner", "abc", request, bots=False) for _ in range(2)]
        assert seen.visitors == again.visitors == pytest.approx(5_250, rel=0.02)
        assert again.points[-1].visitors == pytest.approx(seen.points[-1].visitors, rel=0.02)
        assert seen.visitors >= max(point.visitors for point in seen.points)
    pasts = [past for past, _ in remembering._pasts._values.values()]
    assert len(pasts) == 2
    assert all(one.size < 20_000 for past in pasts for one in (past.last, past.everybody))


async def test_a_link_with_few_clicks_is_not_looked_up(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "WORTH_REMEMBERING", 100)
    await periods.count(*[a_click(START - timedelta(hours=number)) for number in range(9)])
    reader = Watched(periods.database)
    monkeypatch.setattr(reader, "versions", None)
    request = RangeRequest.read(START, start="2026-02-20")
    assert (await OwnerQueries(reader).visitors("owner", "abc", request, bots=False)).visitors == 1


async def test_what_is_asked_once_is_not_remembered(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what is asked again after many others: nobody comes back for it."""
    monkeypatch.setattr(merging, "LATELY", 3)
    for code in ("abc", "def", "ghi"):
        await periods.count(*[a_click(START - timedelta(hours=number), code) for number in range(9)])
    remembering = Merging(Reader(periods.database))
    queries = OwnerQueries(Reader(periods.database), remembering)
    request = RangeRequest.read(START, start="2026-02-20")

    async def look(*codes: str) -> tuple[int, int]:
        for code in codes:
            await queries.visitors("owner", code, request, bots=False)
            await queries.breakdown("owner", code, request, "city", limit=9, bots=False)
        return len(remembering._pasts._values), len(remembering._rankings._values)

    assert await look("abc", "def", "ghi", "abc") == (0, 0)
    assert await look("abc") == (1, 1)


async def test_what_takes_long_is_remembered_at_once(periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ALWAYS_REMEMBERED", 9)
    await periods.count(*[a_click(START - timedelta(hours=number)) for number in range(9)])
    remembering = Merging(Reader(periods.database))
    queries = OwnerQueries(Reader(periods.database), remembering)
    request = RangeRequest.read(START, start="2026-02-20")
    await queries.visitors("owner", "abc", request, bots=False)
    await queries.breakdown("owner", "abc", request, "city", limit=9, bots=False)
    assert (len(remembering._pasts._values), len(remembering._rankings._values)) == (1, 1)


@pytest.mark.parametrize("last", ["2026-02-27T10:00:00+00:00", "2026-03-18T10:00:00+00:00"], ids=["month", "day"])
async def test_every_look_at_a_link_that_rests_gives_the_same(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Values that did not fit into its hours are counted in its last day and month, which are not taken apart."""
    for place in ("domain.rollups.MOST_IN_HOUR", "commands.merging.MOST_IN_HOUR"):
        monkeypatch.setattr(f"refract.services.analytics.{place}", 4)
    monkeypatch.setattr("refract.services.analytics.commands.merging.MOST_IN_LONGER", 6)
    chance = random.Random(1)
    periods.pass_to(datetime(2026, 3, 20, 12, tzinfo=UTC))
    until = datetime.fromisoformat(last)
    for _ in range(4):
        moments = [until - timedelta(seconds=chance.randrange(20 * 86_400)) for _ in range(150)]
        await periods.count(*[a_click(moment, city=f"city {int(chance.expovariate(0.15))}") for moment in moments])
    await periods.count(a_click(until, city="city 0"))
    await periods.house().keep_house()
    queries = OwnerQueries(Reader(periods.database))
    request = RangeRequest.read(periods.clock.now(), start="2026-02-01")
    looks = [await queries.breakdown("owner", "abc", request, "city", limit=5, bots=False) for _ in range(3)]
    assert looks[0] == looks[1] == looks[2]


FEBRUARY_DAYS = Statement(
    "february_days",
    "All days that had people.",
    "SELECT starts_at, visitors FROM rollups WHERE span = 2 AND visitors IS NOT NULL",
)
SET_VISITORS = Statement(
    "set_visitors", "Puts a list.", "UPDATE rollups SET visitors = :visitors WHERE span = 2 AND starts_at = :starts_at"
)


@pytest.mark.parametrize("crowd", [3, 3_000])
async def test_a_month_tells_who_came_on_its_days(periods: PeriodsWorld, crowd: int) -> None:
    """And these only how many: what their lists say is not read. One of them has no list."""
    february = datetime(2026, 2, 1, tzinfo=UTC)
    days = [february + timedelta(days=number) for number in range(-1, 28)]
    for number, day in enumerate(days):
        people = [] if number == 20 else range(number, number + 5)
        await periods.count(*(a_click(day, visitor=one) for one in people), a_click(day, visitor=7, bot=True))
    await periods.count(*(a_click(days[9], visitor=one) for one in range(crowd)))
    await periods.count(a_click(START - timedelta(hours=2), bot=True))  # so that all of February is over
    await periods.house().keep_house()
    queries = OwnerQueries(Reader(periods.database))
    request = RangeRequest.read(START, start="2026-01-30")
    expected = await queries.visitors("owner", "abc", request, bots=False)
    assert expected.visitors == pytest.approx(max(crowd, len(days) + 4), rel=0.02)
    each = [0, *([5] * len(days)), 0]
    each[1 + 9], each[1 + 20] = crowd if crowd > 14 else 5 + crowd, 0
    assert [point.visitors for point in expected.points] == pytest.approx(each, rel=0.02)
    # Days that were only counted are not remembered for a range that needs to know more.
    part = RangeRequest.read(START, start="2026-02-12", end="2026-02-20")
    for asked, visitors in ((request, expected.visitors), (part, 12)):
        for _ in range(3):
            assert (await queries.visitors("owner", "abc", asked, bots=False)).visitors == visitors
    async with periods.database.transaction() as tx:
        for row in await tx.fetch(FEBRUARY_DAYS):
            if row["starts_at"] >= february and len(row["visitors"]) < 1_000:
                others = row["visitors"][:1] + row["visitors"][:0:-1]
                await tx.execute(SET_VISITORS, starts_at=row["starts_at"], visitors=others)
    assert await OwnerQueries(Reader(periods.database)).visitors("owner", "abc", request, bots=False) == expected
    # A month that has to be folded again does not tell: its days are read.
    await periods.count(a_click(days[3], visitor=10_000))
    seen = await OwnerQueries(Reader(periods.database)).visitors("owner", "abc", request, bots=False)
    assert seen.visitors != expected.visitors + 1
    each[1 + 3] += 1
    assert [point.visitors for point in seen.points] == pytest.approx(each, rel=0.02)


async def test_visitors_are_told_apart_in_hours_of_any_size_and_by_names_of_any_length(periods: PeriodsWorld) -> None:
    """Hours whose sketches are lists, one whose is not, and clicks at the edges of days that begin at half past."""
    evening = datetime(2026, 2, 20, 18, tzinfo=UTC)
    crowds = {1: range(2_500), 2: range(2_400, 2_600), 5: range(2_500, 2_550)}
    crowds |= {50: range(20), 53: range(10, 25), 80: range(1)}  # the last day is not over yet
    hours = [
        a_click(evening + timedelta(hours=hour, seconds=number % 3_600), visitor=number)
        for hour, numbers in crowds.items()
        for number in numbers
    ]
    names = [b"", b"abc", b"abcdef", b"x" * 32, b"", (0).to_bytes(8, "big")]
    at_edges = [
        structs.replace(a_click(evening + timedelta(days=day, minutes=minutes)), visitor=name, bot=bot)
        for name in names
        for day in (0, 1)
        for minutes, bot in ((31, False), (25, True))
    ]
    await periods.count(*hours, *at_edges)
    await periods.house().keep_house()
    request = RangeRequest.read(START, start="2026-02-20", end="2026-02-24", tz="Asia/Kolkata")
    for bots in (False, True):
        seen = await OwnerQueries(Reader(periods.database)).visitors("owner", "abc", request, bots=bots)
        each = [
            {one.visitor for one in (*hours, *at_edges) if begin <= one.occurred_at < end and (bots or not one.bot)}
            for begin, end in pairwise(evening + timedelta(days=day, minutes=30) for day in range(-1, 5))
        ]
        assert list(map(len, each)) == [5 * bots, 2_604, 5, 25, 1]
        assert [point.visitors for point in seen.points] == pytest.approx(list(map(len, each)), rel=0.02)
        few = (0, 2, 3, 4)
        assert [seen.points[place].visitors for place in few] == [len(each[place]) for place in few]
        assert seen.visitors == pytest.approx(len(set().union(*each)), rel=0.02)
