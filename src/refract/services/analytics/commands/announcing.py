"""Tells links how often they were clicked: soon after it changed, many at once, and each not more than once a second.

Whoever changes totals notes which in `totals_changes`, in the same transaction. A note goes when its totals are on the
bus, so that a kill at any moment costs no more than saying something twice. Totals do not pass through the outbox:
they are no history, and kept there for a week they would outgrow the clicks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from math import ceil

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, Unavailable
from refract.kernel.ids import new_event_id
from refract.runtime.correlation import current_correlation_id
from refract.runtime.courtesy import Courtesy
from refract.runtime.messages import Message
from refract.runtime.ports import Database, EventBus, Row, Transaction
from refract.runtime.rush import Rush
from refract.runtime.statements import Statement
from refract.services.analytics.api import LinkTotal, StatsTotals

log = logging.getLogger(__name__)

TURN = timedelta(seconds=1)
"""From one announcement to the next, over all processes: so often a link is announced at most."""

LEASE = timedelta(seconds=10)
"""After so long the turn of a process that died in it is over; longer than publishing can take."""

TOTALS_A_TURN = 1_000
"""Each costs links a row with all its indexes, some 0.1 ms: where more links are in use they take turns."""

TOTALS_A_MESSAGE = 25
"""A message is one transaction of links, and in embedded mode no click is written meanwhile: it must be short."""

NOTES_A_TURN = 1_000
NOTES_A_PAGE = 25
CODES_A_NOTE = 1_000
FIRST_ID = "00000000-0000-0000-0000-000000000000"

Pause = Callable[[float], Awaitable[object]]

NOTED = Statement("totals_noted", "Looks whether any totals changed.", "SELECT 1 AS noted FROM totals_changes LIMIT 1")
BEGIN_TURNS = Statement(
    "begin_turns",
    "Makes the row by which announcers take turns.",
    "INSERT INTO announcing (id, next_at) VALUES (1, :now) ON CONFLICT (id) DO NOTHING",
)
TAKE_TURN = Statement(
    "take_turn",
    "Takes the turn if it is time, or if a clock that was wrong has put it off.",
    "UPDATE announcing SET next_at = :until WHERE id = 1 AND (next_at <= :now OR next_at > :never)",
)
END_TURN = Statement(
    "end_turn",
    "Ends a turn, unless it took so long that somebody else has the next one.",
    "UPDATE announcing SET next_at = :next_at WHERE id = 1 AND next_at = :until",
)
READ_NOTES = Statement(
    "read_totals_notes",
    "Reads which totals changed, those that wait longest first.",
    "SELECT id, short_codes FROM totals_changes WHERE id > :after ORDER BY id LIMIT :limit",
)
READ_TOTALS = Statement(
    "read_totals",
    "Reads the totals of links.",
    "SELECT short_code, clicks, last_clicked_at FROM totals WHERE short_code = ANY(:short_codes)",
    sqlite="""
    SELECT short_code, clicks, last_clicked_at FROM totals
    WHERE short_code IN (SELECT value FROM json_each(:short_codes))
    """,
)
DROP_NOTES = Statement(
    "drop_totals_notes",
    "Drops notes that are settled.",
    "DELETE FROM totals_changes WHERE id = ANY(:ids)",
    sqlite="DELETE FROM totals_changes WHERE id IN (SELECT value FROM json_each(:ids))",
)
NOTE_TOTALS = Statement(
    "note_totals",
    "Notes that the totals of links changed.",
    "INSERT INTO totals_changes (id, short_codes) VALUES (:id, :short_codes)",
)


async def note_changes(tx: Transaction, short_codes: Sequence[str]) -> None:
    """Note, in the transaction that changes them, that the totals of links are to be announced."""
    await tx.execute(NOTE_TOTALS, id=new_event_id(), short_codes=list(short_codes))


class Announcer:
    """Announces totals in the background. Several processes may do so at once, and take turns."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        clock: Clock,
        *,
        courtesy: Courtesy | None = None,
        rush: Rush | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._database = database
        self._bus = bus
        self._clock = clock
        self._courtesy = courtesy or Courtesy(clock)
        self._rush = rush or Rush.never()
        self._pause = pause

    async def run(self) -> None:
        """Announce for ever; a database or a bus that is away is tried again at the next turn."""
        while True:
            await self._rush.over()
            try:
                await self.announce()
            except (Unavailable, NotPublished) as error:
                log.warning("totals not announced; will retry", extra={"error": str(error)})
            await self._pause(TURN.total_seconds())

    async def announce(self) -> int:
        """Announce what changed, if it is our turn; returns how many totals. NotPublished where the bus has not all."""
        if await self._database.fetch_one(NOTED) is None:
            return 0
        begun = self._clock.now()
        until = begun + LEASE
        if not await self._took_turn(begun, until):
            return 0
        notes, codes = await self._noted()
        due = codes[:TOTALS_A_TURN]
        totals = await self._totals(due)
        failure = await self._publish(totals)
        await self._end_turn(until, begun + TURN, notes, codes[len(due) :] if failure is None else codes)
        if failure is not None:
            raise failure
        return len(totals)

    async def _took_turn(self, now: datetime, until: datetime) -> bool:
        async with self._database.transaction() as tx:
            await tx.execute(BEGIN_TURNS, now=now)
            return await tx.execute(TAKE_TURN, now=now, until=until, never=until) == 1

    async def _noted(self) -> tuple[list[Row], list[str]]:
        """The notes that wait longest, more than enough for one turn, and the links that they name, each once."""
        notes: list[Row] = []
        codes: dict[str, None] = {}
        while len(notes) < NOTES_A_TURN and len(codes) < 2 * TOTALS_A_TURN:
            after = notes[-1]["id"] if notes else FIRST_ID
            page = await self._database.fetch(READ_NOTES, after=after, limit=NOTES_A_PAGE)
            notes += page
            for note in page:
                codes |= dict.fromkeys(note["short_codes"])
                await self._courtesy.breathe()  # after a flood there are 25,000 in a page
            if len(page) < NOTES_A_PAGE:
                break
        return notes, list(codes)

    async def _totals(self, short_codes: Sequence[str]) -> list[LinkTotal]:
        rows = await self._database.fetch(READ_TOTALS, short_codes=short_codes)
        return [
            LinkTotal(short_code=row["short_code"], total_clicks=row["clicks"], last_clicked_at=row["last_clicked_at"])
            for row in rows
        ]

    async def _publish(self, totals: Sequence[LinkTotal]) -> NotPublished | None:
        """What went wrong, if anything did."""
        now, correlation_id = self._clock.now(), current_correlation_id()
        events = [
            StatsTotals(occurred_at=now, totals=tuple(totals[first : first + TOTALS_A_MESSAGE]))
            for first in range(0, len(totals), TOTALS_A_MESSAGE)
        ]
        outcomes = await self._bus.publish_all([Message.of(event.stamped(correlation_id)) for event in events])
        return next((outcome for outcome in outcomes if outcome is not None), None)

    async def _end_turn(self, until: datetime, next_at: datetime, notes: Sequence[Row], left: Sequence[str]) -> None:
        """Let the next turn come, and keep of the notes what is left: each code once, and first in the next turn."""
        ids = [note["id"] for note in notes]
        # Under the ids of the old notes, because new ones would stand behind what was noted meanwhile; where there
        # are few of those, notes are longer.
        size = max(CODES_A_NOTE, ceil(len(left) / max(1, len(ids))))
        kept = [left[first : first + size] for first in range(0, len(left), size)]
        async with self._database.transaction() as tx:
            if await tx.execute(END_TURN, until=until, next_at=next_at) != 1:
                return  # whoever has the turn now has read these notes too, and settles them
            await tx.execute(DROP_NOTES, ids=ids)
            for old_id, codes in zip(ids, kept, strict=False):
                await tx.execute(NOTE_TOTALS, id=old_id, short_codes=codes)
