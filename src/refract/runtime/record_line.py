"""Records that nobody waits for: they stand in a bounded line until the log has taken them."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from refract.kernel.errors import BusAway, NotPublished
from refract.runtime.metrics import Metrics
from refract.runtime.records import LARGEST_BATCH, Record, refusal

LONGEST_LINE = 20_000
LARGEST_LINE = 64 * 1024 * 1024
"""Bytes of values in the line. Both bounds hold: a line of large records ends sooner."""
PAUSES = (0.1, 0.25, 0.5, 1.0)
"""Seconds between attempts while the log takes nothing; the last one is repeated."""

logger = logging.getLogger(__name__)

Publish = Callable[[Sequence[Record]], Awaitable[list[NotPublished | None]]]


class RecordLine:
    """Sends in the order of arrival, tries again what the log did not take, and drops what has no room or no hope."""

    def __init__(self, publish: Publish, metrics: Metrics | None) -> None:
        self._publish = publish
        self._metrics = metrics
        self._line: deque[Record] = deque()
        self._bytes = 0
        self._full = False
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: Record) -> None:
        """Put a record at the end of the line; one that has no room there is dropped and counted."""
        refused = refusal(record)
        if refused is not None:
            self._drop(record)
            logger.error("a record cannot be written", extra={"topic": record.topic[:300], "reason": str(refused)})
            return
        if len(self._line) >= LONGEST_LINE or self._bytes + len(record.value) > LARGEST_LINE:
            self._drop(record)
            if not self._full:
                self._full = True
                logger.error("records are dropped: the line is full", extra={"waiting": len(self._line)})
            return
        self._line.append(record)
        self._bytes += len(record.value)
        self._empty.clear()
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send())

    async def drain(self, timeout: float) -> int:
        """Wait until the line is empty; returns how many are left when the time is over."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return len(self._line)
        return 0

    async def close(self, timeout: float) -> None:
        """Send what can be sent in time; the rest is lost, and said to be."""
        left = await self.drain(timeout)
        if left:
            logger.error("records were not sent before the end", extra={"records": left})
            for record in self._line:
                self._drop(record)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _drop(self, record: Record) -> None:
        if self._metrics is not None:
            # A name that is none is not ours, and must not make a series.
            self._metrics.records_dropped.labels(record.topic if refusal(record) is None else "invalid").inc()

    async def _send(self) -> None:
        failures = 0
        while True:
            await self._arrived.wait()
            if await self._send_some():
                failures = 0
            else:
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1

    async def _send_some(self) -> bool:
        """Send the beginning of the line; whether any of it got there."""
        batch = list(islice(self._line, LARGEST_BATCH))
        try:
            outcomes = await self._publish(batch)
        except Exception:
            logger.exception("records that wait could not be sent")
            return False
        left = [record for record, outcome in zip(batch, outcomes, strict=True) if outcome is not None]
        if len(left) == len(batch) and not all(isinstance(outcome, BusAway) for outcome in outcomes):
            # One that is refused again and again must not hold up those behind it.
            refused = next(outcome for outcome in outcomes if not isinstance(outcome, BusAway))
            dropped = left.pop(outcomes.index(refused))
            self._drop(dropped)
            logger.error("a record was refused", extra={"topic": dropped.topic, "reason": str(refused)})
        for _ in batch:
            self._line.popleft()
        self._line.extendleft(reversed(left))
        self._bytes = sum(len(record.value) for record in self._line) if left else max(0, self._bytes - _size(batch))
        if len(self._line) < LONGEST_LINE // 2:
            self._full = False
        if not self._line:
            self._arrived.clear()
            self._empty.set()
        return len(left) < len(batch)


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.value) for record in records)
