"""Turns: nobody fills a line that all stand in alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from refract.kernel.errors import Limited

MOST_WAITING = 200
"""Requests of one client that wait behind those at work; more are refused, to be tried again soon."""

SOON = 1.0


@dataclass(slots=True)
class _Place:
    free: asyncio.Semaphore
    requests: int = 0


class Turns:
    """Lets a few requests of each stand in line, and the rest of theirs wait behind them.

    It is for what everybody pays for in turns, such as bcrypt or the connections of a database, and what a client may
    ask for all day: a limit on requests would have to be so high that it helped nobody in the second that counts.
    """

    def __init__(self, at_a_time: int, most_waiting: int = MOST_WAITING) -> None:
        self._at_a_time = at_a_time
        self._most = at_a_time + most_waiting
        self._places: dict[str, _Place] = {}

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait for a place in the line; raises Limited where too many of theirs wait already."""
        place = self._places.setdefault(who, _Place(asyncio.Semaphore(self._at_a_time)))
        if place.requests >= self._most:
            raise Limited(SOON)
        place.requests += 1
        try:
            async with place.free:
                yield
        finally:
            place.requests -= 1
            if not place.requests:
                del self._places[who]
