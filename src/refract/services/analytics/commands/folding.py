"""Folding: days are made from hours and months from days when they are over, and again when clicks came late.

A period is closed first, which is a moment's work: from then on a click that lands in it leaves a mark. Then its links
are walked over, a few at a time, and at last its rows are trusted. Marked periods are folded again; a mark goes with
the row that has its click. Rows are always made anew from the finer ones, so that doing it twice changes nothing.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.kernel.ids import new_event_id
from refract.runtime.ports import Database, Reads
from refract.services.analytics.commands.merging import Merging
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
from refract.services.analytics.store.folding import (
    CLOSE_PERIOD,
    CORRECT_TALLY,
    DROP_MARKS,
    FIRST_ROW,
    LIFT_FOLDED,
    MARKED_PERIODS,
    MOVE_ON,
    PASS_MARKS_ON,
    READ_MARKS,
    TRUST_PERIOD,
    WALK,
    WEIGH,
    WRITE_ROW,
)
from refract.services.analytics.store.periods import BE_BRIEF, TAKE_PERIODS
from refract.services.analytics.store.turns import Overtaken, Progress, Turn

log = logging.getLogger(__name__)

GRACE = timedelta(minutes=5)
"""How long after its end a period is closed: most clicks that were on their way have landed by then."""

PAGE = 500
"""Links that are looked at in one go."""

CHUNK_LINKS = 200
CHUNK_CLICKS = 20_000
"""Of so many links at most, and so many clicks, rows are written in one transaction; or of one link that has more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some links of a period that are folded in one transaction, and what that settles."""

    span: int
    begin: datetime
    codes: Sequence[str]
    marks: Collection[str] = ()
    position: tuple[datetime, str] | None = None


class Folding:
    """Folds what is due. Several processes may try at once: one of them gets on, the others leave it to that one."""

    def __init__(self, database: Database, clock: Clock, *, clicks_kept: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._merging = Merging(database, clock, clicks_kept)

    async def fold(self) -> int:
        """Fold all that is over or marked, however late that is; returns how many rows were written."""
        folded = 0
        turn = Turn(self._database)
        try:
            for span in (DAY, MONTH):
                await turn.look()
                async for rows in self._fold_marked(turn, span):
                    folded += rows
                async for rows in self._fold_due(turn, span):
                    folded += rows
        except Overtaken:
            log.debug("another process folds")
        finally:  # however it ended, what was written is written
            if folded:
                log.info("periods folded", extra={"rows": folded})
        return folded

    async def _fold_marked(self, turn: Turn, span: int) -> AsyncIterator[int]:
        """Go over the marks once; those that come behind us are for the next time. Tells of each chunk's rows."""
        for period in await self._database.fetch(MARKED_PERIODS, span=span):
            begin, code = period["starts_at"], ""
            scope = {"span": span, "finer": span - 1, "begin": begin, "end": end_of(begin, span), "page": PAGE}
            while rows := await self._database.fetch(READ_MARKS, code=code, **scope):
                marks = defaultdict(set)
                for row in rows:
                    marks[row["short_code"]].add(row["mark"])
                if len(rows) < PAGE:
                    code = rows[-1]["short_code"]
                elif len(marks) > 1:
                    del marks[rows[-1]["short_code"]]  # some of its marks may be on the next page
                    code = max(marks)
                # A page of one link's marks comes again, until all of them are gone: its readers have to read them all.
                async for codes in self._chunks(span, begin, list(marks)):
                    seen = set[str]().union(*(marks[code] for code in codes))
                    yield await self._write(turn, _Chunk(span, begin, codes, marks=seen))

    async def _fold_due(self, turn: Turn, span: int) -> AsyncIterator[int]:
        """One period after the other, the one that somebody left unfinished first. Tells of each chunk's rows."""
        while True:
            progress = await turn.look()
            if (position := progress.position[span]) is not None:
                async for rows in self._walk(turn, span, *position):
                    yield rows
            elif not await self._close_next(turn, span, progress):
                return

    async def _close_next(self, turn: Turn, span: int, progress: Progress) -> bool:
        """Close the next period that has rows and is over; whether there was one."""
        closed = progress.watermarks.closed[span]
        if await self._next_due(self._database, span, closed) is None:
            return False
        async with turn.transaction() as tx:
            await tx.execute(BE_BRIEF)
            await tx.execute(TAKE_PERIODS)
            # Again, because now nobody is on the way any more: periods without rows are passed over, and closed too.
            begin = await self._next_due(tx, span, closed)
            if begin is None:
                return False
            end = end_of(begin, span)
            if span == MONTH:
                unfolded = await _first_row(tx, HOUR, progress.watermarks.until[DAY])
                if unfolded is not None and unfolded < end:
                    return False
                # No hour before its end is left to fold; one that comes late shall leave a mark on its day, too.
                await tx.execute(LIFT_FOLDED, span=DAY, moment=end)
                await tx.execute(PASS_MARKS_ON, span=MONTH, finer=DAY, begin=begin, end=end, mark=new_event_id())
            await tx.execute(CLOSE_PERIOD, span=span, closed=end, at=begin)
        return True

    async def _next_due(self, reads: Reads, span: int, closed: datetime) -> datetime | None:
        first = await _first_row(reads, span - 1, closed)
        if first is None:
            return None
        begin = start_of(first, span)
        return begin if end_of(begin, span) + GRACE <= self._clock.now() else None

    async def _walk(self, turn: Turn, span: int, at: datetime, code: str) -> AsyncIterator[int]:
        """Fold a closed period from where its walk is; each link at the first row that it has in the period."""
        begin = start_of(at, span)
        while at < end_of(begin, span):
            page = await self._database.fetch(WALK, span=span - 1, begin=begin, at=at, code=code, page=PAGE)
            due = [row["short_code"] for row in page if row["first"]]
            async for codes in self._chunks(span, begin, due):
                yield await self._write(turn, _Chunk(span, begin, codes, position=(at, codes[-1])))
            at, code = (at, page[-1]["short_code"]) if len(page) == PAGE else (end_of(at, span - 1), "")
        async with turn.transaction() as tx:
            await tx.execute(TRUST_PERIOD, span=span)

    async def _chunks(self, span: int, begin: datetime, codes: Sequence[str]) -> AsyncIterator[list[str]]:
        """Codes in sorted order, in parts whose rows are not too many to be read and written at once."""
        if not codes:
            return
        scope = {"codes": sorted(codes), "finer": span - 1, "begin": begin, "end": end_of(begin, span)}
        clicks = {row["short_code"]: row["clicks"] for row in await self._database.fetch(WEIGH, **scope)}
        chunk: list[str] = []
        weight = 0
        for code in sorted(codes):
            if chunk and (weight + clicks.get(code, 0) > CHUNK_CLICKS or len(chunk) == CHUNK_LINKS):
                yield chunk
                chunk, weight = [], 0
            chunk.append(code)
            weight += clicks.get(code, 0)
        yield chunk

    async def _write(self, turn: Turn, chunk: _Chunk) -> int:
        """Fold some links: read and count without any lock, then write it all in one short transaction."""
        merged = await self._merging.merge(chunk.span, chunk.begin, chunk.codes)
        async with turn.transaction() as tx:
            for correction in merged.corrections:
                await tx.execute(CORRECT_TALLY[correction.column], **correction.parameters)
            if merged.rows:
                await tx.execute_many(WRITE_ROW, merged.rows)
            if chunk.marks:
                scope = {"span": chunk.span, "begin": chunk.begin, "codes": list(chunk.codes)}
                await tx.execute(DROP_MARKS, marks=sorted(chunk.marks), **scope)
            if chunk.position is not None:
                at, code = chunk.position
                await tx.execute(MOVE_ON, span=chunk.span, at=at, code=code)
        return len(merged.rows)


async def _first_row(reads: Reads, span: int, moment: datetime) -> datetime | None:
    row = await reads.fetch_one(FIRST_ROW, span=span, moment=moment)
    return None if row is None else row["starts_at"]
