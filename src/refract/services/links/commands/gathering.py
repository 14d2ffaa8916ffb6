"""New links of concurrent requests, written together: whatever waits while one transaction commits is the next."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

from refract.kernel.errors import Unavailable
from refract.runtime.correlation import current_correlation_id
from refract.runtime.ports import Database
from refract.services.links.api import UrlCreated
from refract.services.links.domain.link import Link
from refract.services.links.store import Links

LINKS_AT_ONCE = 100
WRITERS = 2
"""While one commits, the other gathers."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    link: Link
    event: UrlCreated
    kept: "asyncio.Future[bool]"


class Gathering:
    """The group commit of links: a transaction costs much the same for one as for thirty."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._links = Links()
        self._waiting: list[_Waiting] = []
        self._writers: set[asyncio.Task[None]] = set()

    async def add(self, link: Link) -> bool:
        """Keep a link, with its event; False where its code or its URL is taken, or a neighbour may have spoilt it:
        alone it will be seen which. Raises Unavailable."""
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        # Stamped here: the transaction belongs to several requests, each with its own correlation id.
        self._waiting.append(_Waiting(link, link.created().stamped(current_correlation_id()), kept))
        if len(self._writers) < WRITERS:
            writer = asyncio.create_task(self._write(), name="gathered links", context=Context())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await kept

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:LINKS_AT_ONCE], self._waiting[LINKS_AT_ONCE:]
            # In an order that is the same everywhere: two that write the same URLs never wait for each other.
            batch.sort(key=lambda one: (one.link.workspace_id, one.link.url_key or b""))
            try:
                kept = await self._write_together(batch)
            except Unavailable as error:
                for one in batch:
                    if not one.kept.done():
                        one.kept.set_exception(Unavailable(error.dependency, error.reason))
            except Exception:  # noqa: BLE001  # each of them is tried alone, and whose fault it is says so there
                self._settle(batch, set())
            else:
                self._settle(batch, kept)

    async def _write_together(self, batch: Sequence[_Waiting]) -> set[int]:
        async with self._database.transaction() as tx:
            kept = await self._links.add_many(tx, [one.link for one in batch])
            await tx.announce(*(one.event for one in batch if one.link.id in kept))
        return kept

    def _settle(self, batch: Sequence[_Waiting], kept: set[int]) -> None:
        for one in batch:
            if not one.kept.done():
                one.kept.set_result(one.link.id in kept)
