"""Answers that last: whoever may not have one any more, because a token or key was taken back, has it no longer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from refract.runtime.edge import Message, Receive, Send

logger = logging.getLogger("refract.gateway")

LOOK_SECONDS = 0.5
"""Between two looks: a token is dead everywhere within a second."""

_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}
_LEFT: Message = {"type": "http.disconnect"}


class Lasting:
    """Stands between a client and a service that answers for hours. To the service it looks as if the client left.

    A stream of events ends like any other. A file is cut off: half of it must not look whole.
    """

    def __init__(self, receive: Receive, send: Send, may_go_on: Callable[[], Awaitable[bool]]) -> None:
        self._receive = receive
        self._send = send
        self._may_go_on = may_go_on
        self._is_sending = False
        self._is_events = False
        self._is_over = False

    async def receive(self) -> Message:
        """The client's next message; services wait for it as long as they answer."""
        receiving: asyncio.Future[Message] = asyncio.ensure_future(self._receive())
        try:
            while not (await asyncio.wait([receiving], timeout=LOOK_SECONDS))[0]:
                if not await self._may_go_on():
                    await self._end()
                    return _LEFT
            return receiving.result()
        finally:
            receiving.cancel()

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on, unless it is over."""
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            self._is_events = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
        self._is_sending = True
        try:
            await self._send(message)
        finally:
            self._is_sending = False

    async def _end(self) -> None:
        self._is_over = True
        logger.info("a stream is over: its token or key is good no more")
        if self._is_events and not self._is_sending:  # else it waits for a client who does not read, and is cut off
            await self._send(_END)
