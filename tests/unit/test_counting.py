"""Clicks between any moments, from rows of every span: the same as of clicks that are counted one by one."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.calendars import Interval, Range, divide, zone_of
from refract.services.analytics.domain.parts import PART_MINUTES, PARTS, pack_entries
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, minute_of, moment_of, start_of
from refract.services.analytics.queries.counting import Sweep
from refract.services.analytics.queries.covering import Folded, month_around
from refract.services.analytics.queries.moments import Moments

DAY_MINUTES = 24 * 60
MARCH, JUNE = (minute_of(datetime(2026, month, 1, tzinfo=UTC)) for month in (3, 6))

FEW_DAYS = MARCH + 40 * DAY_MINUTES
minutes = st.one_of(
    st.integers(FEW_DAYS, FEW_DAYS + 3 * DAY_MINUTES),
    st.integers(0, 3 * 96).map(lambda quarter: FEW_DAYS + quarter * 15),
    st.integers(MARCH, JUNE - 1),
    st.integers(MARCH // 15, JUNE // 15 - 1).map(lambda quarter: quarter * 15),
    st.integers(MARCH // DAY_MINUTES, JUNE // DAY_MINUTES - 1).map(lambda day: day * DAY_MINUTES),
)
clicks = st.lists(st.tuples(minutes, st.booleans()), max_size=30)


@st.composite
def foldings(draw: st.DrawFn) -> Folded:
    days_until = draw(st.integers(MARCH // DAY_MINUTES, JUNE // DAY_MINUTES)) * DAY_MINUTES
    months_until = month_around(draw(st.integers(MARCH, days_until)))[0]
    stale = draw(st.lists(st.integers(MARCH, max(MARCH, days_until - 1)), max_size=3))
    marks = {(DAY, minute - minute % DAY_MINUTES) for minute in stale}
    return Folded(days_until, months_until, frozenset(marks | {(MONTH, month_around(minute)[0]) for minute in stale}))


def row_of(span: int, start: int, inside: list[tuple[int, bool]]) -> dict[str, Any]:
    every = Counter((minute - start) // PART_MINUTES[span] for minute, _ in inside)
    of_bots = Counter((minute - start) // PART_MINUTES[span] for minute, bot in inside if bot)
    return {
        "span": span,
        "starts_at": moment_of(start),
        "clicks": every.total(),
        "bot_clicks": of_bots.total(),
        "parts": pack_entries({part: (count, of_bots[part]) for part, count in every.items()}, PARTS[span]),
    }


def rows_of(folded: Folded, some: Iterable[tuple[int, bool]], sweep: Sweep) -> list[dict[str, Any]]:
    """What a database that has a row for every period with clicks would answer; a marked row is a wrong one."""
    found: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for minute, bot in some:
        for span in (HOUR, DAY, MONTH):
            found.setdefault((span, minute_of(start_of(moment_of(minute), span))), []).append((minute, bot))
    wanted = sweep.wanted
    asked = [(HOUR, start) for stretch in wanted.hours for start in range(*stretch)]
    asked += [(DAY, start) for start in wanted.days] + [(MONTH, start) for start in wanted.months]
    assert len(asked) == len(set(asked)), "no row is read twice"
    assert all(span == HOUR or (span, start) not in folded.stale for span, start in asked)
    return [row_of(*key, found[key]) for key in asked if key in found]


@given(folded=foldings(), some=clicks, points=st.lists(minutes, min_size=2, max_size=8, unique=True).map(sorted))
def test_what_lies_between_two_points(folded: Folded, some: list[tuple[int, bool]], points: list[int]) -> None:
    sweep = Sweep(folded, points)
    every, of_bots = sweep.counts(rows_of(folded, some, sweep))
    for (start, end), counted, bots in zip(pairwise(points), pairwise(every), pairwise(of_bots), strict=True):
        inside = [bot for minute, bot in some if start <= minute < end]
        assert (counted[1] - counted[0], bots[1] - bots[0]) == (len(inside), sum(inside))


@pytest.mark.parametrize("folded", [Folded(JUNE, MARCH), Folded(JUNE, JUNE), Folded(MARCH, MARCH)])
def test_points_between_quarters_are_told_by_their_hour(folded: Folded) -> None:
    noon = MARCH + 3 * DAY_MINUTES + 12 * 60
    some = [(noon + minute, minute % 2 == 0) for minute in (0, 3, 16, 17, 17, 18, 31, 59)]
    points = [noon + minute for minute in (-7, 3, 4, 16, 17, 18, 30, 55, 60)]
    sweep = Sweep(folded, points)
    every, of_bots = sweep.counts(rows_of(folded, some, sweep))
    assert [after - before for before, after in pairwise(every)] == [1, 1, 0, 1, 2, 1, 1, 1]
    assert [after - before for before, after in pairwise(of_bots)] == [1, 0, 0, 1, 0, 1, 0, 0]


def test_a_day_with_a_point_inside_is_not_counted_with_its_month_too() -> None:
    folded, day = Folded(JUNE, JUNE), MARCH + 40 * DAY_MINUTES
    some = [(day + minute, False) for minute in (-2 * DAY_MINUTES, 50, 200, 2 * DAY_MINUTES)]
    sweep = Sweep(folded, [day - 3 * DAY_MINUTES, day + 105, day + 3 * DAY_MINUTES])
    assert (len(sweep.wanted.months), sweep.wanted.days) == (1, [day])
    every, _ = sweep.counts(rows_of(folded, some, sweep))
    assert [after - before for before, after in pairwise(every)] == [2, 2]


def test_hours_of_any_zone_are_read_from_the_days() -> None:
    span = Range(datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC))
    for zone in ("UTC", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe"):
        division = divide(span, Interval.HOUR, zone_of(zone), 1_000)
        assert division is not None
        wanted = Sweep(Folded(JUNE, MARCH), Moments.of_division(division).points()).wanted
        assert (len(wanted.days), wanted.hours, wanted.months) == (28, [], [])


def test_days_of_utc_are_read_from_the_months() -> None:
    wanted = Sweep(Folded(JUNE, JUNE), list(range(MARCH, JUNE + 1, DAY_MINUTES))).wanted
    assert (len(wanted.months), wanted.days, wanted.hours) == (3, [], [])


def test_where_nothing_is_folded_hours_are_not_asked_for_one_by_one() -> None:
    wanted = Sweep(Folded(0, 0), [0, JUNE]).wanted
    assert (wanted.hours, wanted.days, wanted.months) == ([(0, JUNE)], [], [])


moments = st.datetimes(datetime(2026, 3, 1), datetime(2026, 3, 1, 0, 9), timezones=st.just(UTC))  # noqa: DTZ001  # bounds have no zone; `timezones` gives it


whole_minutes = st.integers(-5, 15).map(lambda minute: moment_of(MARCH + minute))


@given(
    st.lists(moments, min_size=2, max_size=5, unique=True).map(sorted),
    st.one_of(st.none(), whole_minutes),
    st.one_of(st.none(), whole_minutes),
)
def test_moments_are_whole_minutes_and_what_is_left_beside_these(
    some: list[datetime], begin: datetime | None, end: datetime | None
) -> None:
    """Every moment of a stretch is in its minutes or at one of its edges, and nowhere twice; also where it is cut."""
    cut = Range(begin or some[0], end or some[-1])
    if cut.start >= cut.end:
        return
    bounds = [cut.start, *(min(max(one, cut.start), cut.end) for one in some[1:-1]), cut.end]
    asked = Moments.of(some).within(cut)
    for bucket, (start, stop) in enumerate(pairwise(bounds)):
        pieces = [(first, last) for number, first, last in asked.edges() if number == bucket]
        minute, last_minute = asked.first(bucket), asked.minutes[bucket + 1]
        if minute < last_minute:
            pieces.append((moment_of(minute), moment_of(last_minute)))
        assert sum([last - first for first, last in pieces], timedelta()) == stop - start
        assert all(start <= first <= last <= stop for first, last in pieces)
