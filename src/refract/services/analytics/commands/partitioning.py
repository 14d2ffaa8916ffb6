"""Partitions of the clicks themselves: made before their day comes, dropped when its time is over."""

import logging
import re
from datetime import UTC, date, datetime, timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.transactions import StatementFailed
from refract.services.analytics.domain.periods import DAY, start_of
from refract.services.analytics.store.expiry import (
    DELETE_CLICKS,
    EXPIRE_CLICKS,
    IN_DEFAULT,
    KEEP_OTHERS_OUT,
    OLD_CLICKS,
    PARTITIONS,
    drop_partition,
    make_partition,
    move_clicks,
)
from refract.services.analytics.store.periods import BE_BRIEF

log = logging.getLogger(__name__)

AHEAD = 7
"""Days for which there are partitions before they come: so long may nobody keep house."""

MOST_MOVED = 100_000
"""So many clicks are moved into a new partition: a second or so, in which everybody else waits."""

PAGE = 500
DELETE_BATCH = 1_000

_NAME = re.compile(r"clicks_(\d{4})(\d{2})(\d{2})")


class Partitions:
    """One partition for each day. A click of a day without one lies in the default partition, and is found there.

    SQLite has no partitions: there, and in the default one, clicks over their time are deleted in batches.
    """

    def __init__(self, database: Database, clock: Clock, *, kept: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._kept = kept
        self._swept: datetime | None = None

    async def make(self) -> int:
        """Make what is missing of the partitions of today and the days to come; returns how many were made."""
        known = await self._names()
        if not known:
            return 0
        today = start_of(self._clock.now(), DAY)
        days = [today + timedelta(days=number) for number in range(AHEAD + 1)]
        made = 0
        for day in days:
            if _name(day) in known or (waiting := await self._in_default(day)) > MOST_MOVED:
                continue
            if not await self._make(day, waiting):
                break  # whoever is in our way is in the way of them all
            made += 1
        return made

    async def drop(self) -> int:
        """Let go of the days over their time; returns how many partitions and rows went."""
        before = start_of(self._clock.now() - self._kept, DAY)
        if self._swept != before:
            async with self._database.transaction() as tx:
                await tx.execute(EXPIRE_CLICKS, moment=before)
        dropped = 0
        for name in await self._names():
            day = _day(name)
            if day is not None and day + timedelta(days=1) <= before:
                if not await self._drop(name):
                    break
                dropped += 1
        if self._swept != before:
            dropped += await self._delete(before)
            self._swept = before
        return dropped

    async def _names(self) -> list[str]:
        return [row["name"] for row in await self._database.fetch(PARTITIONS)]

    async def _in_default(self, day: datetime) -> int:
        """How many clicks were here before their partition. Where they are too many to be moved the day stays there."""
        row = await self._database.fetch_one(IN_DEFAULT, begin=day, end=day + timedelta(days=1), most=MOST_MOVED + 1)
        assert row is not None, "a count is always a row"
        found: int = row["clicks"]
        return found

    async def _make(self, day: datetime, waiting: int) -> bool:
        name, end = _name(day), day + timedelta(days=1)
        make, attach = make_partition(name, day.isoformat(), end.isoformat())
        try:
            async with self._database.transaction() as tx:
                await tx.execute(BE_BRIEF)
                await tx.execute(make)
                if waiting:
                    await tx.execute(KEEP_OTHERS_OUT)
                    await tx.execute(move_clicks(name), begin=day, end=end)
                await tx.execute(attach)
        except (StatementFailed, Unavailable) as error:
            # Another process was faster, or a click was, or somebody reads at length: there is the default one.
            log.warning("partition not made; will retry", extra={"partition": name, "error": str(error)})
            return False
        log.info("partition made", extra={"partition": name, "clicks_moved": waiting})
        return True

    async def _drop(self, name: str) -> bool:
        try:
            async with self._database.transaction() as tx:
                await tx.execute(BE_BRIEF)
                await tx.execute(drop_partition(name))
        except Unavailable as error:
            log.warning("partition not dropped; will retry", extra={"partition": name, "error": str(error)})
            return False
        log.info("partition dropped", extra={"partition": name})
        return True

    async def _delete(self, before: datetime) -> int:
        deleted, code = 0, ""
        while page := await self._database.fetch(OLD_CLICKS, code=code, before=before, page=PAGE):
            code = page[-1]["short_code"]
            for row in page:
                batch = DELETE_BATCH if row["old"] else 0
                while batch == DELETE_BATCH:
                    async with self._database.transaction() as tx:
                        batch = await tx.execute(
                            DELETE_CLICKS, code=row["short_code"], before=before, batch=DELETE_BATCH
                        )
                    deleted += batch
        return deleted


def _name(day: datetime) -> str:
    return f"clicks_{day:%Y%m%d}"


def _day(name: str) -> datetime | None:
    """The day of a partition; None for the default one, and for what somebody else has attached."""
    if (parts := _NAME.fullmatch(name)) is None:
        return None
    try:
        return datetime.combine(date(*map(int, parts.groups())), datetime.min.time(), UTC)
    except ValueError:
        return None
