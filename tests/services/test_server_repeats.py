"""Requests that repeat their head: known without being parsed again, and answered as if they had been."""

import asyncio
import re

import pytest

from refract.runtime import server as server_module
from refract.runtime.fast_path import FastPath, Headers, HeldAnswer
from refract.runtime.repeats import LESSONS
from tests.support.applications import echo
from tests.support.http import Client, head, running
from tests.support.waiting import eventually


def response(target: bytes) -> bytes:
    return b"HTTP/1.1 301 Moved Permanently\r\ncontent-length: %d\r\n\r\n%b" % (len(target), target)


class Known(FastPath):
    """Knows /fast and /held, with a number or without; notes how it came to each answer, by whose fields."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.held: dict[bytes, HeldAnswer] = {}
        self.remembered: list[Headers] = []

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        return self._answer(target, b"parser")

    def remember(self, headers: Headers, peer: str) -> object | None:
        self.remembered.append(headers)
        name = dict(headers).get(b"x-name")
        return None if name == b"nobody" else (name or b"anonymous", peer)

    def answer_again(self, target: bytes, remembered: object) -> bytes | HeldAnswer | None:
        assert isinstance(remembered, tuple)
        assert remembered[1] == "127.0.0.1"
        return self._answer(target, remembered[0])

    def _answer(self, target: bytes, by: bytes) -> bytes | HeldAnswer | None:
        if re.fullmatch(rb"/(fast|held)[0-9]?", target) is None:
            return None
        self.ways.append(by.decode())
        if target.startswith(b"/fast"):
            return response(target)
        self.held[target] = held = HeldAnswer()
        return held


async def test_the_same_head_again_is_known() -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        for number, name in enumerate(("ann", "ann", "bob", "ann", "ann")):
            assert (await client.get(f"/fast{number}", f"X-Name: {name}")).text == f"/fast{number}"
            assert (await client.get("/slow", f"X-Name: {name}")).text == "GET /slow 0"
    assert known.ways == ["parser", "ann", "parser", "parser", "ann"]


@pytest.mark.parametrize(
    "odd",
    [
        b"HEAD /fast HTTP/1.1\r\nHost: test\r\n\r\n",
        b"POST /fast HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /fast HTTP/1.0\r\nHost: test\r\n\r\n",
        b"\r\nGET /fast HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /fast HTTP/1.1\r\nhost: test\r\n\r\n",
        b"GET /fast HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        b"GET  /fast HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /fast x HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /fast HTTP/1.1\r\nX: GET /fast HTTP/1.1\r\nHost: test\r\n\r\n",
    ],
)
async def test_what_is_not_quite_the_same_is_parsed(odd: bytes) -> None:
    class Forgetful(Known):
        def remember(self, headers: Headers, peer: str) -> object | None:
            return None

    async def talk(known: Known) -> bytes:
        async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
            for _ in range(2):
                await client.get("/fast")
            known.ways.clear()
            await client.send(odd)
            client.writer.write_eof()
            return await client.reader.read()

    known, forgetful = Known(), Forgetful()
    answered = await talk(known)
    assert answered.partition(b"date")[0] == (await talk(forgetful)).partition(b"date")[0]
    assert known.ways == forgetful.ways


async def test_known_and_parsed_requests_keep_their_order() -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        await client.get("/fast")
        await client.send(head("GET", "/held1"))
        await eventually(lambda: b"/held1" in known.held)
        await client.send(head("GET", "/fast2"))
        await client.send(head("GET", "/slow"))
        await client.send(head("GET", "/held3"))
        await eventually(lambda: b"/held3" in known.held)
        known.held[b"/held3"].release(response(b"/held3"))
        known.held[b"/held1"].release(response(b"/held1"))
        texts = [(await client.answer()).text for _ in range(4)]
    assert texts == ["/held1", "/fast2", "GET /slow 0", "/held3"]
    assert known.ways[:2] == ["parser", "anonymous"]  # what is sent later may arrive together, and is parsed then


async def test_a_known_head_in_pieces_or_with_more_behind_it_is_parsed() -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        await client.get("/fast")
        whole = head("GET", "/fast2")
        await client.send(whole[:9])
        (connection,) = server._open_connections()
        await eventually(lambda: connection._message_open)
        await client.send(whole[9:])
        assert (await client.answer()).text == "/fast2"
        await client.send(head("GET", "/fast3") + head("GET", "/fast4"))
        assert [(await client.answer()).text for _ in range(2)] == ["/fast3", "/fast4"]
    assert known.ways == ["parser"] * 4


async def test_a_body_is_never_taken_for_a_known_request() -> None:
    async with running(echo, fast_path=Known()) as server, await Client.connect(server.port) as client:
        await client.get("/fast")
        body = head("GET", "/fast2")
        await client.send(head("POST", "/slow", f"Content-Length: {len(body)}"))
        (connection,) = server._open_connections()
        await eventually(lambda: connection._message_open)
        await client.send(body)
        assert (await client.answer()).text == f"POST /slow {len(body)}"


async def test_after_a_request_that_is_to_be_the_last_a_known_one_is_not_taken() -> None:
    """It would be counted, and nobody would ever answer it."""
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        await client.get("/fast")
        await client.send(head("GET", "/held1", "Connection: close"))
        await eventually(lambda: b"/held1" in known.held)
        (connection,) = server._open_connections()
        connection.data_received(head("GET", "/held2"))  # not by the client: nobody could say when it has arrived
        known.held[b"/held1"].release(response(b"/held1"))
        answer = await client.answer()
        assert (answer.text, answer.closes) == ("/held1", True)
        assert await client.is_closed()
    assert known.ways == ["parser"] * 2


async def test_after_the_stop_a_known_request_is_the_last_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LAST_CALL_SECONDS", 30.0)
    async with running(echo, fast_path=Known()) as server, await Client.connect(server.port) as client:
        for _ in range(2):
            assert not (await client.get("/fast")).closes
        (connection,) = server._open_connections()
        stopping = asyncio.create_task(server.stop(grace=60))
        await eventually(lambda: connection._draining)
        assert (await client.get("/fast")).closes
        await stopping


async def test_a_client_that_never_repeats_itself_is_not_learnt_from_for_long() -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        for number in range(LESSONS + 5):
            await client.get("/fast", f"X-Name: {number}")
        assert len(known.remembered) == LESSONS


async def test_what_the_fast_path_will_not_remember_is_parsed_each_time() -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        for _ in range(3):
            assert (await client.get("/fast", "X-Name: nobody")).text == "/fast"
    assert known.ways == ["parser"] * 3


async def test_a_fast_path_that_fails_at_a_known_request_has_it_parsed(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Known):
        def answer_again(self, target: bytes, remembered: object) -> bytes | HeldAnswer | None:
            raise RuntimeError("a bug in the hot path")

    async with running(echo, fast_path=Broken()) as server, await Client.connect(server.port) as client:
        for _ in range(2):
            assert (await client.get("/fast")).text == "/fast"
    assert "a bug in the hot path" in caplog.text


@pytest.mark.parametrize("field", ["Content-Length: 5", "Expect: 100-continue", "Upgrade: h2c"])
async def test_of_an_old_client_without_a_host_only_plain_requests_are_fast(field: str) -> None:
    known = Known()
    async with running(echo, fast_path=known) as server, await Client.connect(server.port) as client:
        await client.send(f"GET /fast HTTP/1.0\r\n{field}\r\n\r\nhello".encode())
        assert (await client.answer()).status == 200
    assert known.ways == []
