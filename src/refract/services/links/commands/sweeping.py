"""Marks links whose time is over, tells the others, and forgets requests that are no longer remembered."""

import asyncio
import logging
from collections.abc import Sequence

from refract.kernel.clock import Clock
from refract.runtime.ports import Cache, Database
from refract.runtime.rounds import Pause, repeat
from refract.runtime.statements import Statement
from refract.services.links.commands.making import cache_key
from refract.services.links.commands.remembering import REMEMBERED, prune_idempotency_keys
from refract.services.links.domain.link import Link
from refract.services.links.store import COLUMNS, ending_of, link_of

log = logging.getLogger(__name__)

SWEEP_SECONDS = 30.0
SWEEP_BATCH = 200
"""Links marked in one transaction: few enough that nobody waits long for a row, or on SQLite for the file."""

_DUE = f"""
    SELECT {", ".join(COLUMNS)} FROM links WHERE status = 'active' AND expires_at <= :now
    ORDER BY expires_at LIMIT :batch
"""  # noqa: S608  # names, not values

DUE_LINKS = Statement(
    "due_links",
    "Takes links whose time is over; those that another process has in hand are left to it.",
    f"{_DUE} FOR UPDATE SKIP LOCKED",
    sqlite=_DUE,
)

MARK_LINK = Statement(
    "mark_link",
    "Writes what becomes of a link when its time is over.",
    """
    UPDATE links SET status = :status, url_key = :url_key, version = :version, updated_at = :updated_at
    WHERE id = :id
    """,
)


class Sweeper:
    """Goes over the links twice a minute. Expiry does not wait for it: it only makes rows say what is true already.

    Several processes may sweep at once, and each link is marked by one of them.
    """

    def __init__(self, database: Database, cache: Cache, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._cache = cache
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Sweep for ever; a database that is away is tried again at the next round."""
        await repeat(self._round, SWEEP_SECONDS, log=log, trouble="sweep failed; will retry", pause=self._pause)

    async def _round(self) -> None:
        await self.sweep()
        await self.forget()

    async def sweep(self) -> int:
        """Mark every link whose time is over, in batches; returns how many."""
        marked = 0
        while True:
            links = await self._mark_batch()
            marked += len(links)
            if len(links) < SWEEP_BATCH:
                break
        if marked:
            log.info("links expired", extra={"links": marked})
        return marked

    async def forget(self) -> int:
        """Delete remembered requests over their time; returns how many."""
        return await prune_idempotency_keys(self._database, self._clock.now() - REMEMBERED)

    async def _mark_batch(self) -> Sequence[Link]:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            rows = await tx.fetch(DUE_LINKS, now=now, batch=SWEEP_BATCH)
            expired = [link_of(row).expired(now) for row in rows]
            links = [link for link, _ in expired]
            if links:
                await tx.execute_many(MARK_LINK, [ending_of(link) for link in links])
                await tx.announce(*(event for _, event in expired))
        await self._cache.drop({cache_key(link): link.version for link in links})
        return links
