"""Changes and deletes links: each in one transaction with its event, and then every cached copy is dropped."""

import logging

from refract.kernel.clock import Clock
from refract.kernel.errors import Forbidden
from refract.runtime.ports import Cache, Database, Transaction
from refract.runtime.statements import Statement
from refract.services.links.commands.making import Safety, cache_key
from refract.services.links.domain.drafts import Unsafe
from refract.services.links.domain.link import Change, Link, Owner
from refract.services.links.store import Links

log = logging.getLogger(__name__)

FIND_DESTINATION = Statement(
    "find_destination",
    "Reads whose a link is and where it leads, without a lock.",
    "SELECT workspace_id, original_url FROM links WHERE short_code = :short_code",
)


class Managing:
    """What an owner may do to a link that exists."""

    def __init__(self, database: Database, cache: Cache, clock: Clock, safety: Safety) -> None:
        self._database = database
        self._cache = cache
        self._clock = clock
        self._safety = safety
        self._links = Links()

    async def change(self, owner: Owner, short_code: str, change: Change) -> Link:
        """The link after the change; raises NotFound, Forbidden, Deleted, NotAllowedNow, and what the check says."""
        if change.original_url is not None:
            await self._check_destination(owner, short_code, change.original_url)
        async with self._database.transaction() as tx:
            before = await self._owned(tx, owner, short_code)
            after, event = before.changed(change, self._clock.now())
            if event is not None:
                await self._links.save(tx, before, after)
                await tx.announce(event)
        await self._drop(after)
        return after

    async def retire(self, owner: Owner, short_code: str) -> None:
        """Delete the link for good; doing it again changes nothing."""
        async with self._database.transaction() as tx:
            before = await self._owned(tx, owner, short_code)
            after, event = before.retired(self._clock.now())
            if event is not None:
                await self._links.save(tx, before, after)
                await tx.announce(event)
        await self._drop(after)

    async def _owned(self, tx: Transaction, owner: Owner, short_code: str) -> Link:
        link = await self._links.get(tx, short_code)
        if link.workspace_id != owner.workspace_id:
            log.warning("another's link touched", extra={"user_id": owner.user_id, "short_code": short_code})
            raise Forbidden
        return link

    async def _check_destination(self, owner: Owner, short_code: str, url: str) -> None:
        """Ask before the transaction, because the answer may take long; and only for who may change the link."""
        row = await self._database.fetch_one(FIND_DESTINATION, short_code=short_code)
        if row is None or row["workspace_id"] != owner.workspace_id or row["original_url"] == url:
            return  # refused below, or not new
        threats = await self._safety.check([url])
        if url in threats:
            raise Unsafe(threats[url])

    async def _drop(self, link: Link) -> None:
        # Also where nothing changed: whoever died between a commit and its drop is helped by the next attempt.
        await self._cache.drop({cache_key(link): link.version})
