"""The outbox: an event is saved with the write that caused it, and sent after it, at least once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, EventBus, Row, Transaction
from refract.runtime.statements import Statement

logger = logging.getLogger("refract.outbox")

POLL_SECONDS = 2.0
"""The net under the wake-up call: how long a saved event waits at most when nobody called."""

BATCH = 500
PRUNE_BATCH = 1000
LONGEST_PAUSE = 30.0

CLAIM = Statement(
    "outbox_claim",
    "Takes unpublished rows that no other relay holds: by state, never by the last id seen, which loses late commits.",
    """
    SELECT id, exchange, event_type, payload, message_id, correlation_id, mandatory, attempts
    FROM outbox
    WHERE published_at IS NULL AND (next_attempt_at IS NULL OR next_attempt_at <= :now)
    ORDER BY id
    LIMIT :batch
    FOR UPDATE SKIP LOCKED
    """,
    sqlite="""
    SELECT id, exchange, event_type, payload, message_id, correlation_id, mandatory, attempts
    FROM outbox
    WHERE published_at IS NULL AND (next_attempt_at IS NULL OR next_attempt_at <= :now)
    ORDER BY id
    LIMIT :batch
    """,
)
MARK = Statement(
    "outbox_mark",
    "Remembers that rows are published; they stay as an audit trail until the retention is over.",
    "UPDATE outbox SET published_at = :now, last_error = NULL WHERE id = ANY(:ids)",
    sqlite="UPDATE outbox SET published_at = :now, last_error = NULL WHERE id IN (SELECT value FROM json_each(:ids))",
)
POSTPONE = Statement(
    "outbox_postpone",
    "Puts a row off after a failure of its own, so that it never starves the rest.",
    "UPDATE outbox SET attempts = attempts + 1, next_attempt_at = :next, last_error = :error WHERE id = :id",
)
PENDING = Statement(
    "outbox_pending",
    "Counts what waits to be published.",
    "SELECT count(*) AS pending FROM outbox WHERE published_at IS NULL",
)
PRUNE = Statement(
    "outbox_prune",
    "Deletes one batch of published rows that are older than the retention; ids grow with time, so the key serves.",
    """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox WHERE id < :before AND published_at IS NOT NULL ORDER BY id LIMIT :batch
    )
    """,
)
REPLAY = Statement(
    "outbox_replay",
    "Makes published rows of a period unpublished again; readers that handled them will recognise them.",
    """
    UPDATE outbox SET published_at = NULL, attempts = 0, next_attempt_at = NULL
    WHERE id >= :since AND id < :until AND published_at IS NOT NULL
    """,
)


class Relay:
    """Moves rows from a service's outbox to the bus. Several may run on one database."""

    def __init__(self, service: str, *, database: Database, bus: EventBus, clock: Clock, metrics: Metrics) -> None:
        self._database = database
        self._bus = bus
        self._clock = clock
        self._published = metrics.outbox_published.labels(service)
        self._failed = metrics.outbox_failed.labels(service)

    async def run(self) -> None:
        """Publish as rows come, for ever. A server that is away is waited for, with growing pauses."""
        pause = 0.0
        while True:
            try:
                taken = await self.move()
            except (Unavailable, NotPublished) as error:
                pause = min(POLL_SECONDS, pause * 2 or 0.1)
                logger.warning("outbox publish failed; will retry", extra={"error": str(error)})
                await asyncio.sleep(pause)
                continue
            pause = 0.0
            if taken < BATCH:
                await self._database.announced(POLL_SECONDS)

    async def drain(self) -> None:
        """Publish until nothing is due, as far as the servers allow."""
        try:
            while await self.move():
                pass
        except (Unavailable, NotPublished) as error:
            logger.warning("outbox not drained; the rest is sent after the next start", extra={"error": str(error)})

    async def move(self) -> int:
        """Publish one batch; returns how many rows were taken. Raises when the bus or the database is away."""
        async with self._claimed() as (rows, tx):
            if not rows:
                return 0
            outcomes = await self._publish(rows)
            if tx is not None:
                await self._settle(tx, rows, outcomes)
                return len(rows)
        # The embedded twin has one writer: it must not be held while the bus writes.
        async with self._database.transaction() as tx:
            await self._settle(tx, rows, outcomes)
        return len(rows)

    @asynccontextmanager
    async def _claimed(self) -> AsyncIterator[tuple[Sequence[Row], Transaction | None]]:
        """Rows to publish, locked against other relays where there can be others."""
        parameters = {"now": self._clock.now(), "batch": BATCH}
        if self._database.dialect == "sqlite":
            yield await self._database.fetch(CLAIM, **parameters), None
            return
        async with self._database.transaction() as tx:
            yield await tx.fetch(CLAIM, **parameters), tx

    async def _publish(self, rows: Sequence[Row]) -> list[NotPublished | None]:
        """The outcome of each row. One that failed before travels alone, so that it cannot take neighbours along."""
        outcomes: dict[str, NotPublished | None] = {}
        fresh = [row for row in rows if not row["attempts"]]
        if fresh:
            sent = await self._bus.publish_all([_message(row) for row in fresh])
            outcomes.update(zip((row["id"] for row in fresh), sent, strict=True))
        for row in rows:
            if row["attempts"]:
                [outcomes[row["id"]]] = await self._bus.publish_all([_message(row)])
        if not any(outcome is None for outcome in outcomes.values()):
            # Nothing went through: if the bus is away, that is not the rows' fault and must not put them off.
            await self._bus.ping()
        return [outcomes[row["id"]] for row in rows]

    async def _settle(self, tx: Transaction, rows: Sequence[Row], outcomes: Sequence[NotPublished | None]) -> None:
        now = self._clock.now()
        published = [row["id"] for row, outcome in zip(rows, outcomes, strict=True) if outcome is None]
        if published:
            await tx.execute(MARK, now=now, ids=published)
            self._published.inc(len(published))
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is not None:
                await self._postpone(tx, row, outcome, now)

    async def _postpone(self, tx: Transaction, row: Row, outcome: NotPublished, now: datetime) -> None:
        pause = min(LONGEST_PAUSE, 0.5 * 2 ** min(row["attempts"], 10))
        await tx.execute(POSTPONE, id=row["id"], next=now + timedelta(seconds=pause), error=str(outcome))
        self._failed.inc()
        logger.warning(
            "event not published; will retry",
            extra={"event_type": row["event_type"], "event_id": row["message_id"], "error": str(outcome)},
        )


def _message(row: Row) -> Message:
    return Message(
        exchange=row["exchange"],
        routing_key=row["event_type"],
        body=row["payload"].encode(),
        message_id=row["message_id"],
        correlation_id=row["correlation_id"],
        mandatory=row["mandatory"],
    )


async def pending_in_outbox(database: Database) -> int:
    """How many rows wait to be published."""
    row = await database.fetch_one(PENDING)
    return int(row["pending"]) if row else 0


async def prune_outbox(database: Database, before: datetime) -> int:
    """Delete what was published and announced before a moment, in batches that hold no lock for long."""
    pruned = 0
    while True:
        async with database.transaction() as tx:
            deleted = await tx.execute(PRUNE, before=_first_id_at(before), batch=PRUNE_BATCH)
        pruned += deleted
        if deleted < PRUNE_BATCH:
            return pruned


async def replay_outbox(database: Database, since: datetime, until: datetime) -> int:
    """Send again what was announced in a period; returns how many rows. Readers recognise what they handled."""
    async with database.transaction() as tx:
        return await tx.execute(REPLAY, since=_first_id_at(since), until=_first_id_at(until))


def _first_id_at(moment: datetime) -> str:
    """The smallest row id that a moment could have produced."""
    milliseconds = int(moment.timestamp() * 1000)
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000"
