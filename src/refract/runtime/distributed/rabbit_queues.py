"""A queue as this process declares it with every session to the broker; one that is gone meanwhile is missed."""

import logging

from aiormq.exceptions import ChannelNotFoundEntity

from refract.runtime.distributed import rabbit_wire
from refract.runtime.distributed.rabbit_connection import Session, answer
from refract.runtime.messages import Queue

logger = logging.getLogger(__name__)


class DeclaredQueue:
    """Makes a queue exist, again and again.

    A broker that was killed has been seen to come back without a queue that it had declared seconds before, and without
    the messages that it had confirmed for it. They are in the outbox of whoever published them; somebody has to know.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._was_there = False

    async def declare(self, session: Session) -> None:
        """Make it exist: a step of every session."""
        if self._was_there and not await self._is_there(session):
            logger.error(
                "a queue was gone from the broker, and what it held with it; it is declared anew, and "
                "`refract outbox replay` sends again what was published",
                extra={"queue": self._queue.name},
            )
        async with session.passing_channel() as channel:
            await answer(rabbit_wire.declare_queue(channel, self._queue))
        self._was_there = True

    async def _is_there(self, session: Session) -> bool:
        try:
            async with session.passing_channel() as channel:
                await answer(channel.queue_declare(self._queue.name, passive=True))
        except ChannelNotFoundEntity:
            return False
        return True
