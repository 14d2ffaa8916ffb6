"""Reading a RabbitMQ queue: batches as they arrive, settled in bulk, across reconnections."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands, frame

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable, Unroutable
from refract.runtime.distributed import rabbit_wire
from refract.runtime.distributed.rabbit_connection import CLOSE_SECONDS, STEP_SECONDS, TROUBLE, Session, answer
from refract.runtime.distributed.rabbit_publisher import Publisher
from refract.runtime.distributed.rabbit_queues import DeclaredQueue
from refract.runtime.messages import Delivery, Message, Queue

BATCH_BYTES = 8 * 1024 * 1024
"""What a batch should have at most: decoded it takes three times as much."""

Settlement = Callable[[int, bool], commands.Basic.Ack | commands.Basic.Nack]
"""The frame that settles a delivery tag, or with True also every earlier one."""


def _acknowledgement(tag: int, multiple: bool) -> commands.Basic.Ack:  # noqa: FBT001  # as the frame has it
    return commands.Basic.Ack(delivery_tag=tag, multiple=multiple)


def _return(tag: int, multiple: bool) -> commands.Basic.Nack:  # noqa: FBT001  # as the frame has it
    return commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=True)


class _Subscription:
    """A consumer on one session: what has arrived there, and what is not yet settled."""

    def __init__(self, session: Session, channel: AbstractChannel) -> None:
        self.session = session
        self.channel = channel
        self.arrived: list[Delivery] = []
        self._unsettled: dict[int, None] = {}

    def receive(self, delivered: DeliveredMessage) -> None:
        """Take in what the broker delivered."""
        number = delivered.delivery_tag or 0
        self._unsettled[number] = None
        message = rabbit_wire.read_message(delivered)
        self.arrived.append(Delivery(message, bool(delivered.redelivered), _Tag(self, number)))

    @property
    def live(self) -> bool:
        """Whether the broker still waits for its deliveries to be settled."""
        return self.session.live and not self.channel.is_closed

    def settle(self, numbers: Collection[int], settlement: Settlement) -> None:
        """Settle deliveries with as few frames as is right. Those of a lost session come again anyway."""
        wanted = self._unsettled.keys() & numbers
        if not wanted or not self.live:
            return
        frames: list[commands.Basic.Ack | commands.Basic.Nack] = []
        oldest = self._oldest(wanted)
        if oldest:
            frames.append(settlement(oldest[-1], True))  # noqa: FBT003
        frames += [settlement(number, False) for number in sorted(wanted.difference(oldest))]  # noqa: FBT003
        for number in wanted:
            del self._unsettled[number]
        self.session.write(b"".join(frame.marshal(one, self.channel.number) for one in frames))

    def take(self) -> list[Delivery]:
        """What has arrived, or the first few megabytes of it."""
        sizes = accumulate(len(delivery.message.body) for delivery in self.arrived)
        number = next((number for number, size in enumerate(sizes, 1) if size >= BATCH_BYTES), len(self.arrived))
        taken, self.arrived = self.arrived[:number], self.arrived[number:]
        return taken

    def _oldest(self, wanted: set[int]) -> list[int]:
        """The longest run of wanted deliveries before which nothing is unsettled."""
        run = []
        for number in self._unsettled:  # in the order of their arrival
            if number not in wanted:
                break
            run.append(number)
        return run


@dataclass(frozen=True, slots=True)
class _Tag:
    """A delivery's number, which means something on its own session only."""

    subscription: _Subscription
    number: int


class RabbitReader:
    """The `QueueReader` of a RabbitMQ queue. Losing the connection only makes it wait."""

    def __init__(self, queue: Queue, publisher: Publisher, clock: Clock) -> None:
        self._queue = queue
        self._declared = DeclaredQueue(queue)
        self._publisher = publisher
        self._clock = clock
        self._subscription: _Subscription | None = None
        self._arrived = asyncio.Event()

    async def next_batch(self) -> list[Delivery]:
        """Wait for messages and take those that have arrived, or as many of them as are worth their memory when they
        are decoded; the broker sends no more than the prefetch."""
        while True:
            self._arrived.clear()
            subscription = self._subscription
            if subscription is not None and subscription.session.live and subscription.arrived:
                return subscription.take()
            await self._arrived.wait()

    def holds(self, delivery: Delivery) -> bool:
        """Whether its session lives; the broker gives what is not settled on a lost one to somebody again."""
        return isinstance(delivery.tag, _Tag) and delivery.tag.subscription.live

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """They are handled."""
        _settle(deliveries, _acknowledgement)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """They come again."""
        _settle(deliveries, _return)

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Publish it to the dead letters, and acknowledge it once the broker has it; NotPublished if it has not."""
        message = delivery.message
        letter = Message("", self._queue.dead, message.body, message.message_id, message.correlation_id)
        headers = rabbit_wire.burial(message, self._queue.name, reason, self._clock.now())
        try:
            await self._publisher.publish(letter, headers)
        except Unroutable:  # somebody deleted the dead letters
            await self._declare_again()
            await self._publisher.publish(letter, headers)
        _settle([delivery], _acknowledgement)

    async def subscribe(self, session: Session) -> None:
        """Declare the queue and consume from it: a step of every session."""
        await self._declared.declare(session)
        async with session.lasting_channel() as channel:
            await answer(channel.basic_qos(prefetch_count=self._queue.prefetch))
            subscription = _Subscription(session, channel)
            await answer(channel.basic_consume(self._queue.name, partial(self._receive, subscription)))
        # Not before it has succeeded: what arrived on a channel that was given up again is not ours, and a later
        # channel may have its number.
        self._subscription = subscription
        self._arrived.set()

    async def close(self) -> None:
        """Stop consuming; the broker gives what is not settled to others."""
        subscription, self._subscription = self._subscription, None
        if subscription is None or not subscription.session.live:
            return
        subscription.session.unwatch(subscription.channel)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await answer(subscription.channel.close())
        except TROUBLE:
            subscription.session.cut()

    async def _declare_again(self) -> None:
        subscription = self._subscription
        if subscription is None:
            raise Unavailable("rabbitmq", "the reader is closed")
        try:
            async with asyncio.timeout(STEP_SECONDS), subscription.session.passing_channel() as channel:
                await answer(rabbit_wire.declare_queue(channel, self._queue))
        except TROUBLE as error:
            raise Unavailable("rabbitmq", f"cannot declare {self._queue.dead}: {error}") from error

    async def _receive(self, subscription: _Subscription, delivered: DeliveredMessage) -> None:
        subscription.receive(delivered)
        self._arrived.set()


def _settle(deliveries: Sequence[Delivery], settlement: Settlement) -> None:
    """Deliveries may come from several sessions, of which one at most is live."""
    by_subscription: dict[_Subscription, list[int]] = {}
    for delivery in deliveries:
        assert isinstance(delivery.tag, _Tag)
        by_subscription.setdefault(delivery.tag.subscription, []).append(delivery.tag.number)
    for subscription, numbers in by_subscription.items():
        subscription.settle(numbers, settlement)
