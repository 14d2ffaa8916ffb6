"""When the next flush of clicks leaves: at once, with some company, or all who come while the loop stands still."""

import math

from refract.kernel.clock import Clock

GATHER_SECONDS = 0.003
"""How long after a flush began the next one waits for company."""

FEW, ENOUGH = 4, 8
"""So many have to be expected at least to be waited for, and so many are not waited for to become more."""

NAP_SECONDS = 0.001
"""How long after a flush began the event loop may stand still before the next one."""

MANY = 32
"""So many leave without that."""


class Pace:
    """Judges by the last flush. As many as it had, and came meanwhile, are likely to come again: more of those who wait
    for their answer before they ask again there are not, and with them the next flush leaves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = -math.inf
        self.coming = 0
        """How many the last flush had, and came while it was on its way."""

    def begin(self) -> None:
        """A flush begins."""
        self._began = self._clock.monotonic()

    @property
    def expected(self) -> int:
        """How many are enough company."""
        return min(self.coming, ENOUGH)

    def company(self, waiting: int) -> float:
        """For how many seconds a flush of so many waits for others: one costs much the same for one click as for
        thirty, and so does the way of each row through the outbox and the bus."""
        if self.coming < FEW or not 0 < waiting < self.expected:
            return 0.0
        return self._left(GATHER_SECONDS)

    def nap(self, waiting: int) -> float:
        """For how many seconds the event loop stands still before a flush of so many, so that others come in together.

        It would turn for each of them: it wakes up, reads one request, and sleeps again. Those who come in by the dozen
        take half of the time.
        """
        if self.coming < ENOUGH or not 0 < waiting < min(self.coming, MANY):
            return 0.0
        return self._left(NAP_SECONDS)

    def _left(self, seconds: float) -> float:
        return max(0.0, self._began + seconds - self._clock.monotonic())
