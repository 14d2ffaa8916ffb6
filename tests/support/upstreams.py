"""Services that say exactly the bytes they are told to, and the proxy alone before them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from refract.kernel.errors import Invalid
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.headers import UpstreamFailed
from tests.support.fronts import ROOMY, send_answer, url_of
from tests.support.http import running

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Script:
    """A service that answers the requests of each connection with these bytes, one after the other, and then ends."""

    def __init__(self, *answers: bytes, stays: bool = True) -> None:
        self._answers = answers
        self._stays = stays
        self.heads: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if self._stays:
                await reader.read()
        writer.close()


Open = Callable[..., Awaitable[int]]


@asynccontextmanager
async def doors() -> AsyncIterator[Open]:
    """The proxy alone before a service, which is a script or an application, behind our own server."""
    async with AsyncExitStack() as stack:

        async def open_door(service: Script | Application | str, **patience: float) -> int:
            if isinstance(service, str):
                url = service
            elif isinstance(service, Script):
                server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
                stack.callback(server.close)
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            else:
                url = url_of(await stack.enter_async_context(running(service, limits=ROOMY)))
            services = Proxy({"links": url}, **patience)
            stack.push_async_callback(services.close)
            front = await stack.enter_async_context(running(through(services), limits=ROOMY))
            return front.port

        yield open_door


def through(services: Proxy) -> Application:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        hops = {b"host", b"transfer-encoding", b"connection", b"expect"}
        inner = {**scope, "headers": [field for field in scope["headers"] if field[0] not in hops]}
        try:
            await services.forward("links", inner, receive, send)
        except (UpstreamFailed, Invalid) as error:
            await send_answer(send, 502 if isinstance(error, UpstreamFailed) else 400, str(error).encode())

    return application


class Unreachable:
    """A listener whose line is full: connections to it neither fail nor come to be."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._fillers = [socket.socket() for _ in range(4)]
        for filler in self._fillers:
            filler.setblocking(False)
            filler.connect_ex(self._listener.getsockname())

    def close(self) -> None:
        for each in (*self._fillers, self._listener):
            each.close()


class Uploader:
    """A client that never stops sending, or never says anything again; what it hears is thrown away."""

    def __init__(self, *, endless: bool) -> None:
        self._endless = endless
        self.sent = 0

    async def receive(self) -> object:
        if self.sent and not self._endless:
            await asyncio.get_running_loop().create_future()
        self.sent += 65536
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": self._endless}

    async def send(self, _message: object) -> None:
        return
