"""Requests that the fast path passes on: held in their turn, finished by an application, or given up with a reason."""

import asyncio
from typing import Any

import pytest

from refract.runtime.edge import Receive, Scope, Send, answer
from refract.runtime.exchange import CLIENT_LEFT
from refract.runtime.fast_path import FastPath, Headers, PassedOn
from refract.runtime.server import HttpServer, ServerLimits
from tests.support.applications import echo
from tests.support.http import Client, head, running
from tests.support.waiting import eventually

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfast"


class Elsewhere(FastPath):
    """Passes on what begins with /there, and keeps it for the test."""

    def __init__(self) -> None:
        self.passed: list[PassedOn] = []

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> None:
        """It has no answer of its own."""

    def pass_on(self, method: bytes, target: bytes, headers: Headers, peer: str) -> PassedOn | None:
        """Keep it."""
        if not target.startswith(b"/there"):
            return None
        self.passed.append(PassedOn(method=method, target=target, headers=headers))
        return self.passed[-1]

    def remember(self, headers: Headers, peer: str) -> object:
        """The fields."""
        return headers

    def pass_on_again(self, target: bytes, remembered: object) -> PassedOn | None:
        """Keep it, known by its head."""
        assert isinstance(remembered, list)
        return self.pass_on(b"GET", target, remembered, "again")


async def test_an_answer_is_released_and_those_behind_it_wait_for_the_application() -> None:
    path = Elsewhere()
    async with running(echo, fast_path=path) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/there/1") + head("GET", "/there/2") + head("GET", "/here"))
        await eventually(lambda: path.passed)
        path.passed[0].release(ANSWER)
        answers = [await client.answer() for _ in range(3)]
        assert [each.body for each in answers] == [b"fast", b"GET /there/2 0", b"GET /here 0"]
        assert len(path.passed) == 1, "who comes while another is under way does not overtake it"


async def test_what_is_known_by_its_head_is_passed_on_again_but_never_past_another() -> None:
    path, opened = Elsewhere(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await opened.wait()
        await echo(scope, receive, send)

    async def passed_on(count: int) -> None:
        await eventually(lambda: len(path.passed) == count)

    async with running(slow, fast_path=path) as server, await Client.connect(server.port) as client:
        for number in (1, 2):
            await client.send(head("GET", "/there"))
            await passed_on(number)
            path.passed[-1].release(ANSWER)
            assert (await client.answer()).body == b"fast"
        await client.send(head("DELETE", "/here"))
        await client.send(head("GET", "/there"))
        (connection,) = server._open_connections()
        await eventually(lambda: len(connection._turns) == 2)
        assert len(path.passed) == 2
        opened.set()
        assert [(await client.answer()).body for _ in range(2)] == [b"DELETE /here 0", b"GET /there 0"]


async def test_an_application_may_finish_it_in_its_turn() -> None:
    path = Elsewhere()
    seen: list[Any] = []

    async def finish(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["method"], scope["path"], scope["query_string"], dict(scope["headers"])[b"x-a"]))
        seen.append((await receive())["more_body"])
        await answer(send, 203, b"slow")

    async with running(echo, fast_path=path) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/there?x=1", "X-A: 1"))
        await eventually(lambda: path.passed)
        await client.send(head("GET", "/here"))
        path.passed[0].hand_over(finish)
        first, second = await client.answer(), await client.answer()
        assert (first.status, first.body, second.body) == (203, b"slow", b"GET /here 0")
        assert seen == [("GET", "/there", b"x=1", b"1"), False]


@pytest.mark.parametrize("request_", [head("GET", "/there", "Connection: close"), b"GET /there HTTP/1.0\r\n\r\n"])
async def test_the_last_of_a_connection_is_not_passed_on(request_: bytes) -> None:
    path = Elsewhere()
    async with running(echo, fast_path=path) as server, await Client.connect(server.port) as client:
        await client.send(request_)
        assert (await client.answer()).body == b"GET /there 0"
    assert path.passed == []


async def test_whoever_passed_it_on_learns_that_its_client_left_and_can_do_no_harm() -> None:
    path = Elsewhere()
    async with running(echo, fast_path=path) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("GET", "/there"))
            await eventually(lambda: path.passed)
        await eventually(lambda: path.passed[0].ended_with == CLIENT_LEFT)
        path.passed[0].release(ANSWER)
        path.passed[0].hand_over(echo)


async def test_it_has_no_more_time_than_any_other_and_is_counted_by_whoever_passed_it_on() -> None:
    path = Elsewhere()
    refused: list[int] = []
    server = HttpServer(echo, limits=ServerLimits(send=0.2), fast_path=path, on_refusal=refused.append)
    await server.start()
    try:
        async with await Client.connect(server.port) as client:
            await client.send(head("GET", "/there"))
            assert (await client.answer()).status == 503
            assert await client.is_closed()
        assert path.passed[0].ended_with == 503
        assert refused == []
    finally:
        await server.stop(grace=0.1)
