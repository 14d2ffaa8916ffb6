"""Shortens one URL: try to insert, and select on conflict; the database decides who was first (decision 5)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from refract.kernel.errors import UniqueViolation
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Cache, Database, Transaction
from refract.services.links.commands.gathering import Gathering
from refract.services.links.commands.making import (
    ATTEMPTS,
    InTheWay,
    LinkMaker,
    Safety,
    cache_key,
    clear_away,
    has_outlived,
)
from refract.services.links.commands.remembering import Answer, KeyedRequest, Memory
from refract.services.links.domain.drafts import Draft, Unsafe, Wish
from refract.services.links.domain.link import CodesExhausted, CodeTaken, Link, Owner
from refract.services.links.store import CODE_INDEX, Links, find_by_key

log = logging.getLogger(__name__)

ROUTE = "shorten"

Render = Callable[[Link], bytes]
"""A link as the JSON that clients see."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A link to the URL; `created` says whether it is new."""

    link: Link
    created: bool


class Shortening:
    """Makes links, one at a time."""

    def __init__(
        self, *, database: Database, cache: Cache, maker: LinkMaker, safety: Safety, metrics: Metrics, render: Render
    ) -> None:
        self._database = database
        self._cache = cache
        self._maker = maker
        self._safety = safety
        self._render = render
        self._memory = Memory(database, maker.clock)
        self._links = Links()
        self._gathering = Gathering(database)
        self._known_url = metrics.idempotency_hits.labels("url")
        self._known_key = metrics.idempotency_hits.labels("key")

    async def answer(self, owner: Owner, wish: Wish, key: str | None = None) -> Answer:
        """Grant a wish, and say so to the client; with a key that was used for it before, say the same again."""
        if key is None:
            return self._answer(await self.shorten(owner, self._maker.draft(wish)))
        request = KeyedRequest.of(owner.user_id, key, ROUTE, wish)
        # Before the wish is looked at: what was granted stays so, even if its expiry has passed since.
        remembered = (await self._memory.recall(request)).get(0)
        if remembered is None:
            outcome = await self._shorten(owner, self._maker.draft(wish), request)
            if isinstance(outcome, Shortened):
                return self._answer(outcome)
            remembered = outcome
        self._known_key.inc()
        log.info("request repeated", extra={"user_id": owner.user_id})
        return remembered

    async def shorten(self, owner: Owner, draft: Draft) -> Shortened:
        """A new link, or the one that stands for the URL already; raises Unsafe, CodeTaken, CodesExhausted."""
        outcome = await self._shorten(owner, draft, None)
        assert isinstance(outcome, Shortened)
        return outcome

    async def _shorten(self, owner: Owner, draft: Draft, request: KeyedRequest | None) -> Shortened | Answer:
        """With a request: the answer to it, if somebody has given it in the meantime."""
        url = draft.destination.url
        threats = await self._safety.check([url])
        if url in threats:
            raise Unsafe(threats[url])
        for _ in range(ATTEMPTS):
            link = self._maker.link(owner, draft)
            try:
                outcome = await self._insert_gathered(link, draft, request)
            except UniqueViolation as violation:
                if violation.constraint != CODE_INDEX:
                    raise
                if draft.alias is not None:
                    raise CodeTaken from None
                log.debug("short code collision; retrying", extra={"short_code": link.short_code})
            else:
                await self._tell(owner, draft, outcome)
                return outcome
        log.warning("no unique short code found", extra={"attempts": ATTEMPTS, "user_id": owner.user_id})
        raise CodesExhausted

    async def _insert_gathered(self, link: Link, draft: Draft, request: KeyedRequest | None) -> Shortened | Answer:
        """With others, if nothing speaks against it; an alias or a key has more to say than that it was not kept."""
        if request is None and draft.alias is None and await self._gathering.add(link):
            return Shortened(link, created=True)
        return await self._insert(link, request)

    async def _insert(self, link: Link, request: KeyedRequest | None) -> Shortened | Answer:
        while True:
            try:
                async with self._database.transaction() as tx:
                    return await self._insert_once(tx, link, request)
            except InTheWay as obstacle:
                await clear_away(obstacle.links, database=self._database, cache=self._cache, clock=self._maker.clock)

    async def _insert_once(self, tx: Transaction, link: Link, request: KeyedRequest | None) -> Shortened | Answer:
        if request is not None:
            remembered = await self._memory.claim(tx, request)
            if remembered is not None:
                return remembered
        if await self._links.add(tx, link):
            await tx.announce(link.created())
            outcome = Shortened(link, created=True)
        else:
            outcome = Shortened(await self._find(tx, link), created=False)
        if request is not None:
            await self._memory.keep(tx, request, self._answer(outcome))
        return outcome

    async def _find(self, tx: Transaction, link: Link) -> Link:
        """The link that stands for the same URL."""
        assert link.url_key is not None
        found = await find_by_key(tx, link.workspace_id, link.url_key)
        if found is None:
            raise InTheWay  # it was there, and has freed its URL since
        if has_outlived(found, self._maker.clock):
            raise InTheWay(found)
        return found

    async def _tell(self, owner: Owner, draft: Draft, outcome: Shortened | Answer) -> None:
        """What follows after the commit."""
        if not isinstance(outcome, Shortened):
            return
        if not outcome.created:
            self._known_url.inc()
            # Not the URL: there may be a secret in it.
            log.info("url known", extra={"short_code": outcome.link.short_code, "user_id": owner.user_id})
        elif self._maker.may_be_awaited(draft):
            await self._cache.drop({cache_key(outcome.link): outcome.link.version})

    def _answer(self, shortened: Shortened) -> Answer:
        return Answer(201 if shortened.created else 200, self._render(shortened.link))
