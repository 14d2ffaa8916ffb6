"""The HTTP server: uvicorn's protocol inside our own event loop, started and stopped by whoever owns it."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from refract.kernel.errors import Misconfigured
from refract.runtime.fast_path import FastPath, HeldAnswer
from refract.runtime.protocol import Connection
from refract.runtime.turns import ServerLimits, Shared

__all__ = ["FastPath", "HeldAnswer", "HttpServer", "ServerLimits"]

log = logging.getLogger(__name__)

BACKLOG = 2048
LAST_CALL_SECONDS = 0.25
"""How long a kept-alive connection may still bring a request after the stop, which is answered with `close`."""


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
    ) -> None:
        self._host = host
        self.port = port  # once started, the real one
        self._sockets = sockets
        self._limits = limits or ServerLimits()
        self._fast_path = fast_path
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
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._shared: Shared | None = None
        self.closed = False

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Return when connections are accepted; an address that cannot be had is Misconfigured."""
        loop = asyncio.get_running_loop()
        self._config.load()
        self._shared = shared = Shared(self._limits, self._fast_path, loop.time())

        def connection() -> Connection:
            return Connection(self._config, self._state, shared)

        try:
            if self._sockets is None:
                self._listeners.append(await loop.create_server(connection, self._host, self.port, backlog=BACKLOG))
            for listening in self._sockets or ():
                self._listeners.append(await loop.create_server(connection, sock=listening, backlog=BACKLOG))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error  # the loop's own words repeat the address
            raise Misconfigured(f"FATAL: cannot listen on {self._host}:{self.port}: {reason}") from error
        self.port = self._listeners[0].sockets[0].getsockname()[1]
        self._sweep(shared)

    async def stop(self, grace: float = 10.0) -> None:
        """Accept nothing more, finish what is under way within the grace period, then cut."""
        if self._shared is None or self.closed:
            return
        deadline = asyncio.get_running_loop().time() + grace
        for listener in self._listeners:
            listener.close()
        for connection in self._open_connections():
            connection.shutdown()
        await self._emptied(min(LAST_CALL_SECONDS, grace))
        for connection in self._open_connections():
            connection.close_if_idle()
        await self._emptied(deadline - asyncio.get_running_loop().time())
        await self._tasks_done(deadline - asyncio.get_running_loop().time())
        await self._cut()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.closed = True

    async def _cut(self) -> None:
        for connection in self._open_connections():
            connection.transport.abort()
        for task in tuple(self._state.tasks):
            task.cancel()
        await self._tasks_done(1.0)

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
        """Once in a while set the clock and the date, and look for connections that are over their time."""
        limits = self._limits
        interval = max(0.02, min(1.0, limits.receive / 4, limits.send / 4, limits.idle / 4))
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(interval, self._sweep, shared)
        shared.now = loop.time()
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in self._open_connections():
            connection.check_deadlines(shared.now, interval)
