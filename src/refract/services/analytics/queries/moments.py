"""Moments between which clicks are counted: whole minutes, which rows know, and what is left beside these."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import sub
from typing import Self

from refract.services.analytics.domain.calendars import Division, Range
from refract.services.analytics.domain.periods import minute_of, moment_of

Edge = tuple[int, datetime, datetime]
"""A stretch that only the clicks themselves tell: its bucket, and from when to when."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments in rising order, as the minutes they lie in. Those that are no whole minutes stand in `exact`, too."""

    span: Range
    minutes: Sequence[int]
    exact: dict[int, datetime]
    """By their place; there are only a few."""

    @classmethod
    def of(cls, moments: Sequence[datetime]) -> Self:
        """Any moments."""
        exact = {place: moment for place, moment in enumerate(moments) if _is_exact(moment)}
        return cls(Range(moments[0], moments[-1]), list(map(minute_of, moments)), exact)

    @classmethod
    def of_division(cls, division: Division) -> Self:
        """The edges of periods: whole minutes, but for the first and the last."""
        start, end = division.span
        last = len(division.minutes) - 1
        exact = {place: moment for place, moment in ((0, start), (last, end)) if _is_exact(moment)}
        return cls(division.span, [minute_of(start), *division.minutes[1:-1], minute_of(end)], exact)

    def within(self, span: Range) -> Self:
        """As many moments, of which the first and the last are those of a range, and none lies outside of it."""
        start, end = minute_of(span.start), minute_of(span.end)
        inner, last = self.minutes[1:-1], len(self.minutes) - 1
        if inner and (inner[0] < start or inner[-1] > end):
            inner = [min(max(minute, start), end) for minute in inner]
        exact = {place: moment for place, moment in self.exact.items() if 0 < place < last and _inside(moment, span)}
        exact |= {place: moment for place, moment in ((0, span.start), (last, span.end)) if _is_exact(moment)}
        return type(self)(span, [start, *inner, end], exact)

    def points(self) -> Sequence[int]:
        """The minutes before which clicks are to be counted, in rising order: these, and the first after each exact."""
        if not self.exact:
            return self.minutes
        return sorted([*self.minutes, *map(self.first, self.exact)])

    def first(self, place: int) -> int:
        """The first whole minute from a moment on."""
        return self.minutes[place] + (place in self.exact)

    def edges(self) -> list[Edge]:
        """What of the stretches between them is not in whole minutes."""
        edges: list[Edge] = []
        for bucket in sorted({place + side for place in self.exact for side in (-1, 0)}):
            if 0 <= bucket < len(self.minutes) - 1:
                start, end = self._moment(bucket), self._moment(bucket + 1)
                first, last = moment_of(self.first(bucket)), moment_of(self.minutes[bucket + 1])
                if first <= last:
                    add_edge(edges, bucket, start, first)
                    add_edge(edges, bucket, last, end)
                else:
                    add_edge(edges, bucket, start, end)
        return edges

    def differences(self, points: Sequence[int], counts: Sequence[int]) -> list[int]:
        """What was counted in the whole minutes between each two, from what was before each of the points."""
        after = {place: bisect_left(points, self.first(place)) for place in self.exact}
        before = list(counts)
        for place in sorted(after.values(), reverse=True):
            del before[place]
        between = list(map(sub, before[1:], before))
        for place, point in after.items():
            if place < len(between):
                # Nothing is left of a stretch within one minute: all of it is at the edges.
                following = self.first(place) <= self.minutes[place + 1]
                between[place] = before[place + 1] - counts[point] if following else 0
        return between

    def _moment(self, place: int) -> datetime:
        return self.exact.get(place) or moment_of(self.minutes[place])


def _is_exact(moment: datetime) -> bool:
    return bool(moment.second or moment.microsecond)


def _inside(moment: datetime, span: Range) -> bool:
    return span.start < moment < span.end


def add_edge(edges: list[Edge], bucket: int, start: datetime, end: datetime) -> None:
    """Add a stretch, unless it is empty."""
    if start < end:
        edges.append((bucket, start, end))
