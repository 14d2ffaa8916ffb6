"""Makes links of wishes, by the rules of this instance; and clears away what has outlived its time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from refract.kernel.clock import Clock
from refract.runtime.ports import Cache, Database
from refract.services.links.domain.codes import CodeSource, can_be_foreseen
from refract.services.links.domain.destinations import OwnDomains, url_key
from refract.services.links.domain.drafts import Draft, Wish
from refract.services.links.domain.link import Link, Owner, Status, status_at
from refract.services.links.settings import Normalization
from refract.services.links.store import Links

ATTEMPTS = 5
"""How many codes a link may try before it is given up (000 §5.2)."""


class Safety(Protocol):
    """Says which destinations nobody should be sent to."""

    async def check(self, urls: Sequence[str]) -> Mapping[str, str]:
        """Those of the URLs that are dangerous, each with the reason; raises Unavailable."""


@dataclass(frozen=True, slots=True)
class LinkMaker:
    """What a new link is made of besides the wish for it."""

    own: OwnDomains
    normalization: Normalization
    stats_public: bool
    ids: Callable[[], int]
    codes: CodeSource
    clock: Clock

    def draft(self, wish: Wish) -> Draft:
        """The wish, if it can be granted; Invalid says why not."""
        return Draft.of(wish, self.own, self.clock.now())

    def link(self, owner: Owner, draft: Draft) -> Link:
        """A new link with a new code, which may turn out to be taken."""
        link_id, now = self.ids(), self.clock.now()
        return Link(
            id=link_id,
            short_code=draft.alias or self.codes(link_id),
            original_url=draft.destination.url,
            workspace_id=owner.workspace_id,
            created_by=owner.user_id,
            owner_email=owner.email,
            created_at=now,
            updated_at=now,
            stats_public=self.stats_public if draft.stats_public is None else draft.stats_public,
            redirect_status=draft.redirect_status or 301,
            title=draft.title,
            notes=draft.notes,
            tags=draft.tags,
            expires_at=draft.expires_at,
            url_key=url_key(draft.destination.url, self.normalization) if draft.is_plain else None,
        )

    def may_be_awaited(self, draft: Draft) -> bool:
        """Whether somebody may have asked for the code before its link was there, and the answer been kept."""
        return draft.alias is not None or can_be_foreseen(self.codes)


class InTheWay(Exception):
    """Links that stand for their URLs although their time is over; none, where one has gone in this moment.

    Undoes the transaction: the way is cleared, and all is tried again.
    """

    def __init__(self, *links: Link) -> None:
        super().__init__()
        self.links = links


def has_outlived(link: Link, clock: Clock) -> bool:
    """Whether a link is over and nobody has marked it yet."""
    return link.status is Status.ACTIVE and status_at(link.status, link.expires_at, clock.now()) is Status.EXPIRED


async def clear_away(links: Sequence[Link], *, database: Database, cache: Cache, clock: Clock) -> None:
    """Mark links whose time is over, as the sweep would have done later, so that their URLs are free.

    Each in a transaction of its own: none waits for a row while it holds another.
    """
    store = Links()
    for link in links:
        async with database.transaction() as tx:
            before = await store.get(tx, link.short_code)
            if not has_outlived(before, clock):
                continue  # somebody was faster
            after, event = before.expired(clock.now())
            await store.save(tx, before, after)
            await tx.announce(event)
        await cache.drop({cache_key(after): after.version})


def cache_key(link: Link) -> str:
    """Where copies of a link are kept."""
    return f"url:{link.short_code}"
