"""Clears up among the deliveries: forgets those that are over, and ends those that nobody will ever make."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.services.notifications.domain.sending import LONGEST_PAUSE
from refract.services.notifications.store.deliveries import (
    GIVE_UP_NOTIFICATIONS,
    GIVE_UP_OLD,
    HURRY,
    PRUNE,
)

log = logging.getLogger(__name__)

CLEAR_SECONDS = 3600.0
BATCH = 1000
KEPT = timedelta(days=30)
TOO_OLD = timedelta(days=7)

Pause = Callable[[float], Awaitable[object]]


class Clearing:
    """Goes over the deliveries once an hour."""

    def __init__(self, database: Database, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Clear up for ever; a database that is away is tried again at the next round."""
        while True:
            try:
                await self.clear()
            except Unavailable as error:
                log.warning("deliveries not cleared up; will retry", extra={"error": str(error)})
            await self._pause(CLEAR_SECONDS)

    async def clear(self) -> int:
        """Do it once, in batches that hold no lock for long; returns how many rows are gone."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await tx.execute(HURRY, now=now, never=now + 2 * LONGEST_PAUSE)
            reason = f"not delivered within {TOO_OLD.days} days"
            await tx.execute(GIVE_UP_NOTIFICATIONS, now=now, before=now - TOO_OLD)
            given_up = await tx.execute(GIVE_UP_OLD, now=now, before=now - TOO_OLD, reason=reason)
        if given_up:
            log.warning("deliveries given up", extra={"deliveries": given_up, "reason": reason})
        cleared = 0
        while True:
            async with self._database.transaction() as tx:
                deleted = await tx.execute(PRUNE, before=now - KEPT, batch=BATCH)
            cleared += deleted
            if deleted < BATCH:
                return cleared
