"""The proxy's own HTTP: connections that are kept, answers in every framing, and answers that are none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from refract.kernel.errors import Invalid
from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.adapters import connections
from refract.services.gateway.adapters.proxy import Proxy
from tests.support.fronts import mirror, send_answer, url_of
from tests.support.http import Client, fetch, running
from tests.support.upstreams import OK, Open, Script, doors
from tests.support.waiting import eventually

MUTE = [("GET", 1, 200, 2), ("HEAD", 1, 200, 2), ("GET", 2, 502, 2), ("POST", 1, 502, 1), ("DELETE", 1, 502, 1)]
"""A method, how many die, what the client is told, and how often the service was asked."""


@pytest.fixture
async def door() -> AsyncIterator[Open]:
    """The proxy alone, before whatever a test opens it for."""
    async with doors() as open_door:
        yield open_door


async def test_a_connection_is_used_again(door: Open) -> None:
    script = Script(OK, OK, OK)
    port = await door(script)
    async with await Client.connect(port) as client:
        assert [(await client.get("/a")).body for _ in range(3)] == [b"ok"] * 3
    assert script.connections == 1


async def test_requests_at_the_same_time_have_connections_of_their_own_which_are_kept(door: Open) -> None:
    addresses: set[object] = set()
    together = asyncio.Barrier(8)

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.add(scope["client"])
        await together.wait()
        await send_answer(send, 200, b"ok")

    port = await door(service)
    for _ in range(3):
        answers = await asyncio.gather(*(fetch(port, "/a") for _ in range(8)))
        assert [answer.body for answer in answers] == [b"ok"] * 8
    assert len(addresses) == 8


async def test_a_connection_that_waited_too_long_is_closed(door: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.05)
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        gone.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await fetch(port, "/a")).status == 200
        await gone.wait()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 1\r\n\r\n", b"hello"),
        (b"HTTP/1.1 100 Continue\r\nX-Not: this\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + OK, b"ok"),
    ],
)
async def test_every_framing_is_understood_and_leaves_the_connection_usable(
    door: Open, answer: bytes, body: bytes
) -> None:
    script = Script(answer, answer)
    port = await door(script)
    for _ in range(2):
        got = await fetch(port, "/a")
        assert (got.status, got.body) == (200, body)
        assert not {"x-late", "x-not", "link"} & got.headers.keys()
    assert script.connections == 1


async def test_an_answer_in_single_bytes_is_understood(door: Open) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await fetch(port, "/a")).body == b"hello"


@pytest.mark.parametrize(
    "top", [b"HTTP/1.0 ", b"HTTP/1.1 ", b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\nHTTP/1.1 "]
)
async def test_an_answer_without_a_length_ends_with_its_connection(door: Open, top: bytes) -> None:
    script = Script(top + b"200 OK\r\n\r\nhello", stays=False)
    port = await door(script)
    assert [(await fetch(port, "/a")).body for _ in range(2)] == [b"hello"] * 2
    assert script.connections == 2


@pytest.mark.parametrize("close", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_a_connection_that_the_service_closes_is_not_used_again(door: Open, close: bytes) -> None:
    script = Script(close + b"Content-Length: 0\r\n\r\n")
    port = await door(script)
    for method in ("GET", "HEAD", "GET"):
        assert (await fetch(port, "/a", method=method)).status == 200
    assert script.connections == 3


@pytest.mark.parametrize(
    "length", [b"Content-Length: 5\r\n", b"", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n"]
)
async def test_an_answer_to_head_has_no_body_whatever_it_announces(door: Open, length: bytes) -> None:
    script = Script(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n", OK, b"HTTP/1.1 200 OK\r\n" + length + b"\r\n", OK)
    port = await door(script)
    for method in ("HEAD", "GET", "HEAD", "GET"):
        assert (await fetch(port, "/a", method=method)).body == (b"ok" if method == "GET" else b"")
    assert script.connections == 1


async def test_an_answer_that_may_have_no_body_promises_none(door: Open) -> None:
    script = Script(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", OK)
    port = await door(script)
    async with await Client.connect(port) as client:
        assert "content-length" not in (await client.get("/a")).headers
        assert (await client.get("/a")).body == b"ok"
    assert script.connections == 1


@pytest.mark.parametrize(
    "extra", [b"X", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_bytes_after_an_answer_never_become_the_next_one(door: Open, extra: bytes, method: str) -> None:
    answer = OK if method == "GET" else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    script = Script(answer + extra)
    port = await door(script)
    for _ in range(2):
        got = await fetch(port, "/a", method=method)
        assert (got.status, got.body) == (200, b"ok" if method == "GET" else b"")
    assert script.connections == 2


async def test_bytes_that_come_while_nobody_asks_end_the_connection(door: Open) -> None:
    more, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        if not more.is_set():
            await more.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
            with suppress(ConnectionError):
                await reader.read()
            gone.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await fetch(port, "/a")).body == b"ok"
        more.set()
        await gone.wait()
        assert (await fetch(port, "/a")).body == b"ok"


@pytest.mark.parametrize(
    "top",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        b"HTTP/1.1 200 OK\r\n folded: yes\r\n",
        b"HTTP/2.0 200 OK\r\n",
        b"\x16\x03\x01",
    ],
)
async def test_an_answer_that_could_be_read_in_two_ways_is_read_in_none(door: Open, top: bytes) -> None:
    assert (await fetch(await door(Script(top + b"\r\nab")), "/a")).status == 502


async def test_a_head_without_an_end_is_given_up(door: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_BYTES", 10_000)
    script = Script(b"HTTP/1.1 200 OK\r\n" + b"X-Long: %b\r\n" % (b"x" * 1000) * 20)
    answer = await fetch(await door(script), "/a")
    assert (answer.status, answer.body) == (502, b"an answer with an endless head")


@pytest.mark.parametrize("half", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_request_of_which_a_byte_came_back_is_not_asked_again(door: Open, half: bytes) -> None:
    script = Script(OK, half, stays=False)
    port = await door(script)
    assert (await fetch(port, "/a")).status == 200
    assert (await fetch(port, "/b")).status == 502
    assert len(script.heads) == 2


async def test_a_second_try_is_on_a_fresh_connection_and_the_last(door: Open) -> None:
    asked: list[int] = []
    together = asyncio.Barrier(4)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = writer.get_extra_info("peername")[1]
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await together.wait()
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            asked.append(number)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await asyncio.gather(*(fetch(port, "/a") for _ in range(4)))
        server.close()  # four connections wait, each will die at the next request, and there will be no fifth
        assert (await fetch(port, "/b")).status == 502
    assert len(asked) == 1


class Mute:
    """A service that reads requests and hangs up: the first ones of all, and from then on it answers."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                if len(self.heads) <= self.deaths:
                    break
                writer.write(OK)
        writer.transport.abort()


@pytest.mark.parametrize(("method", "deaths", "status", "asked"), MUTE)
async def test_a_fresh_connection_that_dies_in_silence_has_one_more_behind_it(
    door: Open, method: str, deaths: int, status: int, asked: int
) -> None:
    mute = Mute(deaths)
    async with await asyncio.start_server(mute.serve, "127.0.0.1", 0) as server:
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await fetch(port, "/a", method=method)).status == status
    assert len(mute.heads) == asked
    assert len(set(mute.heads)) == 1


async def test_a_kept_connection_that_dies_has_two_fresh_ones_behind_it(door: Open) -> None:
    mute = Mute(0)
    async with await asyncio.start_server(mute.serve, "127.0.0.1", 0) as server:
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for deaths, status in ((2, 200), (9, 502)):
            assert (await fetch(port, "/kept")).status == 200
            mute.heads.clear()
            mute.deaths = deaths
            assert (await fetch(port, "/a")).status == status
            assert len(mute.heads) == 3
            mute.deaths = 0


@pytest.mark.parametrize(("method", "deaths", "status"), [("GET", 1, 200), ("GET", 2, 502), ("POST", 1, 502)])
async def test_a_connection_that_dies_before_it_is_asked_is_no_error_of_ours(
    door: Open, monkeypatch: pytest.MonkeyPatch, method: str, deaths: int, status: int
) -> None:
    made: list[connections.Connection] = []
    connect = connections.Pool.connect

    async def connect_late(pool: connections.Pool) -> connections.Connection:
        connection = await connect(pool)
        made.append(connection)
        if len(made) <= deaths:
            connection.close()
            await eventually(lambda: connection not in pool.connections)
        return connection

    monkeypatch.setattr(connections.Pool, "connect", connect_late)
    assert (await fetch(await door(Script(OK)), "/a", method=method)).status == status


@pytest.mark.parametrize(("method", "resets", "status"), [("GET", 1, 200), ("POST", 1, 200), ("GET", 2, 502)])
async def test_whoever_was_queued_for_a_process_that_is_gone_asks_another(
    door: Open, monkeypatch: pytest.MonkeyPatch, method: str, resets: int, status: int
) -> None:
    tried = 0
    connect = connections.Pool.connect

    async def connect_in_vain(pool: connections.Pool) -> connections.Connection:
        nonlocal tried
        tried += 1
        if tried <= resets:
            raise ConnectionResetError(104, "reset")
        return await connect(pool)

    monkeypatch.setattr(connections.Pool, "connect", connect_in_vain)
    assert (await fetch(await door(Script(OK)), "/a", method=method)).status == status
    assert tried == 2


async def test_a_line_break_in_a_header_never_leaves() -> None:
    script = Script(OK)
    async with await asyncio.start_server(script.serve, "127.0.0.1", 0) as server:
        services = Proxy({"links": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"})

        async def receive() -> object:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_message: object) -> None:
            raise AssertionError("there is nothing to answer")

        for value in (b"a\r\nX-User-ID: 1", b"a\nb", b"a\rb", b"a\0b", b"a\r\n\r\nGET /b HTTP/1.1"):
            scope = {"method": "GET", "raw_path": b"/a", "query_string": b"", "headers": [(b"x-user-email", value)]}
            with pytest.raises(Invalid):
                await services.forward("links", scope, receive, send)
        await services.close()
    assert script.connections == 0


async def test_the_bytes_of_a_header_arrive_as_they_were_sent(door: Open) -> None:
    script = Script(OK)
    await fetch(await door(script), "/a", "X-Odd: \xe9\xff", "X-Name: Ä".encode().decode("latin-1"))
    assert b"\r\nx-odd: \xe9\xff\r\n" in script.heads[0]
    assert b"\r\nx-name: \xc3\x84\r\n" in script.heads[0]


@pytest.mark.parametrize(
    ("method", "sent", "framing"),
    [
        ("GET", "", b""),
        ("GET", "Content-Length: 0", b""),
        ("POST", "", b"content-length: 0\r\n"),
        ("DELETE", "", b"content-length: 0\r\n"),
        ("POST", "Content-Length: 0", b"content-length: 0\r\n"),
    ],
)
async def test_a_request_without_a_body_says_so_once(door: Open, method: str, sent: str, framing: bytes) -> None:
    script = Script(OK)
    await fetch(await door(script), "/a", *([sent] if sent else []), method=method)
    lines = [line for line in script.heads[0].split(b"\r\n") if line.lower().startswith((b"content-l", b"transfer-e"))]
    assert b"".join(line + b"\r\n" for line in lines) == framing


async def test_a_path_before_the_services_own_is_kept(door: Open) -> None:
    async with running(mirror) as server:
        port = await door(f"{url_of(server)}/inner/")
        seen = (await fetch(port, '/a?b=%20&c="|')).json
    assert (seen["raw_path"], seen["query"]) == ("/inner/a", 'b=%20&c="|')


async def test_the_host_is_the_services(door: Open) -> None:
    async with running(mirror) as server:
        seen = (await fetch(await door(url_of(server)), "/a")).json
        assert dict(seen["headers"])["host"] == f"127.0.0.1:{server.port}"


async def test_a_service_behind_https_is_spoken_to_in_tls(door: Open) -> None:
    first: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first.append(await reader.readexactly(3))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = await door(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await fetch(port, "/a", "Authorization: Bearer secret")).status == 502
    assert set(first) == {b"\x16\x03\x01"}  # a handshake, and nothing of the request
