"""The proxy between two sides that are slow, stop or go away: nothing is held for long, nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.adapters import proxy
from refract.services.gateway.adapters.connections import Connection
from refract.services.gateway.adapters.exchanges import Exchange
from refract.services.gateway.adapters.proxy import Proxy
from tests.support.fronts import ROOMY, mirror, read_body, send_answer, url_of
from tests.support.http import Client, fetch, head, running
from tests.support.upstreams import OK, Open, Script, Unreachable, Uploader, doors, through
from tests.support.waiting import eventually

SCOPE = {"method": "POST", "raw_path": b"/a", "query_string": b"", "headers": []}


@pytest.fixture
async def door() -> AsyncIterator[Open]:
    """The proxy alone, before whatever a test opens it for."""
    async with doors() as open_door:
        yield open_door


@pytest.fixture
async def unreachable() -> AsyncIterator[str]:
    place = Unreachable()
    yield place.url
    place.close()


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_in_pieces_keeps_its_framing_and_the_connection(door: Open, chunked: bool) -> None:
    addresses: set[object] = set()
    taken = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        async def counting() -> object:
            nonlocal taken
            message = await receive()
            taken += len(message["body"])
            return message

        addresses.add(scope["client"])
        await mirror(scope, counting, send)

    port = await door(service)
    async with await Client.connect(port) as client:
        framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: 6"
        await client.send(head("POST", "/a", framing))
        for number, piece in enumerate((b"abc", b"def"), 1):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await eventually(lambda: taken == 3 * number)  # noqa: B023  # it is over when the round is
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

    async with await Client.connect(await door(service)) as client, asyncio.timeout(60):
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
    async with await Client.connect(await door(stops, answer_timeout=0.3)) as client, asyncio.timeout(60):
        await client.send(head("POST", "/a", f"Content-Length: {size}"))
        writing = asyncio.create_task(client.send(b"x" * size))
        answer = await client.answer()
        assert (answer.status, answer.body) == (502, b"TimeoutError")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    ended.set()


async def test_a_connection_that_does_not_come_to_be_is_given_up(door: Open, unreachable: str) -> None:
    answer = await fetch(await door(unreachable, connect_timeout=0.2), "/a")
    assert (answer.status, answer.body) == (502, b"TimeoutError")


async def test_a_client_that_leaves_while_we_connect_ends_the_attempt(unreachable: str) -> None:
    ended, before = asyncio.Event(), asyncio.all_tasks()
    services = Proxy({"links": unreachable}, connect_timeout=90.0)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await services.forward("links", scope, receive, send)
        ended.set()

    async with running(application) as front, asyncio.timeout(30):
        async with await Client.connect(front.port) as client:
            await client.send(head("GET", "/a"))
            await eventually(lambda: services._under_way)  # from that moment on we are at it
        await ended.wait()
        await eventually(lambda: asyncio.all_tasks() == before)
    await services.close()


async def test_nothing_is_left_behind(door: Open) -> None:
    reached = 0

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal reached
        reached += 1
        await mirror(scope, receive, send)

    before = asyncio.all_tasks()
    port = await door(service)
    for _ in range(3):
        assert (await fetch(port, "/a")).status == 200
        async with await Client.connect(port) as client:
            assert (await client.post("/a", b"x" * 100_000)).status == 200
    async with await Client.connect(port) as client:
        await client.send(head("POST", "/a", "Content-Length: 10") + b"half")
        await eventually(lambda: reached == 7)
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_a_proxy_that_is_closed_while_an_answer_waits_for_its_reader_leaves_it_unfinished() -> None:
    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async with running(service) as server, asyncio.timeout(60):
        services = Proxy({"links": url_of(server)})
        async with running(through(services)) as front, await Client.connect(front.port) as client:
            await client.send(head("GET", "/a"))
            await client.reader.readuntil(b"\r\n\r\n")
            await services.close()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.reader.readexactly(100_000_000)


async def test_an_answer_before_the_end_of_the_request_uses_the_connection_up(door: Open) -> None:
    script = Script(OK, OK)
    port = await door(script)
    async with await Client.connect(port) as client:
        await client.send(head("POST", "/a", "Content-Length: 10") + b"half")
        assert (await client.answer()).status == 200
    assert (await fetch(port, "/a")).status == 200
    assert script.connections == 2


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


async def test_a_second_try_has_no_more_time_than_the_first_one_left(
    door: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges: list[Exchange] = []
    deadlines: list[float] = []
    ask = Connection.ask

    def noted(connection: Connection, exchange: Exchange, data: bytes) -> None:
        exchanges.append(exchange)
        ask(connection, exchange, data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        deadlines.append(exchanges[-1].deadline)
        writer.write(OK)
        if len(deadlines) == 1:
            await reader.readuntil(b"\r\n\r\n")
            deadlines.append(exchanges[-1].deadline)
            await asyncio.sleep(0.01)  # so that the clock moves on
        writer.close()

    monkeypatch.setattr(Connection, "ask", noted)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = await door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert [(await fetch(port, "/a")).status for _ in range(2)] == [200, 200]
    assert len(deadlines) == 3
    assert deadlines[1] == deadlines[2]
