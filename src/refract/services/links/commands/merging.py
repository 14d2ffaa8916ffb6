"""Puts new links into PostgreSQL's index of the search, some thousands at once, so that nobody who makes one has to."""

import asyncio
import logging

from refract.kernel.errors import RefractError
from refract.runtime.ports import Database
from refract.runtime.rounds import Pause
from refract.runtime.statements import Statement

log = logging.getLogger(__name__)

MERGE_SECONDS = 5.0
"""New links stand in a list until then. A search reads that, too, so that it must not grow for long."""

MERGE = Statement(
    "merge_search",
    "Moves what waits beside the index of the search into it; those who write meanwhile do not wait.",
    "SELECT gin_clean_pending_list('links_search')",
)


class SearchMerging:
    """Merges now and then. If it cannot, PostgreSQL does so when the list is full, or with its next vacuum.

    Several processes may do so at once: the second finds nothing left.
    """

    def __init__(self, database: Database, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._pause = pause

    async def run(self) -> None:
        """Merge for ever; the first of several failures is told."""
        trouble = ""
        while True:
            await self._pause(MERGE_SECONDS)
            try:
                await self.merge()
                trouble = ""
            except RefractError as error:
                if trouble != str(error):
                    trouble = str(error)
                    log.warning("the index of the search was not merged", extra={"error": trouble})

    async def merge(self) -> None:
        """Merge what is there. SQLite merges by itself, a little with every link."""
        if self._database.dialect == "postgresql":
            async with self._database.transaction() as tx:
                await tx.fetch(MERGE)
