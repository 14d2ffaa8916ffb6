"""Forgets notifications that are over their time."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.notifications.store.notifications import count_read

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
SWEEP_BATCH = 1_000

Pause = Callable[[float], Awaitable[object]]

_OLD = "SELECT id FROM notifications WHERE created_at < :before LIMIT :batch"
FORGET_NOTIFICATIONS = Statement(
    "forget_notifications",
    "Removes a batch of notifications over their time; those that another process has in hand are left to it.",
    f"""
    DELETE FROM notifications WHERE id IN ({_OLD} FOR UPDATE SKIP LOCKED) RETURNING user_id, read_at
    """,  # noqa: S608  # names, not values
    sqlite=f"DELETE FROM notifications WHERE id IN ({_OLD}) RETURNING user_id, read_at",  # noqa: S608
)


class Sweeper:
    """Goes over the notifications every ten minutes; several processes may do so at once."""

    def __init__(self, database: Database, clock: Clock, retention: timedelta, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        self._pause = pause

    async def run(self) -> None:
        """Sweep for ever; a database that is away is tried again at the next round."""
        while True:
            try:
                await self.sweep()
            except Unavailable as error:
                log.warning("sweep failed; will retry", extra={"error": str(error)})
            await self._pause(SWEEP_SECONDS)

    async def sweep(self) -> int:
        """Remove everything over its time, in batches; returns how many rows."""
        removed, batch = 0, SWEEP_BATCH
        while batch == SWEEP_BATCH:
            batch = await self._forget_batch()
            removed += batch
        if removed:
            log.info("forgot what is over", extra={"rows": removed})
        return removed

    async def _forget_batch(self) -> int:
        before = self._clock.now() - self._retention
        async with self._database.transaction() as tx:
            rows = await tx.fetch(FORGET_NOTIFICATIONS, before=before, batch=SWEEP_BATCH)
            unread = Counter(row["user_id"] for row in rows if row["read_at"] is None)
            if unread:
                await count_read(tx, unread)
        return len(rows)
