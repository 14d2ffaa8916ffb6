"""Start in order, restart what dies, drain, stop in reverse, and all of it within a bounded time."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

logger = logging.getLogger("refract.supervisor")

RESTART_PAUSE = 5.0
GRACE = 10.0
"""Seconds from the signal to the end of the process."""

MARGIN = 1.0
"""What is kept back of the grace for the parts that are stopped last."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is started once and stopped once. `stop` is given the seconds it may take."""

    name: str
    start: Callable[[], Awaitable[None]] | None = None
    stop: Callable[[float], Awaitable[None]] | None = None


class Supervisor:
    """Runs the parts and the background tasks of one process."""

    def __init__(self, *, restart_pause: float = RESTART_PAUSE, grace: float = GRACE) -> None:
        self._restart_pause = restart_pause
        self._grace = grace
        self._parts: list[Part] = []
        self._started: list[Part] = []
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def add(self, part: Part) -> None:
        """Take a part on; parts start in the order in which they were added, and stop in reverse."""
        self._parts.append(part)

    def watch(
        self, name: str, run: Callable[[], Awaitable[None]], *, drain: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Take a background task on: restarted after a pause when it dies, cancelled and then drained at the end."""
        task: asyncio.Task[None] | None = None

        async def start() -> None:
            nonlocal task
            task = asyncio.create_task(self._keep_running(name, run), name=name)

        async def stop(_seconds: float) -> None:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            if drain is not None:
                await drain()

        self.add(Part(name, start, stop))

    def request_stop(self) -> None:
        """Begin to stop; asked a second time, wait for nothing any longer."""
        if self._stopping.is_set() and self._running is not None:
            self._running.cancel()
        self._stopping.set()

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Start everything, stay until asked to stop, stop everything. A part that cannot start raises its error here."""
        loop = asyncio.get_running_loop()
        self._running = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        try:
            await self._start()
            if ready is not None and not self._stopping.is_set():
                ready()
            await self._stopping.wait()
            logger.info("shutdown signal received")
        finally:
            await self._stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _start(self) -> None:
        for part in self._parts:
            if self._stopping.is_set():
                return
            if part.start is not None and not await self._started_before_stop(part.start):
                return
            self._started.append(part)

    async def _started_before_stop(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Whether a part came up; one that still waits for its server when we are asked to stop is given up."""
        starting = asyncio.ensure_future(start())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                return True
            return False
        finally:
            starting.cancel()
            stopping.cancel()
            await asyncio.wait({starting, stopping})

    async def _stop(self) -> None:
        """Stop in reverse. A part that overruns is left behind, so that the rest still gets its turn."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace
        while self._started:
            part = self._started.pop()
            if part.stop is None:
                continue
            last = not self._started
            seconds = max(0.1, deadline - loop.time() - (0 if last else MARGIN))
            try:
                await asyncio.wait_for(part.stop(seconds), seconds)
            except TimeoutError:
                logger.error("part did not stop in time", extra={"part": part.name})  # noqa: TRY400 - no stack to show
            except Exception:
                logger.exception("part failed to stop", extra={"part": part.name})

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                logger.error("background task ended; restarting it", extra={"task": name})
            except Exception:
                logger.exception("background task died; restarting it", extra={"task": name})
            await asyncio.sleep(self._restart_pause)
