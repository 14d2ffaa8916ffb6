"""What was put together of periods that are over: remembered under their clicks, which tell whether it still holds.

A row that gets a click counts it. So the numbers of clicks of the rows that a stretch lies in are a version of all that
happened in it: while they stay, so does every answer about it, and whoever has them need not read anything else.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Generic, TypeVar

from refract.runtime.ports import Row
from refract.services.analytics.domain.periods import DAY, MONTH, minute_of
from refract.services.analytics.queries.covering import DAY_MINUTES, HOUR_MINUTES, Folded, Stretch, month_around

MOST_BYTES = 16_000_000

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values by key, the least recently used of which are forgotten when all are too large together."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def find(self, key: Hashable) -> Value | None:
        """What was kept under this key."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a value of so many bytes."""
        before = self._values.pop(key, None)
        if before is not None:
            self._bytes -= before[1]
        self._values[key] = value, size
        self._bytes += size
        while self._bytes > self._most:
            _, (_, freed) = self._values.popitem(last=False)
            self._bytes -= freed


class Versions:
    """The clicks of the longest rows of a link that may be trusted, in the order of time."""

    def __init__(self, folded: Folded, rows: Iterable[Row]) -> None:
        self._stale = [start for span, start in folded.stale if span == DAY]
        ordered = sorted((*_stretch(row), row["clicks"]) for row in rows)
        self._starts: tuple[int, ...] = tuple([start for start, _, _ in ordered])
        self._ends: tuple[int, ...] = tuple([end for _, end, _ in ordered])
        self._clicks: tuple[int, ...] = tuple([clicks for _, _, clicks in ordered])

    def of(self, start: int, end: int) -> bytes | None:
        """The version of what is from one minute up to another; None while a part of it waits to be folded again."""
        if any(stale < end and start < stale + DAY_MINUTES for stale in self._stale):
            return None
        # Where rows begin and end is a part of it: that a month has as many clicks as one of its days means nothing.
        some = slice(bisect_right(self._ends, start), bisect_left(self._starts, end))
        numbers = array("q", (*self._starts[some], *self._ends[some], *self._clicks[some]))
        # A digest, because whatever is remembered has it in its key, and a stretch may lie in hundreds of rows.
        return blake2b(numbers.tobytes(), digest_size=16).digest()


def _stretch(row: Row) -> Stretch:
    start = minute_of(row["starts_at"])
    if row["span"] == MONTH:
        return month_around(start)
    return start, start + (DAY_MINUTES if row["span"] == DAY else HOUR_MINUTES)
