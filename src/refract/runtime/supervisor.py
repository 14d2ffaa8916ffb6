"""Start in order, restart what dies, drain, stop in reverse, and all of it within a bounded time."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

logger = logging.getLogger("refract.supervisor")

RESTART_PAUSE = 5.0
GRACE = 8.0
"""Seconds from the signal until everything has been told to stop: the end of the process comes within ten."""

MARGIN = 1.5
"""What is kept back of the grace for the parts that are stopped last."""

SAME_REQUEST = 0.5
"""Seconds within which a second signal is taken for the first: wrappers such as `timeout` send it to a whole group."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Closeable(Protocol):
    """Something that is open until it is closed, such as a port."""

    async def close(self) -> None:
        """Give everything back."""


T = TypeVar("T")
C = TypeVar("C", bound=Closeable)
Run = Callable[[], Awaitable[None]]
Stop = Callable[[float], Awaitable[None]]
"""Given the seconds it may take."""


class StopRequested(Exception):
    """We were asked to stop while something was still starting; the supervisor's block ends with it, quietly."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    stop: Stop


class Supervisor:
    """Owns what one process runs. Inside its block things are started; at its end they are stopped in reverse.

    SIGTERM and SIGINT end the block; a second one waits for nothing any longer.
    """

    def __init__(self, *, restart_pause: float = RESTART_PAUSE, grace: float = GRACE) -> None:
        self._restart_pause = restart_pause
        self._grace = grace
        self._parts: list[_Part] = []
        self._stopping = asyncio.Event()
        self._requested_at = 0.0
        self._owner: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.request_stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await self._stop_parts()
        finally:
            for number in SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
        return kind is StopRequested

    def request_stop(self) -> None:
        """Begin to stop; asked again, wait for nothing any longer."""
        now = asyncio.get_running_loop().time()
        if not self._stopping.is_set():
            self._requested_at = now
            self._stopping.set()
        elif now - self._requested_at > SAME_REQUEST and self._owner is not None:
            self._owner.cancel()

    async def open(self, name: str, opening: Coroutine[Any, Any, C]) -> C:
        """Open something and close it at the end."""
        opened = await self.unless_stopping(opening)
        self._parts.append(_Part(name, lambda _seconds: opened.close()))
        return opened

    async def start(self, name: str, start: Callable[[], Coroutine[Any, Any, None]], stop: Stop) -> None:
        """Start something and stop it at the end."""
        await self.unless_stopping(start())
        self._parts.append(_Part(name, stop))

    async def unless_stopping(self, starting: Coroutine[Any, Any, T]) -> T:
        """The result, unless we are asked to stop before: what still waits for its server then is given up."""
        task = asyncio.create_task(starting)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StopRequested
        finally:
            task.cancel()
            stopping.cancel()
            await asyncio.wait({task, stopping})

    def watch(self, name: str, run: Run, *, drain: Run | None = None) -> None:
        """Run a background task: restarted after a pause when it dies, cancelled and then drained at the end."""
        task = asyncio.create_task(self._keep_running(name, run), name=name)

        async def stop(_seconds: float) -> None:
            task.cancel()
            await asyncio.wait([task])
            if drain is not None:
                await drain()

        self._parts.append(_Part(name, stop))

    async def wait(self) -> None:
        """Stay until asked to stop."""
        await self._stopping.wait()
        logger.info("shutdown signal received")

    async def _stop_parts(self) -> None:
        """Stop in reverse. A part that overruns is left behind, so that the rest still gets its turn."""
        loop = asyncio.get_running_loop()
        deadline = (self._requested_at or loop.time()) + self._grace
        while self._parts:
            part = self._parts.pop()
            reserve = MARGIN if self._parts else 0.0
            seconds = max(0.1, deadline - loop.time() - reserve)
            try:
                async with asyncio.timeout(seconds):
                    await part.stop(seconds)
            except TimeoutError:
                logger.error("part did not stop in time", extra={"part": part.name})  # noqa: TRY400 - no stack to show
            except Exception:
                logger.exception("part failed to stop", extra={"part": part.name})

    async def _keep_running(self, name: str, run: Run) -> None:
        while True:
            try:
                await run()
                logger.error("background task ended; restarting it", extra={"task": name})
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Something it waited for was cancelled by others: that must not end it without a word.
                logger.exception("background task was cancelled from inside; restarting it", extra={"task": name})
            except Exception:
                logger.exception("background task died; restarting it", extra={"task": name})
            await asyncio.sleep(self._restart_pause)
