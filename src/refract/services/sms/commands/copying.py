"""The copies of limits in Redis: asked before the database, filled from it, and dropped when they are wrong."""

import asyncio
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database, StateStore
from refract.services.sms.domain.copies import TAKE, copy_of, in_milliseconds, key_of
from refract.services.sms.domain.sends import UserNotFound
from refract.services.sms.store.limits import read_limit

EARLY = timedelta(milliseconds=100)
"""So long before its time a copy no longer refuses: what we know of the database's clock is not more exact, and
somebody who waited as long as they were told to is not sent away."""
FILLS = 3
MOST_UNDROPPED = 10_000


class CopiesAway(Exception):
    """Redis cannot be asked now."""


class DatabaseTime:
    """What the database's clock says, as far as we know: our own clock may be wrong."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta()

    def learn(self, now: datetime) -> None:
        """It said so just now."""
        self._ahead = now - self._clock.now()

    def now(self) -> datetime:
        """The time by which limits are decided."""
        return self._clock.now() + self._ahead


class Copies:
    """Says no before the database is asked. Its yes is not enough, so that nothing it forgets or mixes up matters."""

    def __init__(self, database: Database, state: StateStore, clock: Clock) -> None:
        self._database = database
        self._state = state
        self._clock = clock
        self.time = DatabaseTime(clock)
        self._fills: dict[int, asyncio.Task[None]] = {}
        self._undropped: set[int] = set()
        self._dropping: asyncio.Task[None] | None = None

    async def take(self, user_id: int) -> float | None:
        """Count a send in the user's copy: None if the database is to be asked, else the seconds to wait.

        Raises CopiesAway; UserNotFound; and Unavailable, which is the database's.
        """
        word = await self._take(user_id)
        if word == "absent":
            await self._fill_once(user_id)
            word = await self._take(user_id)
        if not word.startswith("refused"):
            return None
        resets_at = int(word.partition(" ")[2])
        return max(0.0, (resets_at - in_milliseconds(self.time.now())) / 1000)

    async def drop(self, user_id: int) -> bool:
        """Forget a copy that is wrong; where Redis is away, as soon as it is back."""
        try:
            await self._state.delete(key_of(user_id))
        except Unavailable:
            if len(self._undropped) < MOST_UNDROPPED:
                self._undropped.add(user_id)
            return False
        self._undropped.discard(user_id)
        return True

    async def _take(self, user_id: int) -> str:
        now = in_milliseconds(self.time.now() + EARLY)
        try:
            word = await self._state.apply(TAKE, key_of(user_id), now)
        except Unavailable as error:
            raise CopiesAway from error
        if self._undropped:
            self._drop_soon()
        return word

    async def _fill_once(self, user_id: int) -> None:
        """Fill a copy, once for all who miss it now."""
        fill = self._fills.get(user_id)
        if fill is None:
            fill = self._fills[user_id] = asyncio.create_task(self._fill(user_id), name="fill a copy")
            fill.add_done_callback(lambda _: self._fills.pop(user_id, None))
        await asyncio.shield(fill)

    async def _fill(self, user_id: int) -> None:
        """Copy the limit, unless it changes meanwhile: then nothing of the old one may stay."""
        for _ in range(FILLS):
            version = await self._copy(user_id)
            seen = await read_limit(self._database, user_id, self._clock.now())
            if seen is not None and seen.limit.version == version:
                return
            await self._forget(user_id)

    async def _copy(self, user_id: int) -> int:
        seen = await read_limit(self._database, user_id, self._clock.now())
        if seen is None:
            raise UserNotFound
        self.time.learn(seen.now)
        copy = copy_of(seen.limit, seen.now)
        try:
            await self._state.write(key_of(user_id), copy.fields, copy.seconds)
        except Unavailable as error:
            raise CopiesAway from error
        return seen.limit.version

    async def _forget(self, user_id: int) -> None:
        if not await self.drop(user_id):
            raise CopiesAway

    def _drop_soon(self) -> None:
        if self._dropping is None or self._dropping.done():
            self._dropping = asyncio.create_task(self._drop_the_undropped(), name="drop copies")

    async def _drop_the_undropped(self) -> None:
        for user_id in list(self._undropped):
            if not await self.drop(user_id):
                return
