"""What the tests of the inbox share: a queue that waits for its reader, handlers that fail, and how far they came."""

from collections.abc import Sequence

import pytest

from refract.kernel.events import Event
from refract.runtime.ports import Transaction
from tests.support.worlds import Noted, World, add_effects

BAD = -1


@pytest.fixture(name="world")
async def declared_world(world: World) -> World:
    """A world whose queue exists before its reader does."""
    await world.bus.declare(world.queue)
    return world


class Unlucky:
    """A handler that cannot bear one number."""

    def __init__(self, error: BaseException, number: int = BAD) -> None:
        self.error = error
        self.number = number
        self.calls = 0
        self.tries = 0

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Write down what there is, and only then fail: what was written must be gone."""
        self.calls += 1
        await add_effects(tx, events)
        if any(isinstance(event, Noted) and event.number == self.number for event in events):
            self.tries += 1
            raise self.error


class KilledReader(BaseException):
    """The end of a reader, as near as one process can come to it."""


async def handled(world: World, count: int) -> bool:
    """Whether so many events have had their effect."""
    return len(await world.effects()) == count
