"""The outgoing side of a connection: answers leave in the order of their requests, and the last one is readable."""

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from refract.kernel.ids import new_correlation_id
from refract.runtime.exchange import CLIENT_LEFT, Exchange, error_body
from refract.runtime.fast_path import FastPath, HeldAnswer, PassedOn

log = logging.getLogger(__name__)

MAX_TURNS = 64
"""So many answers may wait on one connection before it is read no further, and what was read is parsed no further."""

_REFUSALS = {
    400: "malformed request",
    408: "request timeout",
    414: "request target too long",
    431: "request header fields too large",
    500: "internal server error",
    503: "service unavailable",
    505: "http version not supported",
}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much a client may send, and how long either side may take, in bytes and seconds (M1's server timeouts)."""

    target: int = 8 * 1024
    header_bytes: int = 16 * 1024
    header_count: int = 100
    body: int = 1024 * 1024
    receive: float = 5.0
    """From the first byte of a request to its last."""
    send: float = 10.0
    """From the start of its handling to the last byte of the answer. What leaves in pieces only has to be read."""
    idle: float = 120.0


@dataclass(slots=True)
class Shared:
    """What the connections of one server share. The sweep sets `now`, which makes it a clock that costs nothing."""

    limits: ServerLimits
    fast_path: FastPath | None
    now: float
    on_refusal: Callable[[int], None] | None = None
    emptied: asyncio.Event = field(default_factory=asyncio.Event)


class Refusal(HeldAnswer, eq=False, gc=False):
    """The last answer of a connection, to a request that nobody handles."""

    @classmethod
    def of(cls, status: int, date: list[tuple[bytes, bytes]]) -> Self:
        """The refusal with this status."""
        correlation_id = new_correlation_id()
        log.info("request refused", extra={"status": status, "correlation_id": correlation_id})
        body = error_body(_REFUSALS[status])
        return cls(
            b"".join(
                (
                    STATUS_LINE[status],
                    *(b"%s: %s\r\n" % pair for pair in date),
                    b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
                    b"x-correlation-id: %s\r\nconnection: close\r\n\r\n" % correlation_id.encode(),
                    body,
                )
            )
        )


Turn = Exchange | HeldAnswer


def _is_held(turn: Turn) -> bool:
    """Whether it comes by itself, and nobody is asked for it who might leave off."""
    return isinstance(turn, HeldAnswer) and not isinstance(turn, PassedOn)


class Flow(FlowControl):
    """Uvicorn's flow control, which exchanges use too: none of them may resume a connection that can take no more."""

    def __init__(self, transport: asyncio.Transport, may_resume: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._may_resume = may_resume

    def resume_reading(self) -> None:
        """Read again, if the connection is ready for that."""
        if self.read_paused and self._may_resume():
            super().resume_reading()


class TurnTaking(HttpToolsProtocol):
    """Uvicorn's protocol with a queue of turns: exchanges with the application, held answers, and refusals.

    What it and its heirs keep stands in slots: with more than 30 attributes in an object's dictionary, that of every
    connection would be a table of its own, and what a request needs of it would lie in as many places of the memory.
    """

    __slots__ = ("_deaf", "_final", "_idle_since", "_lingers_since", "_shared", "_turn_since", "_turns")

    def __init__(self, config: Config, state: ServerState, shared: Shared) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._shared = shared
        self._turns: deque[Turn] = deque()
        self._turn_since = self._idle_since = shared.now
        self._lingers_since: float | None = None
        self._final = False  # the last turn of this connection is taken
        self._deaf = False  # nothing that comes in matters any more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        self.flow = Flow(transport, self._may_resume)
        self._idle_since = self._shared.now

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client says no more. Where held answers are all that is due it gets them, and then the end: short scripts
        close their side at once, and what they asked for is counted. To whoever works for it, it has gone."""
        if not self._turns or not all(_is_held(turn) for turn in self._turns):
            return False
        self._final = self._deaf = True
        last = self._turns[-1]
        if isinstance(last, HeldAnswer) and not isinstance(last, Refusal):  # which closes by itself
            last.closes = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; those who still work for it are told."""
        super().connection_lost(exc)
        while self._turns:
            self._drop_last_turn()
        if not self.connections:
            self._shared.emptied.set()

    def pause_writing(self) -> None:
        """The client reads too slowly: it is not listened to either, until it has caught up."""
        self.flow.pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.flow.resume_writing()
        self._resume_reading()

    def on_response_complete(self) -> None:
        """The exchange in front has given its answer to the transport."""
        self.server_state.total_requests += 1
        exchange = self._turns.popleft()
        if self.transport.is_closing():
            return
        if isinstance(exchange, Exchange) and exchange.lingers:
            self._linger()
        else:
            self._advance()

    def _take_turn(self, turn: Turn) -> None:
        """Stand in line; the first in line goes at once."""
        self._turns.append(turn)
        if len(self._turns) == 1:
            self._advance()
        elif self._is_full:
            self._pause_reading()

    def _released(self, held: HeldAnswer) -> None:
        turns = self._turns
        if not turns or turns[0] is not held:
            return
        if isinstance(held, PassedOn) and held.payload is None:
            self._hand_over(held)
            return
        if len(turns) > 1 or held.closes or held.payload is None:
            self._advance()
            return
        turns.popleft()  # the usual case: it is the only one
        self.transport.write(held.payload)
        self._turn_since = self._idle_since = self._shared.now
        if self.flow.read_paused:
            self._resume_reading()

    @abstractmethod
    def _hand_over(self, held: PassedOn) -> None:
        """Let an application finish what stands in front."""

    def _advance(self) -> None:
        """Write every answer whose turn has come, or start the exchange whose turn it is."""
        self._turn_since = self._shared.now
        while self._turns:
            turn = self._turns[0]
            if isinstance(turn, Exchange):
                self._start_asgi_task(turn, self.app)
                return
            if turn.payload is None:
                return
            self._turns.popleft()
            self._write(turn.payload, closes=turn.closes)
            if isinstance(turn, Refusal):
                self._linger()
            if self.transport.is_closing():
                return
        self._idle_since = self._shared.now
        self._resume_reading()

    def _write(self, payload: bytes, *, closes: bool) -> None:
        if not closes:
            self.transport.write(payload)
            return
        self.transport.write(payload.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        self.transport.close()

    def _refuse(self, status: int, turn: Turn | None = None) -> None:
        """Answer with an error and close: in the place of a turn, or after all of them."""
        self._final = self._deaf = True
        if isinstance(turn, Exchange) and turn.response_started:
            self.transport.abort()
            return
        if not isinstance(turn, Exchange | PassedOn) and self._shared.on_refusal is not None:
            self._shared.on_refusal(status)  # the application never saw it, and so did not count it
        while turn in self._turns:
            self._drop_last_turn(status)
        self._take_turn(Refusal.of(status, self.server_state.default_headers))

    def _drop_last_turn(self, status: int = CLIENT_LEFT) -> None:
        self._turns.pop().abandon(status)

    def _linger(self) -> None:
        """Close in a way that lets the client read our answer while it is still sending: throw away what comes."""
        self._final = self._deaf = True
        self._lingers_since = self._shared.now
        self._resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    @property
    def _is_full(self) -> bool:
        """Whether this client has to take answers before it is listened to again."""
        return len(self._turns) >= MAX_TURNS or self.flow.write_paused

    def _may_resume(self) -> bool:
        return self._deaf or not self._is_full

    def _pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.pause_reading()

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
