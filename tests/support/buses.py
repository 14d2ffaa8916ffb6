"""Builders for the tests of the event bus: both twins behind one face, with names that no other test uses."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiormq

from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Binding, Delivery, Message, Queue
from refract.runtime.ports import EventBus, QueueReader
from tests.support.waiting import eventually, listens


class Buses(ABC):
    """Opens buses that meet in one place, and closes what is left open."""

    def __init__(self) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self._open: list[EventBus] = []
        self._queues: list[Queue] = []

    @property
    def exchange(self) -> str:
        """An exchange of this test's own."""
        return f"{self.prefix}.events"

    def queue(self, name: str, *patterns: str, prefetch: int = 500, exchange: str = "") -> Queue:
        """A queue of this test's own, bound to its exchange or another."""
        bindings = tuple(Binding(exchange or self.exchange, pattern) for pattern in patterns)
        return self.using(Queue(f"{self.prefix}.{name}", bindings, prefetch))

    def using(self, queue: Queue) -> Queue:
        """Remember a queue, so that it is removed after the test."""
        self._queues.append(queue)
        return queue

    def message(
        self, routing_key: str, body: bytes = b"{}", *, message_id: str = "", mandatory: bool = True
    ) -> Message:
        """A message to the test's exchange."""
        return Message(self.exchange, routing_key, body, message_id or secrets.token_hex(8), mandatory=mandatory)

    async def open(self) -> EventBus:
        """A started bus."""
        bus = await self._make()
        self._open.append(bus)
        return bus

    async def close(self) -> None:
        """Close all buses and leave nothing behind."""
        for bus in self._open:
            await bus.close()
        await self._clean()

    @abstractmethod
    async def _make(self) -> EventBus: ...

    @abstractmethod
    async def _clean(self) -> None: ...


class EmbeddedBuses(Buses):
    """Buses in one file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "bus.sqlite"

    async def _make(self) -> EmbeddedBus:
        return await EmbeddedBus.open(self.path)

    async def _clean(self) -> None:
        """The file goes with its folder."""


class RabbitBuses(Buses):
    """Buses over one broker."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def _make(self) -> RabbitBus:
        bus = RabbitBus(self.url)
        await bus.start()
        # A broker that was late to let us in is waited for, and one that is away is not.
        if await listens(self.url.rpartition("@")[2].strip("/")):
            await eventually(lambda: (bus._reading.current(), bus._publishing.current()))
        return bus

    async def _clean(self) -> None:
        async with aiormq.connect(self.url) as connection:
            channel = await connection.channel()
            for queue in self._queues:
                await channel.queue_delete(queue.name)
                await channel.queue_delete(queue.dead)
                for exchange in {binding.exchange for binding in queue.bindings if self.prefix in binding.exchange}:
                    await channel.exchange_delete(exchange)
            with suppress(aiormq.exceptions.ChannelNotFoundEntity):
                await channel.exchange_delete(self.exchange)


async def take(reader: QueueReader, count: int) -> list[Delivery]:
    """Read until there are so many deliveries, without settling any."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        deliveries += await reader.next_batch()
    return deliveries


async def drain(reader: QueueReader, count: int) -> list[Message]:
    """Read and acknowledge until there are so many messages."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = await reader.next_batch()
        await reader.acknowledge(batch)
        messages += [delivery.message for delivery in batch]
    return messages


def bodies(found: Sequence[Delivery] | Sequence[Message]) -> list[bytes]:
    """The bodies alone."""
    return [one.body if isinstance(one, Message) else one.message.body for one in found]
