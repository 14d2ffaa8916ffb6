"""HTTP/1.1 connections to one service, each for one exchange at a time, and the pool of those that wait."""

import asyncio
import errno
import os
import ssl
from typing import cast
from urllib.parse import urlsplit

import httptools

from refract.services.gateway.adapters.exchanges import HIGH_WATER, ConnectionDied, Exchange, Trouble
from refract.services.gateway.domain.headers import Overstretched

KEEP_ALIVE = 30.0
"""Seconds that an idle connection is kept: well under the services' own 120, so that we rarely find one dead."""

HEAD_BYTES = 256 * 1024
"""No head of an answer is longer."""

_VERSIONS = frozenset({"1.0", "1.1"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Of files, of memory, of ports."""


class Connection(asyncio.Protocol):
    """Writes requests, and parses answers into the exchange that it carries."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast(asyncio.Transport, None)
        self._exchange: Exchange | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._framed = False  # the head said how long the body is
        self._reading_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._usable = True
        self.idle_since = 0.0

    # What the proxy does with it.

    def ask(self, exchange: Exchange, data: bytes) -> None:
        """Send a request, or as much of it as is known, and take its answer for this exchange."""
        self._exchange = exchange
        self._headers = exchange.headers
        self._head_bytes = 0
        self._framed = False
        if self._transport.is_closing():  # it died before it was asked anything, and a write would be an error of ours
            exchange.fail(ConnectionDied("the connection was closed"))
        else:
            self._transport.write(data)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body, and return when there is room for more."""
        if self._transport.is_closing():
            return  # whoever waits for the answer has been told
        self._transport.write(data)
        if self._writing_paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def take(self, exchange: Exchange) -> bytes:
        """What has come of the body since the last time; waits until something has."""
        while not exchange.pieces and not exchange.whole:
            await exchange.news()
        return self.collect(exchange)

    def collect(self, exchange: Exchange) -> bytes:
        """What has come of the body since the last time; there is room for more then."""
        piece = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
        exchange.pieces.clear()
        exchange.held = 0
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        return piece

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return self._usable and not self._transport.is_closing()

    def let_go(self, exchange: Exchange) -> None:
        """The exchange is over: wait in the pool for the next one, or end. Said twice, it is heard once."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if exchange.whole and exchange.sent and not exchange.pieces and self.is_usable:
            self._pool.put_back(self)
        else:
            self._transport.abort()

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    # What the loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The service is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer. Bytes that belong to none end the connection: the next answer could be forged."""
        exchange = self._exchange
        if exchange is None or exchange.whole:
            self._transport.abort()
            return
        exchange.heard = True
        if not exchange.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._usable = False  # it was not asked to, and its answer cannot be passed on
        except httptools.HttpParserError:
            self._usable = False
            exchange.fail(Trouble("an answer that is no HTTP"))
        if exchange.to_head and exchange.whole:
            self._parser = httptools.HttpResponseParser(self)  # the old one would wait for the body that was announced
        elif not exchange.status and self._head_bytes > HEAD_BYTES:
            exchange.fail(Trouble("an answer with an endless head"))
        exchange.wake()

    def eof_received(self) -> None:
        """No more will come, which is how some answers end."""
        self._usable = False
        if self._exchange is not None and self._exchange.status and not self._framed:
            self._exchange.whole = True
            self._exchange.wake()

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone."""
        self._pool.forget(self)
        if self._exchange is not None:
            self._exchange.fail(ConnectionDied("the connection was closed"))

    def pause_writing(self) -> None:
        """The service reads too slowly."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """The service has caught up."""
        self._writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What the parser tells it.

    def on_message_begin(self) -> None:
        """The first byte of an answer."""
        if self._exchange is None or self._exchange.whole:
            raise Trouble("an answer to no request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field. Those after a body are dropped."""
        assert self._exchange is not None, "nothing is parsed without one"
        if self._exchange.status:
            return
        name, value = name.lower(), value.rstrip(b" \t")
        if name in _FRAMING:
            if name == b"transfer-encoding" and (self._framed or value.lower() != b"chunked"):
                raise Trouble("a body in an unknown coding")
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        exchange = self._exchange
        assert exchange is not None, "nothing is parsed without one"
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if version not in _VERSIONS:
            raise Trouble("an answer in another HTTP")
        if not status:
            raise Trouble("an answer without a status")  # 000 would be taken for a head that is not here yet
        if 100 <= status < 200 and status != 101:
            self._headers.clear()  # not the answer yet
            self._framed = False
            return
        exchange.status = status
        if exchange.to_head:
            exchange.whole = True
            closes = any(name == b"connection" and b"close" in value.lower() for name, value in self._headers)
            self._usable = version == "1.1" and not closes

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        exchange = self._exchange
        if exchange is None or exchange.whole:
            raise Trouble("a body after the answer")
        exchange.pieces.append(body)
        exchange.held += len(body)
        if exchange.held > HIGH_WATER and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The last byte of an answer."""
        exchange = self._exchange
        if exchange is not None and exchange.status and not exchange.to_head:
            exchange.whole = True
            self._usable = self._parser.should_keep_alive()


class Pool:
    """The connections to one service. It has no bound: our own server bounds the requests, and each needs one."""

    def __init__(self, url: str, connect_timeout: float) -> None:
        parts = urlsplit(url)
        self.place = url.rstrip("/")
        self.host = parts.netloc.encode()
        self.prefix = parts.path.rstrip("/").encode()
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._idle: list[Connection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.connections: set[Connection] = set()

    def waiting(self) -> Connection | None:
        """The connection that was used last, as the one that is most likely to live."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def connect(self) -> Connection:
        """A new connection; raises Overstretched where we have nothing left to make one of."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(lambda: Connection(self), *self._address, ssl=self._tls)
        except OSError as error:
            if error.errno in _SHORTAGES or _no_files_are_left():
                raise Overstretched(f"no connection can be made: {error.strerror or error}") from error
            raise
        return connection

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(KEEP_ALIVE, self._prune)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """End every connection, and keep no other."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self.connections):
            connection.close()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0)  # the loop tells them in its next turns

    def _prune(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE
        for connection in [each for each in self._idle if each.idle_since <= oldest]:
            self._idle.remove(connection)
            connection.close()
        self._timer = loop.call_at(self._idle[0].idle_since + KEEP_ALIVE, self._prune) if self._idle else None


def _no_files_are_left() -> bool:
    """Who looks up a name without a file for it is told that there is no such name."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in _SHORTAGES
    return False
