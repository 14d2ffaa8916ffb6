"""The record log over Kafka. Importing this imports the driver, which only those who need it should pay for."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime.distributed.kafka_client import asked, client_settings, library_log, reason_of
from refract.runtime.distributed.kafka_producer import KafkaProducer, NoSuchTopic
from refract.runtime.distributed.kafka_reader import KafkaReader
from refract.runtime.metrics import Metrics
from refract.runtime.ports import RecordReader
from refract.runtime.record_line import RecordLine
from refract.runtime.records import Record, Topic

SECONDS_TO_DECLARE = 2.0
SECONDS_BETWEEN_DECLARATIONS = 1.0
SECONDS_OF_PING = 0.8
SECONDS_TO_LOOK = 3.0
SECONDS_TO_DRAIN = 2.0

logger = logging.getLogger(__name__)


async def look_at(bootstrap: str) -> int:
    """How many brokers there are, for `doctor`; raises Unavailable when none answers."""
    admin = AdminClient(client_settings(bootstrap), logger=library_log())
    metadata = await asked(lambda: admin.list_topics(timeout=SECONDS_TO_LOOK))
    return len(metadata.brokers)


class KafkaLog:
    """The `RecordLog` port over Kafka; made on a running event loop, and `start` begins to connect."""

    def __init__(self, bootstrap: str, *, replication: int = 1, metrics: Metrics | None = None) -> None:
        self._bootstrap = bootstrap
        self._replication = replication
        self._producer = KafkaProducer(bootstrap)
        self._admin = AdminClient(client_settings(bootstrap), logger=library_log())
        self._line = RecordLine(self.publish_all, metrics)
        self._declared: dict[str, Topic] = {}
        self._undeclared: dict[str, Topic] = {}
        self._declaring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look whether a broker is there. One that is away is no reason not to begin."""
        try:
            await self._producer.probe()
        except Unavailable as error:
            self._producer.lost(error.reason)

    async def publish(self, record: Record) -> None:
        """Return once every replica that must have it has it."""
        outcome = (await self.publish_all([record]))[0]
        if outcome is not None:
            raise outcome

    async def publish_all(self, records: Sequence[Record]) -> list[NotPublished | None]:
        """Publish many at once."""
        outcomes = await self._producer.publish_all(records)
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(outcome, NoSuchTopic) and record.topic in self._declared:
                # A broker that came back without what it had.
                self._declare_later(self._declared.pop(record.topic), outcome)
        return outcomes

    def publish_soon(self, record: Record) -> None:
        """Put it into the line."""
        self._line.add(record)

    async def declare(self, topic: Topic) -> None:
        """Create the topic unless it is there; if nobody answers, go on trying in the background."""
        try:
            if self._producer.away is not None:
                raise Unavailable("kafka", self._producer.away)  # as everybody knows: nobody has to wait for it
            await self._create(topic)
        except Unavailable as error:
            self._declare_later(topic, error)

    def reader(self, topic: Topic, group: str) -> AbstractAsyncContextManager[RecordReader]:
        """Join a group of readers."""
        return self._reader(topic, group)

    @asynccontextmanager
    async def _reader(self, topic: Topic, group: str) -> AsyncIterator[RecordReader]:
        await self.declare(topic)
        reader = KafkaReader(self._bootstrap, topic, group)
        try:
            yield reader
        finally:
            await reader.close()

    async def drain(self, timeout: float) -> int:
        """Wait for the line."""
        return await self._line.drain(timeout)

    async def ping(self) -> None:
        """Return if a broker answers."""
        if self._producer.away is not None:
            raise Unavailable("kafka", self._producer.away)
        await self._producer.probe(SECONDS_OF_PING)

    async def close(self) -> None:
        """Send what can be sent, and let go."""
        if self._declaring is not None:
            self._declaring.cancel()
            await asyncio.wait([self._declaring])
        await self._line.close(0.0 if self._producer.away else SECONDS_TO_DRAIN)
        await self._producer.close()

    def _declare_later(self, topic: Topic, error: Exception) -> None:
        logger.warning("a topic is not declared yet", extra={"topic": topic.name, "reason": str(error)})
        self._undeclared[topic.name] = topic
        if self._declaring is None or self._declaring.done():
            self._declaring = asyncio.create_task(self._declare_the_rest())

    async def _declare_the_rest(self) -> None:
        while self._undeclared:
            await asyncio.sleep(SECONDS_BETWEEN_DECLARATIONS)
            for topic in list(self._undeclared.values()):
                try:
                    await self._create(topic)
                except Unavailable:
                    break
                del self._undeclared[topic.name]
                logger.info("the topic is declared", extra={"topic": topic.name})

    async def _create(self, topic: Topic) -> None:
        await asked(lambda: self._create_now(topic))
        self._declared[topic.name] = topic

    def _create_now(self, topic: Topic) -> None:
        new = NewTopic(topic.name, topic.partitions, self._replication)
        [answer] = self._admin.create_topics([new], request_timeout=SECONDS_TO_DECLARE).values()
        try:
            answer.result(SECONDS_TO_DECLARE * 2)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise Unavailable("kafka", reason_of(error)) from None
        except TimeoutError:
            raise Unavailable("kafka", "nobody answered in time") from None
