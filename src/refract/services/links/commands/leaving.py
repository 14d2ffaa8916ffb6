"""When an account is deleted, its links stop, each with its event, and what they say of their owner is erased."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.kernel.events import Event
from refract.runtime.ports import Cache, Database, Transaction
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement
from refract.services.identity.api import UserDeleted
from refract.services.links.api import UrlDeleted
from refract.services.links.commands.making import cache_key
from refract.services.links.domain.link import Link
from refract.services.links.store import COLUMNS, ending_of, link_of

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
BATCH = 200
"""Links in one transaction: few enough that nobody waits long for a row, or on SQLite for the file."""
KEYS_BATCH = 1_000
LEASE = timedelta(seconds=30)
LOOK_AGAIN = (timedelta(minutes=2), timedelta(hours=26))
"""After the first look. What was on its way when the account was deleted may have made a link since: a request that had
passed the gateway by then; or one by a token of which a gateway had not heard that it is dead, as long as it lasted."""

NOTE_DEPARTURE = Statement(
    "note_departure",
    "Remembers that an account is deleted, and that nobody has cleared up yet.",
    """
    INSERT INTO departures (user_id, looks, next_at) VALUES (:user_id, 0, :now)
    ON CONFLICT (user_id) DO UPDATE SET looks = 0, next_at = :now
    """,
)
IS_DUE = Statement(
    "is_departure_due",
    "Says whether anybody has to clear up: most of the time nobody has, and nobody need write.",
    "SELECT 1 AS due FROM departures WHERE next_at <= :now LIMIT 1",
)
_DUE = "SELECT user_id FROM departures WHERE next_at <= :now ORDER BY next_at LIMIT 1"
_TAKE = "UPDATE departures SET next_at = :leased_until WHERE user_id ="
TAKE_DEPARTURE = Statement(
    "take_departure",
    "Takes the one that has waited longest, for as long as a lease lasts; another process takes another.",
    f"{_TAKE} ({_DUE} FOR UPDATE SKIP LOCKED) RETURNING user_id, looks",
    sqlite=f"{_TAKE} ({_DUE}) RETURNING user_id, looks",
)
RENEW_LEASE = Statement(
    "renew_departure_lease",
    "Keeps others away for another while.",
    "UPDATE departures SET next_at = :leased_until WHERE user_id = :user_id",
)
LOOKED = Statement(
    "looked_after_departure",
    "Says when to look again.",
    "UPDATE departures SET looks = :looks, next_at = :next_at WHERE user_id = :user_id",
)
FORGET_DEPARTURE = Statement(
    "forget_departure",
    "Forgets a user of whom nothing can come any more.",
    "DELETE FROM departures WHERE user_id = :user_id",
)

# Also those that their owner had deleted: they still say whose they were.
_LEFT_BEHIND = f"""
    SELECT {", ".join(COLUMNS)} FROM links WHERE id IN (
        SELECT id FROM links
        WHERE %s AND (status <> 'deleted' OR owner_email <> '' OR title <> '' OR notes <> '')
        ORDER BY %s LIMIT :batch
    )
"""  # noqa: S608  # names, not values
LEFT_BEHIND = Statement(
    "links_left_behind",
    "Takes a batch of a user's links that still redirect, or still say something of the user.",
    # Told as a walk along one index, as in queries/statements.py: for one workspace in the order of ids PostgreSQL
    # would go through everybody's links. Locked in the order in which totals are written, so that one waits for the
    # other instead of deadlocking.
    _LEFT_BEHIND % ("(workspace_id, id) > (:user_id, :after) AND workspace_id <= :user_id", "workspace_id, id")
    + ' ORDER BY short_code COLLATE "C" FOR UPDATE',
    sqlite=_LEFT_BEHIND % ("workspace_id = :user_id AND id > :after", "id"),
)
ERASE_LINK = Statement(
    "erase_link",
    "Deletes a link, and all that it says of its owner; where it led stays, for whoever has to look into abuse.",
    """
    UPDATE links SET status = :status, url_key = :url_key, version = :version, updated_at = :updated_at,
        owner_email = '', title = '', notes = ''
    WHERE id = :id
    """,
)
ERASE_TAGS = Statement(
    "erase_tags",
    "Takes the tags off links.",
    "DELETE FROM link_tags WHERE link_id = ANY(:ids)",
    sqlite="DELETE FROM link_tags WHERE link_id IN (SELECT value FROM json_each(:ids))",
)
FORGET_REQUESTS = Statement(
    "forget_requests",
    "Forgets a batch of the requests that a user might have repeated.",
    # Whose they are is said twice: without it PostgreSQL would look for a batch among the keys of everybody.
    """
    DELETE FROM idempotency_keys WHERE caller = :user_id AND (key, part) IN (
        SELECT key, part FROM idempotency_keys WHERE caller = :user_id LIMIT :batch
    )
    """,
)


class Leaving:
    """Clears up after those who have left; several processes may, each after somebody else."""

    def __init__(self, database: Database, cache: Cache, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._cache = cache
        self._clock = clock
        self._pause = pause

    async def note(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Remember whose accounts are deleted. Links may be many: they are not cleared away in this transaction."""
        users = {event.user_id for event in events if isinstance(event, UserDeleted) and event.user_id}
        if users:
            now = self._clock.now()
            await tx.execute_many(NOTE_DEPARTURE, [{"user_id": user_id, "now": now} for user_id in sorted(users)])

    async def run(self) -> None:
        """Clear up for ever; what fails is tried again when its lease is over."""
        trouble = "not cleared up after a deleted account; will retry"
        await repeat(self.clear_up, POLL_SECONDS, log=log, trouble=trouble, pause=self._pause)

    async def clear_up(self) -> int:
        """Look at everybody who is due; returns how many links were cleared away."""
        cleared = 0
        while await self._database.fetch_one(IS_DUE, now=self._clock.now()) is not None:
            now = self._clock.now()
            async with self._database.transaction() as tx:
                taken = await tx.fetch_one(TAKE_DEPARTURE, now=now, leased_until=now + LEASE)
            if taken is None:
                break  # others have them all in hand
            cleared += await self._look(taken["user_id"], taken["looks"])
        return cleared

    async def _look(self, user_id: str, looks: int) -> int:
        cleared, after = 0, -1
        while links := await self._erase_batch(user_id, after):
            cleared += len(links)
            after = max(link.id for link in links)
        await self._forget_requests(user_id)
        async with self._database.transaction() as tx:
            if looks < len(LOOK_AGAIN):
                next_at = self._clock.now() + LOOK_AGAIN[looks]
                await tx.execute(LOOKED, user_id=user_id, looks=looks + 1, next_at=next_at)
            else:
                await tx.execute(FORGET_DEPARTURE, user_id=user_id)
        if cleared:
            log.info("links of a deleted account cleared away", extra={"user_id": user_id, "links": cleared})
        return cleared

    async def _erase_batch(self, user_id: str, after: int) -> Sequence[Link]:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            rows = await tx.fetch(LEFT_BEHIND, user_id=user_id, after=after, batch=BATCH)
            erased = [_erased(link_of(row), now) for row in rows]
            links = [link for link, _ in erased]
            if links:
                await tx.execute_many(ERASE_LINK, [ending_of(link) for link in links])
                await tx.execute(ERASE_TAGS, ids=[link.id for link in links])
                await tx.execute(RENEW_LEASE, user_id=user_id, leased_until=now + LEASE)
                await tx.announce(*(event for _, event in erased if event is not None))
        # Also of those that were deleted before: a copy says whose they were.
        await self._cache.drop({cache_key(link): link.version for link in links})
        return links

    async def _forget_requests(self, user_id: str) -> None:
        await in_batches(
            self._database, KEYS_BATCH, lambda tx: tx.execute(FORGET_REQUESTS, user_id=user_id, batch=KEYS_BATCH)
        )


def _erased(link: Link, now: datetime) -> tuple[Link, UrlDeleted | None]:
    """The link without a word of its owner, and the event of its end, if that is now; it names no address either."""
    return replace(link, owner_email="", title="", notes="", tags=()).retired(now)
