"""A pool of PostgreSQL connections: bounded, a few kept, none older than half an hour or idle for five minutes.

Our own, because asyncpg's pool keeps no minimum, knows no lifetime, and sends a reset after every use.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refract.kernel.errors import RefractError, Unavailable
from refract.runtime.distributed.postgresql import ReadOnlyServer, translated
from refract.runtime.transactions import ACQUIRE_TIMEOUT

if TYPE_CHECKING:
    from refract.runtime.distributed.postgresql import Connection

logger = logging.getLogger("refract.database")

MAX_CONNECTIONS = 10
KEPT_CONNECTIONS = 2
MAX_LIFETIME = 30 * 60.0
MAX_IDLE = 5 * 60.0
CHECK_INTERVAL = 60.0
TIDY_TIMEOUT = 1.0
"""Seconds that a server has to answer when a connection is tidied or closed; whoever stops waits for these."""


@dataclass(slots=True, eq=False)
class _Pooled:
    connection: "Connection"
    opened_at: float
    idle_since: float


class ConnectionPool:
    """Lends connections. One that comes back from a failed block is rolled back first, or thrown away."""

    def __init__(
        self,
        connect: Callable[[], Awaitable["Connection"]],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        most: int = MAX_CONNECTIONS,
        kept: int = KEPT_CONNECTIONS,
        when_dropped: Callable[[], None] | None = None,
    ) -> None:
        """`when_dropped` is called when a connection was cut, or leads to a server that takes no writes."""
        self._connect = connect
        self._when_dropped = when_dropped
        self._monotonic = monotonic
        self._most = most
        self._kept = kept
        self._slots = asyncio.Semaphore(most)
        self._idle: list[_Pooled] = []
        self._lent = 0
        self._in_use: set[_Pooled] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def size(self) -> int:
        """How many connections are open, lent or idle."""
        return self._lent + len(self._idle)

    async def start(self) -> None:
        """Open the connections that are kept, and look after them from now on."""
        await self.check()
        self._checking = asyncio.create_task(self._check_for_ever(), name="database pool")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["Connection"]:
        """A connection for the time of the block; raises Unavailable when there is none in time."""
        pooled = await self._take()
        self._in_use.add(pooled)
        try:
            yield pooled.connection
        except ReadOnlyServer as error:
            self._drop(pooled, error)
            self._give_back(pooled)
            raise
        except BaseException:
            # Shielded: if our caller is cancelled once more, the connection is still tidied before it is lent again.
            await asyncio.shield(self._spawn(self._tidy(pooled)))
            raise
        else:
            self._give_back(pooled)

    async def check(self) -> None:
        """Close what is too old or too long idle, and open what is missing to the kept number."""
        now = self._monotonic()
        for pooled in list(self._idle):
            old = now - pooled.opened_at > MAX_LIFETIME
            spare = now - pooled.idle_since > MAX_IDLE and self.size > self._kept
            if old or spare or pooled.connection.is_closed():
                self._idle.remove(pooled)
                self._spawn(_close(pooled.connection))
        while self.size < self._kept and not self._closed:
            self._idle.insert(0, await self._open())

    async def close(self) -> None:
        """Wait until every connection is back, as long as the server answers at all, then close them."""
        if self._closed:
            return
        self._closed = True
        if self._checking is not None:
            self._checking.cancel()
        watching = self._spawn(self._hang_up_on_silence())
        for _ in range(self._most):
            await self._slots.acquire()
        watching.cancel()
        while self._idle:
            self._spawn(_close(self._idle.pop().connection))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hang_up_on_silence(self) -> None:
        """End the connections that are still in use once the server does not even let us in any more."""
        while True:
            try:
                async with asyncio.timeout(TIDY_TIMEOUT):
                    connection = await self._connect()
            except TimeoutError:
                for pooled in self._in_use:
                    pooled.connection.terminate()
                return
            except RefractError:
                pass  # an answer, too: whatever it means for those in use, they notice themselves
            else:
                connection.terminate()
            await asyncio.sleep(TIDY_TIMEOUT)

    async def _take(self) -> _Pooled:
        self._check_open()
        if self._slots.locked():
            await self._wait_for_slot()
        else:
            await self._slots.acquire()  # at once: nobody needs a clock for that
        self._lent += 1
        try:
            self._check_open()
            return self._take_idle() or await self._open()
        except BaseException:
            self._lent -= 1
            self._slots.release()
            raise

    async def _wait_for_slot(self) -> None:
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("database", f"no connection was free within {ACQUIRE_TIMEOUT:g} s") from None

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("database", "it is closed")

    def _take_idle(self) -> _Pooled | None:
        """The one used last: so the others can grow idle, and be closed."""
        while self._idle:
            pooled = self._idle.pop()
            if not pooled.connection.is_closed():
                return pooled
        return None

    async def _open(self) -> _Pooled:
        connection = await self._connect()
        now = self._monotonic()
        return _Pooled(connection, opened_at=now, idle_since=now)

    def _give_back(self, pooled: _Pooled) -> None:
        now = self._monotonic()
        if now - pooled.opened_at > MAX_LIFETIME:
            self._spawn(_close(pooled.connection))
        elif not pooled.connection.is_closed():
            pooled.idle_since = now
            self._idle.append(pooled)
        self._in_use.discard(pooled)
        self._lent -= 1
        self._slots.release()

    async def _tidy(self, pooled: _Pooled) -> None:
        """End whatever the failed block left behind; a connection on which that is impossible goes."""
        try:
            # Not asyncpg's own timeout, which does not cover its wait for a cancelled query.
            with translated("rollback"):
                async with asyncio.timeout(TIDY_TIMEOUT):
                    await pooled.connection.execute("ROLLBACK")
        except RefractError as error:
            self._drop(pooled, error)
        except BaseException:
            pooled.connection.terminate()
            raise
        finally:
            self._give_back(pooled)

    def _drop(self, pooled: _Pooled, error: RefractError) -> None:
        """What cut this one has probably cut all: better new ones than a timeout on each."""
        logger.warning("database connection dropped", extra={"reason": str(error)})
        pooled.connection.terminate()
        self.forget_idle()
        if self._when_dropped is not None:
            self._when_dropped()

    def forget_idle(self) -> None:
        """Let nobody have a connection that is open now and not in use."""
        while self._idle:
            self._idle.pop().connection.terminate()

    def _spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _check_for_ever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            try:
                await self.check()
            except RefractError as error:
                logger.warning("database pool not refilled", extra={"reason": str(error)})


async def _close(connection: "Connection") -> None:
    """Say goodbye; a server that does not answer is left without."""
    with suppress(Unavailable), translated("close"):
        await connection.close(timeout=TIDY_TIMEOUT)
