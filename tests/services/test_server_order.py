"""The hook of the hot path: answers at once, held ones, and everything in the order of the requests."""

import asyncio
import socket
import struct

import pytest

from refract.runtime.fast_path import FastPath, Headers, HeldAnswer
from refract.runtime.protocol import PIECE_BYTES
from refract.runtime.server import ServerLimits
from refract.runtime.turns import MAX_TURNS
from tests.support.applications import Gate, echo
from tests.support.http import Answer, Client, head, running
from tests.support.waiting import eventually


def response(text: str, *, to_head: bool = False) -> bytes:
    body = text.encode()
    return b"HTTP/1.1 301 Moved Permanently\r\ncontent-length: %d\r\n\r\n" % len(body) + (b"" if to_head else body)


class Hot(FastPath):
    """Answers /fast… at once, holds /held…, fails at /broken, and leaves the rest to the application."""

    def __init__(self) -> None:
        self.held: dict[str, HeldAnswer] = {}
        self.seen: list[tuple[bytes, bytes, Headers, str]] = []

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        self.seen.append((method, target, headers, peer))
        if target.startswith(b"/fast"):
            return response(target.decode(), to_head=method == b"HEAD")
        if target.startswith(b"/held"):
            self.held[target.decode()] = held = HeldAnswer()
            return held
        if target == b"/broken":
            raise RuntimeError("a bug in the hot path")
        return None

    def release(self, *targets: str) -> None:
        for target in targets:
            self.held[target].release(response(target))


async def answers(client: Client, count: int) -> list[str]:
    return [(await client.answer()).text for _ in range(count)]


async def test_answers_at_once_and_falls_through() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        assert await client.get("/fast", "X-One: 1") == Answer(301, {"content-length": "5"}, b"/fast")
        assert (await client.get("/slow")).text == "GET /slow 0"
        assert (await client.get("/fast?a=b")).text == "/fast?a=b"
    assert hot.seen[0] == (b"GET", b"/fast", [(b"host", b"test"), (b"x-one", b"1")], "127.0.0.1")


async def test_head_and_the_end_of_a_connection() -> None:
    async with running(echo, fast_path=Hot()) as server:
        async with await Client.connect(server.port) as client:
            answer = await client.get("/fast", method="HEAD")
            assert (answer.headers["content-length"], answer.closes) == ("5", False)
            answer = await client.get("/fast", "Connection: close")
            assert (answer.text, answer.closes) == ("/fast", True)
            assert await client.is_closed()
        async with await Client.connect(server.port) as client:
            await client.send(b"GET /fast HTTP/1.0\r\nHost: test\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.answer()).closes
            assert await client.is_closed()


@pytest.mark.parametrize("header", ["Content-Length: 0", "Expect: 100-continue", "Upgrade: h2c"])
async def test_sees_nothing_unusual(header: str) -> None:
    async with running(echo, fast_path=Hot()) as server, await Client.connect(server.port) as client:
        assert (await client.get("/fast", header)).text == "GET /fast 0"


async def test_a_held_answer_leaves_when_it_is_released() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/held"))
        await eventually(lambda: hot.held)
        hot.release("/held")
        assert await answers(client, 1) == ["/held"]
        assert (await client.get("/slow")).text == "GET /slow 0"


async def test_answers_keep_the_order_of_their_requests() -> None:
    hot = Hot()
    targets = ["/fast1", "/held1", "/fast2", "/slow1", "/held2", "/held3", "/slow2", "/fast3"]
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(b"".join(head("GET", target) for target in targets))
        await eventually(lambda: len(hot.held) == 3)
        hot.release("/held3", "/held2")
        assert await answers(client, 1) == ["/fast1"]
        hot.release("/held1")
        expected = ["/held1", "/fast2", "GET /slow1 0", "/held2", "/held3", "GET /slow2 0", "/fast3"]
        assert await answers(client, 7) == expected


async def test_an_answer_behind_the_application_waits_for_it() -> None:
    hot, gate = Hot(), Gate()
    async with running(gate, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/slow") + head("GET", "/fast") + head("GET", "/held") + b"NONSENSE\r\n\r\n")
        await eventually(lambda: gate.waiting == 1 and hot.held)
        hot.release("/held")
        gate.opened.set()
        assert await answers(client, 3) == ["GET /slow 0", "/fast", "/held"]
        assert (await client.answer()).status == 400
        assert await client.is_closed()


async def test_a_request_after_the_last_one_is_not_answered() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/held", "Connection: close") + head("GET", "/fast") + head("GET", "/slow"))
        await eventually(lambda: hot.held)
        hot.release("/held")
        answer = await client.answer()
        assert (answer.text, answer.closes) == ("/held", True)
        assert await client.is_closed()
        assert len(hot.seen) == 1


async def test_a_release_for_a_client_that_has_gone_is_no_error() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("GET", "/held1") + head("GET", "/held2"))
            await eventually(lambda: len(hot.held) == 2)
            reset(client)
        await eventually(lambda: server.connections == 0)
        hot.release("/held2", "/held1")


def reset(client: Client) -> None:
    """Hang up in a way that says that nothing will be read any more."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@pytest.mark.parametrize("targets", [["/held1"], ["/held1", "/held2"], ["/fast", "/held1", "/fast"]])
async def test_who_only_listens_any_more_gets_what_is_held_and_the_end(targets: list[str]) -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(b"".join(head("GET", target) for target in targets))
        client.writer.write_eof()
        held = [target for target in targets if "held" in target]
        await eventually(lambda: len(hot.held) == len(held))
        hot.release(*reversed(held))
        received = [await client.answer() for _ in targets]
        assert [answer.text for answer in received] == targets
        assert received[-1].closes
        assert await client.is_closed()


async def test_half_a_request_behind_it_is_the_end_of_all() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/held") + b"GET /hal")
        await eventually(lambda: hot.held)
        client.writer.write_eof()
        assert await client.is_closed()


async def test_a_refused_request_behind_it_is_answered_too() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/held") + b"GET /x HTTP/1.1\r\nHost: bad host\r\n\r\n")
        await eventually(lambda: hot.held)
        client.writer.write_eof()
        hot.release("/held")
        assert await answers(client, 1) == ["/held"]
        received = await client.reader.read()
        assert received.startswith(b"HTTP/1.1 400 ")
        assert received.count(b"connection: close") == 1


async def test_for_the_application_who_says_no_more_has_gone() -> None:
    hot, gate = Hot(), Gate()
    async with running(gate, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/slow") + head("GET", "/held"))
        await eventually(lambda: gate.waiting == 1 and hot.held)
        client.writer.write_eof()
        assert await client.is_closed()
        await eventually(lambda: server.connections == 0)


async def test_a_held_answer_that_never_comes_is_given_up() -> None:
    hot = Hot()
    limits = ServerLimits(send=0.2)
    async with running(echo, limits=limits, fast_path=hot) as server, await Client.connect(server.port) as client:
        assert (await client.get("/held")).status == 503
        hot.release("/held")
        assert await client.is_closed()


async def test_more_held_answers_than_a_connection_may_have_waiting_all_leave() -> None:
    hot = Hot()
    targets = [f"/held{number}" for number in range(1000)]
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        sending = [head("GET", target, f"X-Filling: {'a' * 1000}") for target in targets]
        client.writer.write(b"".join(sending))
        await eventually(lambda: len(hot.held) >= MAX_TURNS)
        assert len(hot.held) < len(targets)  # the rest is not even read

        def all_released() -> bool:
            hot.release(*hot.held)
            return len(hot.held) == len(targets)

        await eventually(all_released)
        assert await answers(client, len(targets)) == targets


async def test_what_one_read_brings_is_not_all_taken_on_at_once() -> None:
    gate = Gate()
    async with running(gate) as server, await Client.connect(server.port) as client:
        client.writer.write(b"GET /a HTTP/1.1\r\nHost:x\r\n\r\n" * 5000)
        await eventually(lambda: gate.waiting == 1)
        (connection,) = server._open_connections()
        await eventually(lambda: connection.flow.read_paused)
        assert len(connection._turns) <= MAX_TURNS + PIECE_BYTES // 18
        gate.opened.set()
        assert await answers(client, 5000) == ["GET /a 0"] * 5000


async def test_a_refusal_leaves_although_more_was_read() -> None:
    hot, limits = Hot(), ServerLimits(send=0.2)
    async with running(echo, limits=limits, fast_path=hot) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/held") * 4000)
        assert (await client.answer()).status == 503
        assert await client.is_closed()
    assert len(hot.seen) <= MAX_TURNS + PIECE_BYTES // 18  # what had been read was not answered for nobody


@pytest.mark.parametrize("count", [1, MAX_TURNS - 1, MAX_TURNS, 3 * MAX_TURNS])
async def test_bodies_behind_other_requests_arrive(count: int) -> None:
    gate = Gate()
    body = b"a" * 300_000
    async with running(gate) as server, await Client.connect(server.port) as client:
        upload = head("POST", "/up", f"Content-Length: {len(body)}") + body
        sending = asyncio.create_task(client.send((head("GET", "/a") * count + upload) * 2))
        await eventually(lambda: gate.waiting == 1)
        gate.opened.set()
        expected = ["GET /a 0"] * count + ["POST /up 300000"]
        assert await answers(client, 2 * len(expected)) == expected * 2
        await sending


async def test_answers_that_nobody_reads_are_not_made() -> None:
    made = 0

    class Hot(FastPath):
        def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes:
            nonlocal made
            made += 1
            return response("a" * 20_000)

    async with running(echo, fast_path=Hot()) as server, await Client.connect(server.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(head("GET", "/a") * 5000)
        await eventually(lambda: made)
        (connection,) = server._open_connections()
        await eventually(lambda: connection.flow.write_paused)
        assert connection.transport.get_write_buffer_size() < 2 * 1024 * 1024
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await answers(client, 5000)) == 5000


async def test_a_client_that_sends_and_does_not_read_is_not_listened_to() -> None:
    hot = Hot()
    async with running(echo, fast_path=hot) as server, await Client.connect(server.port) as client:
        await eventually(lambda: server.connections == 1)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = head("GET", "/fast" + "a" * 4000)
        for _ in range(5_000):
            client.writer.write(request)
        (connection,) = server._open_connections()
        await eventually(lambda: connection.flow.read_paused)
        assert connection.transport.get_write_buffer_size() < 1024 * 1024
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await answers(client, 5_000)) == 5_000


async def test_a_hot_path_that_fails_leaves_the_request_to_the_application(caplog: pytest.LogCaptureFixture) -> None:
    async with running(echo, fast_path=Hot()) as server, await Client.connect(server.port) as client:
        assert (await client.get("/broken")).text == "GET /broken 0"
    assert "a bug in the hot path" in caplog.text
