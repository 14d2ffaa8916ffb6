"""The click writer: one commit for many clicks, no answer before its commit, and nothing lost on the way."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from refract.kernel.errors import Unavailable
from refract.kernel.events import LINK_EXCHANGE
from refract.runtime.fast_path import HeldAnswer
from refract.runtime.ports import Database
from refract.runtime.transactions import StatementFailed
from refract.services.links.redirect import clicks, shelter
from refract.services.links.redirect.bundles import ROW_BYTES, ROW_CLICKS
from refract.services.links.redirect.spool import Spool
from tests.support.clicks import Writing, click, numbers, numbers_in
from tests.support.clocks import ManualClock
from tests.support.outboxes import OUTBOX
from tests.support.spools import impatient, restless
from tests.support.waiting import eventually

__all__ = ["impatient", "restless"]

AWAY = Unavailable("database", "it is to be away")

pytestmark = pytest.mark.usefixtures("restless")


@pytest.fixture
def writing(database: Database, tmp_path: Path) -> Writing:
    """A writer that does not run yet."""
    return Writing(database, tmp_path / "spool")


# The group commit


async def test_no_answer_leaves_before_the_commit_of_its_click(writing: Writing) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(1, 2, 3)
        await eventually(lambda: writing.guarded.waiting)
        await asyncio.sleep(0.05)
        assert writing.notes == []
        assert await numbers(writing.database) == []
        writing.guarded.open.set()
        await eventually(lambda: len(writing.released) == 3)
    assert writing.notes == ["commit", "1", "2", "3"]
    assert await numbers(writing.database) == [1, 2, 3]


async def test_what_queues_during_a_flush_is_the_next_one(writing: Writing) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(1)
        await eventually(lambda: writing.guarded.waiting)
        writing.record(*range(2, 50))
        assert writing.counted("clicks_waiting") == 48
        writing.guarded.open.set()
        await eventually(lambda: len(writing.released) == 49)
    assert writing.notes == ["commit", "1", "commit", *map(str, range(2, 50))]
    assert list(map(numbers_in, await writing.database.fetch(OUTBOX))) == [[1], list(range(2, 50))]
    assert writing.counted("clicks_recorded_total") == 49
    assert writing.counted("click_flush_seconds_count") == 2


async def test_a_flush_is_one_row_that_readers_understand(writing: Writing) -> None:
    async with writing.running():
        for first in (0, 100):
            writing.record(*range(first, first + 100))
            await writing.answered(*range(first, first + 100))
    rows = await writing.database.fetch(OUTBOX)
    assert list(map(numbers_in, rows)) == [list(range(100)), list(range(100, 200))]
    assert len({row["message_id"] for row in rows} | {row["id"] for row in rows}) == 4
    assert {(row["exchange"], row["event_type"], bool(row["mandatory"])) for row in rows} == {
        (LINK_EXCHANGE, "url.clicked", True)
    }


async def test_it_sleeps_until_the_next_click(writing: Writing) -> None:
    async with writing.running():
        for number in range(5):
            await writing.follow(number)
            await eventually(lambda: writing.writer._sleeper is not None)
    assert writing.notes.count("commit") == 5


@pytest.mark.parametrize(
    ("number", "size", "rows"), [(2_500, 0, 3), (1_200, 1_024, 3), (2, ROW_BYTES, 2), (1000, 0, 1)]
)
async def test_rows_are_bounded_and_one_transaction_has_all(
    writing: Writing, number: int, size: int, rows: int
) -> None:
    writing.record(*range(number), size=size)
    async with writing.running():
        await eventually(lambda: len(writing.released) == number)
    assert writing.notes.count("commit") == 1
    found = await writing.database.fetch(OUTBOX)
    assert len(found) == rows
    assert all(len(numbers_in(row)) <= ROW_CLICKS for row in found)
    assert all(len(row["payload"]) <= ROW_BYTES or len(numbers_in(row)) == 1 for row in found)
    assert [number for row in found for number in numbers_in(row)] == list(range(number))


async def test_the_slow_twin_waits_as_well(writing: Writing, caplog: pytest.LogCaptureFixture) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        waiting = [asyncio.create_task(writing.writer.recorded(click(number))) for number in range(3)]
        await eventually(lambda: writing.guarded.waiting)
        waiting[0].cancel()  # a client that hung up
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting[1:])
        writing.guarded.open.set()
        await asyncio.gather(*waiting[1:])
    assert await numbers(writing.database) == [0, 1, 2]
    assert caplog.text == ""


async def test_an_answer_that_fails_holds_up_no_other(writing: Writing, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: HeldAnswer) -> None:
        raise ValueError("broken")

    answer = HeldAnswer()
    answer.deliver = fail
    writing.writer.record(click(1), answer, b"1")
    writing.record(2)
    async with writing.running():
        await eventually(lambda: writing.released == [2])
    assert "could not be released" in caplog.text


# Clicks for which nobody waits


async def test_clicks_without_an_answer_are_written_too(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "LATER_AT_ONCE", 10)
    for number in range(25):
        writing.writer.record_later(click(number))
    async with writing.running():
        await eventually(lambda: writing.counted("clicks_recorded_total") == 25)
    assert writing.notes == ["commit"] * 3
    assert await numbers(writing.database) == list(range(25))


async def test_what_waits_in_memory_is_bounded(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clicks, "LATER_LIMIT", 10)
    writing.guarded.open.clear()
    async with writing.running():
        writing.writer.record_later(click(0))
        await eventually(lambda: writing.guarded.waiting)
        for number in range(1, 26):  # ten are on their way to the spool, the next ten find it busy
            writing.writer.record_later(click(number))
        await eventually(lambda: writing.counted("clicks_spooled_total") == 10)
        assert writing.counted("clicks_shed_total") == 10
        assert writing.counted("clicks_waiting") == 5
        writing.guarded.open.set()
        await eventually(lambda: writing.counted("clicks_recorded_total") == 16)
        await eventually(lambda: not writing.files)
        await writing.writer.drain()
    assert await numbers(writing.database) == [*range(11), *range(21, 26)]
    assert [vars(record)["clicks"] for record in caplog.records if record.message == "clicks were shed"] == [10]


# A database that fails


@pytest.mark.parametrize("trouble", [AWAY, StatementFailed("insert", "no such table"), RuntimeError("a bug")])
async def test_clicks_that_the_database_refuses_come_back(writing: Writing, trouble: Exception) -> None:
    writing.guarded.trouble = trouble
    async with writing.running():
        await writing.follow(*range(10))
        assert writing.counted("clicks_spooled_total") == 10
        assert writing.counted("clicks_recorded_total") == 0
        assert writing.files
        writing.guarded.trouble = None
        await eventually(lambda: not writing.files)
        await writing.follow(10)
    assert await numbers(writing.database) == list(range(11))
    assert writing.counted("clicks_recorded_total") == 11
    assert writing.counted("clicks_spooled_total") == 10
    assert writing.counted("clicks_shed_total") == 0


async def test_while_the_database_is_away_no_click_waits_for_it(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "LOOK_SECONDS", 60)  # so that nobody else tries it meanwhile
    writing.guarded.trouble = AWAY
    async with writing.running():
        await writing.follow(0)
        writing.guarded.open.clear()
        await writing.follow(*range(1, 5))
        assert writing.guarded.waiting == 0


async def test_a_database_that_answers_and_takes_no_writes_is_away_until_it_takes_one(
    writing: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk, where the spool finds no room either: it can be read, so that there seems to be hope."""
    caplog.set_level("INFO", "refract.clicks")
    (tmp_path / "spool").touch()
    writing.guarded.trouble = Unavailable("sqlite", "the disk is full")
    monkeypatch.setattr(writing.guarded, "ping", writing.database.ping)

    def said() -> list[str]:
        return [record.message for record in caplog.records if "clicks go to" in record.message]

    async with writing.running():
        for number in range(5):
            await writing.follow(number)
            await eventually(lambda: not writing.writer._away)
        assert said() == ["clicks go to the spool"]
        assert writing.counted("clicks_shed_total") == 5
        writing.guarded.trouble = None
        await writing.follow(5, 6)
    assert said() == ["clicks go to the spool", "clicks go to the database again"]
    assert await numbers(writing.database) == [5, 6]


@pytest.mark.usefixtures("impatient")
async def test_a_flush_that_takes_too_long_goes_to_the_spool(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(*range(5))
        await eventually(lambda: writing.guarded.waiting)
        writing.record(*range(5, 8))
        await eventually(lambda: len(writing.released) == 8)
        assert "commit" not in writing.notes
        writing.record(8)
        await eventually(lambda: len(writing.released) == 9)
        monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 60.0)  # commits are made again, on whatever disk
        writing.guarded.open.set()
        await eventually(lambda: not writing.files)
        writing.record(9)
        await eventually(lambda: len(writing.released) == 10)
    assert sorted(writing.released) == list(range(10)), "an answer was released twice"
    assert set(await numbers(writing.database)) == set(range(10))


async def test_a_click_that_no_database_takes_does_not_hold_up_the_others(writing: Writing) -> None:
    writing.writer.record(b'{"user_agent":"\xff"}', HeldAnswer(), b"")
    writing.record(1)
    async with writing.running():
        await eventually(lambda: writing.released == [1])
        writing.record(2)
        await eventually(lambda: writing.counted("clicks_recorded_total") == 2)
    assert await numbers(writing.database) == [1, 2]
    assert writing.counted("clicks_shed_total") == 1


# The end


async def test_draining_writes_what_waits(writing: Writing) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(0)
        await eventually(lambda: writing.guarded.waiting)
        writing.record(1, 2)
        writing.writer.record_later(click(3))
    assert writing.released == []
    writing.guarded.open.set()
    await writing.writer.drain()
    assert writing.released == [0, 1, 2]
    assert await numbers(writing.database) == [0, 1, 2, 3]


@pytest.mark.parametrize("silent", [False, True])
async def test_draining_without_a_database_fills_the_spool(
    writing: Writing, silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.record(*range(5))
    if silent:
        writing.guarded.open.clear()
    else:
        writing.guarded.trouble = AWAY
    with monkeypatch.context() as patch:
        if silent:
            patch.setattr(clicks, "FLUSH_TIMEOUT", 0.3)
        await writing.writer.drain()
    assert writing.released == list(range(5))
    assert await numbers(writing.database) == []
    following = Writing(writing.database, tmp_path / "spool")
    async with following.running():
        await eventually(lambda: not following.files)
    assert await numbers(writing.database) == list(range(5))


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_disk_that_takes_its_time_has_each_click_once(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """It is longer at work than the drain waits for a database, or the writer is stopped meanwhile."""
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 0.3)
    monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 60.0)
    append, may_end, begun = writing.spool.append, threading.Event(), threading.Event()

    def append_slowly(batch: Sequence[bytes]) -> int:
        begun.set()
        may_end.wait(60)
        return append(batch)

    monkeypatch.setattr(writing.spool, "append", append_slowly)
    writing.guarded.trouble = AWAY
    writing.record(*range(5))
    if stopped:
        async with writing.running():
            await eventually(begun.is_set)
    draining = asyncio.create_task(writing.writer.drain())
    await eventually(begun.is_set)
    await asyncio.sleep(2 * clicks.FLUSH_TIMEOUT)  # more than the database had
    may_end.set()
    await draining
    assert writing.released == list(range(5))
    assert writing.counted("clicks_spooled_total") == 5
    left = Spool(writing.directory, writing.limit)
    assert left.adopt() == 1
    segment = left.next_segment()
    assert segment is not None
    assert segment.clicks() == [click(number) for number in range(5)]
    left.close()


async def test_draining_brings_the_spool_back(writing: Writing) -> None:
    writing.spool.append([click(1)])
    writing.record(2)
    await writing.writer.drain()
    assert await numbers(writing.database) == [1, 2]
    assert writing.files == []


async def test_a_flusher_that_is_started_again_finishes_the_work_of_the_last(writing: Writing) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(0)
        await eventually(lambda: writing.guarded.waiting)
    writing.guarded.open.set()
    async with writing.running():
        await eventually(lambda: writing.released == [0])
    assert await numbers(writing.database) == [0]


# Shedding


async def test_past_its_bound_the_spool_sheds_and_says_so_once(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    room = 3 * (len(click(100)) + 10)
    writing = Writing(database, tmp_path / "spool", clock=clock, limit=room)
    writing.guarded.trouble = AWAY

    def said(message: str) -> list[object]:
        return [vars(record).get("clicks") for record in caplog.records if record.message == message]

    async with writing.running():
        await writing.follow(*range(100, 110))
        assert writing.counted("clicks_spooled_total") == 3
        assert writing.counted("clicks_shed_total") == 7
        assert sum(path.stat().st_size for path in writing.files) <= room
        assert len(said("clicks are being shed")) == 1
        assert said("clicks were shed") == []
        writing.guarded.trouble = None
        await eventually(lambda: not writing.files)
        clock.advance(60)
        await eventually(lambda: said("clicks were shed"))
        await asyncio.sleep(0.1)
    assert said("clicks were shed") == [7]
    assert await numbers(database) == [100, 101, 102]


async def test_what_went_to_the_spool_meanwhile_leaves_no_empty_row(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "LATER_LIMIT", 3)
    monkeypatch.setattr(clicks, "LATER_SECONDS", 60.0)
    writer = writing.writer
    async with writing.running():
        await eventually(lambda: writer._sleeper is not None)
        writer.record_later(click(0))
        await eventually(lambda: writer._sleeper is not None and writer._dozes)
        writer.record_later(click(1))
        writer.record_later(click(2))  # one too many: all of them go to the spool, while the writer still dozes
        await eventually(lambda: writing.counted("clicks_recorded_total") == 3)
        assert writer._dozes
        writer.wake()  # as after its time
        await eventually(lambda: not writer._dozes)
    assert all(row["payload"] != "[]" for row in await writing.database.fetch(OUTBOX))
    assert await numbers(writing.database) == [0, 1, 2]
