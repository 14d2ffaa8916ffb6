"""Requests with an Idempotency-Key: the answer is saved with what was done, and given again for a day."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

import msgspec

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid, Kind, RefractError
from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.rounds import in_batches
from refract.runtime.statements import Statement

KEY_LENGTH = 255
REMEMBERED = timedelta(hours=24)
PRUNE_BATCH = 1_000

RECALL = Statement(
    "recall_answers",
    "Reads the answers that are remembered for a key.",
    """
    SELECT part, fingerprint, status, answer, created_at FROM idempotency_keys
    WHERE caller = :caller AND key = :key AND created_at > :oldest ORDER BY part
    """,
)
CLAIM = Statement(
    "claim_key",
    "Takes a key, or one whose time is over; whoever comes with it meanwhile waits for the end of this transaction.",
    """
    INSERT INTO idempotency_keys (caller, key, part, fingerprint, status, answer, created_at)
    VALUES (:caller, :key, :part, :fingerprint, 0, '', :created_at)
    ON CONFLICT (caller, key, part) DO UPDATE
        SET fingerprint = excluded.fingerprint, status = 0, answer = '', created_at = excluded.created_at
        WHERE idempotency_keys.created_at <= :oldest
    RETURNING part
    """,
)
KEEP = Statement(
    "keep_answer",
    "Saves the answer under its key.",
    """
    UPDATE idempotency_keys SET status = :status, answer = :answer
    WHERE caller = :caller AND key = :key AND part = :part
    """,
)
PRUNE = Statement(
    "prune_keys",
    "Deletes one batch of keys whose time is over.",
    # The moment is looked at twice, because a key may have been taken again since it was found.
    """
    DELETE FROM idempotency_keys WHERE created_at <= :before AND (caller, key, part) IN (
        SELECT caller, key, part FROM idempotency_keys WHERE created_at <= :before ORDER BY created_at LIMIT :batch
    )
    """,
)


class KeyReused(RefractError):
    """The key stands for another request of the same caller."""

    kind: ClassVar[Kind] = Kind.UNPROCESSABLE
    message = "Idempotency-Key was used for another request"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client is told: a status and a JSON body, the same bytes every time."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request that its caller may repeat. The fingerprint tells it from others that come with the same key."""

    caller: str
    key: str
    fingerprint: bytes

    @classmethod
    def of(cls, caller: str, key: str, route: str, body: object) -> Self:
        """The request of a caller for a route; two bodies are the same if only the order of their fields differs."""
        if not 0 < len(key) <= KEY_LENGTH:
            raise Invalid(f"Idempotency-Key must have 1 to {KEY_LENGTH} characters")
        canonical = route.encode() + b"\n" + msgspec.json.encode(body, order="sorted")
        return cls(caller, key, hashlib.sha256(canonical).digest())


class Memory:
    """The remembered answers of this database. A failure is not remembered: it has done nothing, and may pass."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def recall(self, request: KeyedRequest) -> Mapping[int, Answer]:
        """The parts of the request that were answered before; raises KeyReused."""
        rows = await self._database.fetch(RECALL, **self._names(request))
        return {row["part"]: _answer_to(request, row) for row in rows}

    async def claim(self, tx: Transaction, request: KeyedRequest, part: int = 0) -> Answer | None:
        """Take the key for this transaction, or learn what was answered under it; raises KeyReused."""
        names = self._names(request)
        claimed = await tx.fetch_one(
            CLAIM, **names, part=part, fingerprint=request.fingerprint, created_at=self._clock.now()
        )
        if claimed is not None:
            return None
        # What is in the way is locked by now, so that nobody prunes it before it is read.
        rows = await tx.fetch(RECALL, **names)
        return next(_answer_to(request, row) for row in rows if row["part"] == part)

    async def keep(self, tx: Transaction, request: KeyedRequest, answer: Answer, part: int = 0) -> None:
        """Save the answer with what was done: both are there, or neither."""
        text = answer.body.decode()
        await tx.execute(KEEP, caller=request.caller, key=request.key, part=part, status=answer.status, answer=text)

    def _names(self, request: KeyedRequest) -> dict[str, Any]:
        return {"caller": request.caller, "key": request.key, "oldest": self._clock.now() - REMEMBERED}


def _answer_to(request: KeyedRequest, row: Row) -> Answer:
    if bytes(row["fingerprint"]) != request.fingerprint:
        raise KeyReused
    return Answer(row["status"], row["answer"].encode())


async def prune_idempotency_keys(database: Database, before: datetime) -> int:
    """Forget the keys of up to a moment, which lies REMEMBERED ago, in batches that hold no lock for long."""
    return await in_batches(database, PRUNE_BATCH, lambda tx: tx.execute(PRUNE, before=before, batch=PRUNE_BATCH))
