"""Expiry: hours, days and months lose dimensions and visitors when their time is over, and keep their counts."""

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Reads
from refract.runtime.statements import Statement
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, SPANS, Watermarks, end_of, start_of
from refract.services.analytics.store.expiry import EXPIRE, FIRST_MARK, FORGET_DETAILS, FORGET_QUARTERS, READ_PAGE
from refract.services.analytics.store.folding import FIRST_ROW, LIFT_FOLDED
from refract.services.analytics.store.periods import BE_BRIEF, TAKE_PERIODS
from refract.services.analytics.store.turns import Overtaken, Turn

log = logging.getLogger(__name__)

PAGE = 500
"""Rows that lose their details in one transaction."""

UNIT = {HOUR: DAY, DAY: MONTH, MONTH: MONTH}
"""What expires at a time: all hours of a day, which the day's row is made of, all days of a month, and one month."""


class Expiry:
    """Moves the watermark of a span by one unit, takes the details from the rows before it, and so on.

    Details of a period may go when the coarser one is folded, and nothing in it waits to be folded again.
    """

    def __init__(self, database: Database, clock: Clock, kept: Mapping[int, timedelta]) -> None:
        self._database = database
        self._clock = clock
        self._kept = kept
        self._cleared: dict[int, datetime] = {}
        """By span, up to where this process knows that no row has details."""

    async def expire(self) -> int:
        """Let go of all whose time is over; returns how many rows lost their details."""
        cleared = 0
        turn = Turn(self._database)
        try:
            for span in SPANS:
                async for rows in self._expire(turn, span):
                    cleared += rows
        except Overtaken:
            log.debug("another process lets details expire")
        finally:  # however it ended, what is gone is gone
            if cleared:
                log.info("details expired", extra={"rows": cleared})
        return cleared

    async def _expire(self, turn: Turn, span: int) -> AsyncIterator[int]:
        """Tells of each unit how many of its rows lost their details."""
        while True:
            watermarks = (await turn.look()).watermarks
            # Whoever moved it may have died before the rows were cleared: of one unit, because each clears first.
            yield await self._clear(span, watermarks.expired[span])
            goal = start_of(self._clock.now() - self._kept[span], UNIT[span])
            if await self._next(self._database, span, watermarks, goal) <= watermarks.expired[span]:
                return
            async with turn.transaction() as tx:
                await tx.execute(BE_BRIEF)
                await tx.execute(TAKE_PERIODS)
                moment = await self._next(tx, span, watermarks, goal)
                if moment <= watermarks.expired[span]:
                    return
                await tx.execute(EXPIRE, span=span, moment=moment)
                if span != MONTH:
                    # A click in an hour without details goes straight to its day, which must not be folded any more.
                    await tx.execute(LIFT_FOLDED, span=span + 1, moment=moment)

    async def _next(self, reads: Reads, span: int, watermarks: Watermarks, goal: datetime) -> datetime:
        """To where the watermark may move: at most over one unit that has rows, and over none that is needed."""
        moments = [goal]
        if first := await reads.fetch_one(FIRST_ROW, span=span, moment=watermarks.expired[span]):
            moments.append(end_of(start_of(first["starts_at"], UNIT[span]), UNIT[span]))
        if span != HOUR:
            moments.append(start_of(watermarks.expired[span - 1], UNIT[span]))
        if span != MONTH:
            coarser = span + 1
            if unfolded := await reads.fetch_one(FIRST_ROW, span=span, moment=watermarks.until[coarser]):
                moments.append(start_of(unfolded["starts_at"], UNIT[span]))
            if mark := await reads.fetch_one(FIRST_MARK, span=coarser):
                moments.append(mark["starts_at"])
        return min(moments)

    async def _clear(self, span: int, expired: datetime) -> int:
        """Take the details from the rows of the last unit before the watermark, unless that is known to be done."""
        begin = start_of(expired - timedelta(microseconds=1), UNIT[span])
        if self._cleared.get(span, begin) >= expired:
            return 0
        cleared = await self._forget(FORGET_DETAILS, span, begin, expired)
        if span == HOUR:  # nobody asks for a part of these days any more
            await self._forget(FORGET_QUARTERS, DAY, begin, expired)
        self._cleared[span] = expired
        return cleared

    async def _forget(self, statement: Statement, span: int, begin: datetime, end: datetime) -> int:
        """Page by page; returns how many rows had something to forget."""
        cleared = 0
        at, code = begin, ""
        while True:
            scope = {"span": span, "at": at, "code": code}
            page = await self._database.fetch(READ_PAGE, end=end, page=PAGE, **scope)
            if page:
                last = page[-1]
                async with self._database.transaction() as tx:
                    cleared += await tx.execute(
                        statement, last_at=last["starts_at"], last_code=last["short_code"], **scope
                    )
                at, code = last["starts_at"], last["short_code"]
            if len(page) < PAGE:
                return cleared
