"""Forgets notifications that are over their time."""

import asyncio
import logging
from collections import Counter
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Transaction
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement
from refract.services.notifications.store.notifications import count_read, lock_recipients

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
SWEEP_BATCH = 1_000

OLD_NOTIFICATIONS = Statement(
    "old_notifications",
    "Reads a batch of notifications over their time, and whose they are.",
    "SELECT id, user_id FROM notifications WHERE created_at < :before LIMIT :batch",
)
_THESE = "SELECT id FROM notifications WHERE id = ANY(:ids::uuid[]) FOR UPDATE SKIP LOCKED"
FORGET_NOTIFICATIONS = Statement(
    "forget_notifications",
    "Removes notifications; those that another process has in hand, or has removed, are left to it.",
    f"DELETE FROM notifications WHERE id = ANY(ARRAY({_THESE})) RETURNING user_id, read_at",  # noqa: S608
    sqlite="""
    DELETE FROM notifications WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING user_id, read_at
    """,
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
        await repeat(self.sweep, SWEEP_SECONDS, log=log, trouble="sweep failed; will retry", pause=self._pause)

    async def sweep(self) -> int:
        """Remove everything over its time, in batches; returns how many rows."""
        removed = await in_batches(self._database, SWEEP_BATCH, self._forget_batch)
        if removed:
            log.info("forgot what is over", extra={"rows": removed})
        return removed

    async def _forget_batch(self, tx: Transaction) -> int:
        before = self._clock.now() - self._retention
        old = await tx.fetch(OLD_NOTIFICATIONS, before=before, batch=SWEEP_BATCH)
        if not old:
            return 0
        await lock_recipients(tx, {row["user_id"] for row in old})
        rows = await tx.fetch(FORGET_NOTIFICATIONS, ids=[row["id"] for row in old])
        unread = Counter(row["user_id"] for row in rows if row["read_at"] is None)
        if unread:
            await count_read(tx, unread)
        return len(rows)
