"""Whose turn it is to fold and to expire: many processes may try, and one at a time does."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from refract.runtime.ports import Database, Transaction
from refract.services.analytics.domain.periods import HOUR, SPANS, Watermarks
from refract.services.analytics.store.folding import READ_FOLDING, TAKE_TURN


class Overtaken(Exception):
    """Another process has taken the turn: what was read may be out of date, and nothing of it is written."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far folding has come. `position` is where the walk over a closed period is, where one is under way."""

    watermarks: Watermarks
    position: Mapping[int, tuple[datetime, str] | None]
    turn: int


class Turn:
    """A turn is seen before anything is read, and taken with what is written.

    So nobody needs a lock while it reads and counts, and what another process has changed meanwhile is never
    overwritten by something older.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen = -1

    async def look(self) -> Progress:
        """See how things stand; the next transaction is only good if they still do."""
        rows: dict[int, Mapping[str, Any]] = {row["span"]: row for row in await self._database.fetch(READ_FOLDING)}
        positions = {span: (rows[span]["at"], rows[span]["code"]) if rows[span]["at"] else None for span in SPANS}
        self._seen = rows[HOUR]["turn"]
        return Progress(Watermarks.of(rows.values()), positions, self._seen)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that takes the turn, or raises Overtaken."""
        async with self._database.transaction() as tx:
            if not await tx.execute(TAKE_TURN, turn=self._seen):
                raise Overtaken
            yield tx
        self._seen += 1
