"""Reading from Kafka: a consumer in a thread of its own, whose offsets are committed by hand."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.kafka_client import client_settings, library_log, reason_of
from refract.runtime.records import LARGEST_BATCH, ReceivedRecord, Topic

T = TypeVar("T")

SESSION_MILLISECONDS = 6_000
"""How long a reader that died keeps its partitions from the others: the least that a broker allows."""
SECONDS_OF_POLL = 0.25
SECONDS_TO_CLOSE = 5.0
BATCH_BYTES = 8 * 1024 * 1024
"""What the library fetches at once, and keeps of what it fetched ahead."""

_NOT_OURS = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._NO_OFFSET,  # noqa: SLF001  # the library's own errors have public names with an underscore
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
        KafkaError._STATE,  # noqa: SLF001
    }
)
"""A commit that comes too late: the records went to another reader, and come again there."""

logger = logging.getLogger(__name__)


class _Worker:
    """A thread that does one job after the other.

    Not an executor, for whose threads the end of the process waits: a broker that hangs in the middle of a commit would
    keep us for a minute or more.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        """The outcome of a job; one that is given up before it has begun is not begun."""
        outcome: Future[T] = Future()
        self._jobs.put((outcome, job))
        return asyncio.wrap_future(outcome)

    def end(self) -> None:
        """Nothing comes after what is waiting."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            outcome, job = work
            if outcome.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001  # whoever waits is told
                    outcome.set_exception(error)
                else:
                    outcome.set_result(result)


class KafkaReader:
    """One member of a group. Everything that touches the consumer happens in its one thread."""

    def __init__(self, bootstrap: str, topic: Topic, group: str) -> None:
        self._topic = topic.name
        self._handed_out: dict[int, int] = {}
        """For each partition that is ours: the offset behind what was handed out."""
        self._kept: list[ReceivedRecord] = []
        """Fetched for a caller who has not taken them yet: one who was cancelled never will, and the next one does."""
        self._closing = False
        self._worker = _Worker(f"kafka {topic.name}")
        self._consumer = Consumer(
            {
                **client_settings(bootstrap),
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MILLISECONDS,
                "heartbeat.interval.ms": SESSION_MILLISECONDS // 4,
                "topic.metadata.refresh.interval.ms": 5_000,
                "queued.max.messages.kbytes": BATCH_BYTES // 1024,
                "fetch.max.bytes": BATCH_BYTES,
                "fetch.wait.max.ms": 250,
                "fetch.error.backoff.ms": 100,
            },
            logger=library_log(),
        )
        self._consumer.subscribe([self._topic], on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost)

    async def next_batch(self) -> list[ReceivedRecord]:
        """Wait for records."""
        while not (batch := await self._in_thread(self._fetch)):
            pass
        self._kept = []
        return batch

    async def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Let the group go on behind these."""
        await self._in_thread(lambda: self._commit(records))

    async def close(self) -> None:
        """Leave the group, so that the others need not wait for the end of our session."""
        self._closing = True
        closing = self._worker.do(self._leave)
        self._worker.end()
        done, _ = await asyncio.wait([closing], timeout=SECONDS_TO_CLOSE)
        if not done:
            logger.warning("a reader did not leave its group in time", extra={"topic": self._topic})

    async def _in_thread(self, job: Callable[[], T]) -> T:
        if self._closing:
            raise Unavailable("kafka", "the reader is closed")
        return await self._worker.do(job)

    def _fetch(self) -> list[ReceivedRecord]:
        """What is there by now, or soon; what was fetched for a caller who left comes first."""
        self._kept = [record for record in self._kept if record.partition in self._handed_out]
        if self._kept or self._closing:
            return self._kept
        first = self._consumer.poll(SECONDS_OF_POLL)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(LARGEST_BATCH - 1, 0)]
        self._kept = [_received(message) for message in messages if self._sound(message)]
        for record in self._kept:
            self._handed_out[record.partition] = record.offset + 1
        return self._kept

    def _sound(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.fatal():
            raise Unavailable("kafka", error.str())
        library_log().warning("READER %s", error.str())
        return False

    def _commit(self, records: Sequence[ReceivedRecord]) -> None:
        handled: dict[int, int] = {}
        for record in records:
            if record.topic == self._topic and record.offset < self._handed_out.get(record.partition, 0):
                handled[record.partition] = max(record.offset + 1, handled.get(record.partition, 0))
        if not handled:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in handled.items()]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_OURS:
                raise Unavailable("kafka", reason_of(error)) from None
            return
        for answer in answers or ():
            if answer.error is not None and answer.error.code() not in _NOT_OURS:
                raise Unavailable("kafka", answer.error.str())

    def _gained(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._handed_out[each.partition] = 0

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Nothing is committed here: what was handed out and not committed comes again to the next reader."""
        for each in partitions:
            self._handed_out.pop(each.partition, None)

    def _leave(self) -> None:
        with suppress(KafkaException):
            self._consumer.close()


def _received(message: Message) -> ReceivedRecord:
    _, milliseconds = message.timestamp()
    headers: Iterable[Any] = message.headers() or ()  # the library's own type is wider than what it gives
    return ReceivedRecord(
        topic=message.topic() or "",
        key=_text(message.key()),
        value=message.value() or b"",
        headers={name: _text(value) for name, value in headers},
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        written_at=datetime.fromtimestamp(max(0, milliseconds) / 1_000, UTC),
    )


def _text(value: bytes | str | None) -> str:
    """Anybody may have written it."""
    return value if isinstance(value, str) else (value or b"").decode(errors="replace")
