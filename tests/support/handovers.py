"""A handover between a bus that can fail and databases that can, and what became of the rows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime.handover import Handover
from refract.runtime.messages import Message
from refract.runtime.ports import Database, EventBus
from tests.support.waiting import eventually
from tests.support.worlds import World, noted, running


class Counted:
    """A bus that knows how often it was used, and can be away, blocked, or hang."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.batches: list[list[Message]] = []
        self.trouble: Exception | None = None
        self.outcome: Callable[[Message], NotPublished | None] = lambda _: None
        self.open = asyncio.Event()
        self.open.set()

    async def ping(self) -> None:
        """Whether it is there."""
        if self.trouble is not None:
            raise self.trouble
        await self._bus.ping()

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Publish those that nothing happens to."""
        self.batches.append(list(messages))
        await self.open.wait()
        outcomes = [self.outcome(message) for message in messages]
        taken = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None]
        assert await self._bus.publish_all(taken) == [None] * len(taken)
        return outcomes


class Failing:
    """A database whose transactions fail while it is told so."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.fails = False
        self.tries = 0
        self.post = database.post

    def transaction(self) -> object:
        """A transaction, or none."""
        self.tries += 1
        if self.fails:
            raise Unavailable("database", "away")
        return self._database.transaction()


class Unheard:
    """A database that saves what is posted, and whose word of it does not arrive."""

    def __init__(self, database: Database, error: BaseException) -> None:
        self._database = database
        self._error = error
        self.transaction = database.transaction

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """Save, and fail."""
        await self._database.post(*messages, held=held)
        raise self._error


@pytest.fixture
def bus(world: World) -> Counted:
    """The bus of the world, with whatever is to happen to it."""
    return Counted(world.bus)


@pytest.fixture
def ours(world: World, bus: Counted) -> Handover:
    """A handover that does not run yet."""
    return handing_over(world, bus)


def handing_over(world: World, bus: Counted, database: object | None = None) -> Handover:
    """A handover over this bus, and over this database or that of the world."""
    return Handover(
        "test",
        database=database or world.database,  # type: ignore[arg-type]  # a stand-in has only what a handover calls
        bus=bus,  # type: ignore[arg-type]  # Counted is such a stand-in
        clock=world.clock,
        metrics=world.metrics,
    )


def array(world: World, *numbers: int) -> Message:
    """A message with an array of numbers."""
    return replace(world.message(noted(numbers[0])), body=b"[%b]" % b",".join(b"%d" % number for number in numbers))


async def on(ours: Handover) -> bool:
    """Whether it runs."""
    return ours._is_on


@asynccontextmanager
async def one_under_way(world: World, bus: Counted, ours: Handover) -> AsyncIterator[None]:
    """It runs, and its first message is on its way until the bus is opened."""
    bus.open.clear()
    async with running(ours.run):
        await eventually(lambda: on(ours))
        await ours.post(array(world, 1))
        await eventually(lambda: are_under_way(bus, 1))
        yield


async def are_unpublished(world: World, number: int) -> bool:
    """Whether so many wait to be published."""
    return await world.unpublished() == number


async def are_free(world: World, number: int) -> bool:
    """Whether so many wait that any relay may take."""
    waiting = [row for row in await world.outbox() if row["published_at"] is None]
    return [row["next_attempt_at"] for row in waiting].count(None) == number


async def are_under_way(bus: Counted, number: int) -> bool:
    """Whether so many batches have reached the bus."""
    return len(bus.batches) == number
