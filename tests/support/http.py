"""A server on a free port, and a client that sends exactly the bytes it is told to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from refract.runtime.server import FastPath, HttpServer, ServerLimits

PATIENCE = 60.0
"""Seconds after which an answer is taken to be none: only what hangs takes so long."""


@asynccontextmanager
async def running(
    app: Any, *, limits: ServerLimits | None = None, fast_path: FastPath | None = None
) -> AsyncIterator[HttpServer]:
    """An application behind our server, for as long as the block lasts. Its limits are long unless they are given."""
    server = HttpServer(app, limits=limits or ServerLimits(receive=PATIENCE, send=PATIENCE), fast_path=fast_path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace=0.1)


@dataclass(frozen=True)
class Answer:
    """One response as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def closes(self) -> bool:
        """Whether the server says that it is the last of its connection."""
        return self.headers.get("connection", "").lower() == "close"


class Client:
    """One connection. Nothing is done behind the test's back: no retries, no header that was not asked for but Host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1") -> Self:
        """A new connection."""
        return cls(*await asyncio.open_connection(host, port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up at once."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, target: str, *headers: str, method: str = "GET") -> Answer:
        """One request without a body, and its answer."""
        await self.send(head(method, target, *headers))
        return await self.answer(to_head=method == "HEAD")

    async def post(self, target: str, body: bytes, *headers: str, method: str = "POST") -> Answer:
        """One request with a body of a known length, and its answer."""
        await self.send(head(method, target, f"Content-Length: {len(body)}", *headers) + body)
        return await self.answer()

    async def answer(self, *, to_head: bool = False) -> Answer:
        """The next response of this connection; one that does not come raises IncompleteReadError."""
        async with asyncio.timeout(PATIENCE):
            status, headers = await self._answer_head()
            while status == 100:
                status, headers = await self._answer_head()
            if to_head or status in {204, 304}:
                return Answer(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                return Answer(status, headers, await self._chunks())
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def is_closed(self) -> bool:
        """Wait until the server has closed the connection without another byte; False when bytes come instead."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def _answer_head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return body


def head(method: str, target: str, *headers: str) -> bytes:
    """The bytes of a request's head."""
    return "\r\n".join((f"{method} {target} HTTP/1.1", "Host: test", *headers, "", "")).encode("latin-1")


async def fetch(port: int, target: str, *headers: str, method: str = "GET") -> Answer:
    """One request without a body on a connection of its own."""
    async with await Client.connect(port) as client:
        return await client.get(target, *headers, method=method)
