"""A rush that begins and ends when a test says so."""

import asyncio

from refract.kernel.clock import SystemClock
from refract.runtime.rush import Rush


class ToldRush(Rush):
    """It is on until it is told to end; whoever waits for that is counted, and waits for no clock."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), lambda: 0, pause=self._wait)
        self.is_told = True
        self.waits = 0
        self._ended = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self.is_told

    def end(self) -> None:
        """From now on there is none."""
        self.is_told = False
        self._ended.set()

    async def _wait(self, _: float) -> None:
        self.waits += 1
        await self._ended.wait()
