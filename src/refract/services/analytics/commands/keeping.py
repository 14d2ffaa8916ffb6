"""Keeps the house of analytics: partitions made ahead, periods folded, and what is over its time forgotten."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.services.analytics.commands.expiring import Expiry
from refract.services.analytics.commands.folding import Folding
from refract.services.analytics.commands.partitioning import Partitions
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0

Pause = Callable[[float], Awaitable[object]]


class Housekeeping:
    """Goes round every minute, also at the start. Each step stands alone: what fails is tried again the next time."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        clicks_kept: timedelta,
        hours_kept: timedelta,
        days_kept: timedelta,
        months_kept: timedelta,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.partitions = Partitions(database, clock, kept=clicks_kept)
        self.folding = Folding(database, clock, clicks_kept=clicks_kept)
        self.expiry = Expiry(database, clock, {HOUR: hours_kept, DAY: days_kept, MONTH: months_kept})
        self._pause = pause

    async def prepare(self) -> None:
        """Before the first click is read: make the partitions, so that few clicks ever lie in the default one."""
        await self._try(self.partitions.make)

    async def run(self) -> None:
        """Keep house for ever."""
        while True:
            await self.keep_house()
            await self._pause(ROUND_SECONDS)

    async def keep_house(self) -> None:
        """One round."""
        for step in (self.partitions.make, self.folding.fold, self.expiry.expire, self.partitions.drop):
            await self._try(step)

    async def _try(self, step: Callable[[], Awaitable[int]]) -> None:
        try:
            await step()
        except Unavailable as error:
            log.warning("housekeeping failed; will retry", extra={"error": str(error)})
