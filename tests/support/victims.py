"""Processes that fault tests start to have them die by SIGKILL, each at the worst moment that it knows.

`python -m tests.support.victims <way>`; the address of their world comes on the standard input.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from refract.kernel.errors import NotPublished
from refract.kernel.events import Event
from refract.runtime.messages import Delivery, Message
from refract.runtime.ports import Transaction
from tests.support.buses import take
from tests.support.worlds import Noted, World, add_effects, visit

ALL = 200
"""So many messages there are for a reader that dies of all of them together."""

KILLER = -1
"""The number that no reader survives."""


def die() -> None:
    """End this process as a power cut would: nothing is flushed, closed or said."""
    os.kill(os.getpid(), signal.SIGKILL)


async def between_confirm_and_mark(world: World) -> None:
    """A relay that dies when the bus has its rows and the database does not know."""
    publish_all = world.bus.publish_all

    async def publish_and_die(messages: Sequence[Message]) -> list[NotPublished | None]:
        assert await publish_all(messages) == [None] * len(messages)
        die()
        return []

    world.bus.publish_all = publish_and_die  # type: ignore[method-assign]
    await world.relay().run()


async def between_commit_and_acknowledgement(world: World) -> None:
    """A reader that dies when its effect is committed and the bus does not know."""

    async def acknowledge(deliveries: Sequence[Delivery]) -> None:
        die()

    async with world.bus.reader(world.queue) as reader:
        reader.acknowledge = acknowledge  # type: ignore[method-assign]
        while True:
            await world.inbox().settle(reader, await reader.next_batch())


async def before_commit(world: World) -> None:
    """A reader that dies with its effect written and not committed, the attempt being counted already.

    It has all messages first: on a busy machine they may come in several batches, and it would die of one of them.
    """

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        await add_effects(tx, events)
        die()

    async with world.bus.reader(world.queue) as reader:
        await world.inbox(handle).settle(reader, await take(reader, ALL))


async def by_a_message(world: World) -> None:
    """A reader that is well but for one message."""

    async def handle(tx: Transaction, events: Sequence[Event]) -> None:
        await add_effects(tx, events)
        if any(isinstance(event, Noted) and event.number == KILLER for event in events):
            die()

    await world.inbox(handle).run()


WAYS = {
    way.__name__: way
    for way in (between_confirm_and_mark, between_commit_and_acknowledgement, before_commit, by_a_message)
}


async def _main(way: str, address: str) -> None:
    await WAYS[way](await visit(address))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.stdin.read()))
