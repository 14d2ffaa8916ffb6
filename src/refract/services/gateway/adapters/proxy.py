"""Reaches services over HTTP: streaming both ways, verbatim, and honest about an answer that broke off."""

import asyncio
import logging
import string
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from refract.kernel.errors import RefractError
from refract.runtime.correlation import current_correlation_id
from refract.runtime.edge import Message, Receive, Scope, Send
from refract.runtime.environment import without_credentials
from refract.runtime.exchange import can_be_written
from refract.services.gateway import ports
from refract.services.gateway.adapters.connections import Connection, Pool
from refract.services.gateway.adapters.errands import Errand
from refract.services.gateway.adapters.exchanges import (
    ClientLeft,
    ConnectionDied,
    Exchange,
    Question,
    Trouble,
    head_of,
)
from refract.services.gateway.domain.headers import (
    Header,
    Overstretched,
    UnknownUpstream,
    UpstreamFailed,
    answered_headers,
)

logger = logging.getLogger("refract.gateway.proxy")

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 30.0
"""Seconds that a service has for the headers of its answer once it has the request, or to take a piece of its body."""

TRIES = 3
"""Of a question that may be asked twice and gets no byte of an answer: over a connection that waited, which may have
died of old age; over a fresh one, which may have been queued for a process that is gone; and over one more, which tells
the truth about the service. Without the last a single worker that dies would look like dozens of failures."""

LOOK_AROUND = 0.1
"""Seconds between two looks at what is under way, for deadlines and for clients that have gone."""

_WITHOUT_BODY = frozenset({204, 304})
_QUERY_AS_SENT = string.punctuation.replace("#", "")


class Proxy:
    """The services of distributed mode, by name, each with a pool of connections of its own."""

    def __init__(
        self,
        urls: Mapping[str, str],
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self._pools = {target: Pool(url, connect_timeout) for target, url in urls.items()}
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._under_way: set[Exchange] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask the service and pass its answer on; a client that goes away takes the question with it."""
        pool = self._pool(target)
        first: Message = await receive()
        if first["type"] == "http.disconnect":
            return
        question = Question(scope["method"], _target(pool, scope), pool.host, scope["headers"], first)
        exchange = Exchange(scope, receive, to_head=question.method == "HEAD", sent=not question.streams)
        self._look_after(exchange)
        await self._carry_out(target, question, exchange, send)

    def send_out(self, target: str, method: bytes, path: bytes, lines: bytes, asker: ports.Asker) -> Errand | None:
        """Send a request without a body over a connection that waits; None where there is none."""
        pool = self._pools.get(target)
        if pool is None or self._closed:
            return None
        connection = pool.waiting()
        if connection is None:
            return None
        head = head_of(method, pool.prefix + path, pool.host, lines)
        errand = Errand(asker, connection, target, method, head, self._under_way)
        self._look_after(errand)
        errand.deadline = asyncio.get_running_loop().time() + self._answer_timeout
        connection.ask(errand, head)
        return errand

    async def finish(self, errand: ports.Errand, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on with what was sent out, as if it had been forwarded."""
        assert isinstance(errand, Errand), "it was sent out here"
        question = Question.asked(errand.method.decode("ascii"), errand.request)
        await self._carry_out(errand.target, question, errand, send, errand.go_on(scope, receive))

    async def _carry_out(
        self, target: str, question: Question, exchange: Exchange, send: Send, asked: Connection | None = None
    ) -> None:
        """Have a question answered, which may have been `asked` on a connection already."""
        try:
            connection = await self._ask(self._pools[target], question, exchange, asked)
            try:
                await _pass_on(target, connection, exchange, send)
            finally:
                connection.let_go(exchange)
        except ClientLeft:
            return
        except (Trouble, OSError) as error:
            reason = _reason(error)
            logger.error("proxy error", extra={"target": target, "reason": reason})  # noqa: TRY400 - no stack to show
            raise UpstreamFailed(reason) from error
        except Overstretched as error:
            logger.warning("a service cannot be asked", extra={"target": target, "reason": str(error)})
            raise
        finally:
            self._under_way.discard(exchange)
            exchange.end()

    @property
    def places(self) -> Mapping[str, str]:
        """Their URLs, without credentials."""
        return {target: without_credentials(pool.place) for target, pool in self._pools.items()}

    async def healthy(self, target: str) -> bool:
        """Whether it answers 200 to its health check."""
        try:
            await self.fetch(target, "/health", {})
        except UpstreamFailed:
            return False
        return True

    async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
        """Ask the service over HTTP; a question of our own is small, and gets no more time than a connection does."""
        pool = self._pool(target)
        where = _target(pool, {"raw_path": path.encode(), "query_string": urlencode(query).encode()})
        try:
            status, body = await self._converse(pool, Question("GET", where, pool.host, (), {}))
        except Overstretched as error:
            raise UpstreamFailed(_reason(error)) from error
        if status != 200:
            raise UpstreamFailed(f"status {status}")
        return body

    async def post(self, target: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Say something to the service over HTTP, in the same time."""
        pool = self._pool(target)
        headers = [(b"content-type", b"application/json"), (b"x-correlation-id", current_correlation_id().encode())]
        where, first = pool.prefix + path.encode(), {"body": body}
        return await self._converse(pool, Question("POST", where, pool.host, headers, first, harmless=True))

    async def _converse(self, pool: Pool, question: Question) -> tuple[int, bytes]:
        """Status and body of a whole answer to ourselves; raises UpstreamFailed or Overstretched."""
        exchange = Exchange({}, _patient, to_head=False, sent=True)
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._ask(pool, question, exchange)
                try:
                    pieces = [await connection.take(exchange)]
                    while not exchange.whole:
                        pieces.append(await connection.take(exchange))
                finally:
                    connection.let_go(exchange)
        except (Trouble, OSError) as error:  # a TimeoutError is an OSError
            raise UpstreamFailed(_reason(error)) from error
        return exchange.status, b"".join(pieces)

    async def close(self) -> None:
        """Close every connection, and make no other."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for pool in self._pools.values():
            await pool.close()

    def _pool(self, target: str) -> Pool:
        pool = self._pools.get(target)
        if pool is None:
            raise UnknownUpstream
        if self._closed:
            raise UpstreamFailed("we are stopping")
        return pool

    async def _ask(
        self, pool: Pool, question: Question, exchange: Exchange, asked: Connection | None = None
    ) -> Connection:
        """Send the request, and return when the head of the answer is here."""
        connection = asked or pool.waiting()
        left = TRIES if connection is not None else TRIES - 1
        while True:
            left -= 1
            try:
                connection = connection or await _connected(pool, exchange)
            except ConnectionResetError:
                # Nothing was asked yet: it may be asked by somebody else, whatever it is.
                if not left:
                    raise
                continue
            try:
                return await self._ask_on(connection, question, exchange, is_asked=connection is asked)
            except ConnectionDied:
                if exchange.heard or not question.repeatable or self._closed or not left:
                    raise
                exchange.error = None
            connection = None

    async def _ask_on(
        self, connection: Connection, question: Question, exchange: Exchange, *, is_asked: bool = False
    ) -> Connection:
        try:
            if is_asked:
                pass
            elif question.streams:
                connection.ask(exchange, question.head)
                exchange.upload(question, connection.write, self._answer_timeout)
            else:
                connection.ask(exchange, question.head + question.body)
                # A second try has no more time than the first one left.
                exchange.deadline = min(exchange.deadline, asyncio.get_running_loop().time() + self._answer_timeout)
            await exchange.head()
        except BaseException:
            connection.let_go(exchange)
            raise
        return connection

    def _look_after(self, exchange: Exchange) -> None:
        self._under_way.add(exchange)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AROUND, self._look_around)

    def _look_around(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for exchange in tuple(self._under_way):
            exchange.check(now, loop)
        self._timer = loop.call_later(LOOK_AROUND, self._look_around) if self._under_way else None


async def _patient() -> Message:
    """Stands in for a client where we are the client ourselves: it does not go away."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def _connected(pool: Pool, exchange: Exchange) -> Connection:
    """A new connection, unless the client goes away before."""
    connecting = asyncio.ensure_future(pool.connect())
    connecting.add_done_callback(lambda _: exchange.wake())
    try:
        while not connecting.done():
            await exchange.news()
        return connecting.result()
    except BaseException:
        connecting.cancel()
        connecting.add_done_callback(_hang_up)
        raise


def _hang_up(connecting: "asyncio.Future[Connection]") -> None:
    """Nobody wants the connection any more, and it may have come to be all the same."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


async def _pass_on(target: str, connection: Connection, exchange: Exchange, send: Send) -> None:
    headers = _answered_headers(exchange)
    if not can_be_written(exchange.status, headers):
        raise Trouble(f"an answer that cannot be passed on, with status {exchange.status}")
    await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
    more = True
    while more:
        try:
            piece = await connection.take(exchange)
        except (Trouble, OSError) as error:
            extra = {"target": target, "reason": _reason(error)}
            logger.error("upstream broke off its answer", extra=extra)  # noqa: TRY400 - no stack to show
            return
        except RefractError:
            return  # the rest of the request is refused, and half an answer has left: only a cut can say so
        more = not exchange.whole
        if not more:
            connection.let_go(exchange)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _target(pool: Pool, scope: Scope) -> bytes:
    """The request's target as it was sent; what no URL may hold is encoded."""
    query: bytes = scope["query_string"]
    target: bytes = pool.prefix + scope["raw_path"]
    return b"%b?%b" % (target, quote(query, safe=_QUERY_AS_SENT).encode("ascii")) if query else target


def _reason(error: Exception) -> str:
    """What kind of error it is, in words that hold nothing of the request: a query can hold secrets."""
    if isinstance(error, Trouble | Overstretched):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error.strerror}" if isinstance(error, OSError) and error.strerror else kind


def _answered_headers(exchange: Exchange) -> list[Header]:
    headers = answered_headers(exchange.headers)
    if exchange.status in _WITHOUT_BODY:
        # A server takes a length as a promise of so many bytes.
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    return headers
