"""One connection: limits on what comes in, deadlines in both directions, answers in the order of their requests."""

import asyncio
import logging
import urllib.parse
from collections import deque
from dataclasses import dataclass, field
from typing import NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from refract.kernel.ids import new_correlation_id
from refract.runtime.exchange import Exchange, error_body
from refract.runtime.fast_path import FastPath, HeldAnswer

log = logging.getLogger(__name__)

MAX_TURNS = 64
"""So many answers may wait on one connection before it is read no further."""

LINGER_SECONDS = 2.0
"""How long a refused client may go on sending, which is thrown away: closed at once, it would lose our answer."""

_NOTABLE = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_MESSAGES = {
    400: "malformed request",
    408: "request timeout",
    414: "request target too long",
    431: "request header fields too large",
    500: "internal server error",
    503: "service unavailable",
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
    """From the start of its handling to the last byte of the answer; event streams only have to be read."""
    idle: float = 120.0


@dataclass(slots=True)
class Floor:
    """What the connections of one server share. `now` is set by the server's sweep: a clock that costs nothing to read."""

    limits: ServerLimits
    fast_path: FastPath | None
    now: float
    interval: float
    drained: asyncio.Event = field(default_factory=asyncio.Event)


class _Refused(Exception):
    """Ends the parsing of a request that is refused. Never leaves this module."""


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with bounds, and with a queue of turns: exchanges with the application, and held answers."""

    parser: httptools.HttpRequestParser
    cycle: Exchange

    def __init__(self, config: Config, state: ServerState, floor: Floor) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._floor = floor
        self._limits = floor.limits
        self._fast_path = floor.fast_path
        self._peer = ""
        self._turns: deque[Exchange | HeldAnswer] = deque()
        self._turn_since = self._idle_since = self._receiving_since = floor.now
        self._unflushed_since: float | None = None
        self._lingers_since: float | None = None

        self._notable: dict[bytes, bytes] = {}
        self._in_head = False
        self._message_open = False
        self._began = False
        self._head_size = self._feed_size = self._body_size = self._body_raw = 0
        self._refusal = 0
        self._final = False  # the last turn of this connection is taken
        self._deaf = False  # nothing that comes in matters any more
        self._draining = False

    # ---- the transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        self._idle_since = self._floor.now
        self._peer = self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; those who still work for it are told."""
        super().connection_lost(exc)
        for turn in self._turns:
            if isinstance(turn, Exchange):
                turn.abandon()
            else:
                turn.attach(None)
        self._turns.clear()
        if not self.connections:
            self._floor.drained.set()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, whose callbacks do the work, and hold what is not whole yet against its bounds."""
        if self._deaf:
            return
        self._began = False
        self._feed_size = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # such a request is answered as if it had not asked, and is the last of its connection
        except httptools.HttpParserCallbackError as error:
            if not self._refusal:
                log.exception("a callback of the parser failed", exc_info=error)
            self._refuse_request(self._refusal or 500)
            return
        except httptools.HttpParserError:
            self._refuse_request(400)
            return
        if self._message_open:
            self._watch_unfinished()

    def pause_writing(self) -> None:
        """The client reads too slowly: it is not listened to either, until it has caught up."""
        self.flow.pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.flow.resume_writing()
        self._unflushed_since = None
        if not self._turns and not self.transport.is_closing():
            self.flow.resume_reading()

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._final:
            self._deaf = True
        self.url = b""
        self.headers = []
        if self._notable:
            self._notable = {}
        self._in_head = self._message_open = self._began = True
        self._head_size = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field. Those after a body are dropped: nothing may change a head that was acted on."""
        if not self._in_head:
            return
        name = name.lower()
        if name in _NOTABLE:
            if name == b"host" and name in self._notable:
                self._stop_parsing(400)
            self._notable[name] = value
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: answer it on the fast path, or hand it to the application."""
        self._in_head = False
        if self._deaf:
            return
        self._check_head()
        notable, parser = self._notable, self.parser
        keep_alive = parser.should_keep_alive()
        if b"connection" in notable and parser.get_http_version() != "1.1":
            keep_alive = False
        fields = len(notable)
        if self._fast_path is not None and (fields == 1 or (fields == 2 and b"connection" in notable)):
            if self._answer_fast(keep_alive=keep_alive):
                return
        self._begin_exchange(keep_alive=keep_alive and not parser.should_upgrade())

    def on_body(self, body: bytes) -> None:
        """A part of the body, kept for the application up to the limit."""
        if self._deaf or self.cycle.response_complete or self.cycle.body_refused:
            return
        self._body_size += len(body)
        if self._body_size > self._limits.body:
            self._refuse_body()
            return
        self.cycle.body += body
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._message_open = False
        if self._deaf or self.cycle is None or self.cycle.response_complete:
            return
        self.cycle.more_body = False
        self.cycle.message_event.set()

    # ---- turns: what is answered, and when

    def _answer_fast(self, *, keep_alive: bool) -> bool:
        assert self._fast_path is not None
        try:
            answer = self._fast_path(self.parser.get_method(), self.url, self.headers, self._peer)
        except Exception:
            # The application gives the same answer more slowly.
            log.exception("the fast path failed")
            return False
        if answer is None:
            return False
        closes = not keep_alive or self._draining
        if closes:
            self._final = True
        if isinstance(answer, bytes):
            if not self._turns:
                self._write(answer, closes=closes)
                self._idle_since = self._floor.now
                return True
            payload, answer = answer, HeldAnswer()
            answer.payload = payload
        answer.closes = closes
        answer.attach(self._released)
        self._take_turn(answer)
        return True

    def _released(self, held: HeldAnswer) -> None:
        if self._turns and self._turns[0] is held:
            self._advance()

    def _begin_exchange(self, *, keep_alive: bool) -> None:
        keep_alive = keep_alive and not self._draining
        if not keep_alive:
            self._final = True
        self._body_size = self._body_raw = 0
        self.cycle = Exchange(
            scope=self._scope(),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self._notable.get(b"expect", b"").lower() == b"100-continue",
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        length = self._notable.get(b"content-length")
        if length is not None and int(length) > self._limits.body:
            self._refuse_body()
        self._take_turn(self.cycle)

    def _take_turn(self, turn: Exchange | HeldAnswer) -> None:
        self._turns.append(turn)
        if len(self._turns) == 1:
            self._advance()
        elif isinstance(turn, Exchange) or len(self._turns) > MAX_TURNS:
            self._pause_reading()

    def _advance(self) -> None:
        """Write every answer whose turn has come, or start the exchange whose turn it is."""
        turns = self._turns
        self._turn_since = self._floor.now
        while turns and not self.transport.is_closing():
            turn = turns[0]
            if isinstance(turn, Exchange):
                self._start_asgi_task(turn, self.app)
                return
            if turn.payload is None:
                return
            turns.popleft()
            self._write(turn.payload, closes=turn.closes)
        if turns or self.transport.is_closing():
            return
        self._idle_since = self._floor.now
        if not self.flow.write_paused:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The exchange in front is done; its answer may still be on its way out."""
        exchange = self._turns.popleft() if self._turns else None
        self.server_state.total_requests += 1
        if isinstance(exchange, Exchange) and exchange.lingers:
            self._linger()
        elif not self.transport.is_closing():
            self._advance()

    def _write(self, payload: bytes, *, closes: bool) -> None:
        if closes:
            payload = payload.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        self.transport.write(payload)
        if closes:
            self.transport.close()

    def _scope(self) -> dict[str, object]:
        try:
            parts = httptools.parse_url(self.url)
            raw_path = parts.path or b"/"
            path = raw_path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._stop_parsing(400)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": self.parser.get_http_version(),
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": parts.query or b"",
            "headers": self.headers,
            "state": {},
        }

    # ---- refusals

    def _check_head(self) -> None:
        limits = self._limits
        if len(self.url) > limits.target:
            self._stop_parsing(414)
        if len(self.headers) > limits.header_count:
            self._stop_parsing(431)
        # What came in is an upper bound of what it holds, so that the exact sum is rarely needed.
        if self._head_size + self._feed_size > limits.header_bytes and self._headers_size() > limits.header_bytes:
            self._stop_parsing(431)
        if b"host" not in self._notable and self.parser.get_http_version() != "1.0":
            self._stop_parsing(400)

    def _headers_size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch_unfinished(self) -> None:
        """After a feed that left a request unfinished: note when it began, and bound what the parser keeps of it."""
        if self._began:
            self._receiving_since = self._floor.now
        if not self._in_head:
            # Chunk sizes, extensions and trailers are no body, and must not be endless either.
            self._body_raw += self._feed_size
            if self._body_raw > 8 * self._limits.body + self._limits.header_bytes and not self.cycle.body_refused:
                self._refuse_body()
            return
        self._head_size = self._headers_size() if self._began else self._head_size + self._feed_size
        if len(self.url) > self._limits.target:
            self._refuse_request(414)
        elif self._head_size > self._limits.header_bytes + self._limits.target:
            self._refuse_request(431)

    def _stop_parsing(self, status: int) -> NoReturn:
        self._refusal = status
        raise _Refused

    def _refuse_body(self) -> None:
        self.cycle.refuse_body()
        self._pause_reading()

    def _refuse_request(self, status: int) -> None:
        """Answer a request that reached nobody, after those before it, and close."""
        self._final = self._deaf = True
        if self._message_open and not self._in_head and self._turns and self._turns[-1] is self.cycle:
            self._cut(status)  # it had reached the application, and its body broke off
            return
        refusal = HeldAnswer()
        refusal.payload = self._refusal_answer(status)
        self._turns.append(refusal)
        if len(self._turns) == 1:
            self._cut(status)

    def _refusal_answer(self, status: int) -> bytes:
        correlation_id = new_correlation_id()
        log.info("request refused", extra={"status": status, "correlation_id": correlation_id})
        body = error_body(_MESSAGES[status])
        date = b"".join(b"%s: %s\r\n" % pair for pair in self.server_state.default_headers)
        return b"".join(
            (
                STATUS_LINE[status],
                date,
                b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
                b"x-correlation-id: %s\r\nconnection: close\r\n\r\n" % correlation_id.encode(),
                body,
            )
        )

    def _cut(self, status: int) -> None:
        """End the connection now: with an answer if none has begun, else without another byte."""
