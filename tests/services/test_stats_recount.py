"""Random clicks in random order, some of them twice, with periods folded in between: every answer is right."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.calendars import Interval, Range
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.periods import MONTH
from refract.services.analytics.queries.clicks import ClickQueries, ClicksRequest, Place
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.stats import StatsQueries
from refract.services.analytics.queries.summary import SummaryQueries
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.counting import click_inbox, hand_over, letter
from tests.support.periods import KEPT as KEPT_BY_DEFAULT
from tests.support.periods import KnownClicks, PeriodsWorld, a_click, periods

__all__ = ["periods"]

CODES = ("abc", "def")
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "America/New_York",
    "Australia/Lord_Howe",  # changes its clocks by half an hour
    "Pacific/Chatham",  # and this in the middle of one
    "Antarctica/Troll",  # by two hours
    "Africa/Casablanca",  # two weeks before the first of March
)
EXAMPLES = 25
LONGEST = 480
"""Days that clicks go back: longer than hours and days keep what they know, and longer than the shortest of these."""

KEPT: Sequence[Mapping[str, Any]] = (
    {},
    {"clicks_kept": timedelta(days=7)},
    {"months_kept": timedelta(days=400)},
    {"clicks_kept": timedelta(days=1), "hours_kept": timedelta(days=14), "months_kept": timedelta(days=400)},
)

Naive = list[Click]

WORDS = st.sampled_from(["", "a", "b", "c"])


def _changes() -> list[tuple[datetime, str]]:
    """When clocks were changed in these zones, and in which."""
    found = []
    for name in ZONES:
        zone, day = ZoneInfo(name), timedelta(days=1)
        for number in range(LONGEST):
            moment = START - number * day
            while (moment - day).astimezone(zone).utcoffset() != moment.astimezone(zone).utcoffset():
                before = moment - timedelta(minutes=15)
                if before.astimezone(zone).utcoffset() != moment.astimezone(zone).utcoffset():
                    found.append((moment, name))
                    break
                moment = before
    return found


CHANGES = _changes()

ages = st.one_of(
    st.integers(0, 3 * 3_600),
    st.integers(0, 8 * 86_400),
    st.integers(0, LONGEST * 86_400),
    st.sampled_from([0, 86_400, 7 * 86_400, 12 * 3_600, 30 * 86_400, 59 * 60]),
)
moments = st.one_of(
    st.builds(
        lambda age, microseconds: START - timedelta(seconds=age, microseconds=microseconds),
        ages,
        st.integers(0, 999_999),
    ),
    st.builds(
        lambda change, seconds: change[0] + timedelta(seconds=seconds),
        st.sampled_from(CHANGES),
        st.integers(-2 * 3_600, 2 * 3_600),
    ),
)
clicks = st.builds(
    a_click,
    moments,
    st.sampled_from(CODES),
    visitor=st.integers(0, 5),
    bot=st.booleans(),
    referer=st.sampled_from(["", "https://a.example/", "https://b.example/x"]),
    **dict.fromkeys((dimension for dimension in DIMENSIONS if dimension != "referer"), WORDS),
)
batches = st.lists(st.lists(clicks, min_size=1, max_size=12), min_size=1, max_size=5)
ranges = st.one_of(
    st.tuples(
        moments, st.one_of(st.integers(1, 40 * 86_400), st.integers(1, LONGEST * 86_400)), st.sampled_from(ZONES)
    ),
    st.builds(
        lambda change, before, after: (change[0] - timedelta(seconds=before), before + after, change[1]),
        st.sampled_from(CHANGES),
        st.integers(0, 86_400),
        st.integers(1, 86_400),
    ),
)


def _event(click: Click) -> UrlClicked:
    fields = {name: getattr(click, name) for name in ("occurred_at", "event_id", "short_code", "user_id", "user_email")}
    return UrlClicked(**fields, ip_hash="", user_agent="")


async def _tell(world: PeriodsWorld, stream: Sequence[Sequence[Click]], chance: random.Random) -> Naive:
    """Have everything counted, in an order of its own and some of it twice, with the house kept now and then."""
    naive = [click for batch in stream for click in batch]
    ingesting = Ingesting(KnownClicks(naive), world.clock)
    inbox = click_inbox(world.database, world.clock, ingesting)
    house = world.house()
    for batch in stream:
        told = [*batch, *chance.choices(naive, k=chance.randrange(5))]
        chance.shuffle(told)
        desk = await hand_over(
            inbox, *[letter(_event(click)) for click in told[:3]], letter(*map(_event, told[3:] or told))
        )
        assert not desk.buried
        if chance.random() < 0.5:
            await house.keep_house()
    # What came along twice from later batches was new, and these themselves were not any more.
    return naive


def _counted(naive: Iterable[Click], start: datetime, end: datetime, code: str = "abc") -> Naive:
    return [click for click in naive if click.short_code == code and start <= click.occurred_at < end]


async def _check_public(world: PeriodsWorld, naive: Naive) -> None:
    """Numbers and timelines."""
    now, mine = world.clock.now(), [click for click in naive if click.short_code == "abc"]
    queries = StatsQueries(Reader(world.database), world.clock, stats_public=True)
    shown = await queries.stats(None, "abc")
    assert (shown.total_clicks, shown.bot_clicks) == (len(mine), sum(click.bot for click in mine))
    assert shown.clicks_last_24h == sum(click.occurred_at >= now - timedelta(days=1) for click in mine)
    assert shown.clicks_last_7d == sum(click.occurred_at >= now - timedelta(days=7) for click in mine)
    months_from = (await world.folding())[MONTH]["expired"]
    referers = Counter(click.referer for click in mine if click.referer and click.occurred_at >= months_from)
    assert [(one.referer, one.count) for one in shown.top_referers] == sorted(
        referers.items(), key=lambda one: (-one[1], one[0])
    )
    for interval, form in (("day", "%Y-%m-%d"), ("hour", "%Y-%m-%dT%H:00:00Z")):
        timeline = await queries.timeline(None, "abc", interval)  # type: ignore[arg-type]  # a word of two
        every = Counter(click.occurred_at.strftime(form) for click in mine)
        bots = Counter(click.occurred_at.strftime(form) for click in mine if click.bot)
        assert [(point.period, point.clicks, point.bot_clicks) for point in timeline.points] == [
            (period, count, bots[period]) for period, count in sorted(every.items())
        ]


async def _check_series(world: PeriodsWorld, naive: Naive, request: RangeRequest, *, bots: bool) -> None:
    """The series of a range, period by period in the zone."""
    shown = await OwnerQueries(Reader(world.database)).series("owner", "abc", request, bots=bots)
    exact = await _clicks_from(world)
    for asked, told in zip(request.span, (shown.from_, shown.to), strict=True):
        assert told == asked if asked >= exact else abs(told - asked) < timedelta(minutes=1)
    request = replace(request, span=Range(shown.from_, shown.to))
    inside = _counted(naive, request.span.start, request.span.end)
    people: Counter[str] = Counter()
    of_bots: Counter[str] = Counter()
    for click in inside:
        (of_bots if click.bot else people)[_period(click.occurred_at, request)] += 1
    found = {point.period: (point.clicks, point.bot_clicks) for point in shown.points}
    assert len(found) == len(shown.points), "no period comes twice"
    assert list(found) == _names(request), "and every one is there, also those without a click"
    assert {period: counts for period, counts in found.items() if counts != (0, 0)} == {
        period: counts
        for period in people | of_bots
        if (counts := (people[period] + bots * of_bots[period], of_bots[period])) != (0, 0)
    }
    assert shown.clicks == sum(bots or not click.bot for click in inside)


def _names(request: RangeRequest) -> list[str]:
    """The names of all periods of a range, met on a walk through it."""
    step = timedelta(minutes=15) if request.interval is Interval.HOUR else timedelta(hours=6)
    moment, last = request.span.start, request.span.end - timedelta(microseconds=1)
    names: dict[str, None] = {}
    while moment < last:
        names[_period(moment, request)] = None
        # From a quarter of an hour to the next: no zone begins a period elsewhere.
        moment = datetime.fromtimestamp((moment + step).timestamp() // 900 * 900, UTC)
    return list(names | {_period(last, request): None})


def _period(moment: datetime, request: RangeRequest) -> str:
    """The name of the period of a moment, found in another way than the product does."""
    local = moment.astimezone(request.zone)
    match request.interval:
        case Interval.HOUR:
            # As long ago as a clock on the wall says, or since it was set.
            start = moment - timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
            while start.astimezone(request.zone).utcoffset() != local.utcoffset():
                start += timedelta(minutes=15)
            return start.strftime("%Y-%m-%dT%H:%M:%SZ")
        case Interval.DAY:
            return local.date().isoformat()
        case Interval.WEEK:
            return (local.date() - timedelta(days=local.date().weekday())).isoformat()
        case Interval.MONTH:
            return local.date().replace(day=1).isoformat()


async def _check_shares(world: PeriodsWorld, naive: Naive, request: RangeRequest, *, bots: bool) -> None:
    """Breakdowns and visitors of what the answer says that it has counted."""
    queries = OwnerQueries(Reader(world.database))
    for by in DIMENSIONS:
        shown = await queries.breakdown("owner", "abc", request, by, limit=2, bots=bots)
        inside = [click for click in _counted(naive, shown.from_, shown.to) if bots or not click.bot]
        values = Counter(getattr(click, by) for click in inside)
        unknown = values.pop("", 0)
        top = sorted(values.items(), key=lambda one: (-one[1], one[0]))[:2]
        assert [(one.value, one.clicks) for one in shown.values] == top
        assert (shown.clicks, shown.unknown) == (len(inside), unknown)
        assert shown.other == values.total() - sum(count for _, count in top)
        await _check_edges(world, request, shown.from_, shown.to)
    seen = await queries.visitors("owner", "abc", request, bots=bots)
    inside = [click for click in _counted(naive, seen.from_, seen.to) if bots or not click.bot]
    assert seen.visitors == len({click.visitor for click in inside})
    assert seen.visitors <= sum(point.visitors for point in seen.points)
    assert seen.from_ >= (await world.folding())[MONTH]["expired"]
    if request.span.start >= await _exact_from(world):
        each: dict[str, set[bytes]] = {name: set() for name in _names(request)}
        for click in inside:
            each[_period(click.occurred_at, request)].add(click.visitor)
        assert [(point.period, point.visitors) for point in seen.points] == [
            (name, len(visitors)) for name, visitors in each.items()
        ]


async def _clicks_from(world: PeriodsWorld) -> datetime:
    """From when on all clicks are there; a day is left out that may go at any moment."""
    expired: datetime = (await world.folding())[0]["expired"]
    return expired + timedelta(days=1)


async def _exact_from(world: PeriodsWorld) -> datetime:
    """From when on what is counted is what was asked for."""
    hours_kept: timedelta = world.kept["hours_kept"]
    return max(world.clock.now() - hours_kept + timedelta(days=1), await _clicks_from(world))


async def _check_edges(world: PeriodsWorld, request: RangeRequest, start: datetime, end: datetime) -> None:
    """What was counted is what was asked for, as long as enough is known, and never far from it; but for months over
    their time, which are left out."""
    exact, months_from = await _exact_from(world), (await world.folding())[MONTH]["expired"]
    assert start <= end
    for asked, counted in ((request.span.start, start), (request.span.end, end)):
        assert counted == asked if asked >= exact else abs(counted - max(asked, start)) <= timedelta(days=31)
    if request.span.start >= months_from:
        assert start < end
        assert abs(start - request.span.start) <= timedelta(days=31)
    else:
        assert start in {months_from, end}


async def _check_clicks(world: PeriodsWorld, naive: Naive, request: RangeRequest, *, bots: bool) -> None:
    """Every click once, page by page and in an export."""
    queries = ClickQueries(world.database, Reader(world.database))
    asked = ClicksRequest(request.span.start, request.span.end, bots=bots)
    inside = [click for click in _counted(naive, request.span.start, request.span.end) if bots or not click.bot]
    ordered = sorted(inside, key=lambda click: (click.occurred_at, click.event_id))
    found: list[tuple[Any, ...]] = []
    place: Place | None = None
    while True:
        page = await queries.page("owner", "abc", asked, after=place, limit=3)
        found += [
            (click.clicked_at, click.id, click.bot, *(getattr(click, name) for name in DIMENSIONS))
            for click in page.clicks
        ]
        if not isinstance(page.next_cursor, str):
            break
        place = Place.read(page.next_cursor)
    told = [
        (click.occurred_at, click.event_id, click.bot, *(getattr(click, name) or None for name in DIMENSIONS))
        for click in ordered
    ]
    assert found == told[::-1]
    exported = [row async for rows in await queries.export("owner", "abc", asked) for row in rows]
    columns = ("clicked_at", "event_id", "bot", *DIMENSIONS)
    assert [tuple(row[column] for column in columns) for row in exported] == told


async def _check_summary(world: PeriodsWorld, naive: Naive) -> None:
    shown = await SummaryQueries(world.database, world.clock).summary("owner")
    now = world.clock.now()
    assert (shown.total_clicks, shown.bot_clicks) == (len(naive), sum(click.bot for click in naive))
    assert shown.clicks_last_24h == sum(click.occurred_at >= now - timedelta(days=1) for click in naive)
    assert shown.clicks_last_7d == sum(click.occurred_at >= now - timedelta(days=7) for click in naive)
    totals = Counter(click.short_code for click in naive)
    assert (shown.links, len(shown.top_links)) == (len(totals), len(totals))
    for link, (code, count) in zip(
        shown.top_links, sorted(totals.items(), key=lambda one: (-one[1], one[0])), strict=True
    ):
        mine = [click for click in naive if click.short_code == code]
        assert (link.short_code, link.total_clicks) == (code, count)
        assert link.bot_clicks == sum(click.bot for click in mine)
        assert link.last_clicked_at == max(click.occurred_at for click in mine)


def _request(asked: tuple[datetime, int, str], interval: Interval) -> RangeRequest:
    start, seconds, zone = asked
    longest = 40 * 86_400 if interval is Interval.HOUR else LONGEST * 86_400
    span = timedelta(seconds=min(seconds, longest))
    return RangeRequest(Range(start, start + span), ZoneInfo(zone), interval)


async def test_every_answer_is_what_a_recount_gives(periods: PeriodsWorld) -> None:
    loop = asyncio.get_running_loop()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(
        stream=batches,
        asked=ranges,
        interval=st.sampled_from(Interval),
        bots=st.booleans(),
        seed=st.integers(0, 2**32),
        kept=st.sampled_from(KEPT),
    )
    def check(stream: Any, asked: Any, interval: Interval, bots: bool, seed: int, kept: Any) -> None:
        async def one() -> None:
            await periods.begin_again()
            periods.kept.update(KEPT_BY_DEFAULT | kept)
            naive = await _tell(periods, stream, random.Random(seed))
            request = _request(asked, interval)
            await _check_public(periods, naive)
            await _check_summary(periods, naive)
            if any(click.short_code == "abc" for click in naive):
                for length in Interval:
                    await _check_series(periods, naive, _request(asked, length), bots=bots)
                for changed, zone in random.Random(seed).sample(CHANGES, 4):
                    around = (changed - timedelta(hours=5), 10 * 3_600, zone)
                    await _check_series(periods, naive, _request(around, Interval.HOUR), bots=bots)
                await _check_shares(periods, naive, request, bots=bots)
                if "months_kept" in kept:
                    life = (START - timedelta(days=LONGEST), LONGEST * 86_400, asked[2])
                    await _check_shares(periods, naive, _request(life, Interval.MONTH), bots=bots)
                if "clicks_kept" not in kept:
                    await _check_clicks(periods, naive, request, bots=bots)

        asyncio.run_coroutine_threadsafe(one(), loop).result(60)

    await asyncio.to_thread(check)
