"""Single clicks: pages by cursor, and files as a stream."""

import asyncio
import csv
from datetime import timedelta
from io import StringIO

import msgspec
import pytest

from refract.runtime.statements import Statement
from refract.services.analytics.queries import clicks
from tests.support.clocks import START
from tests.support.http import Client, head
from tests.support.stats import StatsWorld, stats
from tests.support.waiting import eventually

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
