"""Hears PostgreSQL's notifications on a connection of its own, which is opened again whenever it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from refract.kernel.errors import RefractError, Unavailable
from refract.runtime.distributed.postgresql import translated

if TYPE_CHECKING:
    from refract.runtime.distributed.postgresql import Connection

logger = logging.getLogger("refract.database")

RECONNECT_PAUSE = 1.0


class Listener:
    """Calls `heard` with the payload of every notification, and with None after every connect: some may have been
    missed before it."""

    def __init__(
        self, channel: str, connect: Callable[[], Awaitable["Connection"]], heard: Callable[[str | None], None]
    ) -> None:
        self._channel = channel
        self._connect = connect
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen from now on, if it does not yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen_for_ever(), name=f"listener of {self._channel}")

    async def stop(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except RefractError as error:
                logger.warning("database listener lost; polling until it is back", extra={"reason": str(error)})
            await asyncio.sleep(RECONNECT_PAUSE)

    async def _listen(self) -> None:
        connection = await self._connect()
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            with translated("listen"):
                await connection.add_listener(self._channel, lambda *said: self._heard(said[-1]))
            self._heard(None)
            await lost.wait()
        finally:
            connection.terminate()
        raise Unavailable("database", "the listening connection was closed")
