"""The event bus in one SQLite file: a row for each queue that takes a message, deleted when it was handled.

One process reads the queues. Others, such as the command line, may publish and replay; that is noticed within half a
second. After a crash, what had been handed out comes again, marked as redelivered.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.errors import BusAway, NotPublished, Unavailable, Unroutable
from refract.runtime.embedded import bus_file
from refract.runtime.embedded.sqlite_thread import SqliteThread
from refract.runtime.messages import PUBLISH_TIMEOUT, Binding, DeadLetter, Delivery, Message, Queue
from refract.runtime.ports import QueueReader

SECONDS_BETWEEN_LOOKS = 0.5
REASON_LENGTH = 1_000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenQueue:
    """What this process knows of a queue: how far its readers have come, and what they gave back."""

    id: int
    handed_out: int
    """The highest id that any reader ever got: what is not above it is redelivered."""
    position: int = 0
    """The highest id that a reader of this process got."""
    returned: list[int] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Listener:
    bindings: tuple[Binding, ...]
    hear: Callable[[Message], None]
    gap: Callable[[], None]

    def takes(self, message: Message) -> bool:
        return any(binding.matches(message.exchange, message.routing_key) for binding in self.bindings)


class EmbeddedBus:
    """The `EventBus` port in this process; `await EmbeddedBus.open(path)` makes one."""

    def __init__(self, file: SqliteThread, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._queues: dict[str, _OpenQueue] = {}
        self._bindings: list[tuple[Binding, int, str]] = []
        self._routes: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._listeners: list[_Listener] = []
        self._version = 0
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, clock: Clock | None = None) -> Self:
        """Open the file, or make it."""
        file = SqliteThread(path, bus_file.SCHEMA)
        bus = cls(file, clock or SystemClock())
        try:
            await file.start()
            await bus._load()
            bus._version = await file.read(bus_file.data_version)
        except BaseException:
            await file.close()
            raise
        bus._watch = asyncio.create_task(bus._look_for_other_processes())
        return bus

    async def publish(self, message: Message) -> None:
        """Return once the message is on the disk for every queue that takes it."""
        outcome = (await self.publish_all([message]))[0]
        if outcome is not None:
            raise outcome

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Write all in one transaction; those that nobody takes are dropped, or refused if mandatory."""
        taken: list[tuple[list[int], Message]] = []
        reached: set[str] = set()
        outcomes = [bus_file.refusal(message) for message in messages]
        for index, message in enumerate(messages):
            if outcomes[index] is not None:
                continue
            routes = self._routes_of(message)
            if routes:
                taken.append(([number for number, _ in routes], message))
                reached.update(name for _, name in routes)
            elif message.mandatory and not any(one.takes(message) for one in self._listeners):
                outcomes[index] = Unroutable(message.exchange, message.routing_key)
        if taken:
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT):
                    await self._file.run(partial(bus_file.insert, messages=taken), safe=True)
            except (Unavailable, TimeoutError) as error:
                away = BusAway(str(error) or f"the disk took longer than {PUBLISH_TIMEOUT:g} s")
                return [outcome or away for outcome in outcomes]
        self._wake(reached)
        self._tell_listeners([message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None])
        return outcomes

    async def declare(self, queue: Queue) -> None:
        """Make the queue and its bindings exist, for good."""
        await self._file.run(partial(bus_file.declare, queue=queue), safe=True)
        await self._load()

    def reader(self, queue: Queue) -> AbstractAsyncContextManager[QueueReader]:
        """Read from a queue; several readers share it."""
        return self._reader(queue)

    @asynccontextmanager
    async def _reader(self, queue: Queue) -> AsyncIterator[QueueReader]:
        await self.declare(queue)
        reader = EmbeddedReader(self._file, self._queues[queue.name], queue.prefetch, self._clock)
        try:
            yield reader
        finally:
            reader.close()

    async def listen(
        self, bindings: Collection[Binding], hear: Callable[[Message], None], gap: Callable[[], None]
    ) -> None:
        """Hear what this process publishes; when another process wrote to the file, that is a gap."""
        self._listeners.append(_Listener(tuple(bindings), hear, gap))

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """Look at the dead letters of a queue, oldest first."""
        return await self._file.read(partial(bus_file.dead_letters, queue=queue, limit=limit))

    async def replay(self, queue: str, message_ids: Collection[str] | None = None) -> int:
        """Put dead letters back into their queue."""
        job = partial(bus_file.replay, queue=queue, message_ids=None if message_ids is None else set(message_ids))
        count = await self._file.run(job, safe=True)
        self._wake([queue])
        return count

    async def ping(self) -> None:
        """Return if the file answers."""
        await self._file.read(bus_file.data_version)

    async def close(self) -> None:
        """Finish what was asked and close the file."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._file.close()

    async def _load(self) -> None:
        """Learn the queues and bindings that the file has; nothing here forgets one."""
        declared = await self._file.read(bus_file.declared_queues)
        for queue in declared:
            if queue.name not in self._queues:
                self._queues[queue.name] = _OpenQueue(queue.id, queue.handed_out)
        self._bindings = [(binding, queue.id, queue.name) for queue in declared for binding in queue.bindings]
        self._routes.clear()

    def _routes_of(self, message: Message) -> list[tuple[int, str]]:
        """The queues that take a message, each once."""
        key = message.exchange, message.routing_key
        routes = self._routes.get(key)
        if routes is None:
            routes = self._routes[key] = list(
                {(number, name): None for binding, number, name in self._bindings if binding.matches(*key)}
            )
        return routes

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._queues:
                self._queues[name].arrived.set()

    def _tell_listeners(self, messages: Sequence[Message]) -> None:
        for listener in self._listeners:
            for message in messages:
                if not listener.takes(message):
                    continue
                try:
                    listener.hear(replace(message, body=bytes(message.body), mandatory=True))
                except Exception:
                    logger.exception("a listener failed on %s", message.routing_key)

    async def _look_for_other_processes(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                version = await self._file.read(bus_file.data_version)
                if version == self._version:
                    continue
                self._version = version
                await self._load()
            except Unavailable as error:
                logger.warning("cannot look into the event bus: %s", error)
                continue
            self._wake(list(self._queues))
            self._tell_gap()

    def _tell_gap(self) -> None:
        for listener in self._listeners:
            try:
                listener.gap()
            except Exception:
                logger.exception("a listener failed on a gap")


class EmbeddedReader:
    """One reader's hold on a queue; what it holds when it closes goes to the others."""

    def __init__(self, file: SqliteThread, queue: _OpenQueue, prefetch: int, clock: Clock) -> None:
        self._file = file
        self._queue = queue
        self._prefetch = prefetch
        self._clock = clock
        self._held: set[int] = set()
        self._room = asyncio.Event()
        self._room.set()

    async def next_batch(self) -> list[Delivery]:
        """Wait for messages; a reader that holds as many as its prefetch waits until it has settled some."""
        await self._room.wait()
        queue = self._queue
        async with queue.turn:  # one reader at a time, so that no two take the same message
            while not (batch := await self._take(queue)):
                await queue.arrived.wait()
            return batch

    def holds(self, delivery: Delivery) -> bool:
        """Whether it is still in this reader's hands."""
        return bool(self._holding([delivery]))

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete what was handled."""
        ids = self._holding(deliveries)
        if ids:
            await self._file.run(partial(bus_file.delete, ids=ids))
            self._let_go(ids)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let the next reader have them."""
        self._return(self._holding(deliveries))

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Move it to the dead letters in one transaction."""
        for number in self._holding([delivery]):
            body, moment = delivery.message.body, self._clock.now()
            job = partial(bus_file.bury, number=number, body=body, reason=reason[:REASON_LENGTH], moment=moment)
            await self._file.run(job, safe=True)
            self._let_go([number])

    def close(self) -> None:
        """Give everything back."""
        self._return(list(self._held))

    async def _take(self, queue: _OpenQueue) -> list[Delivery]:
        queue.arrived.clear()
        limit = self._prefetch - len(self._held)
        returned = dict.fromkeys(queue.returned[:limit])
        job = partial(bus_file.take, queue=queue.id, returned=list(returned), after=queue.position, limit=limit)
        taken = await self._file.run(job)
        # Nothing below waits: a reader that is cancelled above has taken nothing.
        queue.returned = [number for number in queue.returned if number not in returned]
        deliveries = [Delivery(message, number <= queue.handed_out, number) for number, message in taken]
        self._held.update(number for number, _ in taken)
        if taken:
            queue.position = max(queue.position, taken[-1][0])
            queue.handed_out = max(queue.handed_out, queue.position)
        if len(self._held) >= self._prefetch:
            self._room.clear()
        return deliveries

    def _holding(self, deliveries: Sequence[Delivery]) -> list[int]:
        return [one.tag for one in deliveries if isinstance(one.tag, int) and one.tag in self._held]

    def _let_go(self, ids: Iterable[int]) -> None:
        self._held.difference_update(ids)
        self._room.set()

    def _return(self, ids: Sequence[int]) -> None:
        self._let_go(ids)
        self._queue.returned = sorted({*self._queue.returned, *ids})
        self._queue.arrived.set()
