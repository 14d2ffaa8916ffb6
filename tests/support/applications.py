"""Small ASGI applications for tests of the server."""

import asyncio
from typing import Any

from refract.runtime.edge import Receive, Scope, Send, answer


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the method, the path and the length of the body."""
    body = await read_body(receive)
    await answer(send, 200, f"{scope['method']} {scope['path']} {len(body)}".encode(), b"text/plain")


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    body = b""
    while True:
        event: dict[str, Any] = await receive()
        body += bytes(event.get("body", b""))
        if event["type"] == "http.disconnect" or not event["more_body"]:
            return body


class Gate:
    """An application whose answers wait until the test opens it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.waiting += 1
        await self.opened.wait()
        await echo(scope, receive, send)
