"""Reaches services over HTTP: streaming both ways, verbatim, and honest about an answer that broke off."""

import asyncio
import logging
import string
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from refract.kernel.errors import RefractError
from refract.runtime.edge import Message, Receive, Scope, Send
from refract.runtime.environment import without_credentials
from refract.runtime.exchange import can_be_written
from refract.services.gateway.domain.headers import Header, UnknownUpstream, UpstreamFailed, answered_headers

logger = logging.getLogger("refract.gateway.proxy")

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 30.0
"""Seconds that a service has for the headers of its answer once it has the request, or to take a piece of its body."""

KEEP_ALIVE = 30.0
"""Seconds that an idle connection is kept: well under the services' own 120, so that we rarely find one dead."""

_REPEATABLE = frozenset({"GET", "HEAD"})
_WITHOUT_BODY = frozenset({204, 304})
_MADE_BY_THE_CLIENT_LIBRARY = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
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
        self._urls = {target: url.rstrip("/") for target, url in urls.items()}
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closed = False

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask the service and pass its answer on; a client that goes away takes the question with it."""
        session = self._session(target)
        client = _Client(receive)
        await client.begin()
        question = _Question(
            method=scope["method"], url=self._url(target, scope), headers=_texts(scope["headers"]), client=client
        )
        exchange = asyncio.create_task(self._exchange(target, session, question, send))
        departure = asyncio.create_task(client.departure())
        try:
            await asyncio.wait((exchange, departure), return_when=asyncio.FIRST_COMPLETED)
            (exchange if exchange.done() else departure).result()
        finally:
            exchange.cancel()
            departure.cancel()
            await asyncio.gather(exchange, departure, return_exceptions=True)

    @property
    def places(self) -> Mapping[str, str]:
        """Their URLs, without credentials."""
        return {target: without_credentials(url) for target, url in self._urls.items()}

    async def healthy(self, target: str) -> bool:
        """Whether it answers 200 to its health check."""
        timeout = aiohttp.ClientTimeout(total=self._connect_timeout)
        try:
            async with self._session(target).get(f"{self._urls[target]}/health", timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, UpstreamFailed):
            return False

    async def close(self) -> None:
        """Close every connection, and make no other."""
        self._closed = True
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, target: str) -> aiohttp.ClientSession:
        session = self._sessions.get(target)
        if session is not None:
            return session
        if target not in self._urls:
            raise UnknownUpstream
        if self._closed:
            raise UpstreamFailed("we are stopping")
        session = self._sessions[target] = aiohttp.ClientSession(
            # Without a bound: our own server bounds the requests, and an event stream holds its connection for hours.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout),
            skip_auto_headers=_MADE_BY_THE_CLIENT_LIBRARY,
            auto_decompress=False,
            middlewares=(_without_its_own_retries,),
            trace_configs=[_reuse_noticed()],
        )
        return session

    def _url(self, target: str, scope: Scope) -> URL:
        query = quote(scope["query_string"], safe=_QUERY_AS_SENT)
        path = scope["raw_path"].decode("ascii")
        return URL(f"{self._urls[target]}{path}{'?' if query else ''}{query}", encoded=True)

    async def _exchange(self, target: str, session: aiohttp.ClientSession, question: "_Question", send: Send) -> None:
        try:
            answer = await self._ask(session, question)
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(target, _reason(error)) from error
        try:
            headers = _answered_headers(answer)
            if not can_be_written(answer.status, headers):
                raise _failure(target, f"an answer that cannot be passed on, with status {answer.status}")
            await _pass_on(answer, headers, question.method, send)
        except (aiohttp.ClientError, OSError) as error:
            extra = {"target": target, "reason": _reason(error)}
            logger.error("upstream broke off its answer", extra=extra)  # noqa: TRY400 - no stack to show
        finally:
            answer.close()

    async def _ask(self, session: aiohttp.ClientSession, question: "_Question") -> aiohttp.ClientResponse:
        connection = SimpleNamespace(reused=False)
        try:
            return await self._ask_once(session, question, connection)
        except _ConnectionDied:
            # A pooled connection may have died of old age; what a fresh one says about the service is the truth.
            if not connection.reused or not question.repeatable:
                raise
        return await self._ask_once(session, question, SimpleNamespace())

    async def _ask_once(
        self, session: aiohttp.ClientSession, question: "_Question", connection: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        if session.closed:
            raise _ConnectionDied
        async with asyncio.timeout(None) as deadline:
            return await session.request(
                question.method,
                question.url,
                headers=question.headers,
                data=question.client.body(deadline, self._answer_timeout),
                allow_redirects=False,
                trace_request_ctx=connection,
            )


@dataclass(frozen=True, slots=True)
class _Question:
    """A request as it goes to a service."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    client: "_Client"

    @property
    def repeatable(self) -> bool:
        """Whether asking twice does no harm, and is possible: a body that streams can be read once."""
        return self.method in _REPEATABLE and not self.client.streams


class _Client:
    """The client's side of an exchange: its body as it comes, and the news that it went away."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message = {"type": "http.disconnect"}
        self._read_to_the_end = asyncio.Event()
        self._departed = False
        self._trouble: RefractError | None = None

    @property
    def streams(self) -> bool:
        """Whether there is more of the body than what came with the first message."""
        return bool(self._first.get("more_body", False))

    async def begin(self) -> None:
        """Take the first message, which is all there is of most requests."""
        self._first = await self._receive()
        self._departed = self._first["type"] == "http.disconnect"
        if not self.streams:
            self._read_to_the_end.set()

    def body(self, deadline: asyncio.Timeout, patience: float) -> bytes | AsyncIterator[bytes] | None:
        """The body, if there is one. The deadline runs while the service is awaited, and never while the client is."""
        if self.streams:
            return self._pieces(deadline, patience)
        _move(deadline, patience)
        return self._first.get("body") or None

    async def departure(self) -> None:
        """Return when the client is gone; raise what was wrong with its body."""
        await self._read_to_the_end.wait()
        if self._trouble is not None:
            raise self._trouble
        while not self._departed:
            self._departed = (await self._receive())["type"] == "http.disconnect"

    async def _pieces(self, deadline: asyncio.Timeout, patience: float) -> AsyncIterator[bytes]:
        message = self._first
        while message["type"] == "http.request":
            _move(deadline, patience)
            if piece := message.get("body"):
                yield piece
            if not message.get("more_body", False):
                self._read_to_the_end.set()
                return
            _move(deadline, None)
            try:
                message = await self._receive()
            except RefractError as error:
                self._trouble = error
                break
        # To end here would make half a body look whole: the exchange is cancelled as soon as the departure is seen.
        self._departed = True
        self._read_to_the_end.set()
        await asyncio.get_running_loop().create_future()


def _move(deadline: asyncio.Timeout, patience: float | None) -> None:
    # A service may answer before it has read the whole body; from then on nobody waits, and the deadline is over.
    with suppress(RuntimeError):
        deadline.reschedule(None if patience is None else asyncio.get_running_loop().time() + patience)


def _failure(target: str, reason: str) -> UpstreamFailed:
    logger.error("proxy error", extra={"target": target, "reason": reason})
    return UpstreamFailed(reason)


def _reason(error: Exception) -> str:
    """What kind of error it is. The library's own words can hold the URL, and a query can hold secrets."""
    kind = type(error.__cause__ if isinstance(error, _ConnectionDied) and error.__cause__ else error).__name__
    return f"{kind}: {error.strerror}" if isinstance(error, OSError) and error.strerror else kind


def _answered_headers(answer: aiohttp.ClientResponse) -> list[Header]:
    headers = answered_headers(answer.raw_headers)
    if answer.status in _WITHOUT_BODY:
        # A server takes a length as a promise of so many bytes.
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    return headers


async def _pass_on(answer: aiohttp.ClientResponse, headers: list[Header], method: str, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    more = method != "HEAD" and answer.status not in _WITHOUT_BODY
    if not more:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    while more:
        piece = await answer.content.readany()
        more = not answer.content.at_eof()
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _texts(headers: Iterable[Header]) -> CIMultiDict[str]:
    # The client library takes texts and writes them as UTF-8, without surrogates: a value that is UTF-8 arrives as it
    # was sent, and any other, which cannot be passed on byte by byte, as what it says in Latin-1.
    return CIMultiDict((name.decode("latin-1"), _text(value)) for name, value in headers)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class _ConnectionDied(aiohttp.ClientError):
    """A connection that ended before an answer began."""


async def _without_its_own_retries(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from asking again by itself, as it would for PUT and DELETE too, and on fresh connections."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
        raise
    except aiohttp.ClientConnectionError as error:
        raise _ConnectionDied from error


def _reuse_noticed() -> aiohttp.TraceConfig:
    """Has the context of each request say whether its connection came out of the pool."""
    trace = aiohttp.TraceConfig()

    async def reused(
        _session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: aiohttp.TraceConnectionReuseconnParams
    ) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.reused = True

    trace.on_connection_reuseconn.append(reused)
    return trace
