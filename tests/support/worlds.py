"""A small world of one mode: a migrated database, a bus, and what relays and readers of a test do between them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.events import Event, EventDecoder, LinkEvent
from refract.kernel.ids import new_event_id
from refract.runtime.inbox import Handle, Inbox
from refract.runtime.messages import DeadLetter, Message, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import Relay
from refract.runtime.ports import Database, EventBus, QueueReader, Row, Transaction
from refract.runtime.statements import Statement
from tests.support.buses import Buses, EmbeddedBuses, RabbitBuses
from tests.support.clocks import ManualClock
from tests.support.databases import Location, furnish, open_database
from tests.support.outboxes import OUTBOX

CREATE_EFFECTS = Statement("create_effects", "Makes the table.", "CREATE TABLE effects (number INTEGER NOT NULL)")
ADD_EFFECT = Statement("add_effect", "Notes a number.", "INSERT INTO effects (number) VALUES (:number)")
EFFECTS = Statement("effects", "Reads the numbers.", "SELECT number FROM effects ORDER BY number")
INBOX = Statement("inbox", "Reads the marks.", "SELECT * FROM inbox ORDER BY event_id")
ATTEMPTS = Statement("attempts", "Reads the attempts.", "SELECT * FROM inbox_attempts")
VISITOR = "visitor"
VISITORS = Statement(
    "visitors",
    "Counts the connections of other processes.",
    "SELECT count(*) AS connections FROM pg_stat_activity "
    f"WHERE datname = current_database() AND application_name = 'refract-{VISITOR}'",
    sqlite="SELECT 0 AS connections",
)


class Noted(LinkEvent, frozen=True, kw_only=True, tag="test.noted"):
    """An event with a number, which the readers of these tests write down."""

    number: int


def noted(number: int, *, event_id: str | None = None, correlation_id: str = "") -> Noted:
    """An event with an id of its own."""
    return Noted(
        occurred_at=datetime.now(UTC),
        event_id=Noted.new_id() if event_id is None else event_id,
        correlation_id=correlation_id,
        number=number,
    )


async def add_effects(tx: Transaction, events: Sequence[Event]) -> None:
    """Write the numbers down; nothing in the table keeps a number from being there twice."""
    await tx.execute_many(ADD_EFFECT, [{"number": event.number} for event in events if isinstance(event, Noted)])


@dataclass
class World:
    """One database and one bus, and what stands between them."""

    location: Location
    buses: Buses
    database: Database
    bus: EventBus
    clock: Clock
    queue: Queue
    metrics: Metrics = field(default_factory=Metrics)

    def relay(self, *, bus: EventBus | None = None, database: Database | None = None) -> Relay:
        """A relay of this world."""
        return Relay(
            "test",
            database=database or self.database,
            bus=bus or self.bus,
            clock=self.clock,
            metrics=self.metrics,
        )

    def inbox(
        self,
        handle: Handle = add_effects,
        *,
        bus: EventBus | None = None,
        database: Database | None = None,
        one_at_a_time: asyncio.Lock | None = None,
    ) -> Inbox:
        """A reader of this world's queue."""
        return Inbox(
            self.queue,
            EventDecoder(Noted),
            handle,
            database=database or self.database,
            bus=bus or self.bus,
            clock=self.clock,
            metrics=self.metrics,
            one_at_a_time=one_at_a_time,
        )

    def turn(self, seconds: float) -> None:
        """Let time pass in a world that has a manual clock."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)

    def message(self, event: Event, *, mandatory: bool = True) -> Message:
        """The event on its way to this world's own exchange."""
        return replace(Message.of(event), exchange=self.buses.exchange, mandatory=mandatory)

    async def announce(self, *events: Event) -> None:
        """Save events in one transaction."""
        await self.post(*map(self.message, events))

    async def post(self, *messages: Message) -> None:
        """Save messages in one transaction."""
        async with self.database.transaction() as tx:
            await tx.post(*messages)

    def row(self, moment: datetime, number: int = 0) -> tuple[object, ...]:
        """An outbox row as if it had been announced at that moment, in the order of OUTBOX_COLUMNS."""
        milliseconds = f"{round(moment.timestamp() * 1000):012x}"
        row_id = f"{milliseconds[:8]}-{milliseconds[8:]}-{new_event_id()[14:]}"
        return row_id, self.buses.exchange, Noted.routing_key(), "{}", f"message-{number}", "", False, moment, None

    async def publish(self, *events: Event) -> None:
        """Publish events past the outbox; all of them are taken."""
        assert await self.bus.publish_all(list(map(self.message, events))) == [None] * len(events)

    async def outbox(self) -> list[Row]:
        """The rows of the outbox in the order of their ids."""
        return await self.database.fetch(OUTBOX)

    async def unpublished(self) -> int:
        """How many rows wait."""
        return sum(row["published_at"] is None for row in await self.outbox())

    async def effects(self) -> list[int]:
        """The numbers that were written down, sorted."""
        return [row["number"] for row in await self.database.fetch(EFFECTS)]

    async def marks(self) -> list[Row]:
        """What was handled."""
        return await self.database.fetch(INBOX)

    async def attempts(self) -> list[Row]:
        """What was counted."""
        return await self.database.fetch(ATTEMPTS)

    async def attempts_forgotten(self) -> bool:
        """Whether nothing is counted any more."""
        return not await self.attempts()

    async def dead(self) -> list[DeadLetter]:
        """The dead letters of this world's queue."""
        return await self.bus.dead_letters(self.queue.name, 1_000)

    async def is_left(self) -> bool:
        """Whether the database, too, knows that visitors have gone: what a dead one said last may still be done."""
        [row] = await self.database.fetch(VISITORS)
        return bool(row["connections"] == 0)

    def counted(self, name: str, **labels: str) -> float:
        """The value of a metric."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def address(self) -> str:
        """All that another process needs to come here."""
        embedded = isinstance(self.location, Path)
        bus = self.buses.url if isinstance(self.buses, RabbitBuses) else ""
        return json.dumps([embedded, str(self.location), bus, self.buses.prefix, self.queue.prefetch])


async def visit(address: str) -> World:
    """The same world, in another process."""
    embedded, location, bus, prefix, prefetch = json.loads(address)
    buses: Buses = EmbeddedBuses(Path(location).parent) if embedded else RabbitBuses(bus)
    buses.prefix = prefix
    return await _enter(Path(location) if embedded else location, buses, SystemClock(), prefetch, VISITOR)


async def _enter(location: Location, buses: Buses, clock: Clock, prefetch: int, name: str = "test") -> World:
    queue = buses.queue("reader", Noted.routing_key(), prefetch=prefetch)
    return World(location, buses, await open_database(location, name), await buses.open(), clock, queue)


def buses_beside(location: Location, request: pytest.FixtureRequest) -> Buses:
    """Where the buses meet that belong to a database: in the same folder, or on the broker of this run."""
    if isinstance(location, Path):
        return EmbeddedBuses(location.parent)
    return RabbitBuses(request.getfixturevalue("rabbitmq_url"))


@asynccontextmanager
async def open_world(
    location: Location, buses: Buses, *, clock: Clock | None = None, prefetch: int = 500
) -> AsyncIterator[World]:
    """A world on an empty database; its queue is named and not yet declared."""
    await furnish("links", location)
    world = await _enter(location, buses, clock or ManualClock(datetime.now(UTC)), prefetch)
    async with world.database.transaction() as tx:
        await tx.execute(CREATE_EFFECTS)
    yield world
    await buses.close()
    await world.database.close()


@asynccontextmanager
async def running(*runs: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run tasks that never end for the time of the block; one that failed by then fails the test."""

    async def run(task: Callable[[], Awaitable[None]]) -> None:
        await task()

    tasks = [asyncio.create_task(run(one)) for one in runs]
    try:
        yield
    finally:
        died = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in died:
        task.result()


@pytest.fixture
async def world(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A database and a bus, without a reader."""
    async with open_world(empty_location, buses_beside(empty_location, request)) as world:
        yield world


@pytest.fixture
async def reader(world: World) -> AsyncIterator[QueueReader]:
    """Somebody who takes what is published."""
    async with world.bus.reader(world.queue) as reader:
        yield reader
