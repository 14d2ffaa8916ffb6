"""One request to a service and its answer as it comes in, with whatever may end both before their time."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from refract.kernel.errors import Invalid, RefractError
from refract.runtime.edge import Message, Receive, Scope
from refract.runtime.exchange import ended_with
from refract.services.gateway.domain.headers import Header, lines_of

HIGH_WATER = 64 * 1024
"""So many bytes of an answer are held for a client that reads slowly, before the service has to wait."""

_REPEATABLE = frozenset({"GET", "HEAD"})
_BREAKS = b"\r\n\0"
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


class Trouble(Exception):
    """The service did not do its part; the text says how, and holds nothing of the request."""


class ConnectionDied(Trouble):
    """The connection ended before the answer did."""


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


def head_of(method: bytes, target: bytes, host: bytes, lines: bytes) -> bytes:
    """The head of a request."""
    return b"".join((method, b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n", lines, b"\r\n"))


class Question:
    """A request in the bytes that go to a service: its head, and how the body is framed."""

    __slots__ = ("body", "chunked", "head", "method", "repeatable", "streams")

    def __init__(
        self,
        method: str,
        target: bytes,
        host: bytes,
        headers: Sequence[Header],
        first: Message,
        *,
        harmless: bool = False,
    ) -> None:
        """`harmless`: it may be asked twice, whatever its method says."""
        if target.translate(None, _BREAKS) != target:
            raise Invalid("malformed request")
        self.method = method
        self.body: bytes = first.get("body", b"")
        self.streams = bool(first.get("more_body", False))
        length: bytes | None = None
        if self.streams:
            length = next((value for name, value in headers if name == b"content-length"), None)
        elif self.body or method not in _REPEATABLE:
            length = b"%d" % len(self.body)
        self.chunked = self.streams and length is None
        # A body that streams can be read once.
        self.repeatable = (harmless or method in _REPEATABLE) and not self.streams
        fields = [field for field in headers if field[0] not in _FRAMING]
        if length is not None:
            fields.append((b"content-length", length))
        elif self.chunked:
            fields.append((b"transfer-encoding", b"chunked"))
        self.head = head_of(method.encode("ascii"), target, host, lines_of(fields))

    @classmethod
    def asked(cls, method: str, head: bytes) -> "Question":
        """A question without a body that has been asked already."""
        question = cls.__new__(cls)
        question.method, question.head, question.body = method, head, b""
        question.streams = question.chunked = False
        question.repeatable = method in _REPEATABLE
        return question

    def framed(self, piece: bytes) -> bytes:
        """A piece of the body as it is written."""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece


class Exchange:
    """What is known of an answer, and whoever waits for more of it.

    The connection fills it in. It fails when the deadline is over, which runs while the service is awaited and never
    while the client is, and when the client goes away.
    """

    __slots__ = (
        "_receive",
        "_scope",
        "_waiter",
        "_watcher",
        "deadline",
        "error",
        "headers",
        "heard",
        "held",
        "pieces",
        "sent",
        "status",
        "to_head",
        "whole",
    )

    def __init__(self, scope: Scope, receive: Receive, *, to_head: bool, sent: bool) -> None:
        """`sent`: the whole request has left, or will with its head."""
        self._scope = scope
        self._receive = receive
        self._waiter: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.to_head = to_head
        self.deadline = math.inf
        self.error: Exception | None = None
        self.status = 0
        self.headers: list[Header] = []
        self.pieces: list[bytes] = []
        self.held = 0
        self.heard = False  # at least one byte came back
        self.sent = sent
        self.whole = False  # the whole answer is here

    async def head(self) -> None:
        """Return when the head of the answer is here."""
        while not self.status:
            await self.news()

    async def news(self) -> None:
        """Return when something has happened; raise what ended the exchange."""
        if self.error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.error is not None:
            raise self.error

    def wake(self) -> None:
        """Something has happened."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End it, unless the answer is here already. The first reason is the one that counts."""
        if not self.whole and self.error is None:
            self.error = error
            self.wake()

    def check(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        """Called once in a while: most exchanges are over before that, and need neither a timer nor a task."""
        if not self.status:
            if now >= self.deadline:
                self.fail(TimeoutError())
            elif ended_with(self._scope):
                self.fail(ClientLeft())
        elif self.sent and self._watcher is None:
            # An answer that is under way: our server says nothing more of its client, but to who waits for it.
            self._watcher = loop.create_task(self._watch())

    def upload(self, question: Question, write: Callable[[bytes], Awaitable[None]], patience: float) -> None:
        """Send the body as it comes, while the answer may come already."""
        self._watcher = asyncio.get_running_loop().create_task(self._upload(question, write, patience))

    def end(self) -> None:
        """Nobody waits any more."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _upload(self, question: Question, write: Callable[[bytes], Awaitable[None]], patience: float) -> None:
        loop = asyncio.get_running_loop()
        piece, more = question.body, True
        while True:
            self.deadline = loop.time() + patience
            if piece:
                await write(question.framed(piece))
            if not more:
                break
            self.deadline = math.inf
            message = await self._next()
            if message is None:
                return  # to end the body here would make half of it look whole
            piece, more = message.get("body", b""), message.get("more_body", False)
        if question.chunked:
            await write(b"0\r\n\r\n")
        self.sent = True
        await self._watch()

    async def _watch(self) -> None:
        """Wait for the client to go away."""
        while await self._next() is not None:
            pass

    async def _next(self) -> Message | None:
        """The client's next message; None where it has gone or is refused, which ends the exchange."""
        try:
            message: Message = await self._receive()
        except RefractError as error:
            self.fail(error)
            return None
        if message["type"] == "http.disconnect":
            self.fail(ClientLeft())
            return None
        return message
