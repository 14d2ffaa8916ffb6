"""Rate limits: policies, verdicts, and the arithmetic of a sliding window over sub-buckets."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from refract.kernel.errors import Limited

BUCKETS = 20
"""Sub-buckets of a window. The oldest one counts in full until it has left the window entirely, so that no interval
of the window's length admits more than the limit; the price is that a hit is remembered up to 1/20 longer."""

MICROSECONDS = 1_000_000
"""Time is counted in whole microseconds here and in Redis, so that both do the same sums without rounding."""


@dataclass(frozen=True, slots=True)
class Policy:
    """At most `limit` hits in any `window` seconds; a limit of 0 switches the policy off.

    `when_away` says what happens while the counter cannot be reached: `open` lets everything through, because the
    request outranks the quota; `local` goes on counting in this process.
    """

    route: str
    limit: int
    window: float
    when_away: Literal["open", "local"] = "open"
    bucket: int = field(init=False, repr=False, compare=False)
    """The width of a sub-bucket in microseconds, rounded up: twenty of them are never less than the window."""

    def __post_init__(self) -> None:
        if self.window <= 0 or self.limit < 0:
            raise ValueError(f"no such rate limit: {self.limit} in {self.window} s")
        object.__setattr__(self, "bucket", math.ceil(self.window * MICROSECONDS / BUCKETS))

    def key(self, who: str) -> str:
        """The counter's key; `who` is a user id, or the salted hash of an address, never an address."""
        return f"ratelimit:{self.route}:{who}"


class Verdict(Struct, frozen=True, gc=False):
    """Whether a hit was admitted, how many more fit, and after how many seconds the next one will."""

    allowed: bool
    limit: int
    remaining: int
    retry_after: float = 0.0

    @property
    def retry_after_seconds(self) -> int:
        """Whole seconds for the Retry-After header: waiting that long is enough."""
        return max(1, math.ceil(self.retry_after)) if not self.allowed else 0


class OverLimit(Limited):
    """More than a policy admits; the answer says of which, as those of admitted requests do."""

    def __init__(self, policy: Policy, verdict: Verdict) -> None:
        super().__init__(verdict.retry_after)
        self.fields = limit_fields(policy, verdict)


def limit_fields(policy: Policy, verdict: Verdict) -> list[tuple[bytes, bytes]]:
    """What an answer says about its limit: the older fields and those of the draft standard (decision 14)."""
    window = round(policy.window)
    fields = [
        (b"x-ratelimit-limit", b"%d" % policy.limit),
        (b"x-ratelimit-remaining", b"%d" % verdict.remaining),
        (b"ratelimit-policy", b'"%b";q=%d;w=%d' % (policy.route.encode(), policy.limit, window)),
    ]
    if verdict.allowed:
        rest = b'"%b";r=%d;t=%d' % (policy.route.encode(), verdict.remaining, window)
        return [*fields, (b"ratelimit", rest)]
    seconds = verdict.retry_after_seconds
    return [
        (b"retry-after", b"%d" % seconds),
        *fields,
        (b"ratelimit", b'"%b";r=%d;t=%d' % (policy.route.encode(), verdict.remaining, seconds)),
    ]


def uncounted(policy: Policy) -> Verdict:
    """The verdict of a policy that is off, or whose counter is away and lets everything through."""
    return Verdict(allowed=True, limit=policy.limit, remaining=policy.limit)


class SlidingWindow:
    """One counter. The caller brings the time, in microseconds that never go back."""

    __slots__ = ("_buckets", "_newest", "_total", "forgotten_at")

    def __init__(self) -> None:
        self._buckets: list[tuple[int, int]] = []
        self._total = 0
        self._newest = -1
        self.forgotten_at = 0
        """From this moment on it remembers nothing, and a new one would do as well."""

    def hit(self, policy: Policy, now: int, cost: int = 1) -> Verdict:
        """Count `cost` hits if they fit; a cost of 0 only asks how many do."""
        limit, width = policy.limit, policy.bucket
        current = now // width
        buckets = self._buckets
        if current == self._newest and self._total + cost <= limit:
            # The usual case: since the last hit nothing has left the window.
            self._total += cost
            buckets[-1] = (current, buckets[-1][1] + cost)
            return Verdict(True, limit, limit - self._total)  # noqa: FBT003  # by name it takes twice as long
        while buckets and buckets[0][0] < current - BUCKETS:
            self._total -= buckets.pop(0)[1]
        if self._total + cost > limit:
            wait = self._wait(limit, cost, width, now)
            return Verdict(allowed=False, limit=limit, remaining=limit - self._total, retry_after=wait / MICROSECONDS)
        if cost:
            if buckets and buckets[-1][0] == current:
                buckets[-1] = (current, buckets[-1][1] + cost)
            else:
                buckets.append((current, cost))
                self._newest = current
                self.forgotten_at = (current + BUCKETS + 1) * width
            self._total += cost
        return Verdict(allowed=True, limit=limit, remaining=limit - self._total)

    def _wait(self, limit: int, cost: int, width: int, now: int) -> int:
        """Until so many of the oldest hits have left that `cost` more fit; a cost over the limit never fits."""
        left = self._total
        for bucket, hits in self._buckets:
            left -= hits
            if left + cost <= limit:
                return (bucket + BUCKETS + 1) * width - now
        return (BUCKETS + 1) * width


class SlidingWindows:
    """All counters of one process: those that fell idle are swept, and a flood of new ones pushes out the oldest.

    The counters of a route share its window, so the one that was used longest ago is also the next to fall idle.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._routes: dict[str, OrderedDict[str, SlidingWindow]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._routes.values()))

    def hit(self, who: str, policy: Policy, now: int, cost: int = 1) -> Verdict:
        """Count `cost` hits of somebody if they fit; `now` is in microseconds that never go back."""
        if policy.limit == 0:
            return uncounted(policy)
        windows = self._routes.get(policy.route)
        if windows is None:
            windows = self._routes[policy.route] = OrderedDict()
        window = windows.get(who)
        if window is None:
            if cost == 0:  # to ask leaves nothing behind, or many names could push out somebody's counter
                return uncounted(policy)
            self._make_room(windows, now)
            window = windows[who] = SlidingWindow()
        else:
            windows.move_to_end(who)
        return window.hit(policy, now, cost)

    def _make_room(self, windows: OrderedDict[str, SlidingWindow], now: int) -> None:
        """Before each new counter up to two idle ones go, so that idle ones never pile up."""
        for _ in range(2):
            if not windows:
                return
            oldest = next(iter(windows))
            if windows[oldest].forgotten_at > now and len(windows) < self._capacity:
                return
            del windows[oldest]
