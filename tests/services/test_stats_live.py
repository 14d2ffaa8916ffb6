"""Clicks that come in live: a stream for each who watches, also through the gateway in both ways."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.metrics import Metrics
from refract.runtime.service import Foundation
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.services.analytics.http import streams
from refract.services.analytics.queries.live import LiveWatch, TooManyWatch, Viewer
from refract.services.analytics.queries.views import LiveView
from refract.services.analytics.service import build_analytics
from refract.services.analytics.settings import AnalyticsSettings
from refract.services.gateway.domain.revocations import Revocation, Revocations
from tests.support.clocks import START
from tests.support.fronts import SECRET, Front, tokens
from tests.support.http import Client, head
from tests.support.http import running as served
from tests.support.stats import StatsWorld, stats
from tests.support.waiting import eventually
from tests.support.worlds import running as going_on

__all__ = ["stats"]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Live:
    """One reader of a stream of events."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._rest = b""

    async def next(self) -> Any:
        """The next event with data, over comments and whatever else stands between."""
        async with asyncio.timeout(30):
            while True:
                while b"\n\n" not in self._rest:
                    size = int(await self.client.reader.readline(), 16)
                    assert size, "the stream has ended"
                    self._rest += await self.client.reader.readexactly(size)
                    await self.client.reader.readexactly(2)
                event, _, self._rest = self._rest.partition(b"\n\n")
                lines = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
                if b"data" in lines:
                    assert lines[b"event"] == b"totals"
                    return msgspec.json.decode(lines[b"data"])


@asynccontextmanager
async def live(stats: StatsWorld, port: int, path: str = "/stats/abc/live") -> AsyncIterator[Live]:
    """Watch a link as its owner."""
    async with await Client.connect(port) as client:
        await client.send(head("GET", path, f"Authorization: Bearer {stats.token()}"))
        answer = (await client.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert " 200 " in answer.splitlines()[0]
        assert "content-type: text/event-stream" in answer
        yield Live(client)


async def test_clicks_are_seen_as_they_come_in(stats: StatsWorld) -> None:
    await stats.create()
    async with going_on(stats.watch.run), live(stats, stats.server.port) as one, live(stats, stats.server.port) as two:
        nothing = {"short_code": "abc", "total_clicks": 0, "bot_clicks": 0, "last_clicked_at": None}
        assert [await one.next(), await two.next()] == [nothing, nothing]
        await stats.click(START, START, code="abc", bot=True)
        await stats.click(START, code="another")
        expected = {**nothing, "total_clicks": 2, "bot_clicks": 2, "last_clicked_at": "2026-03-01T12:00:00Z"}
        assert [await one.next(), await two.next()] == [expected, expected]
        await stats.click(START + HOUR)
        assert (await one.next())["total_clicks"] == 3
    await eventually(lambda: stats.watch.viewers == 0)


async def test_no_more_watch_than_there_is_room_for(stats: StatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats.watch, "_most", 2)
    await stats.create()
    port = stats.server.port
    async with going_on(stats.watch.run), live(stats, port) as one:
        async with live(stats, port) as two:
            await one.next()
            await two.next()
            refused = await stats.get("abc/live")
            assert (refused.status, refused.json) == (429, {"error": "too many live streams"}), "no breaker minds that"
            assert refused.headers["retry-after"] == "10"
        await eventually(lambda: stats.watch.viewers == 1)
        async with live(stats, port) as another:
            await another.next()


def seen_first(code: str) -> LiveView:
    return LiveView(short_code=code, total_clicks=0, bot_clicks=0, last_clicked_at=None)


async def test_nobody_has_all_places(stats: StatsWorld) -> None:
    watch = LiveWatch(stats.database, most=9, most_of_one=2)
    watching = [watch.enter("ann", seen_first(code)) for code in ("abc", "def")]
    with pytest.raises(TooManyWatch):
        watch.enter("ann", seen_first("abc"))
    assert watch.enter("bob", seen_first("abc")).user_id == "bob"
    watch.leave(watching[0])
    assert watch.enter("ann", seen_first("ghi")).short_code == "ghi"


def ask_and_leave(port: int, request: bytes) -> None:
    """Send a request and close: it is on its way to the server, which has heard nothing of it yet."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)


async def test_no_more_watch_though_all_come_at_once(stats: StatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart, when every browser tries again in the same second; some give up before they are answered."""
    monkeypatch.setattr(stats.watch, "_most", 3)
    await stats.create()
    asked = head("GET", "/stats/abc/live", f"Authorization: Bearer {stats.token()}")

    async def come(client: Client) -> bytes:
        await client.send(asked)
        return await client.reader.readline()

    async with AsyncExitStack() as doors:
        clients = [await doors.enter_async_context(await Client.connect(stats.server.port)) for _ in range(30)]
        answers = Counter(await asyncio.gather(*map(come, clients)))
        assert answers == {b"HTTP/1.1 200 OK\r\n": 3, b"HTTP/1.1 429 Too Many Requests\r\n": 27}
        assert stats.watch.viewers == 3
    await eventually(lambda: stats.watch.viewers == 0)
    came, enter = 0, stats.watch.enter

    def counted(user_id: str, seen: LiveView) -> Viewer:
        nonlocal came
        came += 1
        return enter(user_id, seen)

    monkeypatch.setattr(stats.watch, "enter", counted)
    for _ in range(30):
        ask_and_leave(stats.server.port, asked)
    await eventually(lambda: came == 30)  # until then nobody watches because nobody has been heard
    await eventually(lambda: stats.watch.viewers == 0)
    async with going_on(stats.watch.run), live(stats, stats.server.port) as one:
        await one.next()


async def test_through_the_gateway_in_both_ways(stats: StatsWorld, front: Front) -> None:
    await stats.click(START)
    port = await front(stats.application, tokens=tokens(stats.periods.clock))
    async with going_on(stats.watch.run), live(stats, port, "/api/stats/abc/live") as stream:
        assert (await stream.next())["total_clicks"] == 1
        await stats.click(START)
        assert (await stream.next())["total_clicks"] == 2
    await eventually(lambda: stats.watch.viewers == 0)
    async with await Client.connect(port) as client:
        header = f"Authorization: Bearer {stats.token()}"
        assert (await client.get("/api/stats/abc/export", header)).body.count(b"\r\n") == 3
        assert (await client.get("/api/stats/summary", header)).json["total_clicks"] == 2
        assert (await client.get("/api/stats/abc")).json["total_clicks"] == 2
        for path in ("live", "export", "series", "clicks"):
            assert (await client.get(f"/api/stats/abc/{path}")).status == 401


async def test_through_the_gateway_nothing_is_shown_to_a_token_that_was_taken_back(
    stats: StatsWorld, front: Front
) -> None:
    await stats.click(START)
    revocations, believed = Revocations(), tokens(stats.periods.clock)
    port = await front(stats.application, tokens=believed, revocations=revocations)
    until = stats.now + 2 * DAY
    async with going_on(stats.watch.run), live(stats, port, "/api/stats/abc/live") as stream:
        assert (await stream.next())["total_clicks"] == 1
        revocations.apply(Revocation("owner", until, generation=1))
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()
        await eventually(lambda: stats.watch.viewers == 0)


async def test_one_statement_for_all_and_none_for_nobody(stats: StatsWorld) -> None:
    asked: list[list[str]] = []

    class Watched:
        async def fetch(self, statement: Statement, **parameters: Any) -> Any:
            asked.append(parameters["short_codes"])
            return await stats.database.fetch(statement, **parameters)

    database: Any = Watched()
    watch = LiveWatch(database, pause=0.01)
    async with going_on(watch.run):
        await asyncio.sleep(0.05)
        assert asked == []
        viewers = [watch.enter("owner", seen_first(code)) for code in "bab"]
        await eventually(lambda: len(asked) > 2)
        assert asked[-1] == ["a", "b"]
        for viewer in viewers:
            watch.leave(viewer)
        await asyncio.sleep(0.03)
        count = len(asked)
        await asyncio.sleep(0.05)
        assert len(asked) == count


async def test_as_it_is_built_it_looks_twice_a_second(stats: StatsWorld, tmp_path: Path) -> None:
    """So a click is shown within a second of its commit. How soon it really is, `make bench` measures."""
    async with AsyncExitStack() as stack:
        bus = await EmbeddedBus.open(tmp_path / "bus.sqlite")  # whichever: nothing travels here
        stack.push_async_callback(bus.close)
        clock = stats.periods.clock
        foundation = Foundation(
            stats.database, bus, clock, Metrics(), TokenVerifier([SECRET], clock), outbox_retention=DAY
        )
        service = await build_analytics(foundation, AnalyticsSettings())
        [task] = [task for task in service.tasks if task.name == "live watch"]
        watching: Any = task.run
        assert watching.__self__._pause <= 0.5
        await stats.create()
        server = await stack.enter_async_context(served(service.application))
        await stack.enter_async_context(going_on(task.run))
        stream = await stack.enter_async_context(live(stats, server.port))
        assert (await stream.next())["total_clicks"] == 0
        await stats.click(START)
        assert (await stream.next())["total_clicks"] == 1, "those who look through the door see what this one sees"


async def test_a_database_that_is_away_ends_no_stream(stats: StatsWorld, caplog: pytest.LogCaptureFixture) -> None:
    away = True

    class Away:
        async def fetch(self, statement: Statement, **parameters: Any) -> Any:
            if away:
                raise Unavailable("database", "it is away")
            return await stats.database.fetch(statement, **parameters)

    database: Any = Away()
    watch = LiveWatch(database, pause=0.01)
    await stats.click(START)
    viewer = watch.enter("owner", seen_first("abc"))
    assert await viewer.next(1.0) is not None
    async with going_on(watch.run):
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "watched links were not read" in caplog.text)
        assert await viewer.next(0.02) is None
        away = False
        seen = await viewer.next(30.0)
        assert seen is not None
        assert seen.total_clicks == 1


async def test_silence_is_broken_so_that_nobody_closes_the_stream(
    stats: StatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        async with asyncio.timeout(30):
            assert await stream.client.reader.readuntil(b"\r\n:\n\n\r\n")


async def test_a_stream_ends_with_its_token(stats: StatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also here, behind the gateway: what is left of its time is all that a stream has."""
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        stats.periods.clock.advance(3_599)
        assert await stream.client.reader.readuntil(b"\r\n:\n\n\r\n"), "an hour is not over"
        stats.periods.clock.advance(1)
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()
    signer = TokenSigner(SECRET, stats.periods.clock)
    short = signer.sign("owner", "owner@example.com", lifetime=timedelta(minutes=1)).token
    monkeypatch.setattr(stats, "token", lambda: short)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        stats.periods.clock.advance(60)
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()


async def test_a_stream_ends_when_we_stop(stats: StatsWorld) -> None:
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        await stats.watch.end()
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()
    assert stats.watch.viewers == 0


async def test_a_server_that_stops_ends_its_streams_in_time(stats: StatsWorld) -> None:
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        async with asyncio.timeout(30):
            await stats.server.stop(grace=60)
        assert await stream.client.is_closed()
    await eventually(lambda: stats.watch.viewers == 0)
