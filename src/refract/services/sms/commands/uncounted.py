"""Messages that left, and whose count may be lost with its commit: nothing is admitted before that is made good."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database, Transaction
from refract.services.sms.domain.limits import Limit, decide
from refract.services.sms.store.limits import Seen, keep_counts, lock_limits


class Left(Struct, frozen=True, gc=False):
    """Sends of a user that are in the log, when that was, and by which version of the limit."""

    user_id: int
    sends: int
    moment: datetime
    version: int


class Departure:
    """What left in a transaction of which nobody knows yet whether it is kept."""

    def __init__(self) -> None:
        self.left: list[Left] = []
        self.over = asyncio.Event()

    def add(self, limits: Mapping[int, Seen], sends: Mapping[int, int]) -> None:
        """So many of each user are in the log, by these limits."""
        for user_id, number in sends.items():
            seen = limits[user_id]
            self.left.append(Left(user_id, number, seen.now, seen.limit.version))


class Uncounted:
    """What the database may not know of, as long as this process lives.

    If a commit was kept and only its answer was lost, its sends are counted twice: that refuses too early for a
    window, and the other mistake would let too many through.
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
        limits = await lock_limits(tx, sorted({one.user_id for one in left}), self._clock.now())
        changed: dict[int, Limit] = {}
        for one in left:
            seen = limits.get(one.user_id)
            # Of another limit, or of a window that is over by now, nobody wants to know.
            if seen is not None and seen.limit.version == one.version and seen.now - one.moment < seen.limit.window:
                limit = changed.get(one.user_id, seen.limit)
                changed[one.user_id] = decide(limit, seen.now, one.sends).limit
        await keep_counts(tx, changed)
