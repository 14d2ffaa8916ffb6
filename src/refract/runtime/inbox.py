"""The inbox: an event is handled once per reader, because the mark and the effect are one transaction."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import compress
from typing import Any

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, TimedOut, Unavailable
from refract.kernel.events import Event, EventDecoder
from refract.runtime.correlation import correlated
from refract.runtime.letters import Letter, in_pieces, left_over, open_letter
from refract.runtime.messages import Delivery, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, EventBus, QueueReader, Transaction
from refract.runtime.rush import Rush
from refract.runtime.statements import Statement

logger = logging.getLogger("refract.inbox")

Handle = Callable[[Transaction, Sequence[Event]], Awaitable[None]]
"""What a reader does with events it has not seen, inside the transaction that marks them."""

ATTEMPTS = 5
PARTS = 8
"""Into so many a batch that failed is divided: more would be many small transactions, fewer much work done again."""

MOST_EVENTS = 25_000
"""So many events go into one transaction, or one message: a message may hold a thousand, a reader hundreds of those."""

DIVIDE_SECONDS = 60.0
"""For so long the others in an array are told from one that fails: nobody else has a message by itself meanwhile."""

PRUNE_BATCH = 1000
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 5.0
MAX_REASON = 1000

MARK = Statement(
    "inbox_mark",
    "Marks events as handled by a reader and returns those that were not yet.",
    """
    INSERT INTO inbox (reader, event_id, handled_at)
    SELECT :reader, event_id, :now FROM unnest(:event_ids::text[]) AS event_id
    ON CONFLICT DO NOTHING
    RETURNING event_id
    """,
    sqlite="""
    INSERT INTO inbox (reader, event_id, handled_at)
    SELECT :reader, value, :now FROM json_each(:event_ids) WHERE true
    ON CONFLICT DO NOTHING
    RETURNING event_id
    """,
)
MARKED = Statement(
    "inbox_marked",
    "Finds out which events a reader has handled.",
    "SELECT event_id FROM inbox WHERE reader = :reader AND event_id = ANY(:event_ids)",
    sqlite="""
    SELECT event_id FROM inbox WHERE reader = :reader AND event_id IN (SELECT value FROM json_each(:event_ids))
    """,
)
COUNT_FIRST = Statement(
    "inbox_count_first",
    "Counts a first attempt of messages that were delivered before; returns those that had none counted yet.",
    """
    INSERT INTO inbox_attempts (reader, message_id, attempts, updated_at)
    SELECT :reader, message_id, 1, :now FROM unnest(:message_ids::text[]) AS message_id
    ON CONFLICT DO NOTHING
    RETURNING message_id
    """,
    sqlite="""
    INSERT INTO inbox_attempts (reader, message_id, attempts, updated_at)
    SELECT :reader, value, 1, :now FROM json_each(:message_ids) WHERE true
    ON CONFLICT DO NOTHING
    RETURNING message_id
    """,
)
COUNT_ATTEMPT = Statement(
    "inbox_count_attempt",
    "Counts an attempt before it is made, so that a message which kills its reader is found out.",
    """
    INSERT INTO inbox_attempts (reader, message_id, attempts, updated_at) VALUES (:reader, :message_id, 1, :now)
    ON CONFLICT (reader, message_id) DO UPDATE SET attempts = inbox_attempts.attempts + 1, updated_at = :now
    RETURNING attempts, last_error
    """,
)
UNCOUNT_ATTEMPT = Statement(
    "inbox_uncount_attempt",
    "Takes an attempt back that failed through no fault of the message.",
    "UPDATE inbox_attempts SET attempts = attempts - 1 WHERE reader = :reader AND message_id = :message_id",
)
NOTE_FAILURE = Statement(
    "inbox_note_failure",
    "Keeps the reason of a failed attempt for the dead letter.",
    "UPDATE inbox_attempts SET last_error = :error WHERE reader = :reader AND message_id = :message_id",
)
FORGET_ATTEMPTS = Statement(
    "inbox_forget_attempts",
    "Drops the counts of messages that are settled, handled or buried.",
    "DELETE FROM inbox_attempts WHERE reader = :reader AND message_id = ANY(:message_ids)",
    sqlite="""
    DELETE FROM inbox_attempts
    WHERE reader = :reader AND message_id IN (SELECT value FROM json_each(:message_ids))
    """,
)
PRUNE_MARKS = Statement(
    "inbox_prune",
    "Forgets one batch of marks so old that their events can no longer be sent again.",
    """
    DELETE FROM inbox WHERE (reader, event_id) IN (
        SELECT reader, event_id FROM inbox WHERE handled_at < :before LIMIT :batch
    )
    """,
)
PRUNE_ATTEMPTS = Statement(
    "inbox_prune_attempts",
    "Forgets attempt counts of messages that never came back; there are never many.",
    "DELETE FROM inbox_attempts WHERE updated_at < :before",
)


class Inbox:
    """Reads one queue into one database. Several may read the same queue, in one process or in many."""

    def __init__(
        self,
        queue: Queue,
        decoder: EventDecoder,
        handle: Handle,
        *,
        database: Database,
        bus: EventBus,
        clock: Clock,
        metrics: Metrics,
        one_at_a_time: asyncio.Lock | None = None,
    ) -> None:
        self._queue = queue
        self._decoder = decoder
        self._handle = handle
        self._database = database
        self._bus = bus
        self._clock = clock
        # If a counted attempt kills the process, it is the one that did, whichever reader of the process made it; and
        # many that fail leave the database to others.
        self._one_at_a_time = one_at_a_time or asyncio.Lock()
        self._handled = metrics.inbox_handled.labels(queue.name)
        self._repeated = metrics.inbox_repeated.labels(queue.name)
        self._buried = metrics.inbox_buried.labels(queue.name)

    async def run(self, rush: Rush | None = None) -> None:
        """Handle messages as they come, for ever; one that fails is tried again beside those that come after it.

        During a `rush`, if it is to mind them, it takes no more than it has.
        """
        rush = rush or Rush.never()
        async with self._bus.reader(self._queue) as reader, asyncio.TaskGroup() as retries:
            while True:
                await rush.over()
                for letter in await self.settle(reader, await reader.next_batch()):
                    retries.create_task(self.settle_alone(reader, letter))

    async def settle(self, reader: QueueReader, deliveries: Sequence[Delivery]) -> list[Letter]:
        """Handle a batch as one, but what may have killed a reader before one by one; returns what failed."""
        letters = [open_letter(delivery, self._decoder) for delivery in deliveries]
        failed = [letter for letter in letters if letter.unreadable]
        readable = [letter for letter in letters if not letter.unreadable]
        fresh = [letter for letter in readable if not letter.delivery.redelivered]
        again = [letter for letter in readable if letter.delivery.redelivered]
        for piece in in_pieces(fresh, MOST_EVENTS):
            failed += await self._settle_together(reader, piece)
        if again:
            # A broker that was killed delivers everything again: a second delivery alone is no reason to go slowly.
            second, suspects = await self._told_apart(again)
            for piece in in_pieces(second, MOST_EVENTS):
                failed += await self._settle_together(reader, piece, counted=True)
            for letter in suspects:
                await self.settle_alone(reader, letter)
        return failed

    async def _told_apart(self, letters: Sequence[Letter]) -> tuple[list[Letter], list[Letter]]:
        """Those whose first counted attempt this is, and those that had one and did not survive it."""
        ids = sorted({_storable(letter.delivery.message.message_id) for letter in letters})
        pause = 0.0
        while True:
            try:
                async with self._database.transaction() as tx:
                    rows = await tx.fetch(COUNT_FIRST, reader=self._queue.name, message_ids=ids, now=self._clock.now())
            except Unavailable as error:
                with correlated(_story(letters[0])):
                    pause = await self._wait_for_dependency(error, pause)
                continue
            first = {row["message_id"] for row in rows}
            known = [_storable(letter.delivery.message.message_id) in first for letter in letters]
            return list(compress(letters, known)), list(compress(letters, [not one for one in known]))

    async def _settle_together(
        self, reader: QueueReader, letters: list[Letter], *, counted: bool = False
    ) -> list[Letter]:
        """Handle letters as one, and in parts where that fails; returns those that fail by themselves."""
        if await self._applied_together(letters, counted=counted):
            await reader.acknowledge([letter.delivery for letter in letters if letter.rest is None])
            return [letter.rest for letter in letters if letter.rest is not None]
        if len(letters) == 1:
            return letters
        size = max(1, len(letters) // PARTS)
        failed: list[Letter] = []
        for first in range(0, len(letters), size):
            failed += await self._settle_together(reader, letters[first : first + size], counted=counted)
        return failed

    async def _applied_together(self, letters: Sequence[Letter], *, counted: bool) -> bool:
        pause = 0.0
        with correlated(_story(letters[0])):
            while True:
                try:
                    await self._apply(letters, counted=counted)
                except Unavailable as error:
                    if isinstance(error, TimedOut):
                        return False  # the database answers others: there is too much, or one letter takes for ever
                    pause = await self._wait_for_dependency(error, pause)
                except Exception as error:  # noqa: BLE001 - whatever a handler raises, the one to blame will be found
                    logger.warning("batch failed; looking for the message", extra={"error": _reason(error)})
                    return False
                else:
                    return True

    async def settle_alone(self, reader: QueueReader, letter: Letter) -> None:
        """Handle one message, counting attempts in the database before each, and bury it after the last."""
        with correlated(_story(letter)):
            if letter.unreadable:
                await self._bury(reader, letter.delivery, letter.unreadable)
            else:
                await self._settle_by_itself(reader, letter)

    async def _settle_by_itself(self, reader: QueueReader, letter: Letter) -> None:
        pause, counted = 0.0, False
        left: Letter | None = None
        while True:
            try:
                async with self._one_at_a_time:
                    if not reader.holds(letter.delivery):
                        return  # it comes again, and whoever gets it goes on counting
                    if not counted:
                        attempts, last_error = await self._count_attempt(letter)
                        counted = True
                    if attempts > ATTEMPTS:
                        # Once, because it may die of this, too; and not at all of what it has died of before.
                        if attempts == ATTEMPTS + 1 and last_error is not None:
                            await self._divide(reader, letter, self._clock.monotonic() + DIVIDE_SECONDS)
                        reason = last_error or f"the reader died {ATTEMPTS} times while handling it"
                        left = left_over(letter, self._decoder, await self._unhandled(letter), reason)
                        if not reader.holds(letter.delivery):
                            await self._uncounted(letter)
                            return  # it comes again, and would be there twice
                        async with self._database.transaction() as tx:
                            await tx.execute(FORGET_ATTEMPTS, **self._keys([letter]))
                        break
                    failure = await self._attempt(letter)
            except Unavailable as error:
                counted = counted and not await self._uncounted(letter)
                pause = await self._wait_for_dependency(error, pause)
                continue
            if failure is None:
                left = letter.rest
                break
            counted = False
            logger.warning("message failed", extra={"queue": self._queue.name, "attempt": attempts, "error": failure})
            await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempts))
        if left is None:
            await reader.acknowledge([letter.delivery])
        else:
            await self._bury(reader, left.delivery, left.unreadable)

    async def _divide(self, reader: QueueReader, letter: Letter, until: float) -> None:
        """Handle those events of a letter that do not fail by themselves, as far as there is time."""
        size = max(1, len(letter.events) // PARTS)
        for first in range(0, len(letter.events), size) if len(letter.events) > 1 else ():
            part = replace(letter, events=letter.events[first : first + size])
            if self._clock.monotonic() > until or not reader.holds(letter.delivery):
                return
            if not await self._applied_together([part], counted=False):
                await self._divide(reader, part, until)

    async def _unhandled(self, letter: Letter) -> set[str]:
        identities = {event.identity for event in letter.events}
        rows = await self._database.fetch(MARKED, reader=self._queue.name, event_ids=sorted(identities))
        return identities - {row["event_id"] for row in rows}

    async def _attempt(self, letter: Letter) -> str | None:
        """What went wrong, if it was the message's fault. A dependency's fault is raised."""
        try:
            await self._apply([letter], counted=True)
        except Unavailable as error:
            if not isinstance(error, TimedOut):
                raise
            failure = _reason(error)
        except Exception as error:  # noqa: BLE001 - a message may fail in any way; the reason is kept with it
            failure = _reason(error)
        else:
            return None
        await self._run(NOTE_FAILURE, letter, error=failure)
        return failure

    async def _uncounted(self, letter: Letter) -> bool:
        """Whether an attempt that was not the message's fault could be taken back; else it stands for the next one."""
        try:
            await self._run(UNCOUNT_ATTEMPT, letter)
        except Unavailable:
            return False
        return True

    async def _apply(self, letters: Sequence[Letter], *, counted: bool = False) -> None:
        """One transaction: mark the events that are new, and do what the reader does with them."""
        by_identity = {event.identity: event for letter in letters for event in letter.events}
        with correlated(letters[0].correlation_id if len(letters) == 1 else ""):
            async with self._database.transaction() as tx:
                # Sorted, so that two readers with the same events wait for each other instead of deadlocking.
                rows = await tx.fetch(
                    MARK, reader=self._queue.name, event_ids=sorted(by_identity), now=self._clock.now()
                )
                marked = {row["event_id"] for row in rows}
                new = [event for identity, event in by_identity.items() if identity in marked]
                if new:
                    await self._handle(tx, new)
                if counted:
                    await tx.execute(FORGET_ATTEMPTS, **self._keys(letters))
        self._handled.inc(len(new))
        self._repeated.inc(sum(len(letter.events) for letter in letters) - len(new))

    async def _count_attempt(self, letter: Letter) -> tuple[int, str | None]:
        async with self._database.transaction() as tx:
            row = await tx.fetch_one(COUNT_ATTEMPT, **self._key(letter), now=self._clock.now())
        assert row is not None, "INSERT … RETURNING always returns its row"
        return row["attempts"], row["last_error"]

    async def _run(self, statement: Statement, letter: Letter, **parameters: str) -> None:
        async with self._database.transaction() as tx:
            await tx.execute(statement, **self._key(letter), **parameters)

    async def _bury(self, reader: QueueReader, delivery: Delivery, reason: str) -> None:
        """Move a message to the dead letters, waiting for the bus if need be: a letter is never dropped."""
        pause = 0.0
        while True:
            try:
                await reader.bury(delivery, reason)
                break
            except (Unavailable, NotPublished) as error:
                pause = await self._wait_for_dependency(error, pause)
            if not reader.holds(delivery):
                return  # it comes again, and would be there twice
        self._buried.inc()
        logger.error(
            "message moved to dead letters",
            extra={"queue": self._queue.dead, "message_id": delivery.message.message_id, "reason": reason},
        )

    def _key(self, letter: Letter) -> dict[str, str]:
        return {"reader": self._queue.name, "message_id": _storable(letter.delivery.message.message_id)}

    def _keys(self, letters: Sequence[Letter]) -> dict[str, Any]:
        ids = [_storable(letter.delivery.message.message_id) for letter in letters]
        return {"reader": self._queue.name, "message_ids": ids}

    async def _wait_for_dependency(self, error: Exception, pause: float) -> float:
        pause = min(LONGEST_PAUSE, pause * 2 or 0.1)
        logger.warning("reader waits for a dependency", extra={"queue": self._queue.name, "error": str(error)})
        await asyncio.sleep(pause)
        return pause


def _story(letter: Letter) -> str:
    """The correlation id of lines about a letter, or a batch that begins with it: if need be, of its first event."""
    return letter.correlation_id or next((event.correlation_id for event in letter.events), "")


def _reason(error: Exception) -> str:
    return _storable(f"{type(error).__name__}: {error}")[:MAX_REASON]


def _storable(text: str) -> str:
    """Text that comes from a message may hold what PostgreSQL does not keep."""
    return text.encode(errors="replace").decode().replace("\x00", "\ufffd")


async def prune_inbox(database: Database, before: datetime) -> int:
    """Forget marks and counts older than a moment, in batches that hold no lock for long; returns how many marks."""
    async with database.transaction() as tx:
        await tx.execute(PRUNE_ATTEMPTS, before=before)
    pruned = 0
    while True:
        async with database.transaction() as tx:
            deleted = await tx.execute(PRUNE_MARKS, before=before, batch=PRUNE_BATCH)
        pruned += deleted
        if deleted < PRUNE_BATCH:
            return pruned
