"""While very many requests are answered, work that can wait rests: whoever follows a link comes first.

In embedded mode the relay and the readers of events share a processor, a disk and an interpreter with the redirects.
What they have to do is safe where it is and loses nothing by a delay.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from refract.kernel.clock import Clock, SystemClock
from refract.runtime.rounds import Pause

MANY = 10_000
"""Requests a second from which on they have the process to themselves. Below, there is room for both."""

LOOK_SECONDS = 0.1


class Rush:
    """Tells whether this process has a rush; `answered` says how many requests it has answered so far."""

    def __init__(self, clock: Clock, answered: Callable[[], int], *, pause: Pause = asyncio.sleep) -> None:
        self._clock = clock
        self._answered = answered
        self._pause = pause
        self._looked_at = clock.monotonic()
        self._seen = answered()
        self.was_on = False
        """Whether there was one at the last look, for threads that must not look themselves."""

    @classmethod
    def never(cls) -> Self:
        """For a process in which nobody comes first."""
        return cls(SystemClock(), lambda: 0)

    @property
    def is_on(self) -> bool:
        """Whether there is one, as far as was seen lately: cheap, to be asked before every step."""
        now = self._clock.monotonic()
        passed = now - self._looked_at
        if passed >= LOOK_SECONDS:
            answered = self._answered()
            self.was_on = answered - self._seen > MANY * passed
            self._looked_at, self._seen = now, answered
        return self.was_on

    async def over(self) -> None:
        """Return when there is none, which is usually at once."""
        while self.is_on:
            await self._pause(LOOK_SECONDS)
