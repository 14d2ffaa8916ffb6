"""The HTTP server: uvicorn's protocol inside our own event loop, started and stopped by whoever owns it."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from refract.kernel.errors import Misconfigured
from refract.runtime.fast_path import FastPath, HeldAnswer
from refract.runtime.protocol import Connection
from refract.runtime.turns import ServerLimits, Shared
from refract.runtime.waiting_line import admit_again, admit_nobody, let_in

__all__ = ["FastPath", "HeldAnswer", "HttpServer", "ServerLimits"]

log = logging.getLogger(__name__)

BACKLOG = 2048
LET_IN_AT_ONCE = 256
"""So many more clients are let in when the loop has let one in."""
HANDSHAKE_SECONDS = 0.05
"""How long a client may take to complete its handshake when nobody new is admitted any more."""
LAST_CALL_SECONDS = 0.25
"""How long a kept-alive connection may still bring a request after the stop, which is answered with `close`."""
CUT_SECONDS = 1.5
"""How much of the grace period is kept for cutting: whoever stops us may wait no longer than what we were given."""
WARNING_PAUSE = 60.0


class HttpServer:
    """Serves an ASGI application. It handles no signals, configures no logs and runs no lifespan events."""

    def __init__(
        self,
        app: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sockets: Sequence[socket.socket] | None = None,
        limits: ServerLimits | None = None,
        fast_path: FastPath | None = None,
        on_refusal: Callable[[int], None] | None = None,
    ) -> None:
        """`on_refusal` is given the status of each request that is refused before the application sees it."""
        self._host = host
        self.port = port  # once started, the real one
        self._sockets = sockets
        self._limits = limits or ServerLimits()
        self._fast_path = fast_path
        self._on_refusal = on_refusal
        self._config = Config(
            app,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._state = ServerState()
        self._listeners: list[asyncio.Server] = []
        self._letting_in = False
        self._entering: set[asyncio.Task[None]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._shared: Shared | None = None
        self._warned_at = -WARNING_PAUSE
        self.closed = False

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Return when connections are accepted; an address that cannot be had is Misconfigured."""
        loop = asyncio.get_running_loop()
        self._config.load()
        self._swept_at = loop.time()
        self._shared = shared = Shared(self._limits, self._fast_path, self._swept_at, self._on_refusal)

        try:
            if self._sockets is None:
                listener = await loop.create_server(self._first_of_many, self._host, self.port, backlog=BACKLOG)
                self._listeners.append(listener)
            for listening in self._sockets or ():
                admit_again(listening.fileno())
                listener = await loop.create_server(self._first_of_many, sock=listening, backlog=BACKLOG)
                self._listeners.append(listener)
        except OSError as error:
            # The loop's own words repeat the address; a name that cannot be found has a negative number and good words.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            host = f"[{self._host}]" if ":" in self._host else self._host
            raise Misconfigured(f"FATAL: cannot listen on {host}:{self.port}: {reason}") from error
        self.port = self._listeners[0].sockets[0].getsockname()[1]
        self._sweep(shared)

    async def stop(self, grace: float = 10.0) -> None:
        """Accept nothing more, finish what is under way within the grace period, then cut."""
        if self._shared is None or self.closed:
            return
        reserve = min(CUT_SECONDS, grace / 4)
        deadline = asyncio.get_running_loop().time() + grace - reserve
        await self._stop_listening()
        for connection in self._open_connections():
            connection.shutdown()
        await self._emptied(min(LAST_CALL_SECONDS, grace - reserve))
        await asyncio.sleep(0)  # if we stood still meanwhile, what has come is read first
        for connection in self._open_connections():
            connection.close_if_idle()
        await self._emptied(deadline - asyncio.get_running_loop().time())
        await self._tasks_done(deadline - asyncio.get_running_loop().time())
        await self._cut(reserve / 2)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.closed = True

    def _connection(self) -> Connection:
        assert self._shared is not None
        return Connection(self._config, self._state, self._shared)

    def _first_of_many(self) -> Connection:
        """The loop lets in one client in each of its turns, which are long when there is much to do: those who stand in
        the line behind that one would wait for seconds."""
        if not self._letting_in:
            self._letting_in = True
            asyncio.get_running_loop().call_soon(self._let_in_others)
        return self._connection()

    def _let_in_others(self) -> None:
        self._letting_in = False
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            for listening in listener.sockets:
                for accepted in let_in(listening.fileno(), LET_IN_AT_ONCE):
                    task = loop.create_task(self._serve(accepted))
                    self._entering.add(task)
                    task.add_done_callback(self._entering.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # it has gone
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, accepted)

    async def _stop_listening(self) -> None:
        """Close the listeners, and cut off nobody who was told that he is connected."""
        for listener in self._listeners:
            for listening in listener.sockets:
                admit_nobody(listening.fileno())
        await asyncio.sleep(HANDSHAKE_SECONDS)
        waiting: list[socket.socket] = []
        for listener in self._listeners:
            for listening in listener.sockets:
                waiting += let_in(listening.fileno(), BACKLOG)
            listener.close()
        for accepted in waiting:
            await self._serve(accepted)
        if self._entering:
            await asyncio.wait(tuple(self._entering))

    async def _cut(self, seconds: float) -> None:
        for connection in self._open_connections():
            connection.transport.abort()
        await asyncio.sleep(0)  # the connections learn of it first, and say so to those who work for them
        for task in tuple(self._state.tasks):
            task.cancel()
        await self._tasks_done(seconds)

    async def _emptied(self, timeout: float) -> None:
        assert self._shared is not None
        if not self._state.connections:
            return
        self._shared.emptied.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._shared.emptied.wait()
        except TimeoutError:
            return

    async def _tasks_done(self, timeout: float) -> None:
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=max(0.0, timeout))

    def _open_connections(self) -> list[Connection]:
        return [connection for connection in self._state.connections if isinstance(connection, Connection)]

    def _sweep(self, shared: Shared) -> None:
        """Once in a while set the clock and the date, and look for connections that are over their time.

        Time in which we stood still ourselves is held against nobody: it is then that what a client sent was not read.
        """
        limits = self._limits
        interval = max(0.02, min(1.0, limits.receive / 4, limits.send / 4, limits.idle / 4))
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(interval, self._sweep, shared)
        now = loop.time()
        shared.now += min(now - self._swept_at, 2 * interval)
        self._swept_at = now
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in self._open_connections():
            connection.check_deadlines(shared.now, interval)
        if shared.now - self._warned_at >= WARNING_PAUSE:
            self._warn_if_no_files_are_left(shared.now)

    def _warn_if_no_files_are_left(self, now: float) -> None:
        """Say that clients are turned away for want of file descriptors: the loop closes them without a word."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._warned_at = now
                log.warning("no file descriptors are left: new connections are dropped", extra={"port": self.port})
