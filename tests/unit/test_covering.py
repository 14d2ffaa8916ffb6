"""Rows that cover a stretch of time: every minute once, from rows that may be trusted, and as few as possible."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, minute_of, moment_of
from refract.services.analytics.queries.covering import Cover, Folded, RowKey, month_around

DAY_MINUTES = 24 * 60
JANUARY = minute_of(datetime(2026, 1, 1, tzinfo=UTC))
JUNE = minute_of(datetime(2026, 6, 1, tzinfo=UTC))

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


def read(cover: Cover) -> list[RowKey]:
    """The rows that are read, if there is one for every period."""
    wanted = cover.wanted
    rows = [(HOUR, start) for stretch in wanted.hours for start in range(*stretch, 60)]
    return [*rows, *((DAY, start) for start in wanted.days), *((MONTH, start) for start in wanted.months)]


hours = minutes.map(lambda minute: minute - minute % 60)


@given(folded=foldings(), edges=st.lists(hours, min_size=2, max_size=5, unique=True))
def test_every_hour_is_covered_once_by_rows_that_may_be_trusted(folded: Folded, edges: list[int]) -> None:
    cover = Cover(folded)
    wanted = list(pairwise(sorted(edges)))
    for bucket, (start, end) in enumerate(wanted):
        cover.add(bucket, start, end)
    rows = read(cover)
    assert len(rows) == len(set(rows)), "no row is read twice"
    found: dict[int, list[tuple[int, int]]] = {}
    for span, start in rows:
        assert span == HOUR or (span, start) not in folded.stale
        assert start < (folded.months_until if span == MONTH else folded.days_until if span == DAY else JUNE)
        bucket = cover.bucket((span, start))
        found.setdefault(bucket, []).append((start, minute_of(end_of(moment_of(start), span))))
    for bucket, (start, end) in enumerate(wanted):
        parts = sorted(found[bucket])
        assert (parts[0][0], parts[-1][1]) == (start, end)
        assert all(before[1] == after[0] for before, after in pairwise(parts))


def test_where_nothing_is_folded_hours_are_not_asked_for_one_by_one() -> None:
    cover = Cover(Folded(0, 0))
    cover.add(0, 0, JUNE)
    assert (cover.wanted.hours, cover.wanted.days, cover.wanted.months) == ([(0, JUNE)], [], [])


def test_hours_beside_each_other_are_one_stretch_for_each_bucket() -> None:
    cover = Cover(Folded(JUNE, JANUARY))
    evenings = [JANUARY + day * DAY_MINUTES + 19 * 60 for day in range(5)]
    for bucket, (start, end) in enumerate(pairwise(evenings)):
        cover.add(bucket, start, end)
    assert cover.wanted.hours == list(pairwise(evenings))
    assert [cover.bucket((HOUR, evening + 600)) for evening in evenings[:-1]] == [0, 1, 2, 3]


def test_a_year_is_twelve_rows() -> None:
    start, end = (minute_of(datetime(year, 1, 1, tzinfo=UTC)) for year in (2025, 2026))
    cover = Cover(Folded(end, end))
    cover.add(0, start, end)
    assert len(read(cover)) == len(cover.wanted.months) == 12


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
