"""Long work goes in short pieces, so that whoever shares its event loop waits for a piece and not for all of it."""

import asyncio

from refract.kernel.clock import Clock

PIECE_SECONDS = 0.001
"""How long work may go on before others get their turn."""


class Courtesy:
    """How one kind of work gives way to others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()

    @property
    def due(self) -> bool:
        """Whether a piece has lasted long enough: cheap, to be asked after every step."""
        return self._clock.monotonic() - self._began > PIECE_SECONDS

    async def breathe(self) -> None:
        """Let others have their turn if a piece has lasted long enough, and begin a new one."""
        if self.due:
            await asyncio.sleep(0)
            self._began = self._clock.monotonic()
