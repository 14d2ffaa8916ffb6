"""The outbox: an event is saved with the write that caused it, and sent after it, at least once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Self

from refract.kernel.clock import Clock
from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime.joining import in_messages
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, EventBus, Reads, Row, Transaction
from refract.runtime.rounds import in_batches
from refract.runtime.rush import Rush
from refract.runtime.statements import Statement

logger = logging.getLogger("refract.outbox")

POLL_SECONDS = 2.0
"""The net under the wake-up call: how long a saved event waits at most when nobody called."""

PASS_SECONDS = 0.1
"""From the beginning of one pass to the next at least, unless there is more to do than one pass takes."""

RUSH_PASS_SECONDS = 0.5
"""From the end of one pass to the next while there is a rush."""

DRAIN_SECONDS = 3.0
"""What is spent on events that can wait when a process stops; the rest is sent after the next start."""

LANES = 2
BATCH = 500
FIRST_BATCH = 64
BATCH_AFTER_RUSH = 8
BATCH_BYTES = 4 * 1024 * 1024
"""What a batch should weigh at most: a row may carry one event or hundreds of clicks, so batches grow and shrink."""

RETRIES = 50
RETRY_SECONDS = 5.0
"""How many rows that failed before are tried in one round, and for how long, so that they leave room for the others."""

PRUNE_BATCH = 1000
REPLAY_BATCH = 1000
LONGEST_PAUSE = 30.0

_COLUMNS = "id, exchange, event_type, payload, message_id, correlation_id, mandatory, attempts"
# SQLite keeps long ones packed, and unpacks what is named so.
_COLUMNS_SQLITE = _COLUMNS.replace("payload", 'payload AS "payload [PACKED]"')
_FRESH = """
    SELECT {columns}
    FROM outbox
    WHERE published_at IS NULL AND attempts = 0
        AND (next_attempt_at IS NULL OR next_attempt_at <= :now OR next_attempt_at > :never)
    ORDER BY id
    LIMIT :batch
"""
_FAILED = """
    SELECT {columns}
    FROM outbox
    WHERE published_at IS NULL AND attempts > 0 AND (next_attempt_at <= :now OR next_attempt_at > :never)
    ORDER BY next_attempt_at
    LIMIT :batch
"""

CLAIM_FRESH = Statement(
    "outbox_claim_fresh",
    "Takes new rows that nobody else holds: by state, never by the last id seen, which loses late commits.",
    f"{_FRESH.format(columns=_COLUMNS)} FOR UPDATE SKIP LOCKED",
    sqlite=_FRESH.format(columns=_COLUMNS_SQLITE),
)
CLAIM_FAILED = Statement(
    "outbox_claim_failed",
    "Takes rows that failed before and are due, or would never be because the clock was set back.",
    f"{_FAILED.format(columns=_COLUMNS)} FOR UPDATE SKIP LOCKED",
    sqlite=_FAILED.format(columns=_COLUMNS_SQLITE),
)
MARK = Statement(
    "outbox_mark",
    "Remembers when rows were published, which a later mark does not move; they stay until the retention is over.",
    "UPDATE outbox SET published_at = :now, last_error = NULL WHERE id = ANY(:ids) AND published_at IS NULL",
    sqlite="""
    UPDATE outbox SET published_at = :now, room = NULL, last_error = NULL
    WHERE id IN (SELECT value FROM json_each(:ids)) AND published_at IS NULL
    """,
)
GIVE_BACK = Statement(
    "outbox_give_back",
    "Leaves rows to any relay that were held for whoever saved them.",
    "UPDATE outbox SET next_attempt_at = NULL WHERE id = ANY(:ids) AND published_at IS NULL AND attempts = 0",
    sqlite="""
    UPDATE outbox SET next_attempt_at = NULL
    WHERE id IN (SELECT value FROM json_each(:ids)) AND published_at IS NULL AND attempts = 0
    """,
)
GIVE_BACK_UNSURE = Statement(
    "outbox_give_back_unsure",
    "Leaves rows to any relay of which their saver does not know whether they are there.",
    "UPDATE outbox SET next_attempt_at = NULL WHERE message_id = ANY(:ids) AND published_at IS NULL AND attempts = 0",
    sqlite="""
    UPDATE outbox SET next_attempt_at = NULL
    WHERE message_id IN (SELECT value FROM json_each(:ids)) AND published_at IS NULL AND attempts = 0
    """,
)
POSTPONE = Statement(
    "outbox_postpone",
    "Puts a row off after a failure of its own, so that it never starves the rest.",
    "UPDATE outbox SET attempts = attempts + 1, next_attempt_at = :next, last_error = :error WHERE id = :id",
)
PENDING = Statement(
    "outbox_pending",
    "Counts what waits to be published.",
    """
    SELECT (SELECT count(*) FROM outbox WHERE published_at IS NULL AND attempts = 0)
         + (SELECT count(*) FROM outbox WHERE published_at IS NULL AND attempts > 0) AS pending
    """,
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
    "Makes one batch of published rows of a period unpublished again; readers that handled them will recognise them.",
    """
    UPDATE outbox SET published_at = NULL, attempts = 0, next_attempt_at = NULL
    WHERE id IN (
        SELECT id FROM outbox WHERE id > :after AND id < :until AND published_at IS NOT NULL ORDER BY id LIMIT :batch
    )
    RETURNING id
    """,
)


@dataclass(frozen=True, slots=True)
class Claims:
    """How rows are taken: new ones, and those that failed before and are due."""

    fresh: Statement = CLAIM_FRESH
    failed: Statement = CLAIM_FAILED

    @classmethod
    def but(cls, event_type: str) -> Self:
        """All kinds but one, of which there may be many thousands.

        It is named literally, which lets SQLite see that the index of all others, `outbox_first`, has the answer; that
        this is the shorter way SQLite does not know, whatever it knows of the table.
        """
        fresh, failed = (text.replace("WHERE", f"WHERE event_type <> '{event_type}' AND") for text in (_FRESH, _FAILED))
        indexed = fresh.replace("FROM outbox", "FROM outbox INDEXED BY outbox_first")
        return cls(
            Statement(
                "outbox_claim_fresh_but",
                "Takes new rows that pass those of a kind that can wait.",
                f"{fresh.format(columns=_COLUMNS)} FOR UPDATE SKIP LOCKED",
                sqlite=indexed.format(columns=_COLUMNS_SQLITE),
            ),
            Statement(
                "outbox_claim_failed_but",
                "Takes rows that failed before, are due, and can not wait.",
                f"{failed.format(columns=_COLUMNS)} FOR UPDATE SKIP LOCKED",
                sqlite=failed.format(columns=_COLUMNS_SQLITE),
            ),
        )


ALL = Claims()


Outcome = tuple[Row, NotPublished | None]


class Relay:
    """Moves rows from a service's outbox to the bus. Several may run on one database.

    During a rush, events of the type that `can_wait` stay where they are, and the others pass them.
    """

    def __init__(
        self,
        service: str,
        *,
        database: Database,
        bus: EventBus,
        clock: Clock,
        metrics: Metrics,
        rush: Rush | None = None,
        can_wait: str | None = None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._clock = clock
        self._published = metrics.outbox_published.labels(service)
        self._failed = metrics.outbox_failed.labels(service)
        self._batch = min(FIRST_BATCH, BATCH)
        self._rush = rush or Rush.never()
        self._urgent = None if rush is None or can_wait is None else Claims.but(can_wait)
        # Two locks that are taken one after the other: batches leave in the order in which they were claimed.
        self._claiming = asyncio.Lock()
        self._publishing = asyncio.Lock()

    async def run(self) -> None:
        """Publish as rows come, for ever. A server that is away is waited for, with growing pauses."""
        pause = 0.0
        while True:
            begun = self._clock.monotonic()
            try:
                if await self.move():
                    await self._move_all()
            except (Unavailable, NotPublished) as error:
                pause = min(POLL_SECONDS, pause * 2 or 0.1)
                logger.warning("outbox publish failed; will retry", extra={"error": str(error)})
                await asyncio.sleep(pause)
                continue
            pause = 0.0
            if self._claims() is not ALL:
                await asyncio.sleep(RUSH_PASS_SECONDS)
                continue
            await self._database.announced(POLL_SECONDS)
            # Under load something is announced all the time: a pass for each would cost more than what it moves.
            await asyncio.sleep(max(0.0, begun + PASS_SECONDS - self._clock.monotonic()))

    async def drain(self) -> None:
        """Publish until nothing is due, as far as the servers allow; what can wait has no more than a few seconds."""
        until = inf if self._urgent is None else self._clock.monotonic() + DRAIN_SECONDS
        try:
            while self._urgent is not None and await self._move(self._urgent):
                pass
            await self._move_all(until, ALL)
        except (Unavailable, NotPublished) as error:
            logger.warning("outbox not drained; the rest is sent after the next start", extra={"error": str(error)})

    def _claims(self) -> Claims:
        return ALL if self._urgent is None or not self._rush.is_on else self._urgent

    async def _move_all(self, until: float = inf, claims: Claims | None = None) -> None:
        """Publish until nothing is due. Where rows can be locked, a batch is claimed while another is on its way."""

        failures: list[BaseException] = []

        async def lane() -> None:
            try:
                while not failures and await self._move(claims or self._claims()):
                    if self._clock.monotonic() > until:
                        logger.info("outbox not drained in time; the rest is sent after the next start")
                        return
            except Exception as error:  # noqa: BLE001 - raised below, once the other lane has come to its end, too
                failures.append(error)

        lanes = 1 if self._database.dialect == "sqlite" else LANES
        await asyncio.gather(*(lane() for _ in range(lanes)))
        if failures:
            raise failures[0]

    async def move(self) -> bool:
        """Publish one batch; returns whether more may be due. Raises when the bus or the database is away."""
        return await self._move(self._claims())

    async def _move(self, claims: Claims) -> bool:
        await self._bus.ping()  # first of all, so that no row is held or touched while the bus is away
        if claims is not ALL:
            self._batch = min(FIRST_BATCH, BATCH)
        limit = self._batch
        async with self._claimed(claims, limit) as (fresh, failed, tx):
            async with self._publishing:
                outcomes = await self._publish(fresh, failed)
            if tx is not None:
                await self._settle(tx, outcomes)
        if tx is None and outcomes:
            # The embedded twin has one writer: it must not be held while the bus writes.
            async with self._database.transaction() as tx:
                await self._settle(tx, outcomes)
        self._report(outcomes)
        if claims is not ALL:
            # What has gathered meanwhile may be long: how long, the next pass finds out by a few.
            self._batch = min(BATCH_AFTER_RUSH, BATCH)
        return len(fresh) == limit or len(failed) == RETRIES or len(outcomes) < len(fresh) + len(failed)

    @asynccontextmanager
    async def _claimed(
        self, claims: Claims, limit: int
    ) -> AsyncIterator[tuple[list[Row], list[Row], Transaction | None]]:
        """New rows, and rows that failed before and are due, locked against other relays where there can be others."""
        if self._database.dialect == "sqlite":
            yield *await self._claim(self._database, claims, limit), None
            return
        async with self._database.transaction() as tx:
            yield *await self._claim(tx, claims, limit), tx

    async def _claim(self, database: Reads, claims: Claims, limit: int) -> tuple[list[Row], list[Row]]:
        now = self._clock.now()
        never = now + 2 * timedelta(seconds=LONGEST_PAUSE)
        async with self._claiming:
            return (
                await database.fetch(claims.fresh, now=now, never=never, batch=limit),
                await database.fetch(claims.failed, now=now, never=never, batch=RETRIES),
            )

    async def _publish(self, fresh: Sequence[Row], failed: Sequence[Row]) -> list[Outcome]:
        """What became of the rows. One that failed before travels alone, so that it cannot take others along."""
        outcomes = await self._publish_together(fresh)
        enough = self._clock.monotonic() + RETRY_SECONDS
        for row in failed:
            if self._clock.monotonic() > enough:
                break
            [(message, _)] = in_messages([row])
            [outcome] = await self._bus.publish_all([message])
            outcomes.append((row, outcome))
            if isinstance(outcome, BusAway):
                break  # whoever comes next would only wait for the same timeout
        return outcomes

    async def _publish_together(self, rows: Sequence[Row]) -> list[Outcome]:
        if not rows:
            return []
        joined = list(in_messages(rows))
        outcomes = await self._bus.publish_all([message for message, _ in joined])
        sent = [outcome for outcome, (_, together) in zip(outcomes, joined, strict=True) for _ in together]
        trouble = [outcome for outcome in sent if isinstance(outcome, BusAway)]
        if len(rows) == len(trouble) > 1:
            # Either the bus went away, which is no fault of any row, or one of them breaks the connection for all:
            # smaller and smaller batches find it, while nothing is put off.
            self._batch = len(rows) // 2
            raise trouble[0]
        if trouble and len(rows) > 1:
            # The bus went away, or fell behind, in mid-batch: those it did not confirm go again as they are.
            self._batch = max(1, len(rows) // 2)
            return [(row, outcome) for row, outcome in zip(rows, sent, strict=True) if not isinstance(outcome, BusAway)]
        weight = sum(len(message.body) for message, _ in joined) / len(rows)
        self._batch = max(1, min(BATCH, self._batch * 2, int(BATCH_BYTES / max(weight, 1))))
        return list(zip(rows, sent, strict=True))

    async def _settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> None:
        now = self._clock.now()
        published = [row["id"] for row, outcome in outcomes if outcome is None]
        if published:
            await tx.execute(MARK, now=now, ids=published)
        failures = [
            {"id": row["id"], "next": now + _pause(row["attempts"]), "error": str(outcome)}
            for row, outcome in outcomes
            if outcome is not None
        ]
        if failures:
            await tx.execute_many(POSTPONE, failures)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in outcomes:
            if outcome is None:
                self._published.inc()
                continue
            self._failed.inc()
            logger.warning(
                "event not published; will retry",
                extra={"event_type": row["event_type"], "event_id": row["message_id"], "error": str(outcome)},
            )


def _pause(attempts: int) -> timedelta:
    return timedelta(seconds=min(LONGEST_PAUSE, 0.5 * 2 ** min(attempts, 10)))


async def pending_in_outbox(database: Database) -> int:
    """How many rows wait to be published."""
    row = await database.fetch_one(PENDING)
    return int(row["pending"]) if row else 0


async def prune_outbox(database: Database, before: datetime) -> int:
    """Delete what was published and announced before a moment, in batches that hold no lock for long."""
    first = _first_id_at(before)
    return await in_batches(database, PRUNE_BATCH, lambda tx: tx.execute(PRUNE, before=first, batch=PRUNE_BATCH))


async def replay_outbox(database: Database, since: datetime, until: datetime) -> int:
    """Send again what was announced in a period; returns how many rows. Readers recognise what they handled."""
    replayed = 0
    after, end = _first_id_at(since), _first_id_at(until)
    while True:
        async with database.transaction() as tx:
            rows = await tx.fetch(REPLAY, after=after, until=end, batch=REPLAY_BATCH)
        replayed += len(rows)
        if len(rows) < REPLAY_BATCH:
            return replayed
        after = max(row["id"] for row in rows)


def _first_id_at(moment: datetime) -> str:
    """The smallest row id that a moment could have produced."""
    milliseconds = int(moment.timestamp() * 1000)
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000"
