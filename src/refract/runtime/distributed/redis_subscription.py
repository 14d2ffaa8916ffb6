"""A channel that is listened to for as long as the process lives; when it falls silent, and its gaps, are told."""

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Connection
from redis.exceptions import ResponseError

from refract.runtime.distributed.redis_connection import TROUBLE, RedisConnection, exchange, hang_up, packed

QUIET_SECONDS = 2.0
"""After so long without a word the other end is asked whether it is there, and has as long again to answer."""
RETRY_PAUSE = 0.5

_logger = logging.getLogger("refract.redis")


class RedisSubscription:
    """Calls `hear` with each message of a channel, `deaf` when it can no longer, and `gap` when it can again."""

    def __init__(
        self,
        redis: RedisConnection,
        channel: str,
        hear: Callable[[bytes], None],
        gap: Callable[[], None],
        deaf: Callable[[], None],
    ) -> None:
        self.hears = False
        """Redis tells a subscriber everything in its order, or ends the connection: until that is seen, or nothing has
        come for twice QUIET_SECONDS, each message is taken to be heard."""
        self._redis = redis
        self._subscribe = packed("SUBSCRIBE", channel)
        self._hear = hear
        self._gap = gap
        self._deaf = deaf
        self._missed = False
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen; when this returns, every later message is heard, or `gap` will be called."""
        self._missed = self._redis.away is not None  # nobody waits for the first try then, and that may succeed
        self._task = asyncio.create_task(self._listen_for_ever(), name="redis subscription")
        if self._redis.away is None:
            await self._tried.wait()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except ResponseError as error:
                self._redis.refusal(error)
            except TROUBLE:
                pass  # the connection that we share warns of an outage
            except Exception:
                _logger.exception("an invalidation could not be handled")
            finally:
                self._missed = True
                self._tried.set()
            await asyncio.sleep(RETRY_PAUSE)

    async def _listen(self) -> None:
        connection = await self._redis.dial()
        try:
            await self._listen_on(connection)
        finally:
            await hang_up(connection)

    async def _listen_on(self, connection: Connection) -> None:
        async with asyncio.timeout(QUIET_SECONDS):
            (confirmed,) = await exchange(connection, [self._subscribe])
        if isinstance(confirmed, ResponseError):
            raise confirmed
        self.hears = True
        try:
            if self._missed:
                self._gap()
            self._tried.set()
            await self._hear_all(connection)
        finally:
            self._lose()

    def _lose(self) -> None:
        """Say so before anything else is tried; whoever fails to take it in keeps nobody from listening again."""
        self.hears = False
        try:
            self._deaf()
        except Exception:
            _logger.exception("the loss of a subscription could not be handled")

    async def _hear_all(self, connection: Connection) -> None:
        asked = False
        while True:
            reply = await connection.read_response(timeout=QUIET_SECONDS)
            if reply is not None:
                asked = False
                if reply[0] == b"message":
                    self._hear(reply[2])
            elif asked:
                raise TimeoutError("the subscription fell silent")
            else:
                await connection.send_packed_command([packed("PING")])
                asked = True
