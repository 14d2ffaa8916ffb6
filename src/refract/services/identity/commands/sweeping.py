"""Forgets what is over: tokens that were taken back and have ended since, and mailed ones that came to nothing."""

import asyncio
import logging

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
SWEEP_BATCH = 1_000


def _forget(table: str, key: str, end: str) -> Statement:
    over = f"SELECT {key} FROM {table} WHERE {end} <= :now ORDER BY {end} LIMIT :batch"  # noqa: S608  # names
    delete = f"DELETE FROM {table} WHERE {key} IN"  # noqa: S608
    return Statement(
        f"forget_{table}",
        "Removes a batch of rows whose time is over; those that another process has in hand are left to it.",
        f"{delete} ({over} FOR UPDATE SKIP LOCKED)",
        sqlite=f"{delete} ({over})",
    )


FORGET = (
    _forget("revocations", "id", "until"),
    _forget("one_time_tokens", "token_hash", "expires_at"),
)


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
        for statement in FORGET:
            removed += await self._remove(statement)
        if removed:
            log.info("forgot what is over", extra={"rows": removed})
        return removed

    async def _remove(self, statement: Statement) -> int:
        return await in_batches(
            self._database,
            SWEEP_BATCH,
            lambda tx: tx.execute(statement, now=self._clock.now(), batch=SWEEP_BATCH),
        )
