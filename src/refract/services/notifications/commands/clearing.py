"""Clears up among the deliveries: forgets those that are over, and ends those that nobody will ever make."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Transaction
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.services.notifications.domain.sending import LONGEST_PAUSE
from refract.services.notifications.store.deliveries import GIVE_UP, HURRY, OLD, PRUNE, mark_notifications, told_by

log = logging.getLogger(__name__)

CLEAR_SECONDS = 3600.0
BATCH = 1000
KEPT = timedelta(days=30)
TOO_OLD = timedelta(days=7)
TOO_LATE = f"not delivered within {TOO_OLD.days} days"


class Clearing:
    """Goes over the deliveries once an hour."""

    def __init__(self, database: Database, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Clear up for ever; a database that is away is tried again at the next round."""
        await repeat(
            self.clear, CLEAR_SECONDS, log=log, trouble="deliveries not cleared up; will retry", pause=self._pause
        )

    async def clear(self) -> int:
        """Do it once, in batches that hold no lock for long; returns how many rows are gone."""
        now = self._clock.now()
        await self._in_batches(lambda tx: tx.execute(HURRY, now=now, never=now + 2 * LONGEST_PAUSE, batch=BATCH))
        given_up = await self._in_batches(lambda tx: _give_up(tx, now))
        if given_up:
            log.warning("deliveries given up", extra={"deliveries": given_up, "reason": TOO_LATE})
        return await self._in_batches(lambda tx: tx.execute(PRUNE, before=now - KEPT, batch=BATCH))

    async def _in_batches(self, clear: Callable[[Transaction], Awaitable[int]]) -> int:
        return await in_batches(self._database, BATCH, clear)


async def _give_up(tx: Transaction, now: datetime) -> int:
    rows = await tx.fetch(OLD, now=now, before=now - TOO_OLD, batch=BATCH)
    if rows:
        await tx.execute(GIVE_UP, ids=[row["id"] for row in rows], reason=TOO_LATE)
        mails = [row for row in rows if row["channel"] == "email"]
        told = {told for row in mails for told in told_by(row["notification_id"], row["payload"])}
        await mark_notifications(tx, told, None)
    return len(rows)
