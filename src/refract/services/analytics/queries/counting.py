"""Counts the clicks before each of many minutes, in one sweep over the rows that know them.

A day of a zone, an hour of a series, the last 24 hours: each is what was counted before its end, less what was before
its beginning. So a thousand periods cost two looks into the rows each, whatever these are made of.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from refract.runtime.ports import Row
from refract.services.analytics.domain.parts import PART_MINUTES, part_entries, unpack_parts
from refract.services.analytics.domain.periods import DAY, MONTH, minute_of
from refract.services.analytics.queries.covering import DAY_MINUTES, HOUR_MINUTES, Folded, Wanted, month_around

_QUARTER = PART_MINUTES[DAY]


@dataclass(slots=True)
class _Cell:
    """A stretch that one row counts, or one part of a row."""

    start: int
    end: int
    clicks: int
    bot_clicks: int
    row: Row | None = None
    """Where parts of the stretch are known, too."""

    def before(self, points: Sequence[int], odd_hours: "Mapping[int, _Cell]") -> tuple[list[int], list[int]]:
        """How many clicks of the stretch came before each of some points inside, and how many of bots."""
        assert self.row is not None, "no point lies inside of a day of a month"
        span, length = self.row["span"], PART_MINUTES[self.row["span"]]
        clicks, bot_clicks = ([*accumulate(counts, initial=0)] for counts in unpack_parts(self.row["parts"], span))
        parts = [(point - self.start) // length for point in points]
        every, of_bots = [clicks[part] for part in parts], [bot_clicks[part] for part in parts]
        if span == DAY:
            for place, point in enumerate(points):
                if point % length:  # its hour knows more
                    hour = point - point % HOUR_MINUTES
                    part = (hour - self.start) // length
                    more = odd_hours[hour].before([point], {}) if hour in odd_hours else ([0], [0])
                    every[place], of_bots[place] = clicks[part] + more[0][0], bot_clicks[part] + more[1][0]
        return every, of_bots


@dataclass(slots=True)
class Sweep:
    """Minutes in rising order, and the rows that tell what was clicked between them.

    A month knows its days, a day its quarters, an hour its minutes. A day that has a point inside is read itself,
    and so is an hour that has one that no quarter ends with.
    """

    folded: Folded
    points: Sequence[int]
    wanted: Wanted = field(default_factory=Wanted)
    _cut: set[int] = field(default_factory=set)
    """Days with points inside."""

    def __post_init__(self) -> None:
        odd_hours: set[int] = set()
        for point in self.points:
            inside = point % DAY_MINUTES
            if inside:
                self._cut.add(point - inside)
                if inside % _QUARTER:
                    odd_hours.add(point - point % HOUR_MINUTES)
        self._choose(self.points[0], self.points[-1])
        known = self.wanted.hours
        known += sorted(hour for hour in odd_hours if self.folded.has_day(hour - hour % DAY_MINUTES))

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
                wanted.hours += range(day, day + DAY_MINUTES, HOUR_MINUTES)
            day += DAY_MINUTES
        wanted.open_hours = max(first - first % HOUR_MINUTES, folded.days_until), end

    def counts(self, rows: Iterable[Row]) -> tuple[list[int], list[int]]:
        """For each point the clicks of all rows before it, and those of bots: right as differences between points."""
        cells, odd_hours = self._cells(rows)
        points = self.points
        every: list[int] = []
        of_bots: list[int] = []
        clicks, bot_clicks = 0, 0
        for cell in cells:
            here = bisect_right(points, cell.start, len(every))
            every += [clicks] * (here - len(every))
            of_bots += [bot_clicks] * (here - len(of_bots))
            inside = points[here : bisect_left(points, cell.end, here)]
            if inside:
                before, bots_before = cell.before(inside, odd_hours)
                every += [clicks + count for count in before]
                of_bots += [bot_clicks + count for count in bots_before]
            clicks += cell.clicks
            bot_clicks += cell.bot_clicks
        rest = len(points) - len(every)
        return every + [clicks] * rest, of_bots + [bot_clicks] * rest

    def _cells(self, rows: Iterable[Row]) -> tuple[list[_Cell], dict[int, _Cell]]:
        """Stretches in the order of time, and hours inside of these that have a point in them."""
        cells: list[_Cell] = []
        odd_hours: dict[int, _Cell] = {}
        for row in rows:
            start = minute_of(row["starts_at"])
            if row["span"] == MONTH:
                for part, pair in part_entries(row["parts"], MONTH).items():
                    day = start + part * DAY_MINUTES
                    if day not in self._cut:
                        cells.append(_Cell(day, day + DAY_MINUTES, *pair))
            elif row["span"] == DAY:
                cells.append(_Cell(start, start + DAY_MINUTES, row["clicks"], row["bot_clicks"], row))
            else:
                cell = _Cell(start, start + HOUR_MINUTES, row["clicks"], row["bot_clicks"], row)
                if self.folded.has_day(start - start % DAY_MINUTES):
                    odd_hours[start] = cell
                else:
                    cells.append(cell)
        cells.sort(key=_start_of)
        return cells, odd_hours


def _start_of(cell: _Cell) -> int:
    return cell.start
