"""Thresholds that the clicks of a link pass, each once in its life."""

from bisect import bisect_right
from collections.abc import Sequence

THRESHOLDS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


def passed(before: int, after: int, thresholds: Sequence[int] = THRESHOLDS) -> Sequence[int]:
    """The thresholds, in rising order, that a total passes on its way: those above `before`, up to `after`."""
    return thresholds[bisect_right(thresholds, before) : bisect_right(thresholds, after)]
