"""Plain requests that pass the gateway without a task: every promise of the application holds for them, too."""

import asyncio
import logging
import time
from typing import Any

import pytest

from refract.runtime.exchange import CLIENT_LEFT
from refract.runtime.server import ServerLimits
from refract.services.gateway.adapters.exchanges import HIGH_WATER
from refract.services.gateway.http import passing
from refract.services.gateway.http.fast import FastRefusals
from tests.support.both_paths import (
    GET,
    OK,
    PAUSE,
    WAIT,
    Bare,
    Ways,
    asked,
    both_paths,
    lines,
    nothing_is_left,
    raw_answer,
    settled,
    side,
    ways,
)
from tests.support.fronts import UNAVAILABLE, authorization, said
from tests.support.http import Client, fetch, head
from tests.support.waiting import eventually

__all__ = ["ways"]


# Places and deadlines


async def test_a_request_under_way_has_a_place_and_gives_it_back(ways: Ways) -> None:
    bare = Bare(WAIT, OK)
    async with side(bare, fast=True, capacity=2) as place, asyncio.TaskGroup() as group:
        await place.warm_up(2)
        ways.forget()
        held = [group.create_task(asked(place, GET)) for _ in range(2)]
        await eventually(lambda: len(bare.heads) == 2)
        refused = await fetch(place.port, "/r/abc")
        assert (said(refused), refused.headers["retry-after"]) == (UNAVAILABLE, "1")
        bare.opened.set()
        assert [len(await each) for each in held] == [1, 1]
        assert len(await asked(place, GET, GET, GET)) == 3
        assert ways.seen == (5, 0, 0)


async def test_a_request_that_is_known_by_its_head_has_a_place_too(ways: Ways) -> None:
    bare = Bare()
    async with side(bare, fast=True, capacity=1) as place, await Client.connect(place.port) as client:
        await place.warm_up()
        for _ in range(3):  # none of them leaves one more behind than there was
            assert (await client.get("/r/abc")).status == 200
        bare.pieces = (WAIT, OK)
        await client.send(GET)
        await eventually(lambda: len(bare.heads) == 4)
        assert said(await fetch(place.port, "/r/abc")) == UNAVAILABLE
        bare.opened.set()
        assert (await client.answer()).status == 200
        assert ways.seen == (4, 0, 1)


async def test_a_burst_in_one_turn_of_the_loop_takes_no_more_than_there_are(ways: Ways) -> None:
    bare = Bare(WAIT, OK)
    async with side(bare, fast=True, capacity=4) as place:
        await place.warm_up(4)
        ways.forget()
        clients = [await Client.connect(place.port) for _ in range(12)]
        for client in clients:
            client.writer.write(GET)
        await eventually(lambda: len(bare.heads) == 4)
        answers = [asyncio.create_task(client.answer()) for client in clients]
        await eventually(lambda: sum(answer.done() for answer in answers) == 8)
        assert [answer.result().status for answer in answers if answer.done()] == [503] * 8
        bare.opened.set()
        assert sorted(answer.status for answer in await asyncio.gather(*answers)) == [200] * 4 + [503] * 8
        for client in clients:
            client.close()
        assert bare.most == 4
        assert ways.seen == (4, 0, 0)


@both_paths
async def test_a_service_that_stays_silent_is_given_up(ways: Ways, fast: bool) -> None:
    bare = Bare(WAIT)
    async with side(bare, fast=fast, patience=60) as place, asyncio.TaskGroup() as group:
        await place.warm_up()
        asking = group.create_task(asked(place, head("GET", "/r/abc", "X-Correlation-ID: t-1")))
        await eventually(lambda: bare.heads)
        seen = time.monotonic()
        (exchange,) = place.proxy._under_way
        left = exchange.deadline - asyncio.get_running_loop().time()
        assert 30 < left <= 60, "it has what it was given"
        await asyncio.sleep(0.1)
        waited = time.monotonic() - seen
        exchange.deadline = 0.0  # the time is over
        (answer,) = await asking
        assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert lines(answer, b"x-correlation-id") == [b"x-correlation-id: t-1"]
        await eventually(lambda: bare.left == 1)
        await settled(place, 2)
        assert place.results() == {"success": 1, "failure": 1, "undecided": 0, "late": 0}
        assert ways.handed_over == fast
        took = place.count("http_request_duration_seconds_sum", service="gateway", route="/r/{code}")
        assert took >= waited, "from its beginning, whoever has finished it"
        await nothing_is_left(place)


@both_paths
async def test_a_client_that_leaves_takes_its_question_with_it(
    ways: Ways, fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    bare = Bare(WAIT)
    async with side(bare, fast=fast, capacity=1) as place:
        await place.warm_up()
        async with await Client.connect(place.port) as client:
            await client.send(head("GET", "/r/abc", "X-Correlation-ID: t-1"))
            await eventually(lambda: bare.heads)
        await eventually(lambda: bare.left == 1)
        await settled(place, 2)
        assert place.results() == {"success": 1, "failure": 0, "undecided": 1, "late": 0}
        assert place.counted()["GET", "/r/{code}", str(CLIENT_LEFT)] == 1
        done = [vars(line) for line in caplog.records if line.getMessage() == "request completed"]
        assert [line["status"] for line in done] == [200, CLIENT_LEFT]
        assert (ways.taken, ways.handed_over) == (fast, 0)
        await nothing_is_left(place)


@both_paths
async def test_a_client_that_leaves_between_two_pieces_ends_the_services_work(ways: Ways, fast: bool) -> None:
    bare = Bare(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n", WAIT)
    async with side(bare, fast=fast) as place:
        await place.warm_up()
        async with await Client.connect(place.port) as client:
            await client.send(GET)
            await client.reader.readuntil(b"data: 1\n\n")
        await eventually(lambda: bare.left == 1)
        await settled(place, 2)
        assert place.results() == {"success": 2, "failure": 0, "undecided": 0, "late": 0}
        assert ways.handed_over == fast
        await nothing_is_left(place)


async def test_an_answer_that_comes_after_its_client_left_is_nobodys_and_a_success(ways: Ways) -> None:
    bare = Bare(WAIT, OK)
    async with side(bare, fast=True) as place:
        await place.warm_up()
        async with await Client.connect(place.port) as client:
            await client.send(GET)
            await eventually(lambda: bare.heads)
        await eventually(lambda: place.server.connections == 0)
        bare.opened.set()  # before anybody looks around
        await settled(place, 2)
        assert place.counted()["GET", "/r/{code}", str(CLIENT_LEFT)] == 1
        assert place.results() in (
            {"success": 2, "failure": 0, "undecided": 0, "late": 0},
            {"success": 1, "failure": 0, "undecided": 1, "late": 0},  # somebody looked
        )
        assert ways.handed_over == 0
        await nothing_is_left(place)


@both_paths
async def test_when_our_own_patience_ends_the_service_is_to_blame(ways: Ways, fast: bool) -> None:
    bare = Bare(WAIT)
    async with side(bare, fast=fast, served=ServerLimits(send=60)) as place, asyncio.TaskGroup() as group:
        await place.warm_up()
        asking = group.create_task(asked(place, GET))
        await eventually(lambda: bare.heads)
        for connection in place.server._open_connections():
            connection.check_deadlines(asyncio.get_running_loop().time() + 61, 0)  # as if so much time had passed
        (answer,) = await asking
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        await eventually(lambda: bare.left == 1)
        await settled(place, 2)
        assert place.results() == {"success": 1, "failure": 1, "undecided": 0, "late": 0}
        assert place.counted()["GET", "/r/{code}", "503"] == 1
        assert (ways.taken, ways.handed_over) == (fast, 0)
        await nothing_is_left(place)


async def test_what_comes_before_the_application_has_begun_is_left_to_it(ways: Ways) -> None:
    bare = Bare(WAIT)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client:
        await place.warm_up()
        await client.send(GET)
        await eventually(lambda: bare.heads)
        (connection,) = place.proxy._pools["links"].connections
        for piece in (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"):  # in one turn of the loop
            connection.data_received(piece)
        assert (await client.answer()).body == b"abcd"
        assert ways.seen == (1, 1, 1)
        await settled(place, 2)
        assert place.results() == {"success": 2, "failure": 0, "undecided": 0, "late": 0}
        assert not place.proxy._under_way


async def test_a_large_answer_that_comes_at_once_leaves_its_connection_usable(ways: Ways) -> None:
    bare, body = Bare(WAIT, OK), b"x" * (4 * HIGH_WATER)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client:
        await place.warm_up()
        await client.send(GET)
        await eventually(lambda: bare.heads)
        (connection,) = place.proxy._pools["links"].connections
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await client.answer()).body == body
        assert not connection._reading_paused
        assert place.proxy._pools["links"].waiting() is connection
        assert ways.seen == (1, 0, 1)


# Order, and the end


async def test_what_is_sent_together_is_asked_one_after_the_other(ways: Ways) -> None:
    bare = Bare(PAUSE, OK)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client:
        await place.warm_up(3)
        ways.forget()
        await client.send(b"".join(head("GET", f"/r/{code}") for code in ("a", "b", "c")))
        answers = [await raw_answer(client) for _ in range(3)]
        assert [answer[9:12] for answer in answers] == [b"200"] * 3
        assert bare.most == 1
        assert [each.split(b" ")[1] for each in bare.heads] == [b"/a", b"/b", b"/c"]
        assert ways.seen == (1, 0, 2)


async def test_nobody_overtakes_a_change_on_the_same_connection(ways: Ways) -> None:
    bare = Bare(PAUSE, OK)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client:
        await place.warm_up(2)
        change = head("DELETE", "/api/urls/abc", authorization())
        again = head("GET", "/r/abc")
        await client.send(again)
        await raw_answer(client)
        await client.send(change)
        await eventually(lambda: len(bare.heads) == 2)
        await client.send(again)  # known by its head, and nevertheless it waits
        assert [len(await raw_answer(client)) > 0 for _ in range(2)] == [True, True]
        assert bare.most == 1
        assert [each.split(b" ")[0] for each in bare.heads] == [b"GET", b"DELETE", b"GET"]


async def test_a_server_that_stops_lets_the_answer_come_and_says_that_it_is_the_last(ways: Ways) -> None:
    bare = Bare(WAIT, OK)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client:
        await place.warm_up()
        await client.send(GET)
        await eventually(lambda: bare.heads)
        stopping = asyncio.create_task(place.server.stop(grace=10))
        await asyncio.sleep(0.1)  # so that it has begun to stop
        bare.opened.set()
        answer = await client.answer()
        assert (answer.status, answer.closes, answer.body) == (200, True, b"ok")
        assert await client.is_closed()
        await stopping
        assert ways.seen == (1, 1, 1)


async def test_a_proxy_that_is_closed_gives_up_what_is_under_way(ways: Ways) -> None:
    bare = Bare(WAIT)
    async with side(bare, fast=True) as place, asyncio.TaskGroup() as group:
        await place.warm_up()
        asking = group.create_task(asked(place, GET))
        await eventually(lambda: bare.heads)
        await place.proxy.close()
        (answer,) = await asking
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert len(bare.heads) == 1
        assert ways.handed_over == 1


# Mistakes of ours


async def test_a_mistake_on_the_way_back_sends_the_answer_through_the_application(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(*_: Any, **__: Any) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(passing, "passed_head", mistaken)
    async with side(Bare(), fast=True) as place:
        await place.warm_up()
        (answer,) = await asked(place, head("GET", "/r/abc", "X-Correlation-ID: t-1"))
        assert answer.endswith(b"ok")
        assert ways.seen == (1, 1, 1)
        await nothing_is_left(place)
    line = next(line for line in caplog.records if line.getMessage() == "passing on failed")
    assert vars(line)["correlation_id"] == "t-1"


async def test_a_mistake_on_the_way_there_leaves_the_request_to_the_application(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: Any) -> None:
        raise ValueError("a mistake")

    async with side(Bare(), fast=True, capacity=1) as place:
        await place.warm_up()
        ways.forget()
        monkeypatch.setattr(FastRefusals, "pass_on", mistaken)
        assert [answer[9:12] for answer in await asked(place, GET, GET)] == [b"200"] * 2
        assert ways.seen == (0, 0, 2)


async def test_what_is_large_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    piece, size = b"x" * 65536, 64 * 1024 * 1024
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        while b"/warm " in await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(piece)
            await writer.drain()
            written += len(piece)
        writer.close()

    bare = Bare()
    monkeypatch.setattr(bare, "serve", serve)
    async with side(bare, fast=True) as place, await Client.connect(place.port) as client, asyncio.timeout(60):
        await place.warm_up()
        await client.send(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        last = -1
        while written != last:
            last = written
            await asyncio.sleep(0.1)  # until nothing moves any more
        assert written < size / 2
        assert len(await client.reader.readexactly(size)) == size
