"""Which rows of rollups tell what happened in a stretch of time: as few as possible, and no click twice.

Time is counted in whole minutes since 1970: all boundaries of rows and of periods are whole minutes, in every zone.
"""

from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH

HOUR_MINUTES = 60
DAY_MINUTES = 24 * HOUR_MINUTES

_EPOCH_DAY = date(1970, 1, 1).toordinal()

RowKey = tuple[int, int]
"""A row of one link: its span, and the minute in which it begins."""

Stretch = tuple[int, int]
"""From a minute up to another one, which is not in it."""


@dataclass(frozen=True, slots=True)
class Folded:
    """How far days and months are folded, and which of them are so no longer, because clicks have come since."""

    days_until: int
    months_until: int
    stale: frozenset[RowKey] = frozenset()

    def has_month(self, start: int) -> bool:
        """Whether the row of this month is all of it."""
        return start < self.months_until and (MONTH, start) not in self.stale

    def has_day(self, start: int) -> bool:
        """Whether the row of this day is all of it."""
        return start < self.days_until and (DAY, start) not in self.stale

    def around(self, minute: int) -> Stretch:
        """The row that counts a minute: where it begins, and where it ends."""
        month = month_around(minute)
        if self.has_month(month[0]):
            return month
        size = DAY_MINUTES if self.has_day(minute - minute % DAY_MINUTES) else HOUR_MINUTES
        return minute - minute % size, minute - minute % size + size


@dataclass(slots=True)
class Wanted:
    """Rows to read: some of each span by their beginnings, and of the hours that no day is made of yet, all."""

    hours: list[int] = field(default_factory=list)
    days: list[int] = field(default_factory=list)
    months: list[int] = field(default_factory=list)
    open_hours: Stretch = (0, 0)
    """How many of them there are nobody knows: where nothing was ever folded, there are some since 1970."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.hours or self.days or self.months or self.open_hours[0] < self.open_hours[1])


@dataclass(slots=True)
class Cover:
    """Whole rows that make up stretches, each of which is a bucket of its own, and begins and ends with an hour."""

    folded: Folded
    wanted: Wanted = field(default_factory=Wanted)
    _buckets: dict[RowKey, list[int]] = field(default_factory=dict)
    _open: list[tuple[int, Stretch]] = field(default_factory=list)

    def add(self, bucket: int, start: int, end: int) -> None:
        """Cover a stretch, for a bucket."""
        folded_end = min(end, self.folded.days_until)
        while start < folded_end:
            month, month_end = month_around(start)
            if month == start and month_end <= end and self.folded.has_month(month):
                self._take(bucket, MONTH, start)
                start = month_end
                continue
            day_end = start - start % DAY_MINUTES + DAY_MINUTES
            if start + DAY_MINUTES == day_end <= end and self.folded.has_day(start):
                self._take(bucket, DAY, start)
                start = day_end
                continue
            for hour in range(start, min(day_end, end), HOUR_MINUTES):
                self._take(bucket, HOUR, hour)
            start = day_end
        if start < end:
            self._open.append((bucket, (start, end)))
            first, last = self.wanted.open_hours if len(self._open) > 1 else (start, end)
            self.wanted.open_hours = min(first, start), max(last, end)

    def buckets(self, row: RowKey) -> list[int]:
        """Those that a row belongs to."""
        known = self._buckets.get(row)
        if known is not None:
            return known
        return [bucket for bucket, (start, end) in self._open if start <= row[1] < end]

    def _take(self, bucket: int, span: int, start: int) -> None:
        known = self._buckets.get((span, start))
        if known is not None:
            known.append(bucket)
            return
        self._buckets[span, start] = [bucket]
        {HOUR: self.wanted.hours, DAY: self.wanted.days, MONTH: self.wanted.months}[span].append(start)


def month_around(minute: int) -> Stretch:
    """The month that a minute lies in: its first minute, and the first after it."""
    return _month_around(minute // DAY_MINUTES)


@lru_cache(maxsize=8192)
def _month_around(day: int) -> Stretch:
    first = date.fromordinal(_EPOCH_DAY + day).replace(day=1)
    following = (first + timedelta(days=31)).replace(day=1)
    return _minutes_before(first), _minutes_before(following)


def _minutes_before(day: date) -> int:
    return (day.toordinal() - _EPOCH_DAY) * DAY_MINUTES
