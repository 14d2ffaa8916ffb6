"""A click that the spool has begun to take is not committed, too, whoever comes to work on it next."""

import asyncio
import threading

import pytest

from refract.kernel.errors import Unavailable
from refract.services.links.redirect import clicks, shelter
from tests.services.test_click_writer import AWAY, writing
from tests.support.clicks import Writing, click, numbers
from tests.support.waiting import eventually

__all__ = ["writing"]


class SlowSpool:
    """A spool whose disk waits for us."""

    def __init__(self, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appended: list[list[bytes]] = []
        self.may_go_on = threading.Event()
        append = writing.spool.append

        def slow(batch: list[bytes]) -> int:
            self.appended.append(batch)
            self.may_go_on.wait(60)
            return append(batch)

        monkeypatch.setattr(writing.spool, "append", slow)
        monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 60.0)
        monkeypatch.setattr(clicks, "LOOK_SECONDS", 0.02)


async def test_a_stop_while_the_database_comes_back(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    writing.spool.append([click(100)])
    disk = SlowSpool(writing, monkeypatch)
    writing.guarded.open.clear()
    writing.writer._lose_database(Unavailable("database", "away"))
    async with writing.running():
        await eventually(lambda: writing.guarded.waiting == 1)  # what was in the spool is on its way back
        writing.record(*range(5))
        await eventually(lambda: len(disk.appended) == 1)  # and these are on their way into it
        writing.guarded.open.set()
        await eventually(lambda: not writing.writer._away)
    draining = asyncio.create_task(writing.writer.drain())
    disk.may_go_on.set()
    await draining
    assert await numbers(writing.database) == [0, 1, 2, 3, 4, 100]


async def test_another_flusher_while_clicks_overflow(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 0.2)
    monkeypatch.setattr(clicks, "LATER_LIMIT", 3)
    disk = SlowSpool(writing, monkeypatch)
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(50)
        await eventually(lambda: writing.guarded.waiting >= 1)
        writing.guarded.trouble = AWAY
        writing.writer.record_later(click(1), click(2), click(3))
        await eventually(lambda: len(disk.appended) == 2)  # these, and what the flusher was working on
        disk.may_go_on.set()
        await eventually(lambda: not writing.writer._unsafe)
        writing.guarded.trouble = None
        writing.guarded.open.set()
        await eventually(lambda: not writing.writer._away)
    await writing.writer.drain()
    assert await numbers(writing.database) == [1, 2, 3, 50]


async def test_a_stop_while_clicks_overflow(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "LATER_LIMIT", 3)
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 60.0)
    monkeypatch.setattr(clicks, "DRAIN_SECONDS", 60.0)
    disk = SlowSpool(writing, monkeypatch)
    writing.writer.record_later(click(1), click(2), click(3))
    await eventually(lambda: disk.appended)
    draining = asyncio.create_task(writing.writer.drain())
    await asyncio.sleep(0)  # it has begun, and knows of nothing but the clicks that are on their way to the spool
    disk.may_go_on.set()
    await draining
    await eventually(lambda: writing.counted("clicks_spooled_total") == 3)
    assert writing.notes == ["commit"]
    assert await numbers(writing.database) == [1, 2, 3]
    assert writing.files == []
