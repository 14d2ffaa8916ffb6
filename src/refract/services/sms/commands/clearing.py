"""Forgets what is over its time: attempts and their counts, keys of sends, marks of sent messages."""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import get_args

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement
from refract.services.sms.domain.attempts import Status
from refract.services.sms.store.attempts import FORGET_ATTEMPTS, FORGET_MINUTES
from refract.services.sms.store.expired_keys import FORGET_KEYS
from refract.services.sms.store.sent_messages import FORGET_SENT

log = logging.getLogger(__name__)

CLEAR_SECONDS = 600.0
BATCH = 1_000
REST_SECONDS = 0.05
"""After a full batch others get the database for a moment: there may be a day's worth of rows to go."""

MARKS_KEPT = timedelta(days=7)
"""Longer than any record can come again: a topic that is read is never so far behind."""
KEYS_KEPT = timedelta(days=8)
"""A key counts for a day. Its row outlives the mark of its message, which has the same id when the key is used anew:
if only the mark were left, the new message would be taken for one that was sent."""


class Clearing:
    """Goes over the tables every ten minutes; several processes may do so at once."""

    def __init__(
        self, database: Database, clock: Clock, audit_kept: timedelta, *, pause: Pause = asyncio.sleep
    ) -> None:
        self._database = database
        self._clock = clock
        self._audit_kept = audit_kept
        self._pause = pause

    async def run(self) -> None:
        """Clear up for ever; a database that is away is tried again at the next round."""
        await repeat(self.clear, CLEAR_SECONDS, log=log, trouble="not cleared up; will retry", pause=self._pause)

    async def clear(self) -> int:
        """Do it once, in batches that hold no lock for long; returns how many rows are gone."""
        now = self._clock.now()
        oldest = now - self._audit_kept
        removed = await self._forget(FORGET_SENT, now - MARKS_KEPT)
        removed += await self._forget(FORGET_KEYS, now - KEYS_KEPT)
        for status in get_args(Status):
            removed += await self._forget(FORGET_ATTEMPTS, oldest, status=status)
        removed += await self._forget(FORGET_MINUTES, oldest)
        if removed:
            log.info("forgot what is over", extra={"rows": removed})
        return removed

    async def _forget(self, statement: Statement, before: datetime, **parameters: str) -> int:
        return await in_batches(
            self._database,
            BATCH,
            lambda tx: tx.execute(statement, before=before, batch=BATCH, **parameters),
            rest=lambda: self._pause(REST_SECONDS),
        )
