"""Clicks that are brought back from the spool, beside those that come meanwhile."""

import asyncio

import pytest

from refract.runtime.messages import Message
from refract.services.links.redirect import bundles
from tests.services.test_click_writer import AWAY, writing
from tests.support.clicks import Writing, click, numbers, numbers_in
from tests.support.outboxes import OUTBOX
from tests.support.spools import restless
from tests.support.waiting import eventually

__all__ = ["restless", "writing"]

pytestmark = pytest.mark.usefixtures("restless")


async def test_a_spool_that_is_brought_back_leaves_the_others_their_turn(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "ROW_CLICKS", 2)
    writing.spool.append([click(number) for number in range(10)])
    async with writing.running():
        await eventually(lambda: not writing.files)
    assert writing.notes == ["commit"] * 5
    assert list(map(numbers_in, await writing.database.fetch(OUTBOX))) == [[n, n + 1] for n in range(0, 10, 2)]


async def test_the_first_part_that_is_brought_back_shows_that_the_database_is_back(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Much may lie in the spool: new clicks do not follow it there until all of that is brought back."""
    caplog.set_level("INFO", "refract.clicks")
    monkeypatch.setattr(bundles, "ROW_CLICKS", 2)
    post, is_held, may_go_on = writing.guarded.post, asyncio.Event(), asyncio.Event()

    async def post_slowly(*messages: Message, held: float = 0.0) -> list[str]:
        if click(2) in messages[0].body:
            is_held.set()
            await may_go_on.wait()
        return await post(*messages, held=held)

    monkeypatch.setattr(writing.guarded, "post", post_slowly)
    writing.spool.append([click(number) for number in range(4)])
    writing.writer._lose_database(AWAY)
    async with writing.running():
        await eventually(is_held.is_set)
        await writing.follow(10, 11)
        assert writing.counted("clicks_spooled_total") == 0
        assert await numbers(writing.database) == [0, 1, 10, 11]
        assert "clicks go to the database again" in caplog.messages
        may_go_on.set()
        await eventually(lambda: not writing.files)
    assert await numbers(writing.database) == [0, 1, 2, 3, 10, 11]
