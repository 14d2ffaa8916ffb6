"""Receivers of webhooks on loopback, which keep what they get and answer with the bytes they are told to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def status(code: int, *headers: str) -> bytes:
    """An answer without a body."""
    return "\r\n".join((f"HTTP/1.1 {code} X", "Content-Length: 0", *headers, "", "")).encode()


@dataclass(frozen=True)
class Request:
    """What came."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        """The body as JSON."""
        decoded: dict[str, object] = msgspec.json.decode(self.body)
        return decoded


@dataclass
class Receiver:
    """Answers each request with the next of its answers, and with the last for ever; None is no answer at all."""

    answers: list[bytes | None]
    endless: bytes = b""
    """What is sent again and again after an answer."""
    hangs_up: bool = False
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    on_request: Callable[[], None] | None = None
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, host: str = "127.0.0.1", path: str = "/hook", scheme: str = "http") -> str:
        """Where it is."""
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        self.connections += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._converse(reader, writer)
        finally:
            self.open -= 1
            if self.hangs_up:
                writer.close()
            else:
                writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Request(line, headers, body))
        if self.on_request is not None:
            self.on_request()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await reader.read()
            return
        writer.write(answer)
        while self.endless:
            writer.write(self.endless)
            await writer.drain()
            await asyncio.sleep(0)  # the other side lives in the same loop
        await writer.drain()
        if not self.hangs_up:
            await reader.read()  # the client closes


@asynccontextmanager
async def receiver(
    *answers: bytes | None, endless: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiving = Receiver(list(answers) or [OK], endless)
    server = await asyncio.start_server(receiving.serve, "127.0.0.1", 0, ssl=tls)
    receiving.port = server.sockets[0].getsockname()[1]
    try:
        yield receiving
    finally:
        server.close()
        for task in list(receiving.serving):
            task.cancel()
        if receiving.serving:
            await asyncio.wait(receiving.serving)
