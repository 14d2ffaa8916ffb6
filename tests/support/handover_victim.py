"""A process that saves and sends numbers by a handover until it dies by SIGKILL, at a moment of the test's choice.

`python -m tests.support.handover_victim <moment> <seed> <first number>`; the address of its world comes on the standard
input, and it says each number that it has saved, a line at a time.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from refract.kernel.errors import NotPublished
from refract.runtime.handover import NOTE_SECONDS, Handover
from refract.runtime.messages import Message
from refract.runtime.ports import Transaction
from tests.support.handovers import array
from tests.support.victims import die
from tests.support.worlds import World, visit

BEFORE_THE_BUS = ("saved", "sending")
"""Moments between save and send: the row is committed, and the bus has not heard of it."""

BEFORE_THE_MARK = ("confirmed", "noting")
"""Moments between confirm and mark: the bus has it, and the database does not say so."""

MOMENTS = (*BEFORE_THE_BUS, *BEFORE_THE_MARK, "any")

POSTERS = 3
LONGEST_WAIT = 4 * NOTE_SECONDS
"""Seconds that a moment lasts at most: whatever is marked too early is marked by then."""


class Peril:
    """The moment at which this process dies: the first, second, third or fourth of its kind, and somewhere in it."""

    def __init__(self, moment: str, seed: int) -> None:
        chance = random.Random(seed)
        self._moment = moment
        self._left = chance.randint(1, 4)
        self._seconds = chance.uniform(0.0, LONGEST_WAIT)
        self._has_begun = asyncio.Event()

    async def at(self, moment: str) -> None:
        """Come through alive, or never return; everybody else has some time yet."""
        self._has_begun.set()
        if moment != self._moment:
            return
        self._left -= 1
        if self._left == 0:
            await asyncio.sleep(self._seconds)
            die()

    async def at_any_time(self) -> None:
        """Die whatever the others are at, once something is saved."""
        if self._moment == "any":
            await self._has_begun.wait()
            await asyncio.sleep(self._left * self._seconds)
            die()


class PerilousBus:
    """A bus with a moment before it has anything, and one when it has everything."""

    def __init__(self, world: World, peril: Peril) -> None:
        self._bus = world.bus
        self._peril = peril
        self.ping = world.bus.ping

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        await self._peril.at("sending")
        outcomes = await self._bus.publish_all(messages)
        assert outcomes == [None] * len(messages)
        await self._peril.at("confirmed")
        return outcomes


class PerilousDatabase:
    """A database with a moment after what was saved, and one before what is noted."""

    def __init__(self, world: World, peril: Peril) -> None:
        self._database = world.database
        self._peril = peril

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        ids = await self._database.post(*messages, held=held)
        await self._peril.at("saved")
        return ids

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield tx
            await self._peril.at("noting")


async def _main(moment: str, seed: int, first: int, address: str) -> None:
    world = await visit(address)
    peril = Peril(moment, seed)
    numbers = count(first)
    handover = Handover(
        "test",
        database=PerilousDatabase(world, peril),  # type: ignore[arg-type]  # it has all that a handover calls
        bus=PerilousBus(world, peril),  # type: ignore[arg-type]  # and so has this
        clock=world.clock,
        metrics=world.metrics,
    )

    async def post() -> None:
        while True:
            number = next(numbers)
            await handover.post(array(world, number))
            os.write(sys.stdout.fileno(), b"%d\n" % number)  # past all buffers, which die with us
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(handover.run())
        tasks.create_task(peril.at_any_time())
        for _ in range(POSTERS):
            tasks.create_task(post())


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.stdin.read()))
