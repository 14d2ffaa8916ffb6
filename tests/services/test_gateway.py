"""The gateway through its face: the same exam for services in this process and for services behind the proxy."""

import asyncio
import gzip
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_network
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Request, get

from refract.kernel.errors import Misconfigured
from refract.runtime.client_address import Network
from refract.runtime.edge import Application, Edge, Receive, Scope, Send
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.server import HttpServer, ServerLimits
from refract.runtime.web import build_app
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import OWN_PATHS
from refract.services.gateway.domain import forwarded_headers
from refract.services.gateway.ports import Services
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import GatewaySettings
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually


class Front(Protocol):
    """Puts the gateway before an application that plays the links service, and gives the gateway's port."""

    def __call__(
        self, service: Application, *, limits: ServerLimits = ..., trusted: Sequence[Network] = ...
    ) -> Awaitable[int]: ...


ROOMY = ServerLimits(body=64 * 1024 * 1024)


def _url(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def _serve_gateway(
    services: Services, stack: AsyncExitStack, limits: ServerLimits = ROOMY, trusted: Sequence[Network] = ()
) -> int:
    gateway = build_gateway(services, trusted_proxies=trusted)
    stack.push_async_callback(gateway.stop)
    return (await stack.enter_async_context(running(gateway.application, limits=limits))).port


@pytest.fixture(params=["in_process", "proxy"])
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """The gateway in both of its forms."""
    async with AsyncExitStack() as stack:

        async def open_front(
            service: Application, *, limits: ServerLimits = ROOMY, trusted: Sequence[Network] = ()
        ) -> int:
            if request.param == "in_process":
                return await _serve_gateway(InProcess({"links": service}), stack, limits, trusted)
            upstream = await stack.enter_async_context(running(service, limits=ROOMY))
            return await _serve_gateway(Proxy({"links": _url(upstream)}), stack, limits, trusted)

        yield open_front


@pytest.fixture
async def proxied() -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """The gateway as a proxy before a URL, with little patience."""
    async with AsyncExitStack() as stack:

        async def open_front(url: str) -> int:
            return await _serve_gateway(Proxy({"links": url}, connect_timeout=2.0, answer_timeout=0.3), stack)

        yield open_front


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request", message
        body, more = body + message["body"], message["more_body"]
    return body


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _mirror(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked."""
    assert scope["type"] == "http"
    body = await _read(receive)
    seen = {
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": scope["raw_path"].decode(),
        "query": scope["query_string"].decode(),
        "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
        "body": body.decode(),
    }
    await _answer(send, 200, msgspec.json.encode(seen), (b"content-type", b"application/json"))


# ---- what passes


async def test_a_request_arrives_whole_under_the_services_own_path(front: Front) -> None:
    port = await front(_mirror)
    async with await Client.connect(port) as client:
        answer = await client.post(
            '/api/shorten?a=1&b=%2F&c=%C3%A9&d="|', b'{"url":"x"}', "Content-Type: application/json"
        )
    seen = answer.json
    assert (seen["method"], seen["path"], seen["query"]) == ("POST", "/shorten", 'a=1&b=%2F&c=%C3%A9&d="|')
    assert seen["body"] == '{"url":"x"}'
    assert ["content-type", "application/json"] in seen["headers"]


async def test_a_code_is_forwarded_as_sent_and_decoded_once(front: Front) -> None:
    seen = (await fetch(await front(_mirror), "/r/a%2Db")).json
    assert (seen["raw_path"], seen["path"]) == ("/a%2Db", "/a-b")


async def test_a_chunked_body_arrives(front: Front) -> None:
    async with await Client.connect(await front(_mirror)) as client:
        await client.send(
            head("POST", "/api/shorten", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        seen = (await client.answer()).json
    assert seen["body"] == "abcde"


async def test_an_answer_passes_verbatim(front: Front) -> None:
    packed = gzip.compress(b"hello")

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        cookies = [(b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2")]
        await _answer(
            send, 301, packed, (b"location", b"https://example.com/"), (b"content-encoding", b"gzip"), *cookies
        )

    async with await Client.connect(await front(service)) as client:
        await client.send(head("GET", "/r/abc", "Connection: close"))
        raw = await client.reader.read()
    top, _, body = raw.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 301 ")
    assert [line for line in top.split(b"\r\n") if line.startswith(b"set-cookie")] == [
        b"set-cookie: a=1; Path=/",
        b"set-cookie: b=2",
    ]
    assert b"location: https://example.com/" in top
    assert b"content-encoding: gzip" in top
    assert body == packed
    names = [line.partition(b":")[0].lower() for line in top.split(b"\r\n")[1:]]
    assert all(names.count(name) == 1 for name in names if name != b"set-cookie"), names


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_answers_without_a_body_leave_the_connection_usable(front: Front, method: str, status: int) -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"etag", b'"1"')] if status == 304 else []
        headers += [(b"content-length", b"5")] if method == "HEAD" else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with await Client.connect(await front(service)) as client:
        first = await client.get("/r/abc", method=method)
        second = await client.get("/r/abc", method=method)
    assert (first.status, second.status) == (status, status)
    assert first.headers.get("content-length") == ("5" if method == "HEAD" else None)


# ---- streams


@pytest.mark.parametrize("kind", [b"text/plain", b"text/event-stream"])
async def test_the_first_piece_arrives_before_the_service_has_the_second(front: Front, kind: bytes) -> None:
    seen = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await seen.wait()
        await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})

    async with await Client.connect(await front(service)) as client, asyncio.timeout(10):
        await client.send(head("GET", "/r/abc"))
        await client.reader.readuntil(b"data: 1\n\n")
        seen.set()
        await client.reader.readuntil(b"data: 2\n\n")


async def test_the_service_reads_an_upload_while_the_client_writes_it(front: Front) -> None:
    begun = asyncio.Event()

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert message["type"] == "http.request"
        begun.set()
        await _answer(send, 200, message["body"] + await _read(receive))

    async with await Client.connect(await front(service)) as client, asyncio.timeout(10):
        await client.send(head("POST", "/api/shorten", "Content-Length: 6") + b"abc")
        await begun.wait()
        await client.send(b"def")
        assert (await client.answer()).body == b"abcdef"


async def test_a_large_upload_is_never_held_in_memory() -> None:
    size, piece = 32 * 1024 * 1024, b"0123456789abcdef" * 4096
    entered = left = furthest = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal left, furthest
        digest, more = hashlib.sha256(), True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            digest.update(message["body"])
            left += len(message["body"])
            furthest = max(furthest, entered - left)
            more = message["more_body"]
        await _answer(send, 200, digest.hexdigest().encode())

    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running(service, limits=ROOMY))
        gateway = build_gateway(Proxy({"links": _url(upstream)}))
        stack.push_async_callback(gateway.stop)

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def counting() -> object:
                nonlocal entered
                message = await receive()
                entered += len(message["body"]) if message["type"] == "http.request" else 0
                return message

            await gateway.application(scope, counting, send)

        front_server = await stack.enter_async_context(running(counted, limits=ROOMY))
        client = await stack.enter_async_context(await Client.connect(front_server.port))
        await client.send(head("POST", "/api/shorten", f"Content-Length: {size}"))
        for _ in range(size // len(piece)):
            await client.send(piece)
        answer = await client.answer()
    assert answer.text == hashlib.sha256(piece * (size // len(piece))).hexdigest()
    assert furthest < size / 4


async def test_an_answer_may_come_before_the_body_was_read(front: Front) -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(send, 413, b"too large")

    async with await Client.connect(await front(service)) as client:
        await client.send(head("POST", "/api/shorten", "Content-Length: 1000000") + b"x" * 1000)
        answer = await client.answer()
    assert (answer.status, answer.body) == (413, b"too large")


# ---- trouble


async def test_a_service_nobody_named_is_a_bad_gateway() -> None:
    for services in (InProcess({}), Proxy({})):
        async with AsyncExitStack() as stack:
            answer = await fetch(await _serve_gateway(services, stack), "/r/abc")
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
        await _read(receive)
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
    await client.send(head("POST", "/api/shorten", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
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
        await client.send(head("POST", "/api/shorten", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
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


async def test_a_refused_connection_is_a_bad_gateway(proxied: Callable[[str], Awaitable[int]]) -> None:
    async with running(_mirror) as server:
        dead = _url(server)
    answer = await fetch(await proxied(dead), "/r/abc")
    assert (answer.status, answer.json) == (502, {"error": "upstream error"})


async def test_a_service_that_stays_silent_is_a_bad_gateway(proxied: Callable[[str], Awaitable[int]]) -> None:
    gone = asyncio.Event()

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with running(silent) as server, asyncio.timeout(10):
        port = await proxied(_url(server))
        for request in (head("GET", "/r/abc"), head("POST", "/api/shorten", "Content-Length: 3") + b"abc"):
            gone.clear()
            async with await Client.connect(port) as client:
                await client.send(request)
                answer = await client.answer()
            assert (answer.status, answer.json) == (502, {"error": "upstream error"})
            await gone.wait()


async def test_a_slow_client_is_not_taken_for_a_silent_service(proxied: Callable[[str], Awaitable[int]]) -> None:
    async with running(_mirror) as server, await Client.connect(await proxied(_url(server))) as client:
        await client.send(head("POST", "/api/shorten", "Content-Length: 6") + b"abc")
        await asyncio.sleep(0.5)  # longer than the patience with a service: what is tested is the passing of time
        await client.send(b"def")
        assert (await client.answer()).json["body"] == "abcdef"


class DyingUpstream:
    """Answers so many requests on each connection, and closes it at the next one without a word."""

    def __init__(self, lives: int) -> None:
        self._lives = lives
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        for life in range(self._lives + 1):
            request = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(request.split(b" ")[0].decode())
            if life < self._lives:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()
        await writer.wait_closed()

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
        (0, "GET", "/r/abc", 502, ["GET", "GET"]),
    ],
)
async def test_only_a_harmless_request_on_a_pooled_connection_is_tried_again(
    proxied: Callable[[str], Awaitable[int]], lives: int, method: str, path: str, status: int, asked: list[str]
) -> None:
    upstream = DyingUpstream(lives)
    async with upstream as url:
        port = await proxied(url)
        assert (await fetch(port, "/r/abc")).status == (200 if lives else 502)
        assert (await fetch(port, path, method=method)).status == status
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
    proxied: Callable[[str], Awaitable[int]], top: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = RawUpstream(top + b"Content-Length: 5\r\n\r\nhel")
    async with upstream as url, asyncio.timeout(10):
        answer = await fetch(await proxied(url), "/r/abc?token=geheim")
        assert (answer.status, answer.json) == (502, {"error": "upstream error"})
        await upstream.left.wait()
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (line.getMessage(), line.exc_info) == ("proxy error", None)
    assert "geheim" not in str(vars(line))


async def test_a_gateway_that_stops_gives_up_its_questions_and_asks_no_other() -> None:
    upstream = RawUpstream(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    async with upstream as url, AsyncExitStack() as stack:
        services = Proxy({"links": url})
        port = await _serve_gateway(services, stack)
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


# ---- the door itself


async def test_what_is_not_in_the_table_is_not_found(front: Front) -> None:
    port = await front(_mirror)
    for path in ("/", "/api/unknown", "/urls", "/r/metrics", "/r/%2e%2e", "/api/urls/..%2F..%2Fmetrics"):
        answer = await fetch(port, path)
        assert (answer.status, answer.json) == (404, {"error": "not found"}), path


async def test_a_wrong_method_is_told_the_right_ones(front: Front) -> None:
    answer = await fetch(await front(_mirror), "/api/shorten", method="DELETE")
    assert (answer.status, answer.headers["allow"], answer.json) == (405, "POST", {"error": "method not allowed"})


async def test_health_is_the_gateways_own(front: Front) -> None:
    answer = await fetch(await front(_mirror), "/health")
    assert (answer.status, answer.json) == (200, {"status": "ok", "service": "gateway"})


async def test_one_correlation_id_on_the_way_in_and_back(front: Front) -> None:
    answer = await fetch(await front(_mirror), "/r/abc", "X-Correlation-ID: trace-1", "X_Correlation_Id: other")
    seen = [value for name, value in answer.json["headers"] if name.replace("_", "-") == "x-correlation-id"]
    assert seen == ["trace-1"]
    assert answer.headers["x-correlation-id"] == "trace-1"


async def test_nobody_says_who_they_are(front: Front) -> None:
    answer = await fetch(
        await front(_mirror),
        "/r/abc",
        *(
            "X-User-ID: admin",
            "X_User_Id: admin",
            "x-USER_email: a@b",
            "Connection: X-User-ID, X-Forwarded-For, x-secret",
        ),
        *(
            "X-Forwarded-For: 1.2.3.4",
            "X_Forwarded_For: 1.2.3.4",
            "X-Forwarded-Proto: gopher",
            "Forwarded: for=1.2.3.4",
        ),
        *("X-Real-IP: 1.2.3.4", "X-Secret: 1", "TE: trailers", "Authorization: Bearer t", "Cookie: a=1"),
    )
    seen = answer.json["headers"]
    assert "1.2.3.4" not in str(seen)
    assert "admin" not in str(seen)
    by_name = dict(seen)
    assert sorted(name for name, _ in seen) == [
        *("authorization", "cookie", "host"),
        *("x-correlation-id", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    ]
    assert by_name["host"] != "test"
    assert by_name["x-forwarded-for"] == "127.0.0.1"
    assert by_name["x-forwarded-proto"] == "http"
    assert by_name["x-forwarded-host"] == "test"
    assert by_name["authorization"] == "Bearer t"
    assert by_name["cookie"] == "a=1"


@pytest.mark.parametrize(("trusted", "address"), [([], "127.0.0.1"), (["127.0.0.0/8"], "203.0.113.9")])
async def test_the_address_seen_inside_comes_from_proxies_we_trust(
    front: Front, trusted: list[str], address: str
) -> None:
    @get("/{code:str}")
    async def show(request: Request[Any, Any, Any]) -> str:
        return str(request.scope["state"]["client_address"])

    service = build_app("url-service", [show], ready={}, trusted_proxies=[ip_network("127.0.0.0/8")])
    port = await front(service, trusted=[ip_network(network) for network in trusted])
    answer = await fetch(port, "/r/abc", "X-Forwarded-For: 203.0.113.9")
    assert (answer.status, answer.text) == (200, address)


OURS = ("x-user-id", "x-user-email", "x-user-role", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
SINGLE = ("forwarded", "x-real-ip", "host", "x-correlation-id")


@st.composite
def spellings(draw: st.DrawFn) -> bytes:
    """One of the names that only we may say, in some spelling."""
    name = draw(st.sampled_from(OURS + SINGLE))
    flips = draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    dashes = iter(draw(st.lists(st.sampled_from("-_."), min_size=len(name), max_size=len(name))))
    letters = (letter.upper() if flip else letter for letter, flip in zip(name, flips, strict=True))
    return "".join(next(dashes) if letter == "-" else letter for letter in letters).encode()


@given(st.lists(spellings(), max_size=5), st.lists(spellings(), max_size=3))
def test_no_spelling_of_our_names_passes(sent: list[bytes], named: list[bytes]) -> None:
    headers = [(name, b"forged") for name in sent]
    headers += [(b"Connection", b" ,".join(named)), (b"accept", b"*/*")]
    passed = forwarded_headers(headers, correlation_id="id", client="192.0.2.1", scheme="https", host=b"go.example")
    assert sorted(passed) == [
        (b"accept", b"*/*"),
        (b"x-correlation-id", b"id"),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x-forwarded-host", b"go.example"),
        (b"x-forwarded-proto", b"https"),
    ]


# ---- start and settings


def test_what_every_service_serves_itself_is_reserved() -> None:
    application: Any = build_app("url-service", [], ready={}, metrics=Metrics())._app
    served = {route.path.split("/")[1] for route in application.routes} | {"health"}
    assert served == {path.removeprefix("/") for path in OWN_PATHS}


async def test_the_health_round_reports_every_service_and_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def healthy(scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(send, 200, b"{}")

    caplog.set_level(logging.INFO, "refract.gateway")
    async with running(healthy) as other:
        dead = _url(other)
    async with running(healthy) as server:
        url = _url(server)
        gateway = build_gateway(Proxy({"links": url, "analytics": dead}))
        await gateway.check_services()
        await gateway.stop()
    said = {(record.levelname, record.getMessage(), getattr(record, "upstream", "")) for record in caplog.records}
    assert ("INFO", "downstream healthy", url) in said
    assert ("WARNING", "downstream health check failed on startup", dead) in said


def test_each_service_has_a_url() -> None:
    variables = {
        "URL_SERVICE_URL": "http://url-service:8081",
        "ANALYTICS_SERVICE_URL": "http://analytics-service:8082",
        "USER_SERVICE_URL": "http://user-service:8083",
        "NOTIFICATION_SERVICE_URL": "http://notification-service:8084",
        "SMS_GATEWAY_URL": "http://sms-gateway:8085",
        "PROJECT_SERVICE_URL": "http://project-service:8086",
    }
    assert GatewaySettings.from_environment(Environment(variables)).urls["identity"] == "http://user-service:8083"
    for variable in variables:
        with pytest.raises(Misconfigured, match=f'"{variable}" is not set'):
            GatewaySettings.from_environment(Environment({**variables, variable: ""}))
