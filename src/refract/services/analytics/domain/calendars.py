"""Hours, days, weeks and months as people count them: in a time zone, through every change of its clocks."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
QUARTER = timedelta(minutes=15)
"""Whatever a zone does to its clocks, it does by quarters of an hour, and on one."""

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


def periods(span: Range, interval: Interval, zone: ZoneInfo, most: int) -> list[Period]:
    """The periods of a range in their order, the first and the last as far as they are in it; empty if over `most`."""
    if (span.end - span.start) / _SHORTEST[interval] > 2 * most:
        return []  # not worth to be counted
    found = []
    for (start, name), (end, _) in pairwise(_starts(span, interval, zone)):
        if start >= end:  # a day that the zone left out, when it changed sides of the date line
            continue
        found.append(Period(name, max(start, span.start), min(end, span.end)))
    return found if len(found) <= most else []


def _starts(span: Range, interval: Interval, zone: ZoneInfo) -> Iterator[tuple[datetime, str]]:
    """Where periods begin, and their names; the last one is the first that is not in the range."""
    if interval is Interval.HOUR:
        for start in _hours(span, zone):
            yield start, f"{start.isoformat()[:_SECONDS]}Z"
        return
    day = _first_day(span.start.astimezone(zone).date(), interval)
    start = midnight(day, zone)
    while start < span.end:
        yield start, day.isoformat()
        day = _next(day, interval)
        start = midnight(day, zone)
    yield start, day.isoformat()


def _first_day(day: date, interval: Interval) -> date:
    if interval is Interval.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if interval is Interval.MONTH else day


def _next(day: date, interval: Interval) -> date:
    if interval is Interval.MONTH:
        return (day + timedelta(days=31)).replace(day=1)
    return day + timedelta(days=7 if interval is Interval.WEEK else 1)


def _hours(span: Range, zone: ZoneInfo) -> Iterator[datetime]:
    """Where hours of the zone begin. One in which the clocks are changed by half an hour is shorter, or comes twice."""
    start = _hour_of(span.start, zone)
    while start < span.end:
        yield start
        start += timedelta(minutes=60 - start.astimezone(zone).minute)
    yield start


def _hour_of(moment: datetime, zone: ZoneInfo) -> datetime:
    local = moment.astimezone(zone)
    start = moment - timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    while (first := start.astimezone(zone)).minute and (first.hour, first.utcoffset()) != (
        local.hour,
        local.utcoffset(),
    ):
        start += QUARTER
    return start
