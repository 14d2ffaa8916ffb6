"""Clicks for tests: made by number, written by a writer that runs, and found again by their event ids."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.events import EventDecoder
from refract.runtime.fast_path import HeldAnswer
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, Row
from refract.services.links.api import UrlClicked
from refract.services.links.redirect.clicks import ClickWriter
from refract.services.links.redirect.spool import Spool
from tests.support.outboxes import OUTBOX
from tests.support.waiting import eventually

DECODER = EventDecoder(UrlClicked)
LIMIT = 1024 * 1024


def click(number: int, *, size: int = 0) -> bytes:
    """A click whose event id is the number, with a user agent of that length."""
    event = UrlClicked(
        occurred_at=datetime(2026, 3, 1, tzinfo=UTC),
        event_id=str(number),
        short_code="abc",
        user_id="owner",
        ip_hash="hash",
        user_agent="a" * size,
    )
    return event.encode()


def numbers_in(row: Row) -> list[int]:
    """The numbers of the clicks in one row of the outbox."""
    return [int(event.event_id) for event in DECODER.decode(row["event_type"], row["payload"].encode())]


async def numbers(database: Database) -> list[int]:
    """The numbers of all clicks in the outbox, as often as they are there, sorted."""
    return sorted(number for row in await database.fetch(OUTBOX) for number in numbers_in(row))


class GuardedDatabase:
    """A real database whose commits a test can hold up or refuse, and which notes those that were made."""

    def __init__(self, database: Database, notes: list[str]) -> None:
        self._database = database
        self._notes = notes
        self.open = asyncio.Event()
        self.open.set()
        self.trouble: Exception | None = None
        self.waiting = 0
        self.dialect = database.dialect
        self.reads_at_once = database.reads_at_once
        self.fetch = database.fetch
        self.fetch_one = database.fetch_one
        self.transaction = database.transaction
        self.announced = database.announced
        self.close = database.close

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """A post to the database, held up before it is made."""
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        if self.trouble is not None:
            raise self.trouble
        ids = await self._database.post(*messages, held=held)
        self._notes.append("commit")
        return ids

    async def ping(self) -> None:
        """Ask it, unless it is to be away."""
        if self.trouble is not None:
            raise self.trouble
        await self._database.ping()


@dataclass
class Writing:
    """A click writer, its database, and what it did so far."""

    database: Database
    directory: Path
    clock: Clock = field(default_factory=SystemClock)
    limit: int = LIMIT
    notes: list[str] = field(default_factory=list)
    """Commits and released answers, in their order."""

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.guarded = GuardedDatabase(self.database, self.notes)
        self.spool = Spool(self.directory, self.limit)
        self.writer = ClickWriter(self.guarded, self.clock, self.metrics, self.spool)

    @property
    def released(self) -> list[int]:
        """The numbers of the answers that were released."""
        return [int(note) for note in self.notes if note != "commit"]

    @property
    def files(self) -> list[Path]:
        """The files of the spool."""
        return sorted(self.directory.glob("*.spool"))

    def record(self, *numbers: int, size: int = 0) -> None:
        """Record clicks; the payload of each answer is its number."""
        for number in numbers:
            answer = HeldAnswer()
            answer.deliver = lambda answer: self.notes.append((answer.payload or b"").decode())
            self.writer.record(click(number, size=size), answer, b"%d" % number)

    async def follow(self, *numbers: int, timeout: float = 30) -> None:
        """Record clicks, each when the answer of the last has left."""
        for number in numbers:
            self.record(number)
            await self.answered(number, timeout=timeout)

    async def answered(self, *numbers: int, timeout: float = 30) -> None:
        """Wait until these answers have left."""
        await eventually(lambda: set(numbers) <= set(self.released), timeout=timeout, interval=0.005)

    def counted(self, name: str) -> float:
        """The value of a metric."""
        return self.metrics.registry.get_sample_value(name) or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Writing"]:
        """Run the writer for the time of the block, without draining it; one that died fails the test."""
        task = asyncio.create_task(self.writer.run())
        try:
            yield self
        finally:
            died = task.done()
            task.cancel()
            await asyncio.wait([task])
        left = {task.get_name() for task in asyncio.all_tasks()} & {"click flusher", "click replayer"}
        assert not left, "it left tasks behind"
        if died:
            task.result()
