"""Hours, days, weeks and months as people count them: in a time zone, through every change of its clocks."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple
from zoneinfo import ZoneInfo

from refract.services.analytics.domain.periods import EPOCH, minute_of, moment_of

MINUTE = timedelta(minutes=1)
QUARTER = timedelta(minutes=15)
"""What a zone does to its clocks it does by quarters of an hour, and on one.

All of them since 2012, but for a station in the Antarctic that waits until a minute past midnight: there a quarter
belongs to the hour in which it begins.
"""

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_DAY_MINUTES, _QUARTER_MINUTES = 24 * 60, 15
_SECONDS = len("2026-03-01T12:00:00")
_SHORTEST = {
    "hour": timedelta(minutes=30),
    "day": timedelta(hours=23),
    "week": timedelta(days=6, hours=23),
    "month": timedelta(days=27, hours=23),
}


class Interval(StrEnum):
    """The length of a period. Weeks begin on Monday."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Range(NamedTuple):
    """From a moment to another one, which is not in it; both in UTC."""

    start: datetime
    end: datetime


class Period(NamedTuple):
    """What of a range lies in one period of the calendar. The name is that of the whole period, also of a part."""

    name: str
    start: datetime
    end: datetime


class UnknownZone(ValueError):
    """There is no time zone of this name."""


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """The time zone with a name of the IANA database; raises UnknownZone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such name; a name that leaves the database; a folder in it
        raise UnknownZone(name) from None


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first moment of a day, in UTC: where the clocks jump over midnight, the moment of the jump."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


class Division(NamedTuple):
    """A range in the periods of a calendar, one after the other: their names, and the minutes where each begins.

    And the one where the last ends: there is one more of these. The first and the last may lie beyond the range.
    """

    span: Range
    names: Sequence[str]
    minutes: Sequence[int]

    def periods(self) -> list[Period]:
        """The periods in their order, the first and the last as far as they are in the range."""
        moments = list(map(moment_of, self.minutes))
        moments[0], moments[-1] = max(moments[0], self.span.start), min(moments[-1], self.span.end)
        return list(map(Period, self.names, moments, moments[1:]))


def divide(span: Range, interval: Interval, zone: ZoneInfo, most: int) -> Division | None:
    """The periods of a range; None if they are more than `most`."""
    if (span.end - span.start) / _SHORTEST[interval] > 2 * most:
        return None  # not worth to be counted
    first, end = (span.start - EPOCH) // QUARTER, -((EPOCH - span.end) // QUARTER)
    names, minutes = _periods(first, end, interval, zone)
    return Division(span, names, minutes) if len(names) <= most else None


@lru_cache(maxsize=256)
def _periods(first: int, end: int, interval: Interval, zone: ZoneInfo) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and minutes of the periods from a quarter since 1970 up to another: none begins inside of one.

    A dashboard asks the same of every link, and of now in every second: for a quarter of an hour nothing changes.
    """
    span = Range(EPOCH + first * QUARTER, EPOCH + end * QUARTER)
    if interval is Interval.HOUR:
        minutes = _hours(span, zone)
        names = hour_names(minutes[:-1])
    else:
        minutes, names = _days(span, interval, zone)
    return tuple(names), tuple(minutes)


def _days(span: Range, interval: Interval, zone: ZoneInfo) -> tuple[list[int], list[str]]:
    """Where days, weeks or months begin, and their names."""
    day = _first_day(span.start.astimezone(zone).date(), interval)
    start = midnight(day, zone)
    minutes, names = [minute_of(start)], []
    while start < span.end:
        following = _next(day, interval)
        end = midnight(following, zone)
        if start < end:  # else a day that the zone left out, when it changed sides of the date line
            names.append(day.isoformat())
            minutes.append(minute_of(end))
        day, start = following, end
    return minutes, names


def _first_day(day: date, interval: Interval) -> date:
    if interval is Interval.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if interval is Interval.MONTH else day


def _next(day: date, interval: Interval) -> date:
    if interval is Interval.MONTH:
        return (day + timedelta(days=31)).replace(day=1)
    return day + timedelta(days=7 if interval is Interval.WEEK else 1)


def _hours(span: Range, zone: ZoneInfo) -> list[int]:
    """Where hours of the zone begin. One in which the clocks are changed is shorter, or comes twice."""
    start = _hour_of(span.start, zone)
    minutes: list[int] = []
    while start < span.end:
        local, tomorrow = start.astimezone(zone), (start + _DAY).astimezone(zone)
        first = minute_of(start)
        if local.minute == 0 and local.utcoffset() == tomorrow.utcoffset():
            # Nobody touches the clocks for a day: its hours are all alike.
            hours = min(24, -((start - span.end) // _HOUR))
            minutes += range(first, first + hours * 60, 60)
            start += hours * _HOUR
        else:
            minutes.append(first)
            start = _next_hour(start, zone)
    return [*minutes, minute_of(start)]


def _next_hour(start: datetime, zone: ZoneInfo) -> datetime:
    """Where the hour ends that begins at a moment: where the clocks show another one, or are changed."""
    hour = _clock_hour(start, zone)
    while _clock_hour(start, zone) == hour:
        start += QUARTER
    return start


def hour_names(minutes: Sequence[int]) -> list[str]:
    """The names of hours by the minutes in which they begin."""
    names: list[str] = []
    for day, some in groupby(minutes, _day_of):
        known = _names_of_day(day)
        names += [known[minute % _DAY_MINUTES // _QUARTER_MINUTES] for minute in some]
    return names


def _day_of(minute: int) -> int:
    return minute // _DAY_MINUTES


@lru_cache(maxsize=1024)
def day_name(day: int) -> str:
    """The name of a day, by its number since 1970."""
    return moment_of(day * _DAY_MINUTES).date().isoformat()


@lru_cache(maxsize=1024)
def _names_of_day(day: int) -> tuple[str, ...]:
    """The names of hours that begin with a quarter of a day."""
    first = moment_of(day * _DAY_MINUTES)
    return tuple(f"{(first + number * QUARTER).isoformat()[:_SECONDS]}Z" for number in range(96))


def _hour_of(moment: datetime, zone: ZoneInfo) -> datetime:
    start = moment_of(minute_of(moment) // _QUARTER_MINUTES * _QUARTER_MINUTES)
    hour = _clock_hour(start, zone)
    while _clock_hour(start - QUARTER, zone) == hour:
        start -= QUARTER
    return start


def _clock_hour(moment: datetime, zone: ZoneInfo) -> tuple[int, timedelta | None]:
    local = moment.astimezone(zone)
    return local.hour, local.utcoffset()
