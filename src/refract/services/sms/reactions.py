"""What sms reads: its own two topics, one to send what is in it, the other to keep it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from refract.kernel.clock import Clock
from refract.kernel.errors import PoisonMessage, TimedOut, Unavailable
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, RecordLog, RecordReader
from refract.runtime.records import LARGEST_BATCH, ReceivedRecord, Topic
from refract.runtime.service import Task
from refract.services.sms.api import NOTIFICATION_EVENTS, OUTBOUND
from refract.services.sms.commands.auditing import Auditing, attempt_in
from refract.services.sms.commands.delivering import Delivering, message_in

log = logging.getLogger(__name__)

SENDERS = "sms-gateway"
AUDITORS = "sms-audit"

PARTS = 8
"""Into so many a batch that failed is divided, to find the record that is to blame."""

LONGEST_PAUSE = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A topic, the group that reads it, and what is done with what is in its records.

    `rest` seconds pass after a batch that was not full: then the next one is larger, and fewer transactions do.
    """

    topic: Topic
    group: str
    decode: Callable[[ReceivedRecord], T]
    handle: Callable[[Sequence[T]], Awaitable[int]]
    """Returns how many had not been handled before."""
    rest: float


class RecordInbox(Generic[T]):
    """Reads a topic into a command: what was handled is told to the log afterwards, and so nothing is left out."""

    def __init__(self, reading: Reading[T], records: RecordLog, metrics: Metrics) -> None:
        self._reading = reading
        self._records = records
        self._handled = metrics.inbox_handled.labels(reading.group)
        self._repeated = metrics.inbox_repeated.labels(reading.group)
        self._passed_over = metrics.records_passed_over.labels(reading.group)

    async def run(self) -> None:
        """Handle records as they come, for ever; a reader that cannot go on gives way to a new one."""
        pause = 0.0
        while True:
            try:
                async with self._records.reader(self._reading.topic, self._reading.group) as reader:
                    while True:
                        await self.take(reader)
                        pause = 0.0
            except Unavailable as error:
                pause = await self._wait_for_dependency(error, pause)

    async def take(self, reader: RecordReader) -> None:
        """Handle one batch."""
        batch = await reader.next_batch()
        items = [item for record in batch for item in self._opened(record)]
        if items:
            await self._settle(items)
        await self._commit(reader, batch)
        if len(batch) < LARGEST_BATCH:
            await asyncio.sleep(self._reading.rest)

    def _opened(self, record: ReceivedRecord) -> list[tuple[ReceivedRecord, T]]:
        try:
            return [(record, self._reading.decode(record))]
        except PoisonMessage as error:
            self._pass_over(record, str(error))
            return []

    async def _settle(self, items: Sequence[tuple[ReceivedRecord, T]]) -> None:
        """Handle records as one, and in parts where that fails; one that fails by itself is passed over."""
        failure = await self._handle(items)
        if failure is None:
            return
        if len(items) == 1:
            self._pass_over(items[0][0], failure)
            return
        size = max(1, len(items) // PARTS)
        for first in range(0, len(items), size):
            await self._settle(items[first : first + size])

    async def _handle(self, items: Sequence[tuple[ReceivedRecord, T]]) -> str | None:
        """What went wrong, if it was the fault of a record. For a dependency that is away we wait."""
        pause = 0.0
        while True:
            try:
                new = await self._reading.handle([item for _, item in items])
            except Unavailable as error:
                if isinstance(error, TimedOut):
                    return str(error)  # the database answers others: there is too much in it, or one takes for ever
                pause = await self._wait_for_dependency(error, pause)
            except Exception as error:  # noqa: BLE001 - whatever it is, the record to blame will be found
                return f"{type(error).__name__}: {error}"
            else:
                self._handled.inc(new)
                self._repeated.inc(len(items) - new)
                return None

    async def _commit(self, reader: RecordReader, batch: Sequence[ReceivedRecord]) -> None:
        """Until it is done: what nobody knows to be handled would come again whenever a process starts."""
        pause = 0.0
        while True:
            try:
                return await reader.commit(batch)
            except Unavailable as error:
                pause = await self._wait_for_dependency(error, pause)

    async def _wait_for_dependency(self, error: Unavailable, pause: float) -> float:
        pause = min(LONGEST_PAUSE, pause * 2 or 0.1)
        log.warning("reader waits for a dependency", extra={"group": self._reading.group, "error": str(error)})
        await asyncio.sleep(pause)
        return pause

    def _pass_over(self, record: ReceivedRecord, reason: str) -> None:
        """One that can never be handled stays in the topic, where its place tells how to find it."""
        self._passed_over.inc()
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.error("record passed over", extra={"group": self._reading.group, **place, "reason": reason})


def record_readers(records: RecordLog, database: Database, clock: Clock, metrics: Metrics) -> list[Task]:
    """One reader for each topic; those of several processes share it."""
    sending = Reading(OUTBOUND, SENDERS, message_in, Delivering(database, clock).send, rest=0.05)
    auditing = Reading(NOTIFICATION_EVENTS, AUDITORS, attempt_in, Auditing(database).keep, rest=0.2)
    return [
        Task(f"reader of {OUTBOUND.name}", RecordInbox(sending, records, metrics).run),
        Task(f"reader of {NOTIFICATION_EVENTS.name}", RecordInbox(auditing, records, metrics).run),
    ]
