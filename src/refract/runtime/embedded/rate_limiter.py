"""The rate limiter in this process: counters in memory, which a restart forgets."""

from refract.kernel.clock import Clock, SystemClock
from refract.runtime.windows import MICROSECONDS, Policy, SlidingWindows, Verdict


class EmbeddedRateLimiter:
    """Counts by the process's own clock, without awaiting anything."""

    def __init__(self, clock: Clock | None = None, capacity: int = 65_536) -> None:
        self._clock = clock or SystemClock()
        self._windows = SlidingWindows(capacity)

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count `cost` hits if they fit, and say so."""
        return self.hit_soon(who, policy, cost)

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """The same without awaiting."""
        return self._windows.hit(who, policy, int(self._clock.monotonic() * MICROSECONDS), cost)

    async def ping(self) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """Nothing to give back."""
