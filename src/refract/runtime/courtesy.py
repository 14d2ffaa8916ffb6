"""Work that can wait gives way to requests that cannot: it goes in short pieces, and rests while many are answered.

In embedded mode the readers of events share a processor, and even a thread, with the redirects. What they have to do
is safe on the disk and loses nothing by a delay; whoever follows a link would wait.
"""

import asyncio
from collections.abc import Callable

from refract.kernel.clock import Clock

PIECE_SECONDS = 0.001
"""How long work may go on before others get their turn."""

REST_SECONDS = 1.0
"""How long it rests after a piece while many requests are answered. Its processor time would allow far more pieces; but
each commit takes the disk from the clicks of those requests, for milliseconds."""

MANY = 10_000
"""Requests a second from which on they come first. Below, there is room for both."""

LOOK_SECONDS = 0.1


class Courtesy:
    """How one kind of work gives way; `answered` says how many requests this process has answered so far."""

    def __init__(self, clock: Clock, answered: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._answered = answered
        self._began = clock.monotonic()
        self._looked_at = self._began
        self._seen = answered()
        self.is_busy = False
        """Whether many requests are answered, as far as was seen lately."""

    @property
    def due(self) -> bool:
        """Whether a piece has lasted long enough: cheap, to be asked after every step."""
        return self._clock.monotonic() - self._began > PIECE_SECONDS

    async def give_way(self) -> None:
        """Let others have their turn, and begin a new piece."""
        self._look()
        await asyncio.sleep(REST_SECONDS if self.is_busy else 0)
        self._began = self._clock.monotonic()

    async def breathe(self) -> None:
        """Let others have their turn after a piece, and go on without a rest."""
        if self.due:
            await asyncio.sleep(0)
            self._began = self._clock.monotonic()

    def _look(self) -> None:
        now = self._clock.monotonic()
        passed = now - self._looked_at
        if passed < LOOK_SECONDS:
            return
        answered = self._answered()
        self.is_busy = answered - self._seen > MANY * passed
        self._looked_at, self._seen = now, answered
