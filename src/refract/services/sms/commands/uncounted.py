"""Messages that left, and whose count may be lost with its commit: nothing is admitted before that is made good."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database, Transaction
from refract.services.sms.domain.limits import Limit, decide
from refract.services.sms.domain.sends import SendKey
from refract.services.sms.store.keys import KeptKey, claim_keys, find_keys
from refract.services.sms.store.limits import Seen, keep_counts, lock_limits


class Left(Struct, frozen=True):
    """Sends of a user that are in the log, when that was, by which version of the limit, and the keys of some."""

    user_id: int
    sends: int
    moment: datetime
    version: int
    keys: tuple[SendKey, ...]


class Departure:
    """What left in a transaction of which nobody knows yet whether it is kept."""

    def __init__(self) -> None:
        self.left: list[Left] = []
        self.over = asyncio.Event()

    def add(self, limits: Mapping[int, Seen], sends: Mapping[int, int], keys: Sequence[tuple[int, SendKey]]) -> None:
        """So many of each user are in the log, by these limits; some of them may be repeated, by their keys."""
        for user_id, number in sends.items():
            seen = limits[user_id]
            own = tuple(key for owner, key in keys if owner == user_id)
            self.left.append(Left(user_id, number, seen.now, seen.limit.version, own))


class Uncounted:
    """What the database may not know of, as long as this process lives.

    If a commit was kept and only its answer was lost, its sends are counted twice, unless their keys say so: that
    refuses too early for a window, and the other mistake would let too many through.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._departures: set[Departure] = set()
        self._left: list[Left] = []
        self._counting = asyncio.Lock()

    @contextmanager
    def departing(self) -> Iterator[Departure]:
        """For a transaction: what is added to it is uncounted, should the block raise."""
        departure = Departure()
        self._departures.add(departure)
        try:
            yield departure
        except BaseException:
            self._left += departure.left
            raise
        finally:
            self._departures.discard(departure)
            departure.over.set()

    async def check(self, user_ids: Iterable[int]) -> None:
        """With the locks of users: nothing of theirs is uncounted; raises Unavailable.

        Whoever had the locks before us may have lost the commit, and not know it yet.
        """
        users = set(user_ids)
        for departure in list(self._departures):
            if any(one.user_id in users for one in departure.left):
                await departure.over.wait()
        if any(one.user_id in users for one in self._left):
            raise Unavailable("database", "what left before is not counted yet")

    async def count(self) -> None:
        """Count what is uncounted, if there is anything; raises Unavailable."""
        if not self._left:
            return
        async with self._counting:
            left = self._left[:]
            if left:  # nobody was quicker
                async with self._database.transaction() as tx:
                    await self._count(tx, left)
                del self._left[: len(left)]

    async def _count(self, tx: Transaction, left: list[Left]) -> None:
        now = self._clock.now()
        limits = await lock_limits(tx, sorted({one.user_id for one in left}), now)
        kept = await find_keys(tx, [(one.user_id, key) for one in left for key in one.keys], now)
        changed: dict[int, Limit] = {}
        keys: list[tuple[int, SendKey]] = []
        for one in left:
            seen = limits.get(one.user_id)
            if seen is None or _are_kept(one.keys, kept):
                continue  # the commit was not lost, or somebody else has repeated it
            keys += [(one.user_id, key) for key in one.keys]
            # Of another limit, or of a window that is over by now, nobody wants to know.
            if seen.limit.version == one.version and seen.now - one.moment < seen.limit.window:
                limit = changed.get(one.user_id, seen.limit)
                changed[one.user_id] = decide(limit, seen.now, one.sends).limit
        await keep_counts(tx, changed)
        await claim_keys(tx, keys, "sent", now)


def _are_kept(keys: Sequence[SendKey], kept: Mapping[str, KeptKey]) -> bool:
    """Whether keys stand for these messages already: a commit keeps all of them or none."""
    found = [kept[key.key_hash].key.message_id for key in keys if key.key_hash in kept]
    return bool(keys) and found == [key.message_id for key in keys]
