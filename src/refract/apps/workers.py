"""Several processes behind one port: the parent that starts and replaces them, and a worker's line to it (ADR 0012)."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from refract.kernel.errors import Misconfigured
from refract.runtime.settings import ProcessSettings
from refract.runtime.supervisor import Supervisor

logger = logging.getLogger("refract.workers")

VARIABLE: Final = "REFRACT_WORKER"
"""How a worker knows its place. Between parent and worker only: whoever runs Refract sets WORKERS."""

GRACE: Final = 9.5
"""Seconds from the signal until workers that still run are killed: theirs is 8, and the parent ends within ten."""
STEADY_SECONDS: Final = 10.0
"""A worker that has answered for so long is replaced at once when it dies, and earlier deaths are forgotten."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
QUEUE_SECONDS: Final = 3.0
"""How long clients wait for the successor of a worker that died; from then on the others are given all new ones."""

_LISTENING = b"l"
_READY = b"r"
_GO = b"g"


class WorkersFailed(Exception):
    """The first worker ended before it answered anybody, and said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the first worker ended with status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker is given: its index, its listening sockets, and the line to its parent."""

    index: int
    sockets: tuple[socket.socket, ...]
    line: socket.socket
    _may_listen: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def taken(cls) -> Self | None:
        """This process's place; None when it was started by hand. From now on it ends when its parent does."""
        text = os.environ.pop(VARIABLE, "")
        if not text:
            return None
        try:
            index, line, *listening = map(int, text.split(","))
            descriptors = [line, *listening]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)  # noqa: FBT003
            first, *others = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        except (ValueError, OSError):
            raise Misconfigured(f'FATAL: environment variable "{VARIABLE}" is not yours to set; unset it') from None
        place = cls(index, tuple(others), first)
        threading.Thread(target=place._heed_parent, name="parent", daemon=True).start()
        return place

    def metrics(self, settings: ProcessSettings) -> tuple[str, int] | None:
        """Where this worker shows its metrics: at METRICS_ADDR's port the first, and each of the others one further."""
        if settings.metrics is None:
            return None
        host, port = settings.metrics
        return host, port + self.index

    async def permission(self) -> None:
        """Return when the parent knows that we are about to listen, and leaves the sockets to us."""
        self._say(_LISTENING)
        while not self._may_listen.is_set():  # noqa: ASYNC110  # it is set by a thread, and this is once in a life
            await asyncio.sleep(0.002)

    def ready(self) -> None:
        """Tell the parent that we answer."""
        self._say(_READY)

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # it is gone, and we are about to hear of it
            self.line.sendall(word)

    def _heed_parent(self) -> None:
        """Wait for the line to end; a thread of its own notices that also while the event loop is stuck."""
        with suppress(OSError):
            while self.line.recv(1):
                self._may_listen.set()
        self._may_listen.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)


async def run_workers(service: str, settings: ProcessSettings) -> None:
    """Be the parent of a service's workers until a signal comes. All settings were read and found right before."""
    if settings.metrics is not None and settings.metrics[1] + settings.workers - 1 > 65535:
        raise Misconfigured(
            f'FATAL: environment variable "METRICS_ADDR" has port {settings.metrics[1]}; '
            f"expected at most {65536 - settings.workers} for {settings.workers} workers"
        )
    places = await bind(settings.host, settings.port, settings.workers)
    # -P: what lies in the current directory is not our code.
    crew = Crew((sys.executable, "-P", "-m", "refract.apps.cli", "run", service), places)
    status = 0
    async with Supervisor(grace=GRACE) as supervisor:
        await supervisor.start("workers", crew.start, crew.stop)
        try:
            await supervisor.unless_stopping(crew.first_answers())
        except WorkersFailed as error:
            status = error.status
        else:
            crew.start_others()
            await supervisor.wait()
    if status:
        sys.exit(status)


async def bind(host: str, port: int, count: int) -> list[list[socket.socket]]:
    """A socket on every address of the host for each worker: the kernel spreads connections evenly among them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = sorted({(family, address) for family, _, _, _, address in found}, key=str)
        for family, address in addresses:
            # Sockets that share a port share it with everybody who asks for that: first see that nobody has it.
            _bound(family, address, shared=False).close()
        return [[_bound(family, address, shared=True) for family, address in addresses] for _ in range(count)]
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        place = f"[{host}]" if ":" in host else host
        raise Misconfigured(f"FATAL: cannot listen on {place}:{port}: {reason}; check HOST and PORT") from error


def _bound(family: int, address: object, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)  # noqa: FBT003
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)  # type: ignore[arg-type]  # what getaddrinfo gave
    except BaseException:
        bound.close()
        raise
    return bound


class Crew:
    """The workers of one service: each place has one process, which is replaced when it dies."""

    def __init__(
        self,
        command: Sequence[str],
        places: Sequence[Sequence[socket.socket]],
        *,
        steady: float = STEADY_SECONDS,
        queue: float = QUEUE_SECONDS,
    ) -> None:
        self._command = command
        self._places = places
        self._steady = steady
        self._queue = queue
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._lines: dict[int, socket.socket] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """The processes there are, by their places."""
        return [process.pid for _, process in sorted(self._processes.items())]

    async def start(self) -> None:
        """Start the first worker: it migrates, and what it finds wrong is said once."""
        self._tasks.append(asyncio.create_task(self._keep(0)))

    async def first_answers(self) -> None:
        """Return when the first worker answers; WorkersFailed if it ended with an error of its own before that."""
        [first] = self._tasks
        answered = asyncio.create_task(self._answered.wait())
        await asyncio.wait({first, answered}, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        if first.done():
            first.result()

    def start_others(self) -> None:
        """Start all but the first."""
        self._tasks += [asyncio.create_task(self._keep(index)) for index in range(1, len(self._places))]

    async def stop(self, seconds: float) -> None:
        """End all workers; those that still run when the time is over are killed."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for listening in self._sockets():
            listening.close()  # else clients would queue for nobody
        processes = list(self._processes.values())
        for process in processes:
            _signal(process, signal.SIGTERM)
        waiting = [asyncio.create_task(process.wait()) for process in processes]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=max(0.1, seconds - 0.5))
        finally:  # also when a second signal says not to wait
            late = [process for process in processes if process.returncode is None]
            for process in late:
                logger.error("worker did not end in time; killed", extra={"pid": process.pid})
                _signal(process, signal.SIGKILL)
        if waiting:
            await asyncio.wait(waiting)
        # Not before: its end is a signal too, and a second one would cut short what the first one began.
        for line in self._lines.values():
            line.close()

    async def _keep(self, index: int) -> None:
        """Run one process after another in a place."""
        pause, died_at = 0.0, None
        while True:
            answered_at, ended = None, {}
            try:
                process = await self._start(index)
                answered_at = await self._answers(index, died_at)
                await process.wait()
                ended = self._end(index, process)
            except OSError:
                logger.exception("worker cannot be started", extra={"worker": index})
                if (line := self._lines.pop(index, None)) is not None:
                    line.close()
            died_at = time.monotonic()
            steady = answered_at is not None and died_at - answered_at >= self._steady
            pause = 0.0 if steady else min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
            extra = {"worker": index, **ended, "pause": pause}
            logger.error("worker ended; starting another", extra=extra)
            if pause > FIRST_PAUSE:  # once is bad luck
                self._turn_away(index)
            await asyncio.sleep(pause)

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        """A new process in a place, with a new line to it."""
        self._lines[index], theirs = socket.socketpair()
        self._lines[index].setblocking(False)  # noqa: FBT003
        with theirs:
            descriptors = [theirs.fileno(), *(listening.fileno() for listening in self._places[index])]
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, VARIABLE: ",".join(map(str, (index, *descriptors)))},
                pass_fds=descriptors,
            )
        self._processes[index] = process
        return process

    def _end(self, index: int, process: asyncio.subprocess.Process) -> dict[str, int]:
        """Forget a process that ended; what to say of it. WorkersFailed when nobody has ever been answered."""
        del self._processes[index]
        self._lines.pop(index).close()
        status = process.returncode or 0
        if status > 0 and not self._answered.is_set():
            raise WorkersFailed(status)
        return {"pid": process.pid, "status": status}

    async def _answers(self, index: int, died_at: float | None) -> float | None:
        """Follow what a worker says until it answers, or ends; when it began to answer, if it did."""
        loop, line = asyncio.get_running_loop(), self._lines[index]
        said = asyncio.ensure_future(loop.sock_recv(line, 1))
        try:
            if died_at is not None:
                await asyncio.wait([said], timeout=max(0.0, died_at + self._queue - time.monotonic()))
                if not said.done():
                    self._turn_away(index)
            with suppress(ConnectionError):  # it ended
                if await said == _LISTENING:
                    await loop.sock_sendall(line, _GO)
                    if await loop.sock_recv(line, 1) == _READY:
                        self._answered.set()
                        return time.monotonic()
        finally:
            said.cancel()
        return None

    def _turn_away(self, index: int) -> None:
        """Take a place's sockets out of the group until its worker listens again: its clients come back to others.

        One that does not listen is left alone: to the kernel it would be shut down for good, and whoever connects to it
        later would be told that there is nothing more to read.
        """
        for listening in self._places[index]:
            if listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.shutdown(socket.SHUT_RD)

    def _sockets(self) -> list[socket.socket]:
        return [listening for place in self._places for listening in place]


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
