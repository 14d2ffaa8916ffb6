"""Which values of a dimension are the most frequent; of what is over this is found once, also when more is added."""

from collections.abc import Mapping
from typing import NamedTuple

from refract.services.analytics.domain.tallies import OTHER, Tally, most_frequent

VALUE_BYTES = 250
"""About what a value takes in memory beside its own characters: in two tables and two orders, at the worst."""

_NOTHING: Mapping[str, int] = {}


class Top(NamedTuple):
    """The most frequent values, the highest first, and how many clicks have any value."""

    values: list[tuple[str, int]]
    known: int

    @classmethod
    def of(cls, counts: Mapping[str, int], most: int) -> "Top":
        """Of counts by value; what stands for the rest is none of them, but counts."""
        named = {value: count for value, count in counts.items() if value != OTHER} if OTHER in counts else counts
        return cls(most_frequent(named, most), sum(counts.values()))


class Ranking:
    """Counts by value that change no more, in their order."""

    __slots__ = ("_counts", "_known", "_order")

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._known = sum(counts.values())
        # By their names first: what is sorted by a count then, leaves equal ones in that order.
        self._order = sorted(value for value in counts if value != OTHER)
        self._order.sort(key=counts.__getitem__, reverse=True)

    def top(self, most: int, more: Mapping[str, int] = _NOTHING) -> Top:
        """The most frequent values with some more clicks, which are few."""
        counts = self._counts
        some = {value: counts.get(value, 0) + count for value, count in more.items() if value != OTHER}
        enough = most + len(some)
        for value in self._order:
            if len(some) == enough:
                break
            if value not in some:  # of those that stay what they are, no more than the first can be among the first
                some[value] = counts[value]
        return Top(most_frequent(some, most), self._known + sum(more.values()))


class Standing:
    """A tally that changes no more, and who is first in it: with the bots, and without them."""

    __slots__ = ("_rankings", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rankings: dict[bool, Ranking] = {}

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(map(len, self._tally.people)) + sum(map(len, self._tally.bots)) + VALUE_BYTES * self._values

    def top(self, most: int, more: Tally, *, bots: bool) -> Top:
        """The most frequent values with those of another, small tally."""
        ranking = self._rankings.get(bots)
        if ranking is None:
            ranking = self._rankings[bots] = Ranking(self._tally.counts(bots=bots))
        return ranking.top(most, more.counts(bots=bots))

    @property
    def _values(self) -> int:
        return len(self._tally.people) + len(self._tally.bots)
