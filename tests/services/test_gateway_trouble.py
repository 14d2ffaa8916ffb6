"""What a client sees when a service, or the client itself, goes wrong."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest
from litestar import get

from refract.runtime.edge import Edge, Receive, Scope, Send
from refract.runtime.server import ServerLimits
from refract.runtime.web import build_app
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from tests.support.fronts import Front, authorization, mirror, read_body, serve_gateway, url_of
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

Proxied = Callable[..., Awaitable[int]]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What we said ourselves: asyncio speaks of a task that failed in another test whenever it is collected."""
    return [record for record in caplog.records if record.name.startswith("refract")]


async def test_a_service_nobody_named_is_a_bad_gateway() -> None:
    for services in (InProcess({}), Proxy({})):
        async with AsyncExitStack() as stack:
            answer = await fetch(await serve_gateway(services, stack), "/r/abc")
        assert (answer.status, answer.json) == (502, {"error": "unknown upstream"})


@pytest.mark.parametrize("length", [[(b"content-length", b"100")], []])
async def test_an_answer_that_breaks_off_does_not_look_whole(front: Front, length: list[tuple[bytes, bytes]]) -> None:
    delivered = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await delivered.wait()
        raise RuntimeError("the service dies")

    async with await Client.connect(await front(service)) as client, asyncio.timeout(10):
        await client.send(head("GET", "/r/abc"))
        await client.reader.readuntil(b"half")
        delivered.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.reader.readuntil(b"0\r\n\r\n")


async def test_a_client_that_goes_away_ends_the_services_work(front: Front) -> None:
    gone = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        gone.set()

    client = await Client.connect(await front(service))
    await client.send(head("GET", "/r/abc"))
    await client.reader.readuntil(b"data: 1\n\n")
    client.close()
    async with asyncio.timeout(10):
        await gone.wait()


async def test_half_an_upload_never_looks_whole_to_the_service(front: Front) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    last: list[str] = []

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        while message["type"] == "http.request" and message["more_body"]:
            begun.set()
            message = await receive()
        last.append(message["type"])
        ended.set()

    client = await Client.connect(await front(service))
    await client.send(head("POST", "/api/shorten", authorization(), "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
    async with asyncio.timeout(10):
        await begun.wait()
        client.close()
        await ended.wait()
    assert last == ["http.disconnect"]


async def test_a_service_that_fails_says_so_itself(front: Front) -> None:
    @get("/{code:str}")
    async def fail() -> str:
        raise RuntimeError("a mistake of ours")

    answer = await fetch(await front(build_app("url-service", [fail], ready={})), "/r/abc")
    assert (answer.status, answer.json) == (500, {"error": "internal server error"})


async def test_a_body_over_the_limit_is_refused_in_mid_stream(front: Front) -> None:
    begun = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        begun.set()
        while (await receive())["type"] == "http.request":
            pass

    port = await front(service, limits=ServerLimits(body=1000))
    async with await Client.connect(port) as client, asyncio.timeout(10):
        await client.send(head("POST", "/api/shorten", authorization(), "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
        await begun.wait()
        await client.send(b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        answer = await client.answer()
    assert (answer.status, answer.json) == (400, {"error": "request body too large"})


async def test_a_client_that_left_is_reported_by_every_layer(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    begun = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    def statuses() -> list[int]:
        return [vars(line)["status"] for line in caplog.records if line.getMessage() == "request completed"]

    port = await front(Edge(service, "url-service"))
    async with await Client.connect(port) as client:
        await client.send(head("GET", "/r/abc"))
        await begun.wait()
    await eventually(lambda: len(statuses()) == 2)
    assert statuses() == [499, 499]


async def test_a_refused_connection_is_a_bad_gateway(proxied: Proxied) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens; a port that is given back may be another's by then
        answer = await fetch(await proxied(f"http://127.0.0.1:{taken.getsockname()[1]}"), "/r/abc")
    assert (answer.status, answer.json) == (502, {"error": "upstream error"})


async def test_a_service_that_stays_silent_is_a_bad_gateway(proxied: Proxied) -> None:
    gone = asyncio.Event()

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with running(silent) as server, asyncio.timeout(60):
        port = await proxied(url_of(server), answer_timeout=0.3)
        for request in (
            head("GET", "/r/abc"),
            head("POST", "/api/shorten", authorization(), "Content-Length: 3") + b"abc",
        ):
            gone.clear()
            async with await Client.connect(port) as client:
                await client.send(request)
                answer = await client.answer()
            assert (answer.status, answer.json) == (502, {"error": "upstream error"})
            await gone.wait()


async def test_a_slow_client_is_not_taken_for_a_silent_service() -> None:
    begun = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        async def noting() -> object:
            message = await receive()
            begun.set()
            return message

        await mirror(scope, noting, send)

    async with running(service) as server, AsyncExitStack() as stack:
        services = Proxy({"links": url_of(server)})
        client = await stack.enter_async_context(await Client.connect(await serve_gateway(services, stack)))
        await client.send(head("POST", "/api/shorten", authorization(), "Content-Length: 6") + b"abc")
        await begun.wait()
        loop = asyncio.get_running_loop()
        [exchange] = services._under_way
        exchange.check(loop.time() + 3600, loop)  # as when the proxy looks around an hour later
        await client.send(b"def")
        assert (await client.answer()).json["body"] == "abcdef"


class DyingUpstream:
    """Answers so many requests on each connection, and closes it at the next one without a word."""

    def __init__(self, lives: int) -> None:
        self._lives = lives
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. That its client goes first is no error: it would be logged when the next test looks."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for life in range(self._lives + 1):
                request = await reader.readuntil(b"\r\n\r\n")
                self.asked.append(request.split(b" ")[0].decode())
                if life < self._lives:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@pytest.mark.parametrize(
    ("lives", "method", "path", "status", "asked"),
    [
        (1, "GET", "/r/abc", 200, ["GET", "GET", "GET"]),
        (1, "DELETE", "/api/urls/abc", 502, ["GET", "DELETE"]),
        (1, "PATCH", "/api/urls/abc", 502, ["GET", "PATCH"]),
        (0, "GET", "/r/abc", 502, ["GET"] * 4),  # two fresh connections each
    ],
)
async def test_only_a_harmless_request_is_tried_again(
    proxied: Proxied, lives: int, method: str, path: str, status: int, asked: list[str]
) -> None:
    upstream = DyingUpstream(lives)
    async with upstream as url:
        port = await proxied(url)
        assert (await fetch(port, "/r/abc")).status == (200 if lives else 502)
        assert (await fetch(port, path, authorization(), method=method)).status == status
    assert upstream.asked == asked


class RawUpstream:
    """Gives every request the same bytes as its answer, and notices when its client has gone."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked.set()
                writer.write(self._answer)
        self.left.set()
        writer.close()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@pytest.mark.parametrize(
    "top",
    [
        b"HTTP/1.1 999 Odd\r\n",
        b"HTTP/1.1 600 Odd\r\n",
        b"HTTP/1.1 000 Odd\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        b"HTTP/1.1 200 OK\r\nX-Odd: a\x01b\r\n",
        b"HTTP/1.1 200 OK\r\nX-Odd: a\x7fb\r\n",
        b"HTTP/1.1 200 OK\r\nX(Odd): a\r\n",
        b"HTTP/1.1 200 OK\r\nX Odd: a\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
        b"no HTTP at all?token=geheim\r\n",
    ],
)
async def test_an_answer_that_cannot_be_passed_on_is_a_bad_gateway(
    proxied: Proxied, top: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = RawUpstream(top + b"Content-Length: 5\r\n\r\nhel")
    async with upstream as url, asyncio.timeout(20):  # before the proxy would have lost its patience
        answer = await fetch(await proxied(url), "/r/abc?token=geheim")
        assert (answer.status, answer.json) == (502, {"error": "upstream error"})
        await upstream.left.wait()
    (line,) = [record for record in ours(caplog) if record.levelno >= logging.WARNING]
    assert (line.getMessage(), line.exc_info) == ("proxy error", None)
    assert "geheim" not in str(vars(line))


async def test_a_gateway_that_stops_gives_up_its_questions_and_asks_no_other() -> None:
    upstream = RawUpstream(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    async with upstream as url, AsyncExitStack() as stack:
        services = Proxy({"links": url})
        port = await serve_gateway(services, stack)
        assert (await fetch(port, "/r/abc")).status == 200
        upstream._answer = b""
        upstream.asked.clear()
        async with await Client.connect(port) as client:
            await client.send(head("GET", "/r/abc"))
            await upstream.asked.wait()
            await services.close()
            answer = await client.answer()  # no second try on a session that is closed
            assert (answer.status, answer.json) == (502, {"error": "upstream error"})
            answer = await client.get("/r/abc")
            assert (answer.status, answer.json) == (502, {"error": "upstream error"})
        assert not await services.healthy("links")
