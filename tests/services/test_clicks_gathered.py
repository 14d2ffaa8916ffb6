"""Flushes that wait for company: only where it is likely to come, for a moment at most, and never in vain."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from refract.runtime.ports import Database
from refract.services.links.redirect import clicks as clicks_module
from refract.services.links.redirect.bundles import Answers, Bundle
from refract.services.links.redirect.fast import FastRedirect
from tests.support.clicks import Writing, click, numbers_in
from tests.support.http import Client
from tests.support.outboxes import OUTBOX
from tests.support.redirects import RedirectWorld, redirects
from tests.support.waiting import eventually

__all__ = ["redirects"]


@pytest.fixture
def writing(database: Database, tmp_path: Path) -> Writing:
    """A writer that does not run yet."""
    return Writing(database, tmp_path / "spool")


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for company in vain waits longer than any test."""
    monkeypatch.setattr(clicks_module, "GATHER_SECONDS", 600.0)


class Queued:
    """A source of clicks that has as many as a test gives it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self) -> Bundle | None:
        """Make them."""
        numbers, self.numbers = self.numbers, []
        return Answers([click(number) for number in numbers], [], []) if numbers else None


async def _busy(writing: Writing) -> None:
    """Have three written while two more come; these wait for company."""
    writing.guarded.open.clear()
    writing.record(1, 2, 3)
    await eventually(lambda: writing.guarded.waiting)
    writing.record(4, 5)
    writing.guarded.open.set()
    await writing.answered(1, 2, 3)


async def _rows(writing: Writing) -> list[list[int]]:
    return [numbers_in(row) for row in await writing.database.fetch(OUTBOX)]


@pytest.mark.usefixtures("for_ever")
async def test_a_flush_waits_for_as_many_as_came_last(writing: Writing) -> None:
    async with writing.running():
        await _busy(writing)
        await eventually(lambda: writing.writer.gathers)
        writing.record(6, 7)
        await asyncio.sleep(0.02)
        assert writing.released == [1, 2, 3]
        writing.record(8)
        await writing.answered(8)
    assert await _rows(writing) == [[1, 2, 3], [4, 5, 6, 7, 8]]


async def test_it_waits_for_a_moment_at_most(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks_module, "GATHER_SECONDS", 0.5)  # more than the commit before it takes, which counts
    async with writing.running():
        await _busy(writing)
        await eventually(lambda: writing.writer.gathers, interval=0.005)
        await writing.answered(4, 5)
        assert not writing.writer.gathers
    assert await _rows(writing) == [[1, 2, 3], [4, 5]]


@pytest.mark.usefixtures("for_ever")
async def test_who_comes_alone_waits_for_nobody(writing: Writing) -> None:
    async with writing.running():
        await writing.follow(*range(1, 21))
    assert await _rows(writing) == [[number] for number in range(1, 21)]


@pytest.mark.usefixtures("for_ever")
async def test_three_are_not_expected_again(writing: Writing) -> None:
    async with writing.running():
        writing.record(1, 2, 3)
        await writing.answered(1, 2, 3)
        writing.record(4)
        await writing.answered(4)
    assert await _rows(writing) == [[1, 2, 3], [4]]


@pytest.mark.usefixtures("for_ever")
@pytest.mark.parametrize("clients", [2, 5, 20, 100])
async def test_who_asks_again_once_answered_is_never_waited_for_in_vain(writing: Writing, clients: int) -> None:
    numbers = count(1)

    async def ask_again_and_again() -> None:
        while True:
            await writing.follow(next(numbers))

    async with writing.running():
        asking = [asyncio.create_task(ask_again_and_again()) for _ in range(clients)]
        await eventually(lambda: len(writing.released) >= 20 * clients)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)


@pytest.mark.usefixtures("for_ever")
async def test_so_many_that_more_would_save_little_leave_at_once(writing: Writing) -> None:
    writing.guarded.open.clear()
    async with writing.running():
        writing.record(*range(1, 201))
        await eventually(lambda: writing.guarded.waiting)
        writing.record(*range(201, 201 + clicks_module.ENOUGH))
        writing.guarded.open.set()
        await writing.answered(*range(1, 201 + clicks_module.ENOUGH))


@pytest.mark.usefixtures("for_ever")
async def test_clicks_that_are_made_late_are_company_too(writing: Writing) -> None:
    source = Queued()
    writing.writer.draw_from(source)
    async with writing.running():
        await _busy(writing)
        await eventually(lambda: writing.writer.gathers)
        source.numbers += [6, 7]
        writing.writer.wake()
        await asyncio.sleep(0.02)
        assert writing.released == [1, 2, 3]
        source.numbers.append(8)
        writing.writer.wake()
        await writing.answered(4, 5)
    assert await _rows(writing) == [[1, 2, 3], [4, 5, 6, 7, 8]]


@pytest.mark.usefixtures("for_ever")
async def test_those_for_whom_nobody_waits_wait_for_no_company(writing: Writing) -> None:
    async with writing.running():
        await _busy(writing)
        await eventually(lambda: writing.writer.gathers)
        writing.record(6, 7, 8)
        await writing.answered(8)
        writing.writer.record_later(click(9))
        await eventually(lambda: writing.counted("clicks_recorded_total") == 9)


@pytest.mark.usefixtures("for_ever")
async def test_draining_does_not_wait_for_company(writing: Writing) -> None:
    async with writing.running():
        await _busy(writing)
        await eventually(lambda: writing.writer.gathers)
    await writing.writer.drain()
    assert await _rows(writing) == [[1, 2, 3], [4, 5]]


async def test_visitors_on_connections_that_are_known_are_company_as_they_come(
    redirects: RedirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await redirects.instance()
    assert isinstance(instance.service.fast_path, FastRedirect)
    writer = instance.service.fast_path._redirects.clicks
    code = await redirects.link("gathered")

    async def follow(clients: Sequence[Client]) -> None:
        answers = await asyncio.gather(*(client.get(f"/{code}") for client in clients))
        assert {answer.status for answer in answers} == {301}

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(instance.fast.port)) for _ in range(6)]
        for _ in range(2):
            await follow(clients)  # whose words are known then
        monkeypatch.setattr(clicks_module, "GATHER_SECONDS", 600.0)
        writer._expected = len(clients)
        for _ in range(10):
            some = asyncio.create_task(follow(clients[:3]))
            await eventually(lambda: writer.gathers and writer._waiting() == 3, interval=0.005)
            await asyncio.gather(some, follow(clients[3:]))
    assert len(await redirects.clicks()) == 12 + 60
