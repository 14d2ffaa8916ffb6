"""A user's limit and the one function that decides by it, whichever window it has and whoever asks."""

from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Algorithm = Literal["fixed", "sliding"]
ALGORITHMS: tuple[Algorithm, ...] = ("fixed", "sliding")

SLICES = 60
"""Of a sliding window. The oldest one counts in full until it has left the window entirely, so that no interval of the
window's length has more than the limit; the price is that a send is remembered up to 1/60 longer."""

LARGEST_NUMBER = 2**31 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1)

Slice = tuple[int, int]
"""The number of a slice since 1970, and the sends in it."""


class Limit(Struct, frozen=True, gc=False):
    """At most `rate_limit` sends in a window of `time_window` minutes, and how many there are.

    A fixed window begins with the first send after the last one is over, `last_refresh_time`. A sliding one is every
    interval of its length; its sends are in `slices`, oldest first, and `current_count` is their sum.
    """

    rate_limit: int
    time_window: int
    algorithm: Algorithm
    current_count: int
    last_refresh_time: datetime
    slices: tuple[Slice, ...] = ()
    version: int = 1
    """Raised with every change by the administrator."""

    @property
    def window(self) -> timedelta:
        """The length of the window."""
        return self.time_window * _MINUTE

    @property
    def room(self) -> int:
        """How many more fit, as it stands."""
        return max(0, self.rate_limit - self.current_count)


class Decision(Struct, frozen=True, gc=False):
    """How many of those that asked were admitted, the limit after them, and when the next one will be."""

    admitted: int
    limit: Limit
    free_at: datetime
    """When the next send is admitted: now, or when the first of the counted ones is forgotten."""


def decide(limit: Limit, now: datetime, asked: int) -> Decision:
    """Admit as many as fit, in the order in which they asked. Refused ones do not count."""
    limit = at_moment(limit, now)
    admitted = min(asked, limit.room)
    if admitted:
        limit = replace(limit, current_count=limit.current_count + admitted, slices=_with_sends(limit, now, admitted))
    return Decision(admitted, limit, now if limit.room else forgets_at(limit, now))


def at_moment(limit: Limit, now: datetime) -> Limit:
    """The limit as it stands at a moment, without what is forgotten by then.

    Where the clock was set back, what was counted in its future is taken for sent now: nobody gets more than the
    limit for that, and nobody waits longer than for one window.
    """
    if limit.algorithm == "sliding":
        slices = _still_counted(limit, now)
        if slices == limit.slices:
            return limit
        return replace(limit, slices=slices, current_count=sum(sends for _, sends in slices))
    elapsed = now - limit.last_refresh_time
    if elapsed >= limit.window:
        return replace(limit, current_count=0, last_refresh_time=now)
    return limit if elapsed >= timedelta() else replace(limit, last_refresh_time=now)


def forgets_at(limit: Limit, now: datetime) -> datetime:
    """When some of what is counted is forgotten; a window from now where nothing is counted."""
    if limit.algorithm == "fixed":
        return limit.last_refresh_time + limit.window
    if not limit.slices:
        return now + limit.window
    oldest, _ = limit.slices[0]
    return _EPOCH + (oldest + SLICES + 1) * _width(limit) * _MICROSECOND


def write_slices(slices: tuple[Slice, ...]) -> str:
    """As they are kept in a row."""
    return " ".join(f"{number}:{sends}" for number, sends in slices)


def read_slices(text: str) -> tuple[Slice, ...]:
    """Back from a row."""
    pairs = (pair.partition(":") for pair in text.split())
    return tuple((int(number), int(sends)) for number, _, sends in pairs)


def _width(limit: Limit) -> int:
    """Of a slice in microseconds, rounded up: sixty of them are never less than the window."""
    return -(-(limit.window // _MICROSECOND) // SLICES)


def _current_slice(limit: Limit, now: datetime) -> int:
    return (now - _EPOCH) // _MICROSECOND // _width(limit)


def _still_counted(limit: Limit, now: datetime) -> tuple[Slice, ...]:
    current = _current_slice(limit, now)
    counted = [(number, sends) for number, sends in limit.slices if current - SLICES <= number <= current]
    ahead = sum(sends for number, sends in limit.slices if number > current)
    return _added(tuple(counted), current, ahead) if ahead else tuple(counted)


def _with_sends(limit: Limit, now: datetime, sends: int) -> tuple[Slice, ...]:
    return _added(limit.slices, _current_slice(limit, now), sends) if limit.algorithm == "sliding" else ()


def _added(slices: tuple[Slice, ...], number: int, sends: int) -> tuple[Slice, ...]:
    if slices and slices[-1][0] == number:
        return (*slices[:-1], (number, slices[-1][1] + sends))
    return (*slices, (number, sends))
