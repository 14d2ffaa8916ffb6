"""ACCEPTANCE 33 where connections to services are shared: everybody gets the answer to his own request, or none.

Clients come, hang up in the middle of anything, and come again, while services answer in every way they may.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.adapters.proxy import Proxy
from tests.support.applications import read_body
from tests.support.fronts import authorization, send_answer, serve_gateway, signed, url_of
from tests.support.http import Answer, Client, fetch, head, running

WAYS = ("plain", "pieces", "slow", "large", "early", "closing", "nothing", "broken")
USERS = 20
LARGE = 200_000


def words(way: str, number: str, user: str) -> bytes:
    """What the answer to a request says, and no other answer does."""
    said = f"{way} {number} of {user};".encode()
    return said * (LARGE // len(said)) if way == "large" else said


async def service(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers in the way that the path asks for, with the number of the request and the user that it is told of."""
    way, _, number = scope["path"].rpartition("/")[2].partition("-")
    user = dict(scope["headers"]).get(b"x-user-id", b"nobody").decode()
    body = words(way, number, user)
    if way != "early":
        await read_body(receive)
    match way:
        case "pieces":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for start in range(0, len(body), 7):
                await asyncio.sleep(0.001)
                await send({"type": "http.response.body", "body": body[start : start + 7], "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        case "slow":
            await asyncio.sleep(0.01)
            await send_answer(send, 200, body)
        case "closing":
            await send_answer(send, 200, body, (b"connection", b"close"))
        case "nothing":
            await send({"type": "http.response.start", "status": 204, "headers": [(b"x-number", number.encode())]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        case "broken":
            length = [(b"content-length", b"1000000")] if int(number) % 2 else []  # or in chunks
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": body, "more_body": True})
            raise ConnectionError("the service dies")
        case _:
            await send_answer(send, 200, body)


@pytest.fixture
async def gateway() -> AsyncIterator[int]:
    """The gateway before a service that it reaches over HTTP."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running(service))
        yield await serve_gateway(Proxy({"links": url_of(upstream)}), stack)


class Careless:
    """A service on bare sockets. It answers as soon as it has a head, and more than it was asked for."""

    FORGED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"

    def __init__(self, adding: str) -> None:
        self._adding = adding
        self.asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.asked += 1
                number = request.split(" ")[1].rpartition("-")[2].encode()
                answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(number), number)
                writer.write(answer + (self.FORGED if self._adding == "at once" else b""))
                if self._adding == "later":
                    await asyncio.sleep(0.002)
                    writer.write(self.FORGED)
                length = re.search(r"content-length: (\d+)", request)
                await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, EOFError):
            writer.transport.abort()


class Visitor:
    """One user, who does many things and checks each answer."""

    def __init__(self, port: int, number: int, seen: Counter[str]) -> None:
        self._port = port
        self._random = random.Random(number)  # the same every time
        self._user = f"u-{number}"
        self._authorization = authorization(signed(self._user))
        self._seen = seen
        self._numbers = iter(range(number * 1_000_000, (number + 1) * 1_000_000))

    async def come(self, times: int) -> None:
        """Come so often, each time on another connection."""
        for _ in range(times):
            async with await Client.connect(self._port) as client:
                await self._use(client)

    async def _use(self, client: Client) -> None:
        """Some requests on one connection, until it ends or is left."""
        for _ in range(self._random.randint(1, 6)):
            way, number = self._random.choice(WAYS), str(next(self._numbers))
            request = self._request(way, number)
            match self._random.random():
                case chance if chance < 0.15:  # leaves with the request half sent
                    await client.send(request[: self._random.randrange(len(request))])
                    self._seen["left early"] += 1
                    return
                case chance if chance < 0.35:  # leaves with the answer on its way
                    await client.send(request)
                    await asyncio.sleep(self._random.random() * 0.01)
                    self._seen["left late"] += 1
                    return
            await client.send(request)
            if not await self._is_answered(client, way, number):
                return

    def _request(self, way: str, number: str) -> bytes:
        target = f"/api/urls/{way}-{number}"
        if way == "large" or self._random.random() < 0.5:
            return head("GET", target, self._authorization)
        body = b'{"title":"' + b"x" * self._random.choice((1, 100, 70_000)) + b'"}'
        return head("PATCH", target, self._authorization, f"Content-Length: {len(body)}") + body

    async def _is_answered(self, client: Client, way: str, number: str) -> bool:
        """Check the answer; False where the connection is over."""
        try:
            answer = await client.answer()
        except (OSError, EOFError, ValueError):  # no next chunk is no number
            assert way in {"broken", "early"}, f"{way} was cut off"
            self._seen["cut off"] += 1
            return False
        self._check(answer, way, number)
        self._seen[way] += 1
        return not answer.closes

    def _check(self, answer: Answer, way: str, number: str) -> None:
        if way == "nothing":
            assert (answer.status, answer.headers["x-number"]) == (204, number)
        else:
            assert way != "broken", "half an answer looked whole"
            assert (answer.status, answer.body) == (200, words(way, number, self._user))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("visits", [15, pytest.param(1_000, marks=pytest.mark.full)])
async def test_nobody_is_given_the_answer_to_another(gateway: int, visits: int) -> None:
    seen: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for number in range(USERS):
            group.create_task(Visitor(gateway, number, seen).come(visits))
    assert seen.keys() == {*WAYS, "left early", "left late", "cut off"} - {"broken"}, seen


@pytest.mark.parametrize("adding", ["nothing", "at once", "later"])
async def test_what_nobody_asked_for_is_nobodys_answer(adding: str) -> None:
    careless = Careless(adding)
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(careless, "127.0.0.1", 0)
        stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        gateway = await serve_gateway(Proxy({"links": f"http://127.0.0.1:{port}"}, answer_timeout=30.0), stack)
        for number in range(20):
            async with await Client.connect(gateway) as client:
                # The answer is there before the body is: what is left of it must not become part of a next request.
                await client.send(head("PATCH", f"/api/urls/x-{number}", authorization(), "Content-Length: 90000"))
                await client.send(b"a" * 40_000)
                assert (await client.answer()).text == str(number)
            for again in range(3):
                answer = await fetch(gateway, f"/api/urls/x-{number}{again}", authorization())
                assert (answer.status, answer.text) == (200, f"{number}{again}")
                # What comes while nobody asks is noticed; once the next has asked, nobody could tell it apart.
                await asyncio.sleep(0.01 if adding == "later" else 0)
    assert careless.asked >= 80
