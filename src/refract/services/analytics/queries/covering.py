"""Which rows of rollups tell what happened in a stretch of time: as few as possible, and no click twice.

Time is counted in whole minutes since 1970: all boundaries of rows and of periods are whole minutes, in every zone.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from refract.services.analytics.domain.parts import PART_MINUTES
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
    """Rows to read: days and months by their beginnings, and all hours of some stretches.

    How many of these there are nobody knows: where nothing was ever folded, there are some since 1970.
    """

    hours: list[Stretch] = field(default_factory=list)
    days: list[int] = field(default_factory=list)
    months: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    """Days of which only some quarters are wanted."""
    counted: list[int] = field(default_factory=list)
    """Days of which it is enough to know how many visitors they have."""

    def add_hours(self, start: int, end: int) -> None:
        """Read those of one more stretch, too."""
        if self.hours and self.hours[-1][1] == start:
            start = self.hours.pop()[0]
        if start < end:
            self.hours.append((start, end))

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.hours or self.days or self.months or self.cut or self.counted)


class Piece(NamedTuple):
    """A part of a day, from a minute up to another one, and the bucket that it belongs to."""

    bucket: int
    start: int
    end: int


@dataclass(slots=True)
class Cover:
    """Rows that make up stretches, each of which is a bucket of its own.

    Stretches begin and end with an hour; `by_quarters` those in folded days with a quarter of one, and such a day is
    told by its quarters.
    """

    folded: Folded
    by_quarters: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """What is wanted of a day that is cut, by its first minute."""
    told: list[int] = field(default_factory=list)
    """Buckets whose days are only counted."""
    _longer: dict[RowKey, int] = field(default_factory=dict)
    """Days and months, with their buckets."""
    _firsts: list[int] = field(default_factory=list)
    _buckets: list[int] = field(default_factory=list)
    """From which minute on hours belong to which bucket."""

    def add(self, bucket: int, start: int, end: int) -> None:
        """Cover a stretch, for a bucket; after those that are covered already."""
        folded_end = min(end, self.folded.days_until)
        while start < folded_end:
            month, month_end = month_around(start)
            if month == start and month_end <= end and self.folded.has_month(month):
                self.wanted.months.append(start)
                self._longer[MONTH, start] = bucket
                start = month_end
                continue
            day_end = start - start % DAY_MINUTES + DAY_MINUTES
            if start + DAY_MINUTES == day_end <= end and self.folded.has_day(start):
                self.wanted.days.append(start)
                self._longer[DAY, start] = bucket
                start = day_end
                continue
            if self.by_quarters and self.folded.has_day(day_end - DAY_MINUTES):
                self._add_piece(Piece(bucket, start, min(day_end, end)))
            else:
                self._add_hours(bucket, start, min(day_end, end))
            start = day_end
        if start < end:
            self._add_hours(bucket, start, end)

    def count(self, bucket: int, day: int) -> None:
        """Have the visitors of a day counted, which is a bucket; who they are is told elsewhere."""
        self.wanted.counted.append(day)
        self.told.append(bucket)
        self._longer[DAY, day] = bucket

    def unit(self, minute: int) -> int:
        """How many minutes are the least that can be covered of the day that a minute lies in."""
        known = self.by_quarters and self.folded.has_day(minute - minute % DAY_MINUTES)
        return PART_MINUTES[DAY] if known else HOUR_MINUTES

    def _add_piece(self, piece: Piece) -> None:
        day = piece.start - piece.start % DAY_MINUTES
        if day not in self.pieces:
            self.pieces[day] = []
            self.wanted.cut.append(day)
        self.pieces[day].append(piece)

    def _add_hours(self, bucket: int, start: int, end: int) -> None:
        if self._buckets and self._buckets[-1] == bucket:
            self.wanted.add_hours(start, end)
            return
        # Not with those before it: what is read of a stretch belongs to one bucket.
        self.wanted.hours.append((start, end))
        self._firsts.append(start)
        self._buckets.append(bucket)

    def bucket(self, row: RowKey) -> int:
        """The one that a row belongs to."""
        if row[0] == HOUR:
            return self._buckets[bisect_right(self._firsts, row[1]) - 1]
        return self._longer[row]


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
