"""A database of analytics and a bus in one mode, for what goes on between analytics and links."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from refract.kernel.errors import NotPublished
from refract.kernel.events import Event
from refract.runtime.inbox import Inbox
from refract.runtime.messages import DeadLetter, Message, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, EventBus, Row
from refract.runtime.service import Reaction
from refract.runtime.statements import Statement
from tests.support.buses import Buses
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, furnish, open_database
from tests.support.worlds import buses_beside

LINKS = Statement("links", "Reads what is known of links.", "SELECT * FROM links ORDER BY short_code")
COUNT_UP = Statement(
    "count_up",
    "Counts clicks of a link.",
    """
    INSERT INTO totals (short_code, clicks, bot_clicks, first_clicked_at, last_clicked_at)
    VALUES (:short_code, :clicks, 0, :at, :at)
    ON CONFLICT (short_code) DO UPDATE SET clicks = totals.clicks + :clicks, last_clicked_at = :at
    """,
)


def moment(seconds: float) -> datetime:
    """A moment of the tests."""
    return START + timedelta(seconds=seconds)


class OwnExchange:
    """A bus on which everything is published to an exchange of the test's own: others use the same broker."""

    def __init__(self, bus: EventBus, exchange: str) -> None:
        self._bus = bus
        self._exchange = exchange
        self.published: list[Message] = []

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Publish many at once."""
        outcomes = await self._bus.publish_all([replace(message, exchange=self._exchange) for message in messages])
        self.published += [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None]
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


@dataclass
class Between:
    """A migrated database, and a bus to read from and to publish to."""

    location: Location
    database: Database
    buses: Buses
    bus: EventBus
    own: Any
    clock: ManualClock
    metrics: Metrics = field(default_factory=Metrics)

    def queue_of(self, reaction: Reaction) -> Queue:
        """A queue of the test's own, bound as the real one is."""
        return self.buses.queue(reaction.queue.name, *(binding.pattern for binding in reaction.queue.bindings))

    def reader(self, reaction: Reaction, queue: Queue, *, bus: EventBus | None = None) -> Inbox:
        """A reader of it."""
        return Inbox(
            queue,
            reaction.decoder,
            reaction.handle,
            database=self.database,
            bus=bus or self.bus,
            clock=self.clock,
            metrics=self.metrics,
        )

    async def publish(self, *messages: Event | Message) -> None:
        """Publish to the test's exchange; all are taken."""
        sent = [Message.of(message) if isinstance(message, Event) else message for message in messages]
        assert await self.own.publish_all(sent) == [None] * len(sent)

    def counted(self, name: str) -> float:
        """The sum of a metric over its queues."""
        [found] = [one for one in self.metrics.registry.collect() if f"{one.name}_total" == name]
        return sum(sample.value for sample in found.samples if sample.name == name)

    async def dead(self, queue: Queue) -> list[DeadLetter]:
        """The dead letters of a queue."""
        return await self.bus.dead_letters(queue.name, 100)

    async def rows(self, statement: Statement = LINKS) -> list[dict[str, Any]]:
        """All rows of a statement."""
        return [dict(row) for row in await self.database.fetch(statement)]

    async def everything(self) -> str:
        """Every value of every table, as one text."""
        names = (
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            if self.database.dialect == "sqlite"
            else "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
        )
        tables: list[Row] = await self.database.fetch(Statement("tables", "Lists the tables.", names))
        found = []
        for table in tables:
            rows = await self.database.fetch(Statement("all", "Reads all.", f"SELECT * FROM {table['name']}"))
            found += [f"{table['name']}: {dict(row)}" for row in rows]
        return "\n".join(found)


async def _between(service: str, location: Location, request: pytest.FixtureRequest) -> AsyncIterator[Between]:
    await furnish(service, location)
    database, buses = await open_database(location), buses_beside(location, request)
    bus = await buses.open()
    own = OwnExchange(bus, buses.exchange)
    yield Between(location, database, buses, bus, own, ManualClock())
    await buses.close()
    await database.close()


@pytest.fixture
async def analytics(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[Between]:
    """The database of analytics."""
    async for between in _between("analytics", empty_location, request):
        yield between


@pytest.fixture
async def of_links(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[Between]:
    """The database of links."""
    async for between in _between("links", empty_location, request):
        yield between
