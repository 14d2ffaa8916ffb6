"""Which range of time a client asks about, as it stands in the URL."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Self, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from refract.kernel.errors import Invalid
from refract.services.analytics.domain.calendars import (
    Division,
    Interval,
    Range,
    UnknownZone,
    divide,
    midnight,
    zone_of,
)

MOST_POINTS = 1_000
EARLIEST = date(2000, 1, 1)
LATEST = date(2100, 1, 1)
"""No link is older; and to the other side one has to stop somewhere, too."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})")
_SECOND = timedelta(seconds=1)
_DAYS_BY_DEFAULT = 30
_PERIODS_BY_DEFAULT = {Interval.HOUR: 1, Interval.DAY: _DAYS_BY_DEFAULT, Interval.WEEK: 12 * 7, Interval.MONTH: 365}
"""Days up to today that a range has which nobody has set."""

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range, the zone in which its days are counted, and the length of its periods where there are any."""

    span: Range
    zone: ZoneInfo
    interval: Interval = Interval.DAY

    @classmethod
    def read(cls, now: datetime, *, start: str = "", end: str = "", tz: str = "", interval: str = "") -> Self:
        """The parameters `from`, `to`, `tz` and `interval`; raises Invalid that names the first one that is wrong."""
        length = choice("interval", interval, Interval) if interval else Interval.DAY
        zone = read_zone(tz)
        # Without an end all that has happened by now is meant, which includes this very second.
        until = read_moment("to", end, zone, next_day=True) if end else now.replace(microsecond=0) + _SECOND
        if start:
            since = read_moment("from", start, zone)
        else:
            last = (until - timedelta(microseconds=1)).astimezone(zone).date()
            since = midnight(last - timedelta(days=_PERIODS_BY_DEFAULT[length] - 1), zone)
        if since >= until:
            raise Invalid("from must be before to")
        return cls(Range(since, until), zone, length)

    def divided(self) -> Division:
        """The periods of the range; raises Invalid if they are too many."""
        found = divide(self.span, self.interval, self.zone, MOST_POINTS)
        if found is None:
            raise Invalid(f"more than {MOST_POINTS} points: choose a shorter range or a longer interval")
        return found


def read_zone(name: str) -> ZoneInfo:
    """A time zone by its name, UTC if there is none."""
    try:
        return zone_of(name or "UTC")
    except UnknownZone:
        raise Invalid("tz must be the name of a time zone, such as Europe/Berlin") from None


def read_moment(name: str, text: str, zone: ZoneInfo, *, next_day: bool = False) -> datetime:
    """A moment, or a date: then it is the beginning of the day in the zone, or with `next_day` its end."""
    try:
        if _DATE.fullmatch(text) is not None:
            day = date.fromisoformat(text)
            if EARLIEST <= day < LATEST:
                return midnight(day + timedelta(days=1) if next_day else day, zone)
        elif _MOMENT.fullmatch(text.replace(" ", "+")) is not None:  # what `+` means in a URL
            moment = msgspec.convert(text.replace(" ", "+"), datetime).astimezone(UTC)
            if EARLIEST <= moment.date() < LATEST:
                return moment
    except (ValueError, OverflowError):  # the 31st of February
        pass
    raise Invalid(f"{name} must be a date such as 2026-03-01, or a moment such as 2026-03-01T12:00:00Z")


def choice(name: str, text: str, choices: type[Choice]) -> Choice:
    """One of some words."""
    try:
        return choices(text)
    except ValueError:
        raise Invalid(f"{name} must be one of {', '.join(choices)}") from None


def read_flag(name: str, text: str) -> bool:
    """`true` or `false`; nothing is false."""
    if text not in {"", "true", "false"}:
        raise Invalid(f"{name} must be true or false")
    return text == "true"
