"""Counts the clicks before each of many minutes, in one sweep over the rows that know them.

A day of a zone, an hour of a series, the last 24 hours: each is what was counted before its end, less what was before
its beginning. So a thousand periods cost two looks into the rows each, whatever these are made of.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from refract.runtime.ports import Row
from refract.services.analytics.domain.parts import PART_MINUTES, Pair, part_entries, unpack_parts
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, minute_of
from refract.services.analytics.queries.covering import DAY_MINUTES, HOUR_MINUTES, Folded, Wanted, month_around

_QUARTER = PART_MINUTES[DAY]


class _Cell(NamedTuple):
    """A stretch that one row counts, or one part of a row."""

    start: int
    end: int
    clicks: int
    bot_clicks: int
    row: Row | None = None
    """Where parts of the stretch are known, too."""


@dataclass(slots=True)
class Sweep:
    """Minutes in rising order, and the rows that tell what was clicked between them.

    A month knows its days, a day its quarters, an hour its minutes. A day that has a point inside is read itself,
    and so is an hour that has one that no quarter ends with.
    """

    folded: Folded
    points: Sequence[int]
    wanted: Wanted = field(default_factory=Wanted)
    _cut: set[int] = field(init=False)
    """Days with points inside."""
    _odd: dict[int, list[int]] = field(default_factory=dict)
    """By their day, which is folded: the places of points that no quarter ends with."""

    def __post_init__(self) -> None:
        points = self.points
        self._cut = {point - point % DAY_MINUTES for point in points if point % DAY_MINUTES}
        odd_hours: set[int] = set()
        for place in [place for place, point in enumerate(points) if point % _QUARTER]:
            point = points[place]
            day = point - point % DAY_MINUTES
            if self.folded.has_day(day):
                self._odd.setdefault(day, []).append(place)
                odd_hours.add(point - point % HOUR_MINUTES)
        self._choose(points[0], points[-1])
        for hour in sorted(odd_hours):
            self.wanted.add_hours(hour, hour + HOUR_MINUTES)

    def _choose(self, first: int, end: int) -> None:
        folded, wanted = self.folded, self.wanted
        day = first - first % DAY_MINUTES
        while day < min(end, folded.days_until):
            month, month_end = month_around(day)
            if folded.has_month(month):
                days = range(day, min(month_end, end), DAY_MINUTES)
                cut = [one for one in days if one in self._cut]
                wanted.days += cut
                if len(cut) < len(days):
                    wanted.months.append(month)
                day = month_end
                continue
            if folded.has_day(day):
                wanted.days.append(day)
            else:
                wanted.add_hours(day, day + DAY_MINUTES)
            day += DAY_MINUTES
        wanted.add_hours(max(first - first % HOUR_MINUTES, folded.days_until), end)

    def counts(self, rows: Iterable[Row]) -> tuple[list[int], list[int]]:
        """For each point the clicks of all rows before it, and those of bots: right as differences between points."""
        cells, odd_hours = self._cells(rows)
        points = self.points
        # Time in steps, each with its clicks: a cell with points inside has one for each of its parts, others have one.
        clicks: list[int] = []
        bot_clicks: list[int] = []
        places: list[int] = []
        more: list[tuple[int, Pair]] = []
        for start, end, count, bot_count, row in cells:
            here = bisect_right(points, start, len(places))
            if here > len(places):
                places += [len(clicks)] * (here - len(places))
            if here == len(points) or points[here] >= end:
                clicks.append(count)
                bot_clicks.append(bot_count)
                continue
            assert row is not None, "no point lies inside of a day of a month"
            length, step = PART_MINUTES[row["span"]], len(clicks)
            inside = points[here : bisect_left(points, end, here)]
            places += [step + (point - start) // length for point in inside]
            if row["span"] == DAY and start in self._odd:
                more += self._between_quarters(start, places, odd_hours)
            parts, bot_parts = unpack_parts(row["parts"], row["span"])
            clicks += parts
            bot_clicks += bot_parts
        places += [len(clicks)] * (len(points) - len(places))
        every, of_bots = _before(places, clicks), _before(places, bot_clicks)
        for place, pair in more:
            every[place] += pair[0]
            of_bots[place] += pair[1]
        return every, of_bots

    def _between_quarters(self, day: int, places: list[int], odd_hours: dict[int, Row]) -> Iterable[tuple[int, Pair]]:
        """Points that only an hour knows are put to its beginning; told is what of the hour is before them."""
        for place in self._odd[day]:
            minute = self.points[place] % HOUR_MINUTES
            row = odd_hours.get(self.points[place] - minute)
            if row is not None:
                places[place] -= minute // _QUARTER
                parts, bot_parts = unpack_parts(row["parts"], HOUR)
                yield place, (sum(parts[:minute]), sum(bot_parts[:minute]))

    def _cells(self, rows: Iterable[Row]) -> tuple[list[_Cell], dict[int, Row]]:
        """Stretches in the order of time, and hours inside of these that have a point in them."""
        cells: list[_Cell] = []
        odd_hours: dict[int, Row] = {}
        for row in rows:
            start = minute_of(row["starts_at"])
            if row["span"] == MONTH:
                for part, (clicks, bot_clicks) in part_entries(row["parts"], MONTH).items():
                    day = start + part * DAY_MINUTES
                    if day not in self._cut:
                        cells.append(_Cell(day, day + DAY_MINUTES, clicks, bot_clicks))
            elif row["span"] == DAY:
                cells.append(_Cell(start, start + DAY_MINUTES, row["clicks"], row["bot_clicks"], row))
            elif self.folded.has_day(start - start % DAY_MINUTES):
                odd_hours[start] = row
            else:
                cells.append(_Cell(start, start + HOUR_MINUTES, row["clicks"], row["bot_clicks"], row))
        cells.sort(key=_start_of)
        return cells, odd_hours


def _start_of(cell: _Cell) -> int:
    return cell.start


def _before(places: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The sum of the first so many counts, for each place."""
    sums = [*accumulate(counts, initial=0)]
    return [sums[place] for place in places]
