"""What passes through the gateway, whole and as it comes, however the services are reached."""

import asyncio
import gzip
import hashlib
from contextlib import AsyncExitStack

import pytest

from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.service import build_gateway
from tests.support.fronts import ROOMY, Front, authorization, mirror, read_body, send_answer, tokens, url_of
from tests.support.http import Client, fetch, head, running


async def test_a_request_arrives_whole_under_the_services_own_path(front: Front) -> None:
    port = await front(mirror)
    async with await Client.connect(port) as client:
        answer = await client.post(
            '/api/shorten?a=1&b=%2F&c=%C3%A9&d="|', b'{"url":"x"}', "Content-Type: application/json", authorization()
        )
    seen = answer.json
    assert (seen["method"], seen["path"], seen["query"]) == ("POST", "/shorten", 'a=1&b=%2F&c=%C3%A9&d="|')
    assert seen["body"] == '{"url":"x"}'
    assert ["content-type", "application/json"] in seen["headers"]


async def test_a_code_is_forwarded_as_sent_and_decoded_once(front: Front) -> None:
    seen = (await fetch(await front(mirror), "/r/a%2Db")).json
    assert (seen["raw_path"], seen["path"]) == ("/a%2Db", "/a-b")


async def test_a_chunked_body_arrives(front: Front) -> None:
    async with await Client.connect(await front(mirror)) as client:
        await client.send(
            head("POST", "/api/shorten", authorization(), "Transfer-Encoding: chunked")
            + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        seen = (await client.answer()).json
    assert seen["body"] == "abcde"


async def test_an_answer_passes_verbatim(front: Front) -> None:
    packed = gzip.compress(b"hello")

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        cookies = [(b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2")]
        await send_answer(
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
        await send_answer(send, 200, message["body"] + await read_body(receive))

    async with await Client.connect(await front(service)) as client, asyncio.timeout(10):
        await client.send(head("POST", "/api/shorten", authorization(), "Content-Length: 6") + b"abc")
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
        await send_answer(send, 200, digest.hexdigest().encode())

    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running(service, limits=ROOMY))
        gateway = build_gateway(Proxy({"links": url_of(upstream)}), tokens=tokens())
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
        await client.send(head("POST", "/api/shorten", authorization(), f"Content-Length: {size}"))
        for _ in range(size // len(piece)):
            await client.send(piece)
        answer = await client.answer()
    assert answer.text == hashlib.sha256(piece * (size // len(piece))).hexdigest()
    assert furthest < size / 4


async def test_an_answer_may_come_before_the_body_was_read(front: Front) -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await send_answer(send, 413, b"too large")

    async with await Client.connect(await front(service)) as client:
        await client.send(head("POST", "/api/shorten", authorization(), "Content-Length: 1000000") + b"x" * 1000)
        answer = await client.answer()
    assert (answer.status, answer.body) == (413, b"too large")
