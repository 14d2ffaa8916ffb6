"""What a client may send and how long it may take, on a real socket."""

import asyncio
import resource
import time
from typing import Any

import pytest
import uvicorn

from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.server import HttpServer, ServerLimits
from tests.support.applications import Gate, echo
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

BIG_HEADER = head("GET", "/", f"X-Big: {'a' * 65536}")
MANY_HEADERS = head("GET", "/", *(f"X-{number}: 1" for number in range(1000)))
MIB = 1024 * 1024
HASTY = ServerLimits(receive=0.3, send=0.3, idle=0.3)


async def refused(server: HttpServer, request: bytes) -> tuple[int, Any]:
    """Send something that must be refused; the connection has to end with the answer."""
    async with await Client.connect(server.port) as client:
        await client.send(request)
        answer = await client.answer()
        assert answer.closes
        assert await client.is_closed()
        return answer.status, answer.json


@pytest.mark.parametrize(
    ("request_bytes", "status", "message"),
    [
        pytest.param(BIG_HEADER, 431, "request header fields too large", id="header of 64 KiB"),
        pytest.param(MANY_HEADERS, 431, "request header fields too large", id="1,000 headers"),
        pytest.param(head("GET", "/" + "a" * 8192), 414, "request target too long", id="target over 8 KiB"),
        pytest.param(b"NONSENSE\r\n\r\n", 400, "malformed request", id="no HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, "malformed request", id="no host"),
        pytest.param(head("GET", "/", "Host: other"), 400, "malformed request", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, "malformed request", id="bare line feeds"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400, "malformed request", id="folded header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "malformed request", id="space before the colon"),
        pytest.param(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "http version not supported", id="HTTP/2.0"),
        pytest.param(
            b"GET / HTTP/2.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
            *(505, "http version not supported"),
            id="HTTP/2.0 that stays",
        ),
        pytest.param(b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "http version not supported", id="HTTP/0.9"),
    ],
)
async def test_refuses_heads_that_are_too_large_or_malformed(request_bytes: bytes, status: int, message: str) -> None:
    async with running(echo) as server:
        assert await refused(server, request_bytes) == (status, {"error": message})


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 3", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 3"),
        ("Content-Length: 3", "Content-Length: 4"),
        ("Content-Length: 3", "Content-Length: 3"),
        ("Content-Length: +3",),
        ("Content-Length: 3, 3",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: ",),
    ],
)
async def test_refuses_a_body_whose_end_is_in_doubt(headers: tuple[str, ...]) -> None:
    async with running(echo) as server:
        request = head("POST", "/", *headers) + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        assert await refused(server, request) == (400, {"error": "malformed request"})


async def test_refuses_chunks_of_a_client_that_cannot_know_them() -> None:
    async with running(echo) as server:
        request = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert await refused(server, request) == (400, {"error": "malformed request"})


@pytest.mark.parametrize("host", ["a/b", "a b", "a,b", "user@a", 'a"', "a<b>", "a\xe4", "a?b", "a#b", "a\\b"])
async def test_refuses_what_is_no_host(host: str) -> None:
    async with running(echo) as server:
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
        assert await refused(server, request) == (400, {"error": "malformed request"})


@pytest.mark.parametrize("host", ["a.example:8080", "[::1]:80", "[fe80::1%25eth0]", "my_service", "127.0.0.1", ""])
async def test_takes_every_host_there_is(host: str) -> None:
    async with running(echo) as server, await Client.connect(server.port) as client:
        await client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("request_bytes", [BIG_HEADER, MANY_HEADERS], ids=["header of 64 KiB", "1,000 headers"])
async def test_plain_uvicorn_has_no_limit_on_headers(request_bytes: bytes) -> None:
    config = uvicorn.Config(echo, port=0, log_config=None, lifespan="off", http="httptools", ws="none")
    plain = uvicorn.Server(config)
    serving = asyncio.create_task(plain._serve())
    await eventually(lambda: plain.started)
    port = plain.servers[0].sockets[0].getsockname()[1]
    async with await Client.connect(port) as client:
        await client.send(request_bytes)
        assert (await client.answer()).status == 200
    plain.should_exit = True
    await serving


async def test_takes_heads_up_to_the_limits() -> None:
    limits = ServerLimits(target=100, header_bytes=1000, header_count=5)
    async with running(echo, limits=limits) as server, await Client.connect(server.port) as client:
        filling = 1000 - len("Host: test\r\n") - len("X-Big: \r\n")
        assert (await client.get("/", f"X-Big: {'a' * filling}")).status == 200
        assert (await client.get("/", *(f"X-{number}: 1" for number in range(4)))).status == 200
        assert (await client.get("/" + "a" * 99)).status == 200
        assert (await client.get("/", f"X-Big: {'a' * (filling + 1)}")).status == 431


async def test_an_endless_header_is_refused_before_it_ends() -> None:
    async with running(echo) as server, await Client.connect(server.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: test\r\nX-Endless: ")
        for _ in range(100):
            await client.send(b"a" * 1024)
        assert (await client.answer()).status == 431


async def test_many_pipelined_requests_are_not_one_large_head() -> None:
    limits = ServerLimits(target=20, header_bytes=30)
    async with running(echo, limits=limits) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/") * 20 + b"GET /las")
        assert [(await client.answer()).status for _ in range(20)] == [200] * 20
        await client.send(b"t HTTP/1.1\r\nHost: test\r\n\r\n")
        assert (await client.answer()).text == "GET /last 0"


async def test_a_client_that_goes_on_sending_can_still_read_why_it_is_refused() -> None:
    async with running(echo) as server, await Client.connect(server.port) as client:
        await client.send(b"NONSENSE\r\n\r\n" + b"a" * 8 * MIB)
        assert (await client.answer()).status == 400


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with running(echo, limits=ServerLimits(body=1000)) as server:
        assert await refused(server, head("POST", "/", "Content-Length: 1001")) == (
            413,
            {"error": "request body too large"},
        )
        async with await Client.connect(server.port) as client:
            assert (await client.post("/", b"a" * 1000)).text == "POST / 1000"


async def test_a_client_that_asks_first_is_not_told_to_send_too_much() -> None:
    async with running(echo, limits=ServerLimits(body=1000)) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("POST", "/", "Content-Length: 3", "Expect: 100-continue"))
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"abc")
            assert (await client.answer()).text == "POST / 3"
        async with await Client.connect(server.port) as client:
            await client.send(head("POST", "/", "Content-Length: 1001", "Expect: 100-continue"))
            assert (await client.reader.readline()).startswith(b"HTTP/1.1 413 ")


async def test_an_old_client_is_not_told_to_continue() -> None:
    async with running(echo) as server, await Client.connect(server.port) as client:
        await client.send(b"POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        await client.send(b"abc")
        assert (await client.reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("piece", "most"),
    [
        pytest.param(b"400\r\n" + b"a" * 1024 + b"\r\n", 10_000, id="chunks"),
        pytest.param(b"1;" + b"x" * 1024 + b"\r\na\r\n", 1_000, id="chunk extensions"),
    ],
)
async def test_endless_chunks_are_refused(piece: bytes, most: int) -> None:
    received = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal received
        while True:
            received += len((await receive())["body"])

    async with running(app, limits=ServerLimits(body=10_000)) as server, await Client.connect(server.port) as client:
        await client.send(head("POST", "/", "Transfer-Encoding: chunked"))
        answer = asyncio.create_task(client.answer())
        while not answer.done():
            await client.send(piece)
            await asyncio.sleep(0)
        assert (answer.result().status, answer.result().closes) == (413, True)
        assert received <= most


async def test_fields_after_the_body_do_not_change_the_head() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        seen.extend(scope["headers"])

    async with running(app) as server, await Client.connect(server.port) as client:
        await client.send(head("POST", "/", "Transfer-Encoding: chunked") + b"0\r\nX-User-ID: root\r\n\r\n")
        assert (await client.answer()).status == 200
    assert [name for name, _ in seen] == [b"host", b"transfer-encoding"]


async def test_an_answer_before_the_end_of_the_body_ends_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with running(app) as server, await Client.connect(server.port) as client:
        await client.send(head("POST", "/", "Content-Length: 500000") + b"a" * 400_000)
        answer = await client.answer()
        assert (answer.status, answer.closes) == (401, True)
        assert await client.is_closed()


async def test_an_upgrade_is_not_granted_and_ends_the_connection() -> None:
    async with running(echo) as server, await Client.connect(server.port) as client:
        answer = await client.get("/", "Connection: Upgrade", "Upgrade: websocket")
        assert (answer.status, answer.closes) == (200, True)


async def test_a_client_that_trickles_is_closed_while_others_are_served() -> None:
    async with running(echo, limits=HASTY) as server:

        async def trickle() -> int:
            async with await Client.connect(server.port) as client:
                await client.send(b"GET / HTTP/1.1\r\nHost: test\r\nX-Slow: ")
                answer = asyncio.create_task(client.answer())
                while not answer.done():
                    await client.send(b"a")
                    await asyncio.wait({answer}, timeout=0.05)
                return answer.result().status

        async def serve_others() -> set[int]:
            async with await Client.connect(server.port) as client:
                return {(await client.get("/")).status for _ in range(200)}

        *closed, others = await asyncio.gather(*(trickle() for _ in range(20)), serve_others())
        assert closed == [408] * 20
        assert others == {200}


@pytest.mark.parametrize("asks_again", [False, True], ids=["new", "kept"])
async def test_time_in_which_the_server_stood_still_is_held_against_nobody(asks_again: bool) -> None:
    """What came meanwhile has not been read, and it is not the client who was slow."""
    async with running(echo, limits=HASTY) as server, await Client.connect(server.port) as client:
        await eventually(lambda: server.connections == 1)
        if asks_again:
            assert (await client.get("/")).status == 200
        client.writer.write(head("GET", "/"))
        time.sleep(1.0)  # noqa: ASYNC251  # nothing has a turn, as on a machine that is too busy
        assert (await client.answer()).status == 200


async def test_a_body_that_stops_coming_is_given_up() -> None:
    async with running(echo, limits=HASTY) as server, await Client.connect(server.port) as client:
        await client.send(head("POST", "/", "Content-Length: 10") + b"abc")
        answer = await client.answer()
        assert (answer.status, answer.json) == (408, {"error": "request timeout"})
        assert await client.is_closed()


async def test_an_application_that_takes_too_long_is_given_up() -> None:
    gate = Gate()
    async with running(gate, limits=HASTY) as server, await Client.connect(server.port) as client:
        answer = await client.get("/")
        assert (answer.status, answer.json) == (503, {"error": "service unavailable"})
        assert await client.is_closed()
        gate.opened.set()
        assert (await fetch(server.port, "/")).status == 200


async def test_an_idle_connection_is_closed() -> None:
    async with running(echo, limits=HASTY) as server:
        async with await Client.connect(server.port) as fresh:
            assert await fresh.is_closed()
        async with await Client.connect(server.port) as used:
            assert (await used.get("/")).status == 200
            assert await used.is_closed()


@pytest.mark.parametrize("drip", [b"", b"\r\n"], ids=["silence", "empty lines"])
async def test_a_connection_without_a_request_has_only_the_time_to_send_one(drip: bytes) -> None:
    limits = ServerLimits(receive=0.2, idle=60)
    async with running(echo, limits=limits) as server, await Client.connect(server.port) as client:
        closed = asyncio.create_task(client.is_closed())
        while not closed.done():
            client.writer.write(drip)
            await asyncio.wait({closed}, timeout=0.05)
        assert closed.result()


async def test_clients_that_cannot_be_accepted_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running(echo, limits=HASTY) as server, await Client.connect(server.port) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await eventually(lambda: "no file descriptors are left" in caplog.text)
            assert await client.is_closed()  # many sweeps later
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.text.count("no file descriptors are left") == 1


async def test_refusals_are_told_to_whoever_counts_them() -> None:
    told: list[int] = []
    server = HttpServer(echo, limits=HASTY, on_refusal=told.append)
    await server.start()
    for request in (b"NONSENSE\r\n\r\n", BIG_HEADER, b"GET / HT"):
        async with await Client.connect(server.port) as client:
            await client.send(request)
            await client.answer()
    async with await Client.connect(server.port) as client:  # this one reaches the application, which counts it
        await client.send(head("POST", "/", "Content-Length: 10") + b"abc")
        assert (await client.answer()).status == 408
    await server.stop(grace=0.1)
    assert told == [400, 431, 408]


@pytest.mark.parametrize("pieces", [1, 64], ids=["answer in one piece", "answer in pieces"])
async def test_a_client_that_does_not_read_is_cut(pieces: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left in reversed(range(pieces)):
            await send({"type": "http.response.body", "body": b"a" * (64 * MIB // pieces), "more_body": left > 0})

    async with running(app, limits=HASTY) as server, await Client.connect(server.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(head("GET", "/"))
        await eventually(lambda: server.connections == 1)
        await eventually(lambda: server.connections == 0)


async def test_an_event_stream_may_last() -> None:
    gate = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})

    async with running(app, limits=HASTY) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/"))
        for _ in range(3):  # three deadlines, one after the other
            async with await Client.connect(server.port) as witness:
                assert await witness.is_closed()
        gate.set()
        assert (await client.answer()).text == "data: 1\n\n"


async def test_an_answer_in_pieces_only_has_to_be_read() -> None:
    pieces = 4

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/csv")]})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": b"row\r\n", "more_body": True})
            async with await Client.connect(server.port) as witness:  # a deadline passes
                assert await witness.is_closed()
        await send({"type": "http.response.body", "body": b""})

    async with running(app, limits=HASTY) as server:
        assert (await fetch(server.port, "/")).body == b"row\r\n" * pieces


async def test_keeps_the_date_and_does_not_name_itself() -> None:
    async with running(echo) as server:
        answer = await fetch(server.port, "/")
        assert "date" in answer.headers
        assert "server" not in answer.headers


async def test_an_application_that_fails_is_a_500_in_json(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the secret of the house")

    async with running(app) as server:
        answer = await fetch(server.port, "/")
        assert (answer.status, answer.json) == (500, {"error": "internal server error"})
    assert "the secret of the house" in caplog.text
