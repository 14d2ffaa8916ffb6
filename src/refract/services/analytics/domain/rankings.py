"""Which values of a dimension are the most frequent; of what is over this is found once, also when more is added."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from refract.services.analytics.domain.tallies import OTHER, most_frequent

MOST_RANKED = 20_000
"""So many values are remembered, the most frequent: a busy link may have had hundreds of thousands."""

VALUE_BYTES = 200
"""About what a value takes in memory beside its own characters."""

AT_FIRST = 256
"""So many are put in order, or twice as many as are needed."""

_NOTHING: Mapping[str, int] = {}


class Top(NamedTuple):
    """The most frequent values, the highest first, and how many clicks have any value."""

    values: list[tuple[str, int]]
    known: int

    @classmethod
    def of(cls, counts: Mapping[str, int], most: int) -> "Top":
        """Of counts by value; what stands for the rest is none of them, but counts."""
        return cls(most_frequent(_named(counts), most), sum(counts.values()))


class Ranking:
    """Counts by value that change no more. Those that are asked for are put in order when they are."""

    __slots__ = ("_counts", "_dropped", "_known", "_order")

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._known = sum(counts.values())
        named = _named(counts)
        self._dropped = 0
        """What a value has at most that is not remembered."""
        if len(named) > MOST_RANKED:
            named = dict(most_frequent(named, MOST_RANKED))
            self._dropped = min(named.values())
        self._counts = named
        self._order: Sequence[str] = ()

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(map(len, self._counts)) + VALUE_BYTES * len(self._counts)

    def top(self, most: int, more: Mapping[str, int] = _NOTHING) -> Top | None:
        """The most frequent values with some more clicks, which are few.

        None where one of these might be among them by clicks that are not remembered: it has to `learn` them first.
        """
        counts = self._counts
        some = {value: counts.get(value, 0) + count for value, count in more.items() if value != OTHER}
        enough = most + len(some)
        for value in self._first(enough):
            if len(some) == enough:
                break
            if value not in some:  # of those that stay what they are, no more than the first can be among the first
                some[value] = counts[value]
        top = Top(most_frequent(some, most), self._known + sum(more.values()))
        unsure = [some[value] for value in some if value not in counts] if self._dropped else []
        return None if unsure and max(unsure) + self._dropped >= top.values[-1][1] else top

    def learn(self, some: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Remember how often these values were seen, of all counts."""
        self._counts = {**self._counts, **{value: counts.get(value, 0) for value in some if value != OTHER}}

    def _first(self, count: int) -> Sequence[str]:
        """At least so many in their order, or all."""
        if len(self._order) < min(count, len(self._counts)):
            self._order = [value for value, _ in most_frequent(self._counts, max(AT_FIRST, 2 * count))]
        return self._order


def _named(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Without what stands for the rest."""
    return {value: count for value, count in counts.items() if value != OTHER} if OTHER in counts else counts
