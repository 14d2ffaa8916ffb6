"""Moments between which clicks are counted: whole minutes, which rows know, and what is left beside these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Self

from refract.services.analytics.domain.calendars import Division, Range
from refract.services.analytics.domain.periods import minute_of, moment_of

Edge = tuple[int, datetime, datetime]
"""A stretch that only the clicks themselves tell: its bucket, and from when to when."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments in rising order: the first whole minute from each of them on, and the one that it lies in.

    Those are the same for all but a few, which stand in `exact`, by their place.
    """

    span: Range
    firsts: list[int]
    lasts: list[int]
    exact: dict[int, datetime]

    @classmethod
    def of(cls, moments: Sequence[datetime]) -> Self:
        """Any moments."""
        exact = {place: moment for place, moment in enumerate(moments) if _is_exact(moment)}
        lasts = list(map(minute_of, moments))
        return cls(Range(moments[0], moments[-1]), _following(lasts, exact), lasts, exact)

    @classmethod
    def of_division(cls, division: Division) -> Self:
        """The edges of periods: whole minutes, but for the first and the last."""
        inner = division.minutes[1:-1]
        start, end = cls.of((division.span.start,)), cls.of((division.span.end,))
        exact = {place: moment for one, place in ((start, 0), (end, len(inner) + 1)) for moment in one.exact.values()}
        return cls(division.span, [*start.firsts, *inner, *end.firsts], [*start.lasts, *inner, *end.lasts], exact)

    def within(self, span: Range) -> Self:
        """As many moments, of which the first and the last are those of a range, and none lies outside of it."""
        start, end = minute_of(span.start), minute_of(span.end)
        inner, last = self.lasts[1:-1], len(self.lasts) - 1
        if inner and (inner[0] < start or inner[-1] > end):
            inner = [min(max(minute, start), end) for minute in inner]
        exact = {place: moment for place, moment in self.exact.items() if 0 < place < last and _inside(moment, span)}
        exact |= {place: moment for place, moment in ((0, span.start), (last, span.end)) if _is_exact(moment)}
        lasts = [start, *inner, end]
        return type(self)(span, _following(lasts, exact), lasts, exact)

    def edges(self) -> list[Edge]:
        """What of the stretches between them is not in whole minutes."""
        edges: list[Edge] = []
        for bucket in sorted({place + side for place in self.exact for side in (-1, 0)}):
            if 0 <= bucket < len(self.lasts) - 1:
                start, end = self._moment(bucket), self._moment(bucket + 1)
                first, last = moment_of(self.firsts[bucket]), moment_of(self.lasts[bucket + 1])
                if first <= last:
                    add_edge(edges, bucket, start, first)
                    add_edge(edges, bucket, last, end)
                else:
                    add_edge(edges, bucket, start, end)
        return edges

    def differences(self, points: Sequence[int], counts: Sequence[int]) -> list[int]:
        """What was counted in the whole minutes between each two, from what was before each of some points."""
        if len(points) == len(self.lasts) and not self.exact:
            return [after - before for before, after in pairwise(counts)]
        before = dict(zip(points, counts, strict=True))
        stretches = zip(self.firsts, self.lasts[1:], strict=False)
        return [before[last] - before[first] if first < last else 0 for first, last in stretches]

    def _moment(self, place: int) -> datetime:
        return self.exact.get(place) or moment_of(self.lasts[place])


def _following(minutes: list[int], exact: Mapping[int, datetime]) -> list[int]:
    """The first whole minutes from moments on."""
    if not exact:
        return minutes
    firsts = minutes.copy()
    for place in exact:
        firsts[place] += 1
    return firsts


def _is_exact(moment: datetime) -> bool:
    return bool(moment.second or moment.microsecond)


def _inside(moment: datetime, span: Range) -> bool:
    return span.start < moment < span.end


def add_edge(edges: list[Edge], bucket: int, start: datetime, end: datetime) -> None:
    """Add a stretch, unless it is empty."""
    if start < end:
        edges.append((bucket, start, end))
