"""Leases of snowflake worker numbers: a number has one holder at a time, and no id is made twice.

A lease is a span of the database's time. A holder dates its ids by that time, carried on by its own monotonic clock,
and makes none dated at or after the end of its lease; the next holder's lease begins at that end or later. So two
holders of a number never share a millisecond: whatever their clocks say, however far ids borrow from the future under
load, and also when a process was asleep while its number went to another. No pause between holders is needed for that.
"""

import asyncio
import logging
import math
import os
import platform
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.kernel.ids import (
    EPOCH_MILLISECONDS,
    MAX_WORKER,
    SEQUENCE_BITS,
    WORKER_BITS,
    Snowflakes,
    snowflake_moment,
)
from refract.runtime.ports import Database
from refract.runtime.statements import Statement

logger = logging.getLogger("refract.links.leasing")

LEASE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0

_NUMBERS = MAX_WORKER + 1
_SQLITE_NOW = "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)"
_SQLITE_SECONDS = "CAST(:seconds * 1000000 AS INTEGER)"

WRITE_NUMBERS = Statement(
    "write_numbers",
    "Writes down the numbers that have no row yet, as leased to nobody and never.",
    f"""
    INSERT INTO snowflake_workers (worker, holder, leased_until)
    SELECT number, '', to_timestamp(0) FROM generate_series(0, {MAX_WORKER}) AS number
    WHERE (SELECT count(*) FROM snowflake_workers) < {_NUMBERS}
    ORDER BY number ON CONFLICT DO NOTHING
    """,  # noqa: S608  # our own constants; in one order, so that two that begin together do not lock each other out
    sqlite=f"""
    WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < {MAX_WORKER})
    INSERT INTO snowflake_workers (worker, holder, leased_until)
    SELECT number, '', 0 FROM numbers
    WHERE (SELECT count(*) FROM snowflake_workers) < {_NUMBERS}
    ORDER BY number ON CONFLICT DO NOTHING
    """,  # noqa: S608
)

TAKE_NUMBER = Statement(
    "take_number",
    "Leases the number that has been free for longest; a lease begins where the last one ended, or later.",
    """
    UPDATE snowflake_workers SET holder = :holder,
        leased_until = greatest(leased_until, clock_timestamp()) + make_interval(secs => :seconds)
    WHERE worker = (
        SELECT worker FROM snowflake_workers WHERE leased_until <= now()
        ORDER BY leased_until, worker LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING worker, leased_until
    """,
    sqlite=f"""
    UPDATE snowflake_workers SET holder = :holder,
        leased_until = max(leased_until, {_SQLITE_NOW}) + {_SQLITE_SECONDS}
    WHERE worker = (
        SELECT worker FROM snowflake_workers WHERE leased_until <= {_SQLITE_NOW} ORDER BY leased_until, worker LIMIT 1
    )
    RETURNING worker, leased_until AS "leased_until [TIMESTAMP]"
    """,  # noqa: S608
)

RENEW_NUMBER = Statement(
    "renew_number",
    "Moves the end of a lease; never back, even when the server's clock was set back.",
    """
    UPDATE snowflake_workers
    SET leased_until = greatest(leased_until, clock_timestamp() + make_interval(secs => :seconds))
    WHERE worker = :worker AND holder = :holder
    RETURNING leased_until
    """,
    sqlite=f"""
    UPDATE snowflake_workers SET leased_until = max(leased_until, {_SQLITE_NOW} + {_SQLITE_SECONDS})
    WHERE worker = :worker AND holder = :holder
    RETURNING leased_until AS "leased_until [TIMESTAMP]"
    """,  # noqa: S608
)

FREE_NUMBER = Statement(
    "free_number",
    "Ends a lease after the last id that was made under it. The row stays: it says where the next lease may begin.",
    """
    UPDATE snowflake_workers
    SET holder = '', leased_until = least(leased_until, greatest(clock_timestamp(), :used_until))
    WHERE worker = :worker AND holder = :holder
    """,
    sqlite=f"""
    UPDATE snowflake_workers
    SET holder = '', leased_until = min(leased_until, max({_SQLITE_NOW}, :used_until))
    WHERE worker = :worker AND holder = :holder
    """,  # noqa: S608
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class _Lease:
    """A number that we hold, and the clock its ids are dated by: the end of the lease less what is left of it."""

    def __init__(self, worker: int, clock: Clock) -> None:
        self.worker = worker
        self._clock = clock
        self._snowflakes = Snowflakes(worker, self)
        self._end_milliseconds = 0
        self._ends_at = -math.inf

    def extend(self, leased_until: datetime, ends_at: float) -> None:
        """The database's word for the end, and the latest moment by our monotonic clock that is surely before it."""
        # A fraction of a millisecond belongs to whoever comes next.
        self._end_milliseconds = (leased_until - _EPOCH) // _MILLISECOND
        self._ends_at = ends_at

    def next_id(self) -> int:
        """An id dated within the lease, or Unavailable."""
        if self.monotonic() >= self._ends_at:
            raise Unavailable("snowflake worker", f"the lease of number {self.worker} ran out and was not renewed")
        made = self._snowflakes.next()
        # Ids borrow the next millisecond when one is used up; here is how far they may.
        if (made >> (WORKER_BITS + SEQUENCE_BITS)) + EPOCH_MILLISECONDS >= self._end_milliseconds:
            raise Unavailable("snowflake worker", f"number {self.worker} has used up the ids of its lease")
        return made

    def used_until(self) -> datetime:
        """After the last id that was made."""
        return snowflake_moment(self._snowflakes.next()) + _MILLISECOND

    def now(self) -> datetime:
        """The current moment by the database's time, at most a round trip fast."""
        return _EPOCH + self.milliseconds() * _MILLISECOND

    def milliseconds(self) -> int:
        """The same as milliseconds since 1970."""
        return self._end_milliseconds - math.ceil((self._ends_at - self.monotonic()) * 1000)

    def monotonic(self) -> float:
        """The clock of this process, for durations."""
        return self._clock.monotonic()


class WorkerLease:
    """This process's worker number and the ids made with it; for one event loop, as `next_id` takes no lock."""

    def __init__(self, database: Database, clock: Clock, *, seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._clock = clock
        self._seconds = seconds
        self._holder = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._lease: _Lease | None = None

    @property
    def worker(self) -> int | None:
        """The number that was leased last, if one is."""
        return None if self._lease is None else self._lease.worker

    def next_id(self) -> int:
        """A new snowflake; Unavailable while it is not certain that the number is ours."""
        if self._lease is None:
            raise Unavailable("snowflake worker", "no number is leased yet")
        return self._lease.next_id()

    async def acquire(self) -> None:
        """Take a number that nobody holds; Unavailable when there is none, or no database to ask."""
        async with self._database.transaction() as tx:
            await tx.execute(WRITE_NUMBERS)
            sent_at = self._clock.monotonic()
            row = await tx.fetch_one(TAKE_NUMBER, holder=self._holder, seconds=self._seconds)
        if row is None:
            raise Unavailable("snowflake worker", f"all {_NUMBERS} numbers are leased")
        lease = _Lease(row["worker"], self._clock)
        lease.extend(row["leased_until"], sent_at + self._seconds)
        self._lease = lease
        logger.info("snowflake worker number leased", extra={"worker": lease.worker})

    async def renew(self) -> None:
        """Keep the number for another life; one that went to somebody else is replaced by a new one."""
        lease = self._lease
        if lease is None:
            await self.acquire()
            return
        async with self._database.transaction() as tx:
            sent_at = self._clock.monotonic()
            row = await tx.fetch_one(RENEW_NUMBER, worker=lease.worker, holder=self._holder, seconds=self._seconds)
        if row is None:
            logger.warning("snowflake worker number lost; taking another", extra={"worker": lease.worker})
            self._lease = None
            await self.acquire()
        else:
            lease.extend(row["leased_until"], sent_at + self._seconds)

    async def run(self) -> None:
        """Hold a number for ever; a database that is away is asked again soon."""
        while True:
            pause = self._seconds / 3
            try:
                await self.renew()
            except Unavailable as error:
                logger.warning("snowflake worker number not renewed; will retry", extra={"error": str(error)})
                pause = min(pause, RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Give the number back, after the last id. Without a database it comes free by itself."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with self._database.transaction() as tx:
                await tx.execute(FREE_NUMBER, worker=lease.worker, holder=self._holder, used_until=lease.used_until())
        except Unavailable as error:
            logger.warning("snowflake worker number not given back", extra={"error": str(error)})
