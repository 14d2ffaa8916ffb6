"""A TCP proxy on loopback that can pause, cut and swallow what passes through it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 65_536


class _Passage:
    """One client's connection and, once it is made, the one behind it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.swallowing = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True
        for writer in self.writers:
            writer.transport.abort()


class FaultProxy:
    """Passes bytes to one server until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._passages: set[_Passage] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._swallowing = False
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def to(cls, host: str, port: int) -> AsyncIterator["FaultProxy"]:
        """A running proxy to a server."""
        proxy = cls(host, port)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        try:
            yield proxy
        finally:
            proxy._closed = True
            proxy._server.close()
            proxy.cut()
            proxy._flowing.set()
            await proxy._server.wait_closed()

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._passages)

    def pause(self) -> None:
        """Hold everything back; nothing is lost."""
        self._flowing.clear()

    def swallow(self) -> None:
        """Be a black hole: connections stay open, and nothing comes out of them any more, old or new."""
        self._swallowing = True
        for passage in self._passages:
            passage.swallowing = True

    def heal(self) -> None:
        """Let bytes and new connections through; those that lost bytes stay silent until they are closed."""
        self._swallowing = False
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection; new ones are let through."""
        for passage in self._passages:
            passage.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = _Passage(writer)
        self._passages.add(passage)  # from now on: whoever cuts means this one, too
        try:
            behind_reader, behind_writer = await asyncio.open_connection(*self._target)
            passage.writers.append(behind_writer)
            if not passage.aborted and not self._closed:
                passage.swallowing = self._swallowing
                await self._join(passage, reader, behind_reader)
        except OSError:  # the server is away: so is the proxy
            pass
        finally:
            passage.abort()
            self._passages.discard(passage)

    async def _join(self, passage: _Passage, reader: asyncio.StreamReader, behind: asyncio.StreamReader) -> None:
        client, server = passage.writers
        outwards = asyncio.create_task(self._pass(passage, reader, server))
        inwards = asyncio.create_task(self._pass(passage, behind, client))
        await outwards  # ends with the client; the server's end is passed on, unless bytes are swallowed
        passage.abort()
        await inwards

    async def _pass(self, passage: _Passage, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                await self._flowing.wait()
                if not passage.swallowing:
                    target.write(chunk)
                    await target.drain()
        if not passage.swallowing:
            target.transport.abort()


@asynccontextmanager
async def proxy_before(dsn: str) -> AsyncIterator[tuple[str, FaultProxy]]:
    """A proxy before the server of a DSN: the DSN that leads through it, and the proxy."""
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    async with FaultProxy.to(parts.hostname, parts.port) as proxy:
        netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"
        yield parts._replace(netloc=netloc).geturl(), proxy
