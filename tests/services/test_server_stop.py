"""How the server comes up and goes down."""

import asyncio
import socket

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime import server as server_module
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.fast_path import FastPath, Headers, HeldAnswer
from refract.runtime.protocol import PIECE_BYTES, PIECES_AT_ONCE
from refract.runtime.server import HANDSHAKE_SECONDS, HttpServer, ServerLimits
from tests.support.applications import Gate, echo
from tests.support.http import PATIENCE, Client, fetch, head, running
from tests.support.waiting import eventually


@pytest.fixture
def long_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is slow because the machine is has not missed it; nobody waits for it once all have gone."""
    monkeypatch.setattr(server_module, "LAST_CALL_SECONDS", 30.0)


async def test_a_port_that_is_taken_is_named() -> None:
    async with running(echo) as server:
        with pytest.raises(Misconfigured, match=rf"cannot listen on 127\.0\.0\.1:{server.port}: .+"):
            await HttpServer(echo, port=server.port).start()


async def test_serves_a_socket_it_is_given() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = HttpServer(echo, sockets=[listening])
        await server.start()
        assert server.port == listening.getsockname()[1]
        assert (await fetch(server.port, "/")).status == 200
        await server.stop(grace=1)


@pytest.mark.usefixtures("long_last_call")
async def test_stop_under_load_fails_no_request() -> None:
    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.002)
        await echo(scope, receive, send)

    server = HttpServer(busy)
    await server.start()
    answered = 0

    async def load() -> None:
        nonlocal answered
        async with await Client.connect(server.port) as client:
            while True:
                answer = await client.get("/")  # an answer that does not come raises
                assert answer.status == 200
                answered += 1
                if answer.closes:
                    return

    clients = [asyncio.create_task(load()) for _ in range(32)]
    await eventually(lambda: answered > 200)
    await server.stop(grace=60)
    assert server.closed
    await asyncio.gather(*clients)
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(server.port)


async def test_stop_finishes_what_is_under_way_and_closes_what_is_idle() -> None:
    gate, held = Gate(), HeldAnswer()

    class Hot(FastPath):
        def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> HeldAnswer | None:
            return held if target == b"/held" else None

    server = HttpServer(gate, fast_path=Hot())
    await server.start()
    idle, slow, waiting, receiving = [await Client.connect(server.port) for _ in range(4)]
    await slow.send(head("GET", "/slow"))
    await waiting.send(head("GET", "/held"))
    await receiving.send(b"GET /received HTTP/1.1\r\nHo")
    await eventually(lambda: gate.waiting == 1 and server.connections == 4)
    stopping = asyncio.create_task(server.stop(grace=60))
    assert await idle.is_closed()
    await receiving.send(b"st: test\r\n\r\n")
    gate.opened.set()
    held.release(b"HTTP/1.1 301 Moved Permanently\r\ncontent-length: 0\r\n\r\n")
    answers = [await client.answer() for client in (slow, waiting, receiving)]
    assert [(answer.status, answer.closes) for answer in answers] == [(200, True), (301, True), (200, True)]
    await stopping
    for client in (idle, slow, waiting, receiving):
        client.close()


@pytest.mark.usefixtures("long_last_call")
async def test_the_first_request_after_the_stop_is_the_last_of_its_connection() -> None:
    seen = []

    class Hot(FastPath):
        def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes:
            seen.append(target)
            return b"HTTP/1.1 301 Moved Permanently\r\ncontent-length: 0\r\n\r\n"

    server = HttpServer(echo, fast_path=Hot())
    await server.start()
    async with await Client.connect(server.port) as client:
        assert not (await client.get("/before")).closes
        (connection,) = server._open_connections()
        stopping = asyncio.create_task(server.stop(grace=60))
        await eventually(lambda: connection._draining)
        await client.send(head("GET", "/last") + head("GET", "/too-late"))
        assert (await client.answer()).closes
        assert await client.is_closed()
        await stopping
    assert seen == [b"/before", b"/last"]


async def test_stop_does_not_wait_for_an_event_stream() -> None:
    ended = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    server = HttpServer(stream)
    await server.start()
    async with await Client.connect(server.port) as client:
        await client.send(head("GET", "/"))
        await client.reader.readuntil(b"data: 1\n\n")
        async with asyncio.timeout(30):
            await server.stop(grace=60)
    assert ended.is_set()


async def test_stop_needs_no_more_than_its_grace_to_cut() -> None:
    cancelled = asyncio.Event()
    waits = [HANDSHAKE_SECONDS]

    class Noting(HttpServer):
        async def _emptied(self, timeout: float) -> None:
            waits.append(timeout)
            await super()._emptied(timeout)

        async def _tasks_done(self, timeout: float) -> None:
            waits.append(max(0.0, timeout))
            await super()._tasks_done(timeout)

    async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = Noting(stuck)
    await server.start()
    async with await Client.connect(server.port) as client:
        await client.send(head("GET", "/"))
        await eventually(lambda: server._state.tasks)
        await server.stop(grace=2)
        assert sum(waits) < 1.8, "what it may wait for leaves time to cut, because the supervisor waits no longer"
        assert cancelled.is_set()
        assert await client.is_closed()


async def test_stop_cuts_what_outlives_the_grace_period() -> None:
    gate = Gate()
    server = HttpServer(gate)
    await server.start()
    async with await Client.connect(server.port) as client:
        await client.send(head("GET", "/"))
        await eventually(lambda: gate.waiting == 1)
        await server.stop(grace=0.1)
        assert await client.is_closed()


async def test_a_request_that_was_read_and_not_parsed_yet_is_answered_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client takes the answers to those before it slowly, and until then none is parsed any more."""
    monkeypatch.setattr(server_module, "LAST_CALL_SECONDS", 0.0)
    body = bytes(1024 * 1024)  # a few of these are more than the sockets between server and client have room for
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    waits: list[float] = []

    class Hot(FastPath):
        def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes:
            return answer

    class Noting(HttpServer):
        async def _emptied(self, timeout: float) -> None:
            waits.append(timeout)
            await super()._emptied(timeout)

    server = Noting(echo, fast_path=Hot(), limits=ServerLimits(send=PATIENCE))
    await server.start()
    async with await Client.connect(server.port) as client:
        await eventually(lambda: server.connections)
        (connection,) = server._open_connections()
        asked = head("GET", "/", "X-Padding: ")
        asked = head("GET", "/", "X-Padding: " + "x" * (PIECE_BYTES - len(asked)))
        # As it was read: where one begins and ends in what comes over a wire, nobody can say.
        connection.data_received(asked * 2 * PIECES_AT_ONCE)
        await eventually(lambda: connection.flow.write_paused)
        assert connection._unparsed
        assert not connection._turns
        stopping = asyncio.create_task(server.stop(grace=60))
        await eventually(lambda: len(waits) == 2)  # by now what is idle was closed
        answers = [await client.answer()]
        while not answers[-1].closes:
            answers.append(await client.answer())
        assert await client.is_closed()
        await stopping
