"""The event bus over RabbitMQ: durable topic exchanges and queues, confirmed publishing, dead letters.

It has two connections, because an alarm of the broker stops those that publish: readers go on settling meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.errors import NotPublished, Unavailable, Unroutable
from refract.runtime.distributed import rabbit_wire
from refract.runtime.distributed.rabbit_connection import TROUBLE, RabbitConnection, Session, Step, answer
from refract.runtime.distributed.rabbit_publisher import Publisher
from refract.runtime.distributed.rabbit_queues import DeclaredQueue
from refract.runtime.distributed.rabbit_reader import RabbitReader
from refract.runtime.messages import Binding, DeadLetter, Message, Queue
from refract.runtime.ports import QueueReader

ADMINISTRATION_SECONDS = 30.0
REPLAYED_TOGETHER = 100

logger = logging.getLogger(__name__)


class RabbitBus:
    """The `EventBus` port over RabbitMQ; made inside a running event loop, then started."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._publishing = RabbitConnection(url, "publishing")
        self._reading = RabbitConnection(url, "reading")
        self._publisher = Publisher(self._publishing, self._clock)
        self._declarations: dict[str, Step] = {}

    async def start(self) -> None:
        """Begin to connect; returns soon even if the broker is away."""
        await self._publisher.start()
        await asyncio.gather(self._publishing.start(), self._reading.start())

    async def publish(self, message: Message) -> None:
        """Return once the broker has confirmed it."""
        await self._publisher.publish(message)

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Publish many with their confirmations pipelined."""
        return await self._publisher.publish_all(messages)

    async def declare(self, queue: Queue) -> None:
        """Make the queue exist; while the broker is away, as soon as it is back."""
        former = self._declarations.get(queue.name)
        declaration = self._declarations[queue.name] = Step(f"queue {queue.name}", DeclaredQueue(queue).declare)
        if former is not None:
            await self._reading.forget(former)
        await self._reading.establish(declaration)

    def reader(self, queue: Queue) -> AbstractAsyncContextManager[QueueReader]:
        """Read from a queue; several readers share it."""
        return self._reader(queue)

    @asynccontextmanager
    async def _reader(self, queue: Queue) -> AsyncIterator[QueueReader]:
        reader = RabbitReader(queue, self._publisher, self._clock)
        subscription = Step(f"reader of {queue.name}", reader.subscribe)
        try:
            await self._reading.establish(subscription)
            yield reader
        finally:
            await self._reading.forget(subscription)
            await reader.close()

    async def listen(
        self, bindings: Collection[Binding], hear: Callable[[Message], None], gap: Callable[[], None]
    ) -> None:
        """Hear messages through a queue of this process alone; every session but an immediate first is a gap."""
        listener = _Listener(tuple(bindings), hear, gap)
        await self._reading.establish(Step("listener", listener.subscribe))
        listener.late = True

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """Fetch dead letters and let the closing channel put them back where they were."""
        async with self._administration() as channel:
            found = await self._fetch(channel, f"{queue}.dead", limit)
        return [rabbit_wire.read_dead_letter(delivered, queue) for delivered in found]

    async def replay(self, queue: str, message_ids: Collection[str] | None = None) -> int:
        """Publish dead letters to their queue, then acknowledge them: a crash in between duplicates, and loses none."""
        count = 0
        async with self._administration() as channel:
            left = await self._depth(channel, f"{queue}.dead")  # letters buried from now on are not for this replay
            while left > 0 and (found := await self._fetch(channel, f"{queue}.dead", min(left, REPLAYED_TOGETHER))):
                left -= len(found)
                chosen = [
                    delivered
                    for delivered in found
                    if message_ids is None or rabbit_wire.read_message(delivered).message_id in message_ids
                ]
                await asyncio.gather(*(self._replay_one(channel, queue, delivered) for delivered in chosen))
                count += len(chosen)
        return count

    async def ping(self) -> None:
        """Return if both connections are there, and the broker takes what is published."""
        self._reading.current()
        if await self._publishing.current().is_blocked():
            raise Unavailable("rabbitmq", "an alarm keeps it from taking messages")

    async def close(self) -> None:
        """Close both connections, within a few seconds."""
        await asyncio.gather(self._publishing.close(), self._reading.close())

    @asynccontextmanager
    async def _administration(self) -> AsyncIterator[AbstractChannel]:
        """A channel for a while. Its closing gives back everything that was fetched and not acknowledged."""
        session = self._reading.current()
        try:
            async with asyncio.timeout(ADMINISTRATION_SECONDS):
                channel = await session.channel()
                try:
                    yield channel
                finally:
                    await answer(channel.close())
        except TROUBLE as error:
            raise error if isinstance(error, Unavailable) else Unavailable("rabbitmq", str(error)) from error

    async def _depth(self, channel: AbstractChannel, queue: str) -> int:
        try:
            return (await answer(channel.queue_declare(queue, passive=True))).message_count or 0
        except ChannelNotFoundEntity:
            return 0

    async def _fetch(self, channel: AbstractChannel, queue: str, limit: int) -> list[DeliveredMessage]:
        found: list[DeliveredMessage] = []
        try:
            while len(found) < limit:
                delivered = await answer(channel.basic_get(queue))
                if delivered.delivery_tag is None:
                    break
                found.append(delivered)
        except ChannelNotFoundEntity:  # nobody has declared the queue
            return []
        return found

    async def _replay_one(self, channel: AbstractChannel, queue: str, delivered: DeliveredMessage) -> None:
        message = rabbit_wire.read_message(delivered)
        again = replace(message, exchange="", routing_key=queue, mandatory=True)
        try:
            await self._publisher.publish(again, rabbit_wire.origin(message))
        except Unroutable:  # somebody deleted the queue; its readers will bind it
            await answer(rabbit_wire.declare_queue(channel, Queue(queue, ())))
            await self._publisher.publish(again, rabbit_wire.origin(message))
        await answer(channel.basic_ack(delivered.delivery_tag or 0))


class _Listener:
    """A transient queue that only this process reads, and that is gone with its connection."""

    def __init__(self, bindings: tuple[Binding, ...], hear: Callable[[Message], None], gap: Callable[[], None]) -> None:
        self._bindings = bindings
        self._hear = hear
        self._gap = gap
        self.late = False
        """Whether a subscription from now on comes after a time in which messages were missed."""

    async def subscribe(self, session: Session) -> None:
        """Bind and consume: a step of every session."""
        async with session.lasting_channel() as channel:
            queue = (await answer(channel.queue_declare("", exclusive=True, auto_delete=True))).queue or ""
            await answer(rabbit_wire.bind(channel, queue, self._bindings))
            await answer(channel.basic_consume(queue, self._receive, no_ack=True))
        if self.late:
            self._tell_gap()
        self.late = True

    def _tell_gap(self) -> None:
        try:
            self._gap()
        except Exception:
            logger.exception("a listener failed on a gap")

    async def _receive(self, delivered: DeliveredMessage) -> None:
        try:
            self._hear(rabbit_wire.read_message(delivered))
        except Exception:
            logger.exception("a listener failed on %s", delivered.routing_key)
