"""Requests that repeat themselves: a head that was parsed once is known when it comes again on the same connection."""

import asyncio
import logging

from uvicorn.config import Config
from uvicorn.server import ServerState

from refract.runtime.fast_path import HeldAnswer
from refract.runtime.turns import Shared, TurnTaking

log = logging.getLogger(__name__)

LESSONS = 8
"""So often a connection's heads are learnt without one of them coming again."""

NOTHING = memoryview(b"")

_GET = b"GET "
_VERSION = b" HTTP/1.1\r\n"
_END = b"\r\n\r\n"


class RepeatedHeads(TurnTaking):
    """Answers a GET on the fast path without parsing it, if all behind its target was parsed on this connection before.

    Parsing is most of what a redirect costs. Nothing is taken for granted that the parser has not seen to the byte,
    but the target, which the fast path has to know as it stands.
    """

    __slots__ = (
        "_answered_fast",
        "_draining",
        "_fast_path",
        "_lessons",
        "_message_open",
        "_peer",
        "_remembered",
        "_repeated",
        "_unparsed",
    )

    def __init__(self, config: Config, state: ServerState, shared: Shared) -> None:
        super().__init__(config, state, shared)
        self._fast_path = shared.fast_path
        self._peer = ""
        self._draining = False
        self._message_open = False  # a request has begun and not ended
        self._unparsed = NOTHING  # what was read and not given to the parser
        self._answered_fast = False
        self._lessons = LESSONS
        self._repeated = b""  # the head of a request that may come again, without its method and target
        self._remembered: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn says None, which asyncio takes for False
        """The client says no more; with half a request, or some that are not parsed yet, it has gone."""
        is_half = self._message_open and not self._deaf  # what is refused never ends
        return not self._unparsed and not is_half and super().eof_received()

    def _learn(self, data: bytes) -> None:
        """Remember the head of a request that was answered fast, if these bytes are that request and nothing else."""
        assert self._fast_path is not None
        version = data.find(_VERSION)
        if not self._lessons or not data.startswith(_GET) or data.find(_END) != len(data) - len(_END) or version < 0:
            return
        self._lessons -= 1
        try:
            remembered = self._fast_path.remember(self.headers, self._peer)
        except Exception:
            log.exception("the fast path failed")
            return
        if remembered is not None:
            self._repeated, self._remembered = data[version:], remembered

    def _answer_again(self, data: bytes) -> bool:
        """Answer a request whose head is known, if its target is one that the fast path knows, too."""
        if self._message_open or self._final or self._draining or self._unparsed or not data.startswith(_GET):
            return False  # these bytes are no request of their own, or not one that is welcome
        assert self._fast_path is not None
        target = data[len(_GET) : -len(self._repeated)]
        answer: bytes | HeldAnswer | None
        try:
            answer = self._fast_path.answer_again(target, self._remembered)
            if answer is None and not self._turns:
                answer = self._fast_path.pass_on_again(target, self._remembered)
        except Exception:
            log.exception("the fast path failed")  # the parser leads to the same answer, more slowly
            return False
        if answer is None:
            return False
        self._lessons = LESSONS
        self._give(answer, keep_alive=True)
        return True

    def _give(self, answer: bytes | HeldAnswer, *, keep_alive: bool) -> None:
        """Take an answer of the fast path: at once, or when its turn has come."""
        if keep_alive and not self._turns and isinstance(answer, HeldAnswer):
            # The usual case, in few words: there is no other on this connection, before it or after it.
            answer.closes = False
            if answer.payload is None:
                answer.deliver = self._released
                self._turns.append(answer)
                self._turn_since = self._shared.now
            else:
                self.transport.write(answer.payload)
                self._idle_since = self._shared.now
            return
        if isinstance(answer, bytes):
            if not self._turns:
                self._write(answer, closes=not keep_alive)
                self._idle_since = self._shared.now
                return
            answer = HeldAnswer(answer)
        answer.closes = not keep_alive
        answer.deliver = self._released
        self._take_turn(answer)
