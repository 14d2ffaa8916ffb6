"""Rows that cover a stretch of time: every minute once, from rows that may be trusted, and as few as possible."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of
from refract.services.analytics.queries.covering import Cover, Folded, minute_of, moment_of, month_around

DAY_MINUTES = 24 * 60
JANUARY = minute_of(datetime(2026, 1, 1, tzinfo=UTC))
JUNE = minute_of(datetime(2026, 6, 1, tzinfo=UTC))
SIZES = {HOUR: 1, DAY: 60, MONTH: DAY_MINUTES}

minutes = st.one_of(
    st.integers(JANUARY, JUNE),
    st.integers(JANUARY // 60, JUNE // 60).map(lambda hour: hour * 60),
    st.integers(JANUARY // DAY_MINUTES, JUNE // DAY_MINUTES).map(lambda day: day * DAY_MINUTES),
)


@st.composite
def foldings(draw: st.DrawFn) -> Folded:
    days_until = draw(st.integers(JANUARY // DAY_MINUTES, JUNE // DAY_MINUTES)) * DAY_MINUTES
    months_until = month_around(draw(st.integers(JANUARY, days_until)))[0]
    stale = draw(st.lists(st.integers(JANUARY, max(JANUARY, days_until - 1)), max_size=3))
    marks = {(DAY, minute - minute % DAY_MINUTES) for minute in stale}
    return Folded(days_until, months_until, frozenset(marks | {(MONTH, month_around(minute)[0]) for minute in stale}))


def stretches(cover: Cover) -> dict[int, list[tuple[int, int]]]:
    """What is covered, by bucket, in the order of time."""
    found: dict[int, list[tuple[int, int]]] = {}
    for (span, start), shares in cover.rows.items():
        for share in shares:
            first, last = start, minute_of(end_of(moment_of(start), span))
            if not share.is_whole:
                assert first + share.last * SIZES[span] <= last
                first, last = first + share.first * SIZES[span], first + share.last * SIZES[span]
            found.setdefault(share.bucket, []).append((first, last))
    for bucket, start, end in cover.raw:
        found.setdefault(bucket, []).append((start, end))
    return {bucket: sorted(parts) for bucket, parts in found.items()}


@given(folded=foldings(), edges=st.lists(minutes, min_size=2, max_size=5, unique=True), by_parts=st.booleans())
def test_every_minute_is_covered_once_by_rows_that_may_be_trusted(
    folded: Folded, edges: list[int], by_parts: bool
) -> None:
    cover = Cover(folded, by_parts=by_parts)
    wanted = list(pairwise(sorted(edges)))
    for bucket, (start, end) in enumerate(wanted):
        cover.add(bucket, start, end)
    found = stretches(cover)
    for bucket, (start, end) in enumerate(wanted):
        assert (found[bucket][0][0], found[bucket][-1][1]) == (start, end)
        assert all(before[1] == after[0] and before[0] < before[1] for before, after in pairwise(found[bucket]))
    for span, start in cover.rows:
        assert span == HOUR or (span, start) not in folded.stale
        assert start < (folded.months_until if span == MONTH else folded.days_until if span == DAY else JUNE)
    assert not by_parts or not cover.raw, "the parts of an hour are minutes"
    assert by_parts or all(share.is_whole for shares in cover.rows.values() for share in shares)


def test_a_year_is_twelve_rows() -> None:
    start, end = (minute_of(datetime(year, 1, 1, tzinfo=UTC)) for year in (2025, 2026))
    cover = Cover(Folded(end, end), by_parts=False)
    cover.add(0, start, end)
    assert len(cover.rows) == 12


def test_a_day_of_a_zone_takes_one_row_for_each_of_its_two_days() -> None:
    start = minute_of(datetime(2026, 3, 9, 23, tzinfo=UTC))
    cover = Cover(Folded(JUNE, JUNE), by_parts=True)
    cover.add(0, start, start + DAY_MINUTES)
    assert {span for span, _ in cover.rows} == {DAY}
    assert len(cover.rows) == 2


def test_the_row_around_a_minute_is_the_longest_that_counts_it() -> None:
    may = datetime(2026, 5, 1, tzinfo=UTC)
    folded = Folded(minute_of(datetime(2026, 5, 10, tzinfo=UTC)), minute_of(may))
    cases = {
        datetime(2026, 2, 3, 4, 5, tzinfo=UTC): (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)),
        datetime(2026, 5, 3, 4, 5, tzinfo=UTC): (datetime(2026, 5, 3, tzinfo=UTC), datetime(2026, 5, 4, tzinfo=UTC)),
        datetime(2026, 5, 20, 4, 5, tzinfo=UTC): (
            datetime(2026, 5, 20, 4, tzinfo=UTC),
            datetime(2026, 5, 20, 5, tzinfo=UTC),
        ),
    }
    for moment, expected in cases.items():
        start, end = folded.around(minute_of(moment))
        assert (moment_of(start), moment_of(end)) == expected


def test_minutes_and_moments_are_the_same_thing() -> None:
    moment = datetime(2026, 3, 1, 12, 34, tzinfo=UTC)
    assert moment_of(minute_of(moment)) == moment
    assert minute_of(moment + timedelta(seconds=59, microseconds=999_999)) == minute_of(moment)
    assert month_around(minute_of(moment)) == (
        minute_of(datetime(2026, 3, 1, tzinfo=UTC)),
        minute_of(datetime(2026, 4, 1, tzinfo=UTC)),
    )
