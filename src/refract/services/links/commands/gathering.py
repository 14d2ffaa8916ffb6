"""New links of concurrent requests, written together: whatever waits while one transaction commits is the next."""

from collections.abc import Sequence
from dataclasses import dataclass

from refract.kernel.errors import Unavailable
from refract.runtime.correlation import current_correlation_id
from refract.runtime.ports import Database
from refract.runtime.together import Together
from refract.services.links.api import UrlCreated
from refract.services.links.domain.link import Link
from refract.services.links.store import Links

LINKS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class _New:
    link: Link
    event: UrlCreated


class Gathering:
    """The group commit of links."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._links = Links()
        self._together = Together("gathered links", self._write, at_once=LINKS_AT_ONCE)

    async def add(self, link: Link) -> bool:
        """Keep a link, with its event; False where its code or its URL is taken, or a neighbour may have spoilt it:
        alone it will be seen which. Raises Unavailable."""
        # Stamped here: the transaction belongs to several requests, each with its own correlation id.
        return await self._together.add(_New(link, link.created().stamped(current_correlation_id())))

    async def _write(self, batch: Sequence[_New]) -> list[bool]:
        try:
            kept = await self._write_together(batch)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001  # each of them is tried alone, and whose fault it is says so there
            kept = set()
        return [one.link.id in kept for one in batch]

    async def _write_together(self, batch: Sequence[_New]) -> set[int]:
        # In an order that is the same everywhere: two that write the same URLs never wait for each other.
        ordered = sorted(batch, key=lambda one: (one.link.workspace_id, one.link.url_key or b""))
        async with self._database.transaction() as tx:
            kept = await self._links.add_many(tx, [one.link for one in ordered])
            await tx.announce(*(one.event for one in ordered if one.link.id in kept))
        return kept
