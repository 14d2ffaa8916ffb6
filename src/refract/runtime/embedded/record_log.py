"""The record log in one SQLite file: partitions, offsets and groups as on a broker, for the readers of one process.

Nothing is opened before the first use: an instance that sends no SMS has neither the file nor its thread.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime.embedded import record_file
from refract.runtime.embedded.sqlite_thread import SqliteThread
from refract.runtime.messages import PUBLISH_TIMEOUT
from refract.runtime.metrics import Metrics
from refract.runtime.ports import RecordReader
from refract.runtime.record_line import RecordLine
from refract.runtime.records import LARGEST_BATCH, ReceivedRecord, Record, Topic, refusal

SECONDS_BETWEEN_TRIMS = 60.0
SECONDS_TO_DRAIN = 2.0


@dataclass(slots=True)
class _Group:
    """The readers of one group, and which partitions each of them has."""

    name: str
    topic: Topic
    partitions: int
    number: int | None = None
    """The topic's in the file; None before the group is known there."""
    readers: list["EmbeddedRecordReader"] = field(default_factory=list)

    def share_out(self) -> None:
        """Give each reader its partitions. Whoever gets one anew begins behind what the group has committed."""
        for place, reader in enumerate(self.readers):
            mine = range(place, self.partitions, len(self.readers))
            reader.own(mine)


class EmbeddedRecordLog:
    """The `RecordLog` port in this process."""

    def __init__(self, path: Path, clock: Clock | None = None, metrics: Metrics | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._file: SqliteThread | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._topics: dict[str, tuple[int, int]] = {}
        self._wanted: dict[str, Topic] = {}
        """Topics that were declared before there was a file."""
        self._opened = asyncio.Event()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._line = RecordLine(self.publish_all, metrics)
        self._trimmed = 0.0

    async def publish(self, record: Record) -> None:
        """Return once the record is on the disk."""
        outcome = (await self.publish_all([record]))[0]
        if outcome is not None:
            raise outcome

    async def publish_all(self, records: Sequence[Record]) -> list[NotPublished | None]:
        """Write all in one transaction, together with what others write at the same time."""
        outcomes = [refusal(record) for record in records]
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT):
                await self._write(records, outcomes)
        except (Unavailable, TimeoutError) as error:
            away = BusAway(str(error) or f"the disk took longer than {PUBLISH_TIMEOUT:g} s")
            return [outcome or away for outcome in outcomes]
        return outcomes

    def publish_soon(self, record: Record) -> None:
        """Put it into the line."""
        self._line.add(record)

    async def declare(self, topic: Topic) -> None:
        """Make the topic exist, for good; in a file that is not there yet, as soon as there is one."""
        if not self._begun():
            self._wanted.setdefault(topic.name, topic)
            return
        file = await self._open()
        self._topics = await file.run(partial(record_file.declare, topic=topic), safe=True)

    def reader(self, topic: Topic, group: str) -> AbstractAsyncContextManager[RecordReader]:
        """Read from a topic; the readers of a group share its partitions."""
        return self._reader(topic, group)

    @asynccontextmanager
    async def _reader(self, topic: Topic, name: str) -> AsyncIterator[RecordReader]:
        await self.declare(topic)
        group = self._groups.setdefault((topic.name, name), _Group(name, topic, topic.partitions))
        reader = EmbeddedRecordReader(self, group)
        group.readers.append(reader)
        group.share_out()
        try:
            yield reader
        finally:
            group.readers.remove(reader)
            reader.own(())
            group.share_out()

    async def drain(self, timeout: float) -> int:
        """Wait for the line."""
        return await self._line.drain(timeout)

    async def ping(self) -> None:
        """Return if the file answers; one that nobody has needed yet is well."""
        if self._file is not None:
            await self._file.read(lambda connection: connection.execute("SELECT 1").fetchone())

    async def close(self) -> None:
        """Write what waits and close the file."""
        await self._line.close(SECONDS_TO_DRAIN)
        self._closed = True
        if self._file is not None:
            await self._file.close()

    async def trim(self) -> None:
        """Forget old records, if it is time: called by readers after they have committed."""
        now = asyncio.get_running_loop().time()
        if self._file is None or now - self._trimmed < SECONDS_BETWEEN_TRIMS:
            return
        self._trimmed = now
        known = list(self._topics.values())
        await self._file.run(partial(record_file.trim, known=known, now=self._clock.now()))

    async def join(self, group: _Group) -> tuple[SqliteThread, int]:
        """The file, and the topic's number in it, once there is a file; the group is known there from then on."""
        if not self._begun():
            await self._opened.wait()
        file = await self._open()
        if group.number is None:
            number, partitions = self._topics[group.topic.name]
            job = partial(record_file.join, topic=number, partitions=partitions, group=group.name)
            await file.run(job, safe=True)
            group.number = number
            if group.partitions != partitions:  # it was there before, with as many as it was given then
                group.partitions = partitions
                group.share_out()
        return file, group.number

    def _begun(self) -> bool:
        return self._file is not None or self._path.exists()

    async def _open(self) -> SqliteThread:
        if self._closed:
            raise Unavailable("records", "it is closed")
        async with self._opening:
            if self._file is None:
                file = SqliteThread(self._path, record_file.SCHEMA)
                try:
                    await file.start()
                    self._topics = await file.read(record_file.topics)
                    for topic in self._wanted.values():
                        self._topics = await file.run(partial(record_file.declare, topic=topic), safe=True)
                except BaseException:
                    await file.close()
                    raise
                self._file = file
                self._opened.set()
        return self._file

    async def _write(self, records: Sequence[Record], outcomes: list[NotPublished | None]) -> None:
        if all(outcomes):
            return
        file = await self._open()
        now = self._clock.now()
        rows: list[record_file.Row] = []
        reached: set[str] = set()
        for index, record in enumerate(records):
            if outcomes[index] is not None:
                continue
            if record.topic not in self._topics:
                outcomes[index] = NotPublished(f"there is no topic {record.topic!r}")
                continue
            rows.append(record_file.row_of(*self._topics[record.topic], record, now))
            reached.add(record.topic)
        if rows:
            await file.run(partial(record_file.insert, rows=rows), safe=True)
        for group in self._groups.values():
            if group.topic.name in reached:
                for reader in group.readers:
                    reader.wake()


class EmbeddedRecordReader:
    """One reader's share of a topic."""

    def __init__(self, log: EmbeddedRecordLog, group: _Group) -> None:
        self._log = log
        self._group = group
        self._positions: dict[int, int | None] = {}
        """Where it goes on in each of its partitions; None where only the file knows."""
        self._changed = asyncio.Event()

    def own(self, partitions: Iterable[int]) -> None:
        """Have these partitions and no others; what was handed out of the others is no longer ours."""
        self._positions = {partition: self._positions.get(partition) for partition in partitions}
        self.wake()

    def wake(self) -> None:
        """There may be something to read."""
        self._changed.set()

    async def next_batch(self) -> list[ReceivedRecord]:
        """Wait for records of this reader's partitions."""
        while not (batch := await self._take()):
            await self._changed.wait()
        return batch

    async def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Let the group go on behind these."""
        handled: dict[int, int] = {}
        for record in records:
            position = self._positions.get(record.partition)
            if record.topic == self._group.topic.name and position is not None and record.offset < position:
                handled[record.partition] = max(record.offset, handled.get(record.partition, 0))
        if handled:
            file, number = await self._log.join(self._group)
            await file.run(partial(record_file.commit, topic=number, group=self._group.name, handled=handled))
            await self._log.trim()

    async def _take(self) -> list[ReceivedRecord]:
        file, number = await self._log.join(self._group)
        self._changed.clear()
        owned = self._positions
        if None in owned.values():
            known = await file.read(partial(record_file.positions, topic=number, group=self._group.name))
            if owned is not self._positions:
                return self._anew()
            for partition, position in owned.items():
                owned[partition] = known[partition] if position is None else position
        after = {partition: position for partition, position in owned.items() if position is not None}
        if not after:
            return []
        job = partial(record_file.take, topic=self._group.topic, number=number, after=after, limit=LARGEST_BATCH)
        batch = await file.read(job)
        # Nothing below waits: a reader that is cancelled above, or has other partitions by now, has taken nothing.
        if owned is not self._positions:
            return self._anew()
        for record in batch:
            owned[record.partition] = record.offset + 1
        return batch

    def _anew(self) -> list[ReceivedRecord]:
        self.wake()
        return []
