"""Publishing to Kafka: one producer, one thread that hears of deliveries, and a probe that decides who is away."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime.distributed.kafka_client import AWAY, asked, client_settings, library_log, reason_of
from refract.runtime.messages import PUBLISH_TIMEOUT
from refract.runtime.records import LARGEST_RECORD, Record, refusal

SHARE_OF_DELIVERY = 0.8
"""How much of PUBLISH_TIMEOUT the library has; the rest is for telling those who wait."""
SECONDS_UNTIL_SUSPICION = 1.0
"""A publish without an answer for so long makes us ask whether anybody is there."""
SECONDS_OF_PROBE = 1.0
SECONDS_BETWEEN_PROBES = 0.2
SECONDS_OF_POLL = 0.2
SECONDS_TO_FLUSH = 2.0
LINGER_MILLISECONDS = 1
FRAME_BYTES = 20_000

_OF_THE_RECORD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # the library's own errors have public names with an underscore
    }
)
"""Errors that say something about one record or its topic, and nothing about the others."""
_OF_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001

_PENDING = NotPublished("it is under way")

logger = logging.getLogger(__name__)


class NoSuchTopic(NotPublished):
    """The broker knows no topic of that name: it was never declared, or the broker has lost it."""


class _Batch:
    """Records that are published together; each has one future less to make."""

    __slots__ = ("answer", "left", "outcomes")

    def __init__(self, records: Sequence[Record]) -> None:
        self.outcomes: list[NotPublished | None] = [refusal(record) for record in records]
        self.left = sum(outcome is None for outcome in self.outcomes)
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, outcome: NotPublished | None) -> None:
        self.outcomes[index] = outcome
        self.left -= 1
        if self.left == 0 and not self.answer.done():
            self.answer.set_result(None)


class KafkaProducer:
    """Publishes with every acknowledgement there is. While nobody is there it says so at once, and keeps looking."""

    def __init__(self, bootstrap: str) -> None:
        self._settings = {
            **client_settings(bootstrap),
            "acks": "all",
            "enable.idempotence": True,
            # With more, the library takes a batch that the broker refused for stored as soon as a later one is, since
            # it trusts the order of sequences: but a broker that knows none of ours takes whichever comes first.
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": LINGER_MILLISECONDS,
            "delivery.timeout.ms": round(PUBLISH_TIMEOUT * SHARE_OF_DELIVERY * 1_000),
            "request.timeout.ms": 3_000,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 500,
            "topic.metadata.propagation.max.ms": 2_000,
            "message.max.bytes": LARGEST_RECORD + FRAME_BYTES,
            "partitioner": "murmur2_random",  # as clients in Java do: their records of a key meet ours
        }
        self._loop = asyncio.get_running_loop()
        self._producer = self._make()
        self._deliveries: list[tuple[_Batch, int, KafkaError | None]] = []
        self._away: str | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="kafka deliveries", daemon=True)
        self._thread.start()

    @property
    def away(self) -> str | None:
        """Why nobody is there, as long as that is known."""
        return self._away

    async def publish_all(self, records: Sequence[Record]) -> list[NotPublished | None]:
        """Publish; returns when all are settled, and within PUBLISH_TIMEOUT."""
        batch = _Batch(records)
        if not batch.left:
            return batch.outcomes
        if self._away is not None or self._closed:
            return [outcome or BusAway(self._away or "it is closed") for outcome in batch.outcomes]
        for index, record in enumerate(records):
            if batch.outcomes[index] is None:
                self._produce(batch, index, record)
        if not await self._settled(batch, SECONDS_UNTIL_SUSPICION):
            self.suspect("no delivery was confirmed for a while")
            if not await self._settled(batch, PUBLISH_TIMEOUT - SECONDS_UNTIL_SUSPICION):
                return self._given_up(batch)
        return batch.outcomes

    def suspect(self, reason: str) -> None:
        """Something went wrong: ask whether anybody is there, unless that is being asked. Any thread may call."""
        with suppress(RuntimeError):  # the event loop is gone
            self._loop.call_soon_threadsafe(self._begin_to_probe, reason)

    def lost(self, reason: str) -> None:
        """Nobody is there, as we have seen: publishing fails from now on, until somebody answers."""
        self._lost(reason)
        self._begin_to_probe(reason)

    async def probe(self, timeout: float = SECONDS_OF_PROBE) -> None:
        """Return if a broker answers; raise Unavailable if not."""
        producer = self._producer
        await asked(lambda: producer.list_topics(timeout=timeout))

    async def close(self) -> None:
        """Send what is under way, and end the thread."""
        if self._closed:
            return
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await asyncio.to_thread(self._end)

    async def _settled(self, batch: _Batch, timeout: float) -> bool:
        done, _ = await asyncio.wait([batch.answer], timeout=timeout)
        return bool(done)

    def _given_up(self, batch: _Batch) -> list[NotPublished | None]:
        """The library should have told us long ago."""
        reason = f"no confirmation within {PUBLISH_TIMEOUT:g} s"
        outcomes = [BusAway(reason) if outcome is _PENDING else outcome for outcome in batch.outcomes]
        batch.outcomes = []
        return outcomes

    def _produce(self, batch: _Batch, index: int, record: Record) -> None:
        deliveries = self._deliveries

        def delivered(error: KafkaError | None, _: Message) -> None:
            deliveries.append((batch, index, error))

        batch.outcomes[index] = _PENDING
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                on_delivery=delivered,
                headers=dict(record.headers) or None,
            )
        except BufferError:
            self._settle_later(batch, index, BusAway("too many records are under way"))
        except KafkaException as error:
            self._settle_later(batch, index, self._outcome(error.args[0]))

    def _settle_later(self, batch: _Batch, index: int, outcome: NotPublished | None) -> None:
        """Not before every record of the batch has been handed to the library."""
        self._loop.call_soon(batch.settle, index, outcome)

    def _listen(self) -> None:
        """The thread: wait for deliveries, and hand over all that have come with one call."""
        while not self._closed:
            try:
                self._producer.poll(SECONDS_OF_POLL)
            except KafkaException as error:  # which is how the library tells of a fatal error, and only of that
                self._renew(reason_of(error))
            if self._deliveries:
                self._hand_over()

    def _hand_over(self) -> None:
        deliveries = self._deliveries[:]
        del self._deliveries[: len(deliveries)]
        with suppress(RuntimeError):  # the event loop is gone, and everyone who waited with it
            self._loop.call_soon_threadsafe(self._settle, deliveries)

    def _settle(self, deliveries: Sequence[tuple[_Batch, int, KafkaError | None]]) -> None:
        for batch, index, error in deliveries:
            if batch.outcomes:
                batch.settle(index, None if error is None else self._outcome(error))

    def _outcome(self, error: KafkaError) -> NotPublished:
        if error.code() in _OF_NO_TOPIC:
            return NoSuchTopic(error.str())
        if error.code() in _OF_THE_RECORD:
            return NotPublished(error.str())
        self._begin_to_probe(error.str())
        return BusAway(self._away or error.str())

    def _renew(self, reason: str) -> None:
        """A producer with a fatal error never works again: the next one begins with a clean sequence."""
        logger.error("the producer is made anew", extra={"reason": reason})
        broken, self._producer = self._producer, self._make()
        with suppress(KafkaException):
            broken.flush(SECONDS_OF_POLL)  # whoever waits for what it had is told

    def _make(self) -> Producer:
        return Producer({**self._settings, "error_cb": self._trouble}, logger=library_log())

    def _trouble(self, error: KafkaError) -> None:
        """Called in the thread that listens."""
        if error.code() in AWAY:
            self.suspect(error.str())

    def _begin_to_probe(self, reason: str) -> None:
        if self._closed or (self._probing is not None and not self._probing.done()):
            return
        self._probing = asyncio.create_task(self._probe_until_somebody_answers(reason))

    async def _probe_until_somebody_answers(self, reason: str) -> None:
        while True:
            try:
                await self.probe()
            except Unavailable as error:
                self._lost(f"{error.reason} ({reason})")
            except Exception as error:  # noqa: BLE001  # a probe that died would leave us away for good
                self._lost(f"the probe failed with {error!r} ({reason})")
            else:
                break
            await asyncio.sleep(SECONDS_BETWEEN_PROBES)
        if self._away is not None:
            self._away = None
            logger.info("kafka answers again")

    def _lost(self, reason: str) -> None:
        """Nobody is there: nobody is to wait for the library's patience either."""
        if self._away is None:
            logger.warning("kafka is away: publishing fails until it answers", extra={"reason": reason})
        self._away = reason
        with suppress(KafkaException):
            self._producer.purge()

    def _end(self) -> None:
        with suppress(KafkaException):
            self._producer.flush(0 if self._away else SECONDS_TO_FLUSH)
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(SECONDS_OF_POLL)
        self._thread.join(SECONDS_TO_FLUSH)
        self._hand_over()
