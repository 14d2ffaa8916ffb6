"""The gateway with and without its fast path, before services on bare sockets: what both sides saw, to the byte."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from refract.runtime.metrics import Metrics
from refract.runtime.server import HttpServer
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import TARGETS
from refract.services.gateway.http.dispatch import Dispatch
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.http.passing import Carrier
from refract.services.gateway.service import build_gateway
from tests.support.clocks import ManualClock
from tests.support.fronts import ROOMY, tokens
from tests.support.http import PATIENCE, Client, fetch, head, running
from tests.support.waiting import eventually

GET = head("GET", "/r/abc")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PAUSE, CUT, WAIT = "pause", "cut", "wait"
"""Between two pieces of an answer, so that they come one by one; in the place of its end; until the test opens it."""

both_paths = pytest.mark.parametrize("fast", [True, False], ids=["fast", "application"])

Piece = bytes | str
_DATE = re.compile(rb"(?m)^date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r$")
_NEW_ID = re.compile(
    rb"(?m)^(x-correlation-id|x-click-id): [0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\r$"
)
_PORT = re.compile(rb"127\.0\.0\.1:\d+")


def masked(text: bytes) -> bytes:
    """All but the moment, a port, and an id that is nobody's."""
    return _PORT.sub(b"127.0.0.1:*", _NEW_ID.sub(rb"\1: *", _DATE.sub(b"date: *", text)))


class Bare:
    """A service on bare sockets: it answers with the pieces it is given, and notes what it was asked.

    `first` is what a new connection answers to its first request, if that is something else: connections that waited
    may be dead, and fresh ones are not.
    """

    def __init__(self, *pieces: Piece, first: Sequence[Piece] = ()) -> None:
        self.pieces: Sequence[Piece] = pieces or (OK,)
        self._first = first
        self.heads: list[bytes] = []
        self.opened = asyncio.Event()
        self.connections = self.left = self.most = self._under_way = 0
        self.warm_together = 1
        """So many requests that warm up are answered at once, each on a connection of its own."""
        self._warming: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        is_first = True
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b" /warm " in head or b" /stats/warm " in head:
                    self._warm(writer)
                    is_first = False
                    continue
                self.heads.append(head)
                pieces = self._first if is_first and self._first else self.pieces
                if head.startswith(b"HEAD") and pieces == (OK,):
                    pieces = (OK.removesuffix(b"ok"),)
                is_first = False
                self._under_way += 1
                self.most = max(self.most, self._under_way)
                try:
                    if not await self._say(pieces, reader, writer):
                        break
                finally:
                    self._under_way -= 1
        self.left += 1
        writer.transport.abort()

    def _warm(self, writer: asyncio.StreamWriter) -> None:
        self._warming.append(writer)
        if len(self._warming) >= self.warm_together:
            for one in self._warming:
                one.write(OK)
            self._warming.clear()

    async def _say(self, pieces: Sequence[Piece], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            if piece == WAIT:
                opened, gone = asyncio.create_task(self.opened.wait()), asyncio.create_task(reader.read())
                await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    opened.cancel()
                    return False
                gone.cancel()
                await asyncio.wait({gone})
            elif piece == PAUSE:
                await writer.drain()
                await _turns()
            elif isinstance(piece, bytes):
                writer.write(piece)
            else:
                await writer.drain()
                await _turns()  # a cut takes with it what has not left yet
                writer.transport.write_eof()
                return False
        return True


async def _turns() -> None:
    """Let others read what was written. Turns of the loop as well as time: after a stall one timer is over at once."""
    for _ in range(10):
        await asyncio.sleep(0.003)


@dataclass
class Side:
    """One of the two gateways."""

    port: int
    bare: Bare
    breakers: Breakers
    metrics: Metrics
    clock: ManualClock
    server: HttpServer = field(repr=False)
    proxy: Proxy = field(repr=False)

    async def warm_up(self, connections: int = 1) -> None:
        """Let so many connections to the service wait in each pool that is used."""
        self.bare.warm_together = connections
        answers = await asyncio.gather(*(fetch(self.port, "/warm") for _ in range(connections)))
        self.bare.warm_together = 1
        assert {answer.status for answer in answers} == {200}
        await eventually(lambda: len(self.proxy._pools["links"]._idle) >= connections)

    def count(self, name: str, **labels: str) -> float:
        """The value of a series."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def results(self) -> dict[str, float]:
        """How requests went, as the breaker of links sees it; warming up has gone well."""
        results = ("success", "failure", "undecided", "late")
        return {each: self.count("gateway_breaker_results_total", target="links", result=each) for each in results}

    def counted(self) -> dict[tuple[str, ...], float]:
        """Requests by method, route and status."""
        found = {}
        for metric in self.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name == "http_requests_total":
                    found[tuple(sample.labels[each] for each in ("method", "route", "status"))] = sample.value
        return found


@asynccontextmanager
async def side(bare: Bare, *, fast: bool, patience: float = 30.0, **options: Any) -> AsyncIterator[Side]:
    """A gateway before a bare service. `options` are those of `build_gateway`, but `limits` are made by `counted`,
    given the clock, and those of the server are called `served`."""
    metrics, clock = Metrics(), ManualClock()
    async with AsyncExitStack() as stack:
        listening = await asyncio.start_server(bare.serve, "127.0.0.1", 0, limit=2**20)
        stack.callback(listening.close)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        proxy = Proxy(dict.fromkeys(TARGETS, url), answer_timeout=patience)
        breakers = options.pop("breakers", None) or Breakers(TARGETS, clock, metrics)
        options.setdefault("tokens", tokens())
        served, counted = options.pop("served", ROOMY), options.pop("counted", lambda _: None)(clock)
        gateway = build_gateway(proxy, breakers=breakers, metrics=metrics, limits=counted, **options)
        stack.push_async_callback(gateway.stop)
        fast_path = gateway.fast_path if fast else None
        server = await stack.enter_async_context(running(gateway.application, limits=served, fast_path=fast_path))
        yield Side(server.port, bare, breakers, metrics, clock, server, proxy)
    await eventually(lambda: bare.left == bare.connections)  # everybody has hung up


class Ways:
    """Which way requests took: through the application from the beginning, or from the middle on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dispatched = self.handed_over = self.taken = 0
        dispatch, finish, take = Dispatch.__call__, Carrier._finish, Carrier.take

        async def dispatching(*given: Any) -> None:
            self.dispatched += 1
            await dispatch(*given)

        async def finishing(*given: Any) -> None:
            self.handed_over += 1
            await finish(*given)

        def taking(*given: Any) -> Any:
            passing = take(*given)
            self.taken += passing is not None
            return passing

        monkeypatch.setattr(Dispatch, "__call__", dispatching)
        monkeypatch.setattr(Carrier, "_finish", finishing)
        monkeypatch.setattr(Carrier, "take", taking)

    @property
    def seen(self) -> tuple[int, int, int]:
        """Taken on the fast path, handed over from there, and through the application from the beginning."""
        return self.taken, self.handed_over, self.dispatched

    def forget(self) -> None:
        """Begin anew."""
        self.dispatched = self.handed_over = self.taken = 0


async def raw_answer(client: Client, *, to_head: bool = False) -> bytes:
    """The next answer to the byte; `<cut>` stands where it ended before its time."""
    got = b""
    try:
        async with asyncio.timeout(PATIENCE):
            got = top = await client.reader.readuntil(b"\r\n\r\n")
            if to_head or top[9:12] in {b"204", b"304"}:
                return got
            if b"transfer-encoding: chunked" in top:
                while not got.endswith(b"0\r\n\r\n"):
                    got += await client.reader.readuntil(b"\r\n")
                return got
            length = re.search(rb"content-length: (\d+)", top)
            assert length is not None, top
            return got + await client.reader.readexactly(int(length[1]))
    except asyncio.IncompleteReadError as error:
        return got + error.partial + b"<cut>"
    except ConnectionError:
        return got + b"<cut>"


async def asked(place: Side, *requests: bytes) -> list[bytes]:
    """The answers to requests on one connection, one after the other, for as long as it lasts."""
    answers: list[bytes] = []
    async with await Client.connect(place.port) as client:
        for request in requests:
            await client.send(request)
            answers.append(masked(await raw_answer(client, to_head=request.startswith(b"HEAD"))))
            if answers[-1].endswith(b"<cut>") or b"connection: close" in answers[-1].lower():
                assert await client.is_closed()
                break
    return answers


async def settled(place: Side, requests: int) -> None:
    """Wait until so many requests are counted, those that warm up included."""
    await eventually(lambda: sum(place.counted().values()) >= requests)


def lines(answer: bytes, name: bytes) -> list[bytes]:
    """The fields of an answer whose names begin like this."""
    return [line for line in answer.split(b"\r\n") if line.startswith(name)]


async def nothing_is_left(place: Side) -> None:
    """Whatever began has ended, and given back what it had."""
    await eventually(lambda: not place.proxy._under_way)
    for _ in range(2):
        assert (await fetch(place.port, "/warm")).status == 200


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Which way requests took."""
    return Ways(monkeypatch)
