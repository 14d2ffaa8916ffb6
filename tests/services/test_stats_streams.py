"""Single clicks: pages by cursor, files as a stream, and what comes in live, also through the gateway in both ways."""

import asyncio
import csv
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.metrics import Metrics
from refract.runtime.service import Foundation
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenVerifier
from refract.services.analytics.http import streams
from refract.services.analytics.queries import clicks
from refract.services.analytics.queries.live import LiveWatch, Viewer
from refract.services.analytics.queries.views import LiveView
from refract.services.analytics.service import build_analytics
from refract.services.analytics.settings import AnalyticsSettings
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
BREAK = Statement("break", "Takes a table away.", "ALTER TABLE clicks RENAME TO gone")


# Pages.


async def test_every_click_comes_once_page_by_page(stats: StatsWorld) -> None:
    """Some of them at the same moment, some years apart, and new ones while somebody reads."""
    moments = [START] * 7 + [START - number * 97 * DAY for number in range(12)]
    made = await stats.click(*moments)
    expected = sorted(((click.occurred_at, click.event_id) for click in made), reverse=True)
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = await stats.read("abc/clicks", limit=3, **after)
        found += [click["id"] for click in page["clicks"]]
        await stats.click(START + timedelta(seconds=1))
        if "next_cursor" not in page:
            break
        assert len(page["clicks"]) == 3
        after = {"after": page["next_cursor"]}
    assert found == [event_id for _, event_id in expected]


async def test_a_click_is_shown_with_all_that_is_known_and_no_trace_of_who_it_was(stats: StatsWorld) -> None:
    await stats.click(START, visitor=77, referer="https://a.example/x", referrer="a.example", country="DE", os="Linux")
    shown = await stats.read("abc/clicks")
    [click] = shown["clicks"]
    assert (click["clicked_at"], click["referer"], click["country"], click["bot"]) == (
        "2026-03-01T12:00:00Z",
        "https://a.example/x",
        "DE",
        False,
    )
    assert click["city"] is None
    assert not {"visitor", "ip_hash", "ip_anonymized", "user_id", "user_email"} & click.keys()
    assert "next_cursor" not in shown


async def test_bots_and_ranges_of_pages(stats: StatsWorld) -> None:
    await stats.click(START - 2 * DAY, START - DAY, START)
    await stats.click(START - DAY, START - 40 * DAY, bot=True)
    assert len((await stats.read("abc/clicks"))["clicks"]) == 3
    assert len((await stats.read("abc/clicks", bots="true"))["clicks"]) == 5
    inside = await stats.read("abc/clicks", bots="true", from_="2026-02-28", to="2026-02-28")
    assert [click["clicked_at"] for click in inside["clicks"]] == ["2026-02-28T12:00:00Z"] * 2
    assert (await stats.read("abc/clicks", to="2026-02-28T12:00:00Z", limit=1))["clicks"][0][
        "clicked_at"
    ] == "2026-02-27T12:00:00Z"
    await stats.create("empty")
    assert await stats.read("empty/clicks") == {"clicks": []}


# Files.


async def test_a_file_of_all_clicks_the_oldest_first(stats: StatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "ROWS_AT_ONCE", 3)
    made = await stats.click(*[START - number * 11 * DAY for number in range(10)], country="DE")
    made += await stats.click(START, bot=True)
    answer = await stats.get("abc/export", format="csv", bots="true")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="clicks-abc.csv"'
    header, *rows = list(csv.reader(StringIO(answer.text)))
    assert header[:4] == ["id", "clicked_at", "bot", "referer"]
    ordered = sorted(made, key=lambda click: (click.occurred_at, click.event_id))
    assert [row[0] for row in rows] == [click.event_id for click in ordered]
    lines = await stats.get("abc/export", format="jsonl", bots="true")
    assert lines.headers["content-type"] == "application/jsonl"
    records = [msgspec.json.decode(line) for line in lines.body.splitlines()]
    assert [record["id"] for record in records] == [click.event_id for click in ordered]
    assert (records[0]["country"], records[0]["city"], records[0]["bot"]) == ("DE", None, False)
    assert list(records[0]) == header


async def test_files_without_clicks(stats: StatsWorld) -> None:
    await stats.create()
    assert (await stats.get("abc/export")).text.startswith("id,clicked_at,bot,")
    assert len((await stats.get("abc/export")).body.splitlines()) == 1
    assert (await stats.get("abc/export", format="jsonl")).body == b""


async def test_no_cell_begins_a_formula(stats: StatsWorld) -> None:
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", '=HYPERLINK("http://x","y")', "-"]
    for formula in formulas:
        await stats.click(START, utm_source=formula, user_agent=formula, referer=formula)
    await stats.click(START, utm_source="plain", user_agent='with "quotes", commas\nand lines')
    body = (await stats.get("abc/export")).body.decode()
    rows = list(csv.DictReader(StringIO(body, newline="")))
    assert sorted(row["utm_source"] for row in rows) == sorted(["plain", *(f"'{formula}" for formula in formulas)])
    assert not any(
        cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d")) for row in rows for cell in row.values()
    )
    assert 'with "quotes", commas\nand lines' in {row["user_agent"] for row in rows}
    lines = (await stats.get("abc/export", format="jsonl")).body.splitlines()
    assert {msgspec.json.decode(line)["utm_source"] for line in lines} == {"plain", *formulas}


async def _read_chunks(client: Client) -> bytes:
    """The rest of an answer in chunks, up to the empty one that says that it is whole."""
    body = b""
    while size := int(await client.reader.readline(), 16):
        body += await client.reader.readexactly(size)
        await client.reader.readexactly(2)
    return body


async def test_a_slow_reader_holds_nothing_and_gets_everything(stats: StatsWorld) -> None:
    await stats.periods.count(
        *[stats.made(START - timedelta(seconds=number), user_agent="x" * 2_000) for number in range(6_000)]
    )
    async with await Client.connect(stats.server.port) as client:
        await client.send(head("GET", "/stats/abc/export", f"Authorization: Bearer {stats.token()}"))
        await client.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)  # it reads nothing, and whoever writes has to wait for it
        assert await asyncio.wait_for(stats.read("abc", user=None), 30)
        async with stats.database.transaction() as tx:
            await tx.execute(Statement("touch", "Writes something.", "DELETE FROM milestones"))
        assert (await _read_chunks(client)).count(b"\r\n") == 6_001


async def test_a_reader_who_leaves_ends_it(stats: StatsWorld) -> None:
    await stats.periods.count(
        *[stats.made(START - timedelta(seconds=number), user_agent="x" * 2_000) for number in range(4_000)]
    )
    before = asyncio.all_tasks()
    async with await Client.connect(stats.server.port) as client:
        await client.send(head("GET", "/stats/abc/export", f"Authorization: Bearer {stats.token()}"))
        await client.reader.readuntil(b"\r\n\r\n")
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_a_file_that_breaks_off_does_not_look_whole(
    stats: StatsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clicks, "ROWS_AT_ONCE", 100)
    await stats.periods.count(*[stats.made(START - number * HOUR, user_agent="x" * 2_000) for number in range(3_000)])
    async with await Client.connect(stats.server.port) as client:
        await client.send(head("GET", "/stats/abc/export", f"Authorization: Bearer {stats.token()}"))
        await client.reader.readuntil(b"\r\n\r\n")
        async with stats.database.transaction() as tx:
            await tx.execute(BREAK)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await _read_chunks(client)
    assert "the application failed" in caplog.text


async def test_head_of_streams_ends_at_once(stats: StatsWorld) -> None:
    await stats.click(START)
    for path, kind in (("export", "text/csv; charset=utf-8"), ("live", "text/event-stream; charset=utf-8")):
        answer = await stats.get(f"abc/{path}", method="HEAD")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, kind, b"")
    assert stats.watch.viewers == 0


# Live.


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
            assert (await stats.get("abc/live")).status == 503
        await eventually(lambda: stats.watch.viewers == 1)
        async with live(stats, port) as another:
            await another.next()


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
        assert answers == {b"HTTP/1.1 200 OK\r\n": 3, b"HTTP/1.1 503 Service Unavailable\r\n": 27}
        assert stats.watch.viewers == 3
    await eventually(lambda: stats.watch.viewers == 0)
    came, enter = 0, stats.watch.enter

    def counted(seen: LiveView) -> Viewer:
        nonlocal came
        came += 1
        return enter(seen)

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
        viewers = [
            watch.enter(LiveView(short_code=code, total_clicks=0, bot_clicks=0, last_clicked_at=None)) for code in "bab"
        ]
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
    viewer = watch.enter(LiveView(short_code="abc", total_clicks=0, bot_clicks=0, last_clicked_at=None))
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


async def test_a_stream_ends_with_the_token_and_when_we_stop(stats: StatsWorld) -> None:
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        await stats.watch.end()
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()
    assert stats.watch.viewers == 0
    token = stats.token()
    stats.periods.clock.advance(24 * 3_600)
    async with await Client.connect(stats.server.port) as client:
        assert (await client.get("/stats/abc/live", f"Authorization: Bearer {token}")).status == 401


async def test_a_server_that_stops_ends_its_streams_in_time(stats: StatsWorld) -> None:
    await stats.click(START)
    async with live(stats, stats.server.port) as stream:
        await stream.next()
        async with asyncio.timeout(30):
            await stats.server.stop(grace=60)
        assert await stream.client.is_closed()
    await eventually(lambda: stats.watch.viewers == 0)
