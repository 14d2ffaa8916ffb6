"""Dead letters, once their reader has done with them."""

from refract.runtime.messages import DeadLetter
from tests.support.waiting import eventually
from tests.support.worlds import World


async def burials(world: World, count: int = 1) -> list[DeadLetter]:
    """The dead letters of a world's queue, when its readers have buried so many in all.

    A broker shows a letter before it confirms it: who stops the reader as soon as it is there may see it come again.
    """
    await eventually(lambda: world.counted("inbox_buried_total", reader=world.queue.name) == count)
    return await world.dead()
