"""Periods of time zones: through changes of their clocks, at odd offsets, and from any moment to any other."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refract.services.analytics.domain.calendars import (
    Interval,
    Period,
    Range,
    UnknownZone,
    divide,
    midnight,
    zone_of,
)

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Apia",
    "Pacific/Chatham",
    "America/Santiago",
    "Africa/Casablanca",
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def periods(span: Range, interval: Interval, zone: str, most: int) -> list[Period]:
    division = divide(span, interval, zone_of(zone), most)
    assert division is not None
    return division.periods()


def shown(start: str, end: str, interval: Interval, zone: str) -> list[tuple[str, str]]:
    """The periods of a range: their names, and how long they are."""
    found = periods(Range(at(start), at(end)), interval, zone, 1_000)
    return [(period.name, str(period.end - period.start)) for period in found]


def test_days_are_an_hour_shorter_or_longer_when_the_clocks_change() -> None:
    assert shown("2026-03-27T23:00Z", "2026-03-30T22:00Z", Interval.DAY, "Europe/Berlin") == [
        ("2026-03-28", "1 day, 0:00:00"),
        ("2026-03-29", "23:00:00"),
        ("2026-03-30", "1 day, 0:00:00"),
    ]
    assert shown("2026-10-24T22:00Z", "2026-10-25T23:00Z", Interval.DAY, "Europe/Berlin") == [
        ("2026-10-25", "1 day, 1:00:00")
    ]


def test_the_hour_that_comes_twice_is_two_hours_and_the_one_left_out_none() -> None:
    names = [name for name, _ in shown("2026-10-24T22:00Z", "2026-10-25T23:00Z", Interval.HOUR, "Europe/Berlin")]
    assert len(names) == len(set(names)) == 25
    assert names[:2] == ["2026-10-24T22:00:00Z", "2026-10-24T23:00:00Z"]
    assert len(shown("2026-03-28T23:00Z", "2026-03-29T22:00Z", Interval.HOUR, "Europe/Berlin")) == 23


def test_hours_begin_where_the_zone_begins_them() -> None:
    assert shown("2026-05-01T00:00Z", "2026-05-01T02:00Z", Interval.HOUR, "Asia/Kathmandu") == [
        ("2026-04-30T23:15:00Z", "0:15:00"),
        ("2026-05-01T00:15:00Z", "1:00:00"),
        ("2026-05-01T01:15:00Z", "0:45:00"),
    ]


def test_clocks_that_change_by_half_an_hour() -> None:
    # On 4 October 2026 at 02:00 it becomes 02:30; on 5 April at 02:00 it becomes 01:30 again.
    assert shown("2026-10-03T14:30Z", "2026-10-03T17:00Z", Interval.HOUR, "Australia/Lord_Howe") == [
        ("2026-10-03T14:30:00Z", "1:00:00"),
        ("2026-10-03T15:30:00Z", "0:30:00"),
        ("2026-10-03T16:00:00Z", "1:00:00"),
    ]
    assert shown("2026-04-04T14:00Z", "2026-04-04T16:30Z", Interval.HOUR, "Australia/Lord_Howe") == [
        ("2026-04-04T14:00:00Z", "1:00:00"),
        ("2026-04-04T15:00:00Z", "0:30:00"),
        ("2026-04-04T15:30:00Z", "1:00:00"),
    ]


def test_clocks_that_change_in_the_middle_of_an_hour() -> None:
    # On 27 September 2026 at 02:45 it becomes 03:45; on 5 April at 03:45 it becomes 02:45 again.
    assert shown("2026-09-26T13:15Z", "2026-09-26T15:15Z", Interval.HOUR, "Pacific/Chatham") == [
        ("2026-09-26T13:15:00Z", "0:45:00"),
        ("2026-09-26T14:00:00Z", "0:15:00"),
        ("2026-09-26T14:15:00Z", "1:00:00"),
    ]
    assert shown("2026-04-04T12:15Z", "2026-04-04T15:15Z", Interval.HOUR, "Pacific/Chatham") == [
        ("2026-04-04T12:15:00Z", "1:00:00"),
        ("2026-04-04T13:15:00Z", "0:45:00"),
        ("2026-04-04T14:00:00Z", "0:15:00"),
        ("2026-04-04T14:15:00Z", "1:00:00"),
    ]


@pytest.mark.parametrize(
    ("zone", "start", "name"),
    [
        ("Australia/Lord_Howe", "2026-10-03T15:45Z", "2026-10-03T15:30:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:10Z", "2026-04-04T15:00:00Z"),
        ("Pacific/Chatham", "2026-09-26T14:05Z", "2026-09-26T14:00:00Z"),
        ("Pacific/Chatham", "2026-04-04T14:05Z", "2026-04-04T14:00:00Z"),
        ("Antarctica/Casey", "2022-10-01T16:05Z", "2022-10-01T16:00:00Z"),  # at 00:01 it became 03:01
    ],
)
def test_a_range_that_begins_in_an_hour_cut_short_by_the_clocks(zone: str, start: str, name: str) -> None:
    end = (at(start) + timedelta(minutes=5)).isoformat()
    assert shown(start, end, Interval.HOUR, zone) == [(name, "0:05:00")]


def test_a_day_without_midnight_begins_when_the_clocks_jump() -> None:
    # Cairo, 24 April 2026: 00:00 becomes 01:00.
    assert midnight(date(2026, 4, 24), zone_of("Africa/Cairo")) == at("2026-04-23T22:00Z")
    assert shown("2026-04-22T22:00Z", "2026-04-24T21:00Z", Interval.DAY, "Africa/Cairo") == [
        ("2026-04-23", "1 day, 0:00:00"),
        ("2026-04-24", "23:00:00"),
    ]


def test_a_day_that_a_zone_left_out_is_no_period() -> None:
    # Samoa went from 29 to 31 December 2011.
    names = [name for name, _ in shown("2011-12-29T10:00Z", "2011-12-31T10:00Z", Interval.DAY, "Pacific/Apia")]
    assert names == ["2011-12-29", "2011-12-31"]


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    assert shown("2026-03-01T00:00Z", "2026-03-10T00:00Z", Interval.WEEK, "UTC") == [
        ("2026-02-23", "1 day, 0:00:00"),
        ("2026-03-02", "7 days, 0:00:00"),
        ("2026-03-09", "1 day, 0:00:00"),
    ]
    assert shown("2026-01-15T00:00Z", "2026-03-01T00:00Z", Interval.MONTH, "UTC") == [
        ("2026-01-01", "17 days, 0:00:00"),
        ("2026-02-01", "28 days, 0:00:00"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Mars/Olympus",
        "../../etc/passwd",
        "/etc/passwd",
        "Europe",
        "Europe/",
        "europe berlin",
        "a\0b",
        "UTC+1",
        "x" * 999,
    ],
)
def test_names_that_are_no_zones(name: str) -> None:
    with pytest.raises(UnknownZone):
        zone_of(name)


def test_too_many_periods_are_none() -> None:
    span = Range(at("2026-01-01T00:00Z"), at("2026-01-11T00:00Z"))
    assert len(periods(span, Interval.DAY, "UTC", 10)) == 10
    assert divide(span, Interval.DAY, zone_of("UTC"), 9) is None
    ages = Range(at("2000-01-01T00:00Z"), at("2099-12-31T00:00Z"))
    assert divide(ages, Interval.HOUR, zone_of("UTC"), 1_000) is None


moments = st.datetimes(datetime(2012, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # bounds have no zone; `timezones` gives it


@given(
    start=moments,
    seconds=st.integers(1, 40 * 86_400),
    interval=st.sampled_from(Interval),
    zone=st.sampled_from(ZONES),
)
@example(at("2026-09-10T14:47Z"), 1_500_000, Interval.HOUR, "Pacific/Chatham")
def test_the_periods_of_a_range_are_all_of_it_and_nothing_else(
    start: datetime, seconds: int, interval: Interval, zone: str
) -> None:
    span = Range(start, start + timedelta(seconds=seconds))
    found = periods(span, interval, zone, 2_000)
    assert (found[0].start, found[-1].end) == (span.start, span.end)
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(period.start < period.end for period in found)
    names = [period.name for period in found]
    assert names == sorted(set(names))
    for period in found:
        first, last = (
            period.start.astimezone(zone_of(zone)),
            (period.end - timedelta(microseconds=1)).astimezone(zone_of(zone)),
        )
        assert first.date() == last.date() or interval in {Interval.WEEK, Interval.MONTH}
        if interval is Interval.HOUR:
            assert first.hour == last.hour
        elif interval is Interval.MONTH:
            assert (first.year, first.month) == (last.year, last.month)
        elif interval is Interval.WEEK:
            assert first.date().isocalendar()[:2] == last.date().isocalendar()[:2]
