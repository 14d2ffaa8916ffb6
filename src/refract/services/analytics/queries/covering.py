"""Which rows of rollups tell what happened in a stretch of time: as few as possible, and no click twice.

Time is counted in whole minutes since 1970: all boundaries of rows and of periods are whole minutes, in every zone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH

HOUR_MINUTES = 60
DAY_MINUTES = 24 * HOUR_MINUTES

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MINUTE = timedelta(minutes=1)

RowKey = tuple[int, int]
"""A row of one link: its span, and the minute in which it begins."""


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

    def around(self, minute: int) -> tuple[int, int]:
        """The row that counts a minute: where it begins, and where it ends."""
        month = month_around(minute)
        if self.has_month(month[0]):
            return month
        size = DAY_MINUTES if self.has_day(minute - minute % DAY_MINUTES) else HOUR_MINUTES
        return minute - minute % size, minute - minute % size + size


class Share(NamedTuple):
    """The parts of a row that belong to one stretch: from the first up to the last, which is not among them."""

    bucket: int
    first: int = 0
    last: int = -1

    @property
    def is_whole(self) -> bool:
        """Whether it is the row as a whole."""
        return self.last < 0


@dataclass(slots=True)
class Cover:
    """Rows, with the stretches that have a share in them; and what no row tells, which only the clicks do.

    `by_parts`: counts are also kept of the parts of a row, so that a part of a day need not be gathered from its hours.
    """

    folded: Folded
    by_parts: bool
    rows: dict[RowKey, list[Share]] = field(default_factory=dict)
    raw: list[tuple[int, int, int]] = field(default_factory=list)
    """Bucket, and the minutes from which and up to which."""

    def add(self, bucket: int, start: int, end: int) -> None:
        """Cover a stretch, for a bucket."""
        while start < end:
            month, month_end = month_around(start)
            if self.folded.has_month(month):
                stop = min(end, month_end)
                self._take(bucket, MONTH, (month, month_end), (start, stop))
            else:
                day = start - start % DAY_MINUTES
                stop = min(end, day + DAY_MINUTES)
                if self.folded.has_day(day):
                    self._take(bucket, DAY, (day, day + DAY_MINUTES), (start, stop))
                else:
                    self._each(bucket, HOUR, start, stop)
            start = stop

    def _take(self, bucket: int, span: int, row: tuple[int, int], wanted: tuple[int, int]) -> None:
        """Take of one row what is wanted of it, and of finer rows what is not in whole parts of it."""
        start, (first, last) = row[0], wanted
        if row == wanted:
            self._share(span, start, Share(bucket))
            return
        part, finer = _PARTS[span]
        if not self.by_parts:
            self._finer(bucket, finer, first, last)
            return
        whole_first, whole_last = -(-first // part) * part, last - last % part
        if whole_first > whole_last:  # all of it within one part
            self._finer(bucket, finer, first, last)
            return
        self._finer(bucket, finer, first, whole_first)
        if whole_first < whole_last:
            share = Share(bucket, (whole_first - start) // part, (whole_last - start) // part)
            self._share(span, start, share)
        self._finer(bucket, finer, whole_last, last)

    def _finer(self, bucket: int, span: int | None, start: int, end: int) -> None:
        if start >= end:
            return
        if span is None:
            self.raw.append((bucket, start, end))
        else:
            self._each(bucket, span, start, end)

    def _each(self, bucket: int, span: int, start: int, end: int) -> None:
        size = HOUR_MINUTES if span == HOUR else DAY_MINUTES
        while start < end:
            row = start - start % size
            stop = min(end, row + size)
            self._take(bucket, span, (row, row + size), (start, stop))
            start = stop

    def _share(self, span: int, start: int, share: Share) -> None:
        self.rows.setdefault((span, start), []).append(share)


_PARTS: Mapping[int, tuple[int, int | None]] = {
    MONTH: (DAY_MINUTES, DAY),
    DAY: (HOUR_MINUTES, HOUR),
    HOUR: (1, None),
}
"""By span: the minutes of its parts, and the span of the rows that are as long as a part."""


def minute_of(moment: datetime) -> int:
    """The minute that a moment lies in."""
    return (moment - _EPOCH) // _MINUTE


def moment_of(minute: int) -> datetime:
    """The first moment of a minute."""
    return _EPOCH + minute * _MINUTE


def month_around(minute: int) -> tuple[int, int]:
    """The month that a minute lies in: its first minute, and the first after it."""
    return _month_around(minute // DAY_MINUTES)


@lru_cache(maxsize=8192)
def _month_around(day: int) -> tuple[int, int]:
    first = date.fromordinal(_EPOCH_DAY + day).replace(day=1)
    following = (first + timedelta(days=31)).replace(day=1)
    return _minutes_before(first), _minutes_before(following)


def _minutes_before(day: date) -> int:
    return (day.toordinal() - _EPOCH_DAY) * DAY_MINUTES
