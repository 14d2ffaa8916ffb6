"""Forgets what is over: tokens that were taken back and have ended since, unused mailed ones, and keys of long ago."""

import asyncio
import logging
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement
from refract.services.identity.domain.keys import KEPT_AFTER_END

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
SWEEP_BATCH = 1_000


def _forget(table: str, key: str, end: str, name: str = "") -> Statement:
    over = f"SELECT {key} FROM {table} WHERE {end} <= :over ORDER BY {end} LIMIT :batch"  # noqa: S608  # names
    delete = f"DELETE FROM {table} WHERE {key}"  # noqa: S608
    return Statement(
        name or f"forget_{table}",
        "Removes a batch of rows whose time is over; those that another process has in hand are left to it.",
        f"{delete} = ANY(ARRAY({over} FOR UPDATE SKIP LOCKED))",
        sqlite=f"{delete} IN ({over})",
    )


AT_ONCE = timedelta()
FORGET = (
    (_forget("revocations", "id", "until"), AT_ONCE),
    (_forget("one_time_tokens", "token_hash", "expires_at"), AT_ONCE),
    # Of a key that was revoked after its end, the end counts: nobody could use it since.
    (_forget("api_keys", "id", "expires_at", "forget_expired_keys"), KEPT_AFTER_END),
    (_forget("api_keys", "id", "revoked_at", "forget_revoked_keys"), KEPT_AFTER_END),
)
"""What is forgotten, and how long after its end."""


class Sweeper:
    """Goes over identity's tables every ten minutes. Nothing waits for it: what is over counts as over before."""

    def __init__(self, database: Database, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Sweep for ever; a database that is away is tried again at the next round."""
        await repeat(self.sweep, SWEEP_SECONDS, log=log, trouble="sweep failed; will retry", pause=self._pause)

    async def sweep(self) -> int:
        """Remove every row whose time is over, in batches; returns how many."""
        removed = 0
        for statement, kept in FORGET:
            removed += await self._remove(statement, kept)
        if removed:
            log.info("forgot what is over", extra={"rows": removed})
        return removed

    async def _remove(self, statement: Statement, kept: timedelta) -> int:
        return await in_batches(
            self._database,
            SWEEP_BATCH,
            lambda tx: tx.execute(statement, over=self._clock.now() - kept, batch=SWEEP_BATCH),
        )
