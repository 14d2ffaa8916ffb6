"""The proxy's own HTTP: connections that are kept, answers in every framing, and answers that are none."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest

from refract.kernel.errors import Invalid
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.services.gateway.adapters import connections, proxy
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.headers import UpstreamFailed
from tests.support.fronts import ROOMY, mirror, read_body, send_answer, url_of
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Script:
    """A service that answers the requests of each connection with these bytes, one after the other, and then ends."""

    def __init__(self, *answers: bytes, stays: bool = True) -> None:
        self._answers = answers
        self._stays = stays
        self.heads: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if self._stays:
                await reader.read()
        writer.close()


Open = Callable[..., Awaitable[int]]


@pytest.fixture
async def door() -> AsyncIterator[Open]:
    """The proxy alone before a service, which is a script or an application, behind our own server."""
    async with AsyncExitStack() as stack:

        async def open_door(service: Script | Application | str, **patience: float) -> int:
            if isinstance(service, str):
                url = service
            elif isinstance(service, Script):
                server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
                stack.callback(server.close)
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            else:
                url = url_of(await stack.enter_async_context(running(service, limits=ROOMY)))
            services = Proxy({"links": url}, **patience)
            stack.push_async_callback(services.close)
            front = await stack.enter_async_context(running(through(services), limits=ROOMY))
            return front.port

        yield open_door


def through(services: Proxy) -> Application:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        hops = {b"host", b"transfer-encoding", b"connection", b"expect"}
        inner = {**scope, "headers": [field for field in scope["headers"] if field[0] not in hops]}
        try:
            await services.forward("links", inner, receive, send)
        except (UpstreamFailed, Invalid) as error:
            await send_answer(send, 502 if isinstance(error, UpstreamFailed) else 400, str(error).encode())

    return application


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

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(10):
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

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(10):
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


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_in_pieces_keeps_its_framing_and_the_connection(door: Open, chunked: bool) -> None:
    addresses: set[object] = set()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.add(scope["client"])
        await mirror(scope, receive, send)

    port = await door(service)
    async with await Client.connect(port) as client:
        framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: 6"
        await client.send(head("POST", "/a", framing))
        for piece in (b"abc", b"def"):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await asyncio.sleep(0.02)  # so that they come one by one
        await client.send(b"0\r\n\r\n" if chunked else b"")
        seen = (await client.answer()).json
        again = (await client.get("/b")).json
    headers = dict(seen["headers"])
    assert seen["body"] == "abcdef"
    assert headers.get("content-length") == (None if chunked else "6")
    assert headers.get("transfer-encoding") == ("chunked" if chunked else None)
    assert again["path"] == "/b"
    assert len(addresses) == 1


async def test_a_large_answer_waits_for_its_reader(door: Open) -> None:
    size, written = 64 * 1024 * 1024, 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        while written < size:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": written + 65536 < size})
            written += 65536

    async with await Client.connect(await door(service)) as client, asyncio.timeout(20):
        await client.send(head("GET", "/a"))
        await client.reader.readuntil(b"\r\n\r\n")
        last = -1
        while written != last:
            last = written
            await asyncio.sleep(0.1)  # until nothing moves any more
        assert written < size / 2
        assert len(await client.reader.readexactly(size)) == size


async def test_a_service_that_stops_reading_is_given_up(door: Open) -> None:
    async def stops(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await ended.wait()

    ended, size = asyncio.Event(), 32 * 1024 * 1024
    async with await Client.connect(await door(stops, answer_timeout=0.3)) as client, asyncio.timeout(20):
        await client.send(head("POST", "/a", f"Content-Length: {size}"))
        writing = asyncio.create_task(client.send(b"x" * size))
        answer = await client.answer()
        assert (answer.status, answer.body) == (502, b"TimeoutError")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    ended.set()


class Unreachable:
    """A listener whose line is full: connections to it neither fail nor come to be."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.address = self._listener.getsockname()
        self._fillers = [socket.socket() for _ in range(4)]
        for filler in self._fillers:
            filler.setblocking(False)
            filler.connect_ex(self.address)

    def close(self) -> None:
        for each in (*self._fillers, self._listener):
            each.close()


@pytest.fixture
async def unreachable() -> AsyncIterator[str]:
    place = Unreachable()
    yield f"http://127.0.0.1:{place.address[1]}"
    place.close()


async def test_a_connection_that_does_not_come_to_be_is_given_up(door: Open, unreachable: str) -> None:
    answer = await fetch(await door(unreachable, connect_timeout=0.2), "/a")
    assert (answer.status, answer.body) == (502, b"TimeoutError")


async def test_a_client_that_leaves_while_we_connect_ends_the_attempt(unreachable: str) -> None:
    ended, before = asyncio.Event(), asyncio.all_tasks()
    services = Proxy({"links": unreachable})

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await services.forward("links", scope, receive, send)
        ended.set()

    async with running(application) as front, asyncio.timeout(4):
        async with await Client.connect(front.port) as client:
            await client.send(head("GET", "/a"))
            await asyncio.sleep(2 * proxy.LOOK_AROUND)  # so that we are at it
        await ended.wait()
        await eventually(lambda: asyncio.all_tasks() == before)
    await services.close()


async def test_nothing_is_left_behind(door: Open) -> None:
    before = asyncio.all_tasks()
    port = await door(mirror)
    for _ in range(3):
        assert (await fetch(port, "/a")).status == 200
        async with await Client.connect(port) as client:
            assert (await client.post("/a", b"x" * 100_000)).status == 200
    async with await Client.connect(port) as client:
        await client.send(head("POST", "/a", "Content-Length: 10") + b"half")
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_a_proxy_that_is_closed_while_an_answer_waits_for_its_reader_leaves_it_unfinished() -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async with running(service) as server, asyncio.timeout(10):
        services = Proxy({"links": url_of(server)})
        async with running(through(services)) as front, await Client.connect(front.port) as client:
            await client.send(head("GET", "/a"))
            await client.reader.readuntil(b"\r\n\r\n")
            await services.close()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.reader.readexactly(100_000_000)


async def test_a_path_before_the_services_own_is_kept(door: Open) -> None:
    async with running(mirror) as server:
        port = await door(f"{url_of(server)}/inner/")
        seen = (await fetch(port, '/a?b=%20&c="|')).json
    assert (seen["raw_path"], seen["query"]) == ("/inner/a", 'b=%20&c="|')


async def test_the_host_is_the_services(door: Open) -> None:
    async with running(mirror) as server:
        seen = (await fetch(await door(url_of(server)), "/a")).json
        assert dict(seen["headers"])["host"] == f"127.0.0.1:{server.port}"


async def test_an_answer_before_the_end_of_the_request_uses_the_connection_up(door: Open) -> None:
    script = Script(OK, OK)
    port = await door(script)
    async with await Client.connect(port) as client:
        await client.send(head("POST", "/a", "Content-Length: 10") + b"half")
        assert (await client.answer()).status == 200
    assert (await fetch(port, "/a")).status == 200
    assert script.connections == 2


class Uploader:
    """A client that never stops sending, or never says anything again; what it hears is thrown away."""

    def __init__(self, *, endless: bool) -> None:
        self._endless = endless
        self.sent = 0

    async def receive(self) -> object:
        if self.sent and not self._endless:
            await asyncio.get_running_loop().create_future()
        self.sent += 65536
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": self._endless}

    async def send(self, _message: object) -> None:
        return


SCOPE = {"method": "POST", "raw_path": b"/a", "query_string": b"", "headers": []}


async def test_no_more_of_an_upload_is_taken_than_the_service_reads() -> None:
    ended, client = asyncio.Event(), Uploader(endless=True)

    async def stops(scope: Scope, receive: Receive, send: Send) -> None:
        await ended.wait()

    async with running(stops, limits=ROOMY) as server:
        services = Proxy({"links": url_of(server)})
        uploading = asyncio.create_task(services.forward("links", dict(SCOPE), client.receive, client.send))
        last = -1
        while client.sent != last:
            last = client.sent
            await asyncio.sleep(0.1)  # until nothing moves any more
            assert client.sent < ROOMY.body / 2
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
        await services.close()
        ended.set()


async def test_nobody_waits_for_a_client_whose_answer_has_left() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await asyncio.sleep(3 * proxy.LOOK_AROUND)  # so that we look out for the client
        await send_answer(send, 200, b"ok")

    async with running(slow) as server:
        services, client, before = Proxy({"links": url_of(server)}), Uploader(endless=False), asyncio.all_tasks()
        await services.forward("links", dict(SCOPE), client.receive, client.send)
        await eventually(lambda: asyncio.all_tasks() == before)
        assert not services._under_way
        await services.close()
