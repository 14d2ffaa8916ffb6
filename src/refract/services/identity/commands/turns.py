"""Turns: nobody fills the line of passwords alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from refract.kernel.errors import Limited

AT_A_TIME = 8
"""Passwords of one client that wait for a processor or have one; two processors are through with them in 1.2 s."""

MOST_WAITING = 200
"""Requests of one client that wait behind those; more are refused, to be tried again soon."""

SOON = 1.0


@dataclass(slots=True)
class _Place:
    free: asyncio.Semaphore
    requests: int = 0


class Turns:
    """Lets a few requests of each stand in line, and the rest of theirs wait behind them.

    Failures to sign in are counted, but whoever registers, or signs in with the right password, may do so all day.
    """

    def __init__(self, at_a_time: int = AT_A_TIME) -> None:
        self._at_a_time = at_a_time
        self._places: dict[str, _Place] = {}

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait for a place in the line; raises Limited where too many of theirs wait already."""
        place = self._places.setdefault(who, _Place(asyncio.Semaphore(self._at_a_time)))
        if place.requests >= self._at_a_time + MOST_WAITING:
            raise Limited(SOON)
        place.requests += 1
        try:
            async with place.free:
                yield
        finally:
            place.requests -= 1
            if not place.requests:
                del self._places[who]
