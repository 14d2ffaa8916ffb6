"""The incoming side of a connection: limits on what a client sends, and deadlines in both directions."""

import logging
import urllib.parse
from asyncio import Event
from typing import NoReturn

import httptools
from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from refract.runtime.exchange import Exchange
from refract.runtime.fast_path import Headers, HeldAnswer, PassedOn
from refract.runtime.repeats import NOTHING, RepeatedHeads
from refract.runtime.turns import Shared

log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0
"""How long a refused client may go on sending, to be thrown away: closed at once, it would lose our answer."""

PIECE_BYTES = 1024
"""The parser cannot be stopped within what it is fed: more than this is fed in pieces, of about 50 requests at most."""
PIECES_AT_ONCE = 32
"""So many pieces of one connection are parsed before others have their turn."""

_HOST_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:[]%"
_NOTABLE = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_PLAIN = frozenset({b"host", b"connection"})
_SINGLE = frozenset({b"host", b"transfer-encoding"})


class _Refused(Exception):
    """Stops the parser at a request that is refused."""


class Connection(RepeatedHeads):
    """Parses requests within limits, and gives them to the fast path or to the application."""

    __slots__ = (
        "_began_in_feed",
        "_body_raw_size",
        "_body_size",
        "_feed_size",
        "_has_asked",
        "_head_size",
        "_host",
        "_in_head",
        "_incoming",
        "_limits",
        "_notable",
        "_receiving_since",
        "_refused_with",
        "_unflushed_since",
    )

    def __init__(self, config: Config, state: ServerState, shared: Shared) -> None:
        super().__init__(config, state, shared)
        self._limits = shared.limits
        self._unflushed_since: float | None = None
        self._host = b""  # the last one that was found to be good

        self._notable: dict[bytes, bytes] = {}
        self._incoming: Exchange | None = None  # whose body is being received
        self._in_head = self._began_in_feed = self._has_asked = False
        self._receiving_since = shared.now
        self._feed_size = self._head_size = self._body_size = self._body_raw_size = 0
        self._refused_with = 0

    def data_received(self, data: bytes) -> None:
        """Parse what came: at once if it is little, as usual, and else in pieces."""
        if self._repeated and data.endswith(self._repeated) and self._answer_again(data):
            return
        if self._deaf:
            return
        if len(data) <= PIECE_BYTES:
            was_open = self._message_open  # if so, these bytes begin with the rest of another request
            self._answered_fast = False
            self._feed(data)
            if self._answered_fast and not was_open:
                self._learn(data)
            return
        self._unparsed = memoryview(data)  # there is no older rest, because until it is parsed nothing is read
        self._parse_rest()

    def _parse_rest(self) -> None:
        """Parse what was read, for as long as its answers can be taken, and then listen again."""
        for _ in range(PIECES_AT_ONCE):
            if self._deaf or self.transport.is_closing():
                self._unparsed = NOTHING
            if not self._unparsed or self._is_full:
                break
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._feed(piece)
        if self._unparsed:
            self._pause_reading()
        self._resume_reading()

    @property
    def _is_full(self) -> bool:
        body = self._incoming
        if body is not None and (body.body_refused or len(body.body) > HIGH_WATER_LIMIT):
            return True
        return super()._is_full

    def _may_resume(self) -> bool:
        if not super()._may_resume():
            return False
        if self._unparsed:
            self.loop.call_soon(self._parse_rest)  # not now: this may be a callback of the parser
        return not self._unparsed

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, and what it sent last does not matter any more."""
        self._unparsed = NOTHING
        super().connection_lost(exc)

    def _feed(self, data: bytes | memoryview) -> None:
        """Feed the parser, whose callbacks do the work, and bound what it has not finished."""
        self._began_in_feed = False
        self._feed_size = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if it had not asked, and the last of its connection
        except httptools.HttpParserCallbackError:
            if not self._refused_with:
                log.exception("a callback of the parser failed")
            self._refuse(self._refused_with or 500, self._incoming)
        except httptools.HttpParserError:
            self._refuse(400, self._incoming)
        else:
            if self._message_open:
                self._watch_unfinished()

    # The parser's callbacks, in the order in which they come.

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._final:
            self._deaf = True
        self.url = b""
        self.headers = []
        if self._notable:
            self._notable = {}
        self._incoming = None
        self._in_head = self._message_open = self._began_in_feed = self._has_asked = True
        self._head_size = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field. Those after a body are dropped: nothing may change a head that was acted on."""
        if not self._in_head:
            return
        name, value = name.lower(), value.rstrip(b" \t")  # what surrounds a value is not part of it
        if name in _NOTABLE:
            if name in self._notable and name in _SINGLE:
                self._stop_parsing(400)
            if name == b"host" and value != self._host:
                self._check_host(value)
            self._notable[name] = value
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: answer on the fast path, or hand the request to the application."""
        self._in_head = False
        if self._deaf:
            return
        self._check_head()
        notable = self._notable
        keep_alive = self.parser.should_keep_alive()
        if not keep_alive or b"connection" in notable:  # only 1.1 is kept without having said anything
            keep_alive = self._checked_version() == "1.1" and keep_alive
        keep_alive = keep_alive and not self._draining
        plain = notable.keys() <= _PLAIN
        if self._fast_path is None or not plain or not self._answer_fast(keep_alive=keep_alive):
            self._begin_exchange(keep_alive=keep_alive and not self.parser.should_upgrade())
        if not keep_alive:
            self._final = True

    def on_body(self, body: bytes) -> None:
        """A part of the body, kept for the application up to the limit."""
        exchange = self._incoming
        if exchange is None or exchange.response_complete or exchange.body_refused:
            return
        self._body_size += len(body)
        if self._body_size > self._limits.body:
            self._refuse_body(exchange)
            return
        exchange.body += body
        if len(exchange.body) > HIGH_WATER_LIMIT:
            self._pause_reading()
        exchange.message_event.set()

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._message_open = False
        if self._incoming is not None:
            self._incoming.more_body = False
            self._incoming.message_event.set()
            self._incoming = None

    def _answer_fast(self, *, keep_alive: bool) -> bool:
        assert self._fast_path is not None
        method = self.parser.get_method()
        answer: bytes | HeldAnswer | None
        try:
            answer = self._fast_path(method, self.url, self.headers, self._peer)
            if answer is None and keep_alive and not self._turns:
                answer = self._fast_path.pass_on(method, self.url, self.headers, self._peer)
        except Exception:
            # The application gives the same answer, more slowly.
            log.exception("the fast path failed")
            return False
        if answer is None:
            return False
        self._answered_fast = keep_alive
        self._give(answer, keep_alive=keep_alive)
        return True

    def _begin_exchange(self, *, keep_alive: bool) -> None:
        version = self.parser.get_http_version()
        scope = self._scope_of(self.parser.get_method(), self.url, self.headers, version)
        expects = self._notable.get(b"expect", b"").lower() == b"100-continue" and version == "1.1"
        self._incoming = exchange = self._exchange(scope, keep_alive=keep_alive, expects=expects)
        self._body_size = self._body_raw_size = 0
        if int(self._notable.get(b"content-length", 0)) > self._limits.body:
            self._refuse_body(exchange)
        self._take_turn(exchange)

    def _hand_over(self, held: PassedOn) -> None:
        """Let an application finish what stands in front. Its request is here to the last byte."""
        scope = self._scope_of(held.method, held.target, held.headers, "1.1")
        exchange = self._exchange(scope, keep_alive=not held.closes, expects=False)
        exchange.more_body = False
        exchange.message_event.set()
        self._turns[0] = exchange
        self._start_asgi_task(exchange, held.application)

    def _exchange(self, scope: HTTPScope, *, keep_alive: bool, expects: bool) -> Exchange:
        return Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=Event(),
            expect_100_continue=expects,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )

    def _scope_of(self, method: bytes, target: bytes, headers: Headers, version: str) -> HTTPScope:
        try:
            parts = httptools.parse_url(target)
            raw_path = parts.path or b"/"
            path = raw_path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._stop_parsing(400)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": method.decode("ascii"),
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": parts.query or b"",
            "headers": headers,
            "state": {},
            "extensions": {},
        }

    # Limits.

    def _check_head(self) -> None:
        limits = self._limits
        if len(self.url) > limits.target:
            self._stop_parsing(414)
        if len(self.headers) > limits.header_count:
            self._stop_parsing(431)
        # What came in is an upper bound of what the fields hold, so that their exact sum is rarely needed.
        if self._head_size + self._feed_size > limits.header_bytes and self._fields_size() > limits.header_bytes:
            self._stop_parsing(431)
        if b"host" not in self._notable and self._checked_version() != "1.0":
            self._stop_parsing(400)
        coding = self._notable.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or self._checked_version() != "1.1"):
            self._stop_parsing(400)

    def _check_host(self, value: bytes) -> None:
        """It is passed on and ends up in links: nothing but a host and a port may be in it."""
        if value.translate(None, _HOST_CHARACTERS):
            self._stop_parsing(400)
        self._host = value

    def _checked_version(self) -> str:
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            self._stop_parsing(505)
        return version

    def _fields_size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch_unfinished(self) -> None:
        """After a feed that left a request unfinished: note when it began, and bound what the parser keeps of it."""
        if self._began_in_feed:
            self._receiving_since = self._shared.now
        if self._in_head:
            self._head_size = self._fields_size() if self._began_in_feed else self._head_size + self._feed_size
            if len(self.url) > self._limits.target:
                self._refuse(414)
            elif self._head_size > self._limits.header_bytes + self._limits.target:
                self._refuse(431)
        elif self._incoming is not None and not self._incoming.body_refused:
            # Chunk sizes, their extensions and trailers are no body, and must not be endless either.
            self._body_raw_size += self._feed_size
            if self._body_raw_size > 8 * self._limits.body + self._limits.header_bytes:
                self._refuse_body(self._incoming)

    def _stop_parsing(self, status: int) -> NoReturn:
        self._refused_with = status
        raise _Refused

    def _refuse_body(self, exchange: Exchange) -> None:
        exchange.refuse_body()
        self._pause_reading()

    # Deadlines and the end.

    def check_deadlines(self, now: float, tolerance: float) -> None:
        """Called by the server's sweep every `tolerance` seconds, which is how old a note of the time can be."""
        now -= tolerance
        if self._lingers_since is not None:
            if now - self._lingers_since >= LINGER_SECONDS:
                self.transport.abort()
        elif self._is_stuck(now):
            self.transport.abort()
        elif self._receives_too_long(now):
            self._refuse(408, self._incoming)
        elif self._answers_too_long(now):
            self._refuse(503, self._turns[0])
        elif not self._turns and not self._message_open and now - self._idle_since >= self._patience:
            self.transport.close()

    @property
    def _patience(self) -> float:
        return self._limits.idle if self._has_asked else self._limits.receive

    def _receives_too_long(self, now: float) -> bool:
        if not self._message_open or self._deaf:
            return False
        if self.flow.read_paused:
            self._receiving_since = self._shared.now  # it is we who keep the client waiting
        return now - self._receiving_since >= self._limits.receive

    def _answers_too_long(self, now: float) -> bool:
        if not self._turns or now - self._turn_since < self._limits.send:
            return False
        turn = self._turns[0]
        return not (isinstance(turn, Exchange) and (turn.is_stream or turn.in_pieces))

    def _is_stuck(self, now: float) -> bool:
        if not self.transport.get_write_buffer_size():
            self._unflushed_since = None
        elif self._unflushed_since is None:
            self._unflushed_since = self._shared.now
        return self._unflushed_since is not None and now - self._unflushed_since >= self._limits.send

    def resume_writing(self) -> None:
        """The client has caught up, which is progress enough for now."""
        self._unflushed_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Answer what has arrived, and let the last answer say that the connection ends."""
        self._draining = True
        if self._in_head or not self._turns:
            return
        last = self._turns[-1]
        if isinstance(last, Exchange):
            if last.is_stream:
                self.transport.close()  # it would never end by itself, and its reader comes again elsewhere
            last.keep_alive = False
        else:
            last.closes = True
        self._final = True

    def close_if_idle(self) -> None:
        """Close now if nothing is under way here."""
        if not self._turns and not self._message_open and not self._unparsed:
            self.transport.close()
