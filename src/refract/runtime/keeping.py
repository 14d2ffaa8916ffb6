"""Housekeeping of a service's database: measure what waits, forget what is over its time."""

import asyncio
import logging
from datetime import timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.inbox import prune_inbox
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import pending_in_outbox, prune_outbox
from refract.runtime.ports import Database

logger = logging.getLogger("refract.keeping")

MEASURE_SECONDS = 10.0
PRUNE_SECONDS = 3600.0

INBOX_MARGIN = timedelta(days=7)
"""How much longer marks are kept than the events they belong to could be sent again."""


class Keeper:
    """Keeps the outbox and the inbox of one service within their retention."""

    def __init__(
        self, service: str, *, database: Database, clock: Clock, metrics: Metrics, outbox_retention: timedelta
    ) -> None:
        self._database = database
        self._clock = clock
        self._pending = metrics.outbox_pending.labels(service)
        self._retention = outbox_retention

    async def run(self) -> None:
        """Keep house for ever; a database that is away is tried again at the next round."""
        prune_at = self._clock.monotonic()
        while True:
            try:
                await self.measure()
                if self._clock.monotonic() >= prune_at:
                    await self.prune()
                    prune_at = self._clock.monotonic() + PRUNE_SECONDS
            except Unavailable as error:
                logger.warning("housekeeping failed; will retry", extra={"error": str(error)})
            await asyncio.sleep(MEASURE_SECONDS)

    async def measure(self) -> None:
        """Show operators how much waits in the outbox."""
        self._pending.set(await pending_in_outbox(self._database))

    async def prune(self) -> None:
        """Delete published rows over the retention, and the marks of events that nobody can send again."""
        oldest_row = self._clock.now() - self._retention
        pruned = await prune_outbox(self._database, oldest_row)
        forgotten = await prune_inbox(self._database, oldest_row - INBOX_MARGIN)
        if pruned or forgotten:
            logger.info("pruned", extra={"outbox_rows": pruned, "inbox_marks": forgotten})
