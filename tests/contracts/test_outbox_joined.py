"""Rows that are arrays leave the outbox as one message, and what becomes of it becomes of all of them."""

from dataclasses import replace

from refract.runtime.messages import Message
from refract.runtime.ports import QueueReader
from tests.support.buses import bodies, drain
from tests.support.worlds import World, noted

FOREVER = 3600.0


async def test_arrays_leave_as_one_message_and_their_rows_are_all_marked(world: World, reader: QueueReader) -> None:
    def some(number: int) -> Message:
        return replace(world.message(noted(number)), body=b"[%d]" % number)

    await world.post(*map(some, range(5)), world.message(noted(5)), *map(some, range(6, 8)))
    await world.relay().move()
    first, alone, last = await drain(reader, 3)
    assert (first.body, last.body) == (b"[0,1,2,3,4]", b"[6,7]")
    assert alone.body.startswith(b"{")
    assert await world.unpublished() == 0
    assert world.counted("outbox_published_total", service="test") == 8


async def test_arrays_that_nobody_takes_fail_together_and_go_again_one_by_one(world: World) -> None:
    await world.post(*(replace(world.message(noted(number)), body=b"[%d]" % number) for number in range(3)))
    relay = world.relay()
    await relay.move()
    assert [row["attempts"] for row in await world.outbox()] == [1, 1, 1]
    async with world.bus.reader(world.queue) as reader:
        world.turn(FOREVER)
        await relay.move()
        assert sorted(bodies(await drain(reader, 3))) == [b"[0]", b"[1]", b"[2]"]
    assert await world.unpublished() == 0
