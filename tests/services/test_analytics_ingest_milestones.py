"""Milestones of links, on both modes: each once, jumps one by one, saved with the clicks that reached it."""

import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from refract.kernel.events import EventDecoder
from refract.runtime.statements import Statement
from refract.services.analytics.api import MilestoneReached
from refract.services.analytics.commands import ingesting as commands
from refract.services.analytics.commands.announcing import note_changes
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.counting import MILESTONES, click_inbox, clicked, hand_over, ingesting, letter
from tests.support.following import Between, analytics
from tests.support.outboxes import OUTBOX

__all__ = ["analytics"]

SET_OWNER = Statement(
    "set_owner", "Changes whose link it is.", "UPDATE links SET user_id = :user_id, user_email = :user_email"
)
DECODER = EventDecoder(MilestoneReached)


async def ingest(analytics: Between, *events: UrlClicked, **options: Any) -> None:
    reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock, **options))
    await hand_over(reader, *map(letter, events))


async def announced(analytics: Between) -> list[MilestoneReached]:
    """What waits in the outbox, in the order of its announcement."""
    rows = await analytics.database.fetch(OUTBOX)
    events = [DECODER.decode(row["event_type"], row["payload"].encode())[0] for row in rows]
    return [event for event in events if isinstance(event, MilestoneReached)]


async def recorded(analytics: Between) -> list[tuple[str, int]]:
    return [(row["short_code"], row["milestone"]) for row in await analytics.database.fetch(MILESTONES)]


def some(count: int, code: str = "abc") -> list[UrlClicked]:
    return [clicked(code, START - timedelta(seconds=number), visitor=number) for number in range(count)]


async def test_the_tenth_click_is_a_milestone(analytics: Between, caplog: pytest.LogCaptureFixture) -> None:
    await ingest(analytics, *some(9))
    assert await announced(analytics) == []
    tenth = clicked(correlation_id="the tenth")
    with caplog.at_level(logging.INFO, "refract.analytics"):
        await ingest(analytics, tenth)
    [event] = await announced(analytics)
    assert (event.short_code, event.milestone, event.total_clicks) == ("abc", 10, 10)
    assert (event.user_id, event.user_email) == ("owner", "owner@example.com")
    assert (event.occurred_at, event.correlation_id) == (START, "the tenth")
    assert await recorded(analytics) == [("abc", 10)]
    [row] = await analytics.database.fetch(MILESTONES)
    assert row["triggered_at"] == START
    [record] = [record for record in caplog.records if record.message == "milestone crossed"]
    told = {"short_code": "abc", "milestone": 10, "total": 10, "event_id": tenth.event_id}
    assert vars(record).items() >= told.items()


async def test_it_is_announced_once(analytics: Between) -> None:
    events = some(12)
    for _ in range(3):
        await ingest(analytics, *events)
    await ingest(analytics, *some(5))
    assert await recorded(analytics) == [("abc", 10)]
    assert len(await announced(analytics)) == 1


async def test_a_jump_is_told_one_by_one(analytics: Between) -> None:
    events = some(1_001)
    await ingest(analytics, *events)
    told = await announced(analytics)
    assert [event.milestone for event in told] == [10, 100, 1_000]
    assert {event.total_clicks for event in told} == {1_001}
    assert [event.correlation_id for event in told] == ["request-9", "request-99", "request-999"]
    assert len({event.event_id for event in told}) == 3


async def test_each_link_has_its_own(analytics: Between) -> None:
    await ingest(analytics, *some(10, "a"), *some(9, "b"), *some(11, "c"))
    assert await recorded(analytics) == [("a", 10), ("c", 10)]


async def test_bots_count_too(analytics: Between) -> None:
    await ingest(analytics, *(clicked(user_agent="Googlebot/2.1") for _ in range(10)))
    assert await recorded(analytics) == [("abc", 10)]


async def test_thresholds_can_be_set(analytics: Between) -> None:
    await ingest(analytics, *some(4), thresholds=(2, 3, 7))
    assert [event.milestone for event in await announced(analytics)] == [2, 3]
    # One that is new and lies behind is not news any more.
    await ingest(analytics, *some(6), thresholds=(3, 4, 10))
    assert [event.milestone for event in await announced(analytics)] == [2, 3, 10]


async def test_one_that_is_recorded_is_not_told_again(analytics: Between) -> None:
    """Should totals ever be lost and counted anew, nobody hears old news."""
    async with analytics.database.transaction() as tx:
        await tx.insert_many("milestones", ("short_code", "milestone", "triggered_at"), [("abc", 10, START)])
    await ingest(analytics, *some(100))
    assert await recorded(analytics) == [("abc", 10), ("abc", 100)]
    assert [event.milestone for event in await announced(analytics)] == [100]


async def test_the_owner_is_who_owns_it_now(analytics: Between) -> None:
    await ingest(analytics, *some(5))
    async with analytics.database.transaction() as tx:
        await tx.execute(SET_OWNER, user_id="heir", user_email="heir@example.com")
    await ingest(analytics, *some(5))
    [event] = await announced(analytics)
    assert (event.user_id, event.user_email) == ("heir", "heir@example.com")


async def test_where_the_owner_has_left_it_is_recorded_and_nobody_told(analytics: Between) -> None:
    await ingest(analytics, *some(5))
    async with analytics.database.transaction() as tx:
        await tx.execute(SET_OWNER, user_id="", user_email="")
    await ingest(analytics, *some(5))
    assert await recorded(analytics) == [("abc", 10)]
    assert await announced(analytics) == []


async def test_without_the_clicks_there_is_no_milestone(analytics: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the transaction of the clicks: what fails after it takes it back."""
    tries = 0

    async def fail_once(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        await note_changes(*arguments)
        if tries <= 2:
            assert await recorded(analytics) == [], "nobody else sees it yet"
            raise RuntimeError("after everything")

    monkeypatch.setattr(commands, "note_changes", fail_once)
    await ingest(analytics, *some(10))
    assert tries > 2
    assert await recorded(analytics) == [("abc", 10)]
    assert len(await announced(analytics)) == 1


async def test_the_event_is_the_documented_one(analytics: Between) -> None:
    await ingest(analytics, *some(10))
    [row] = await analytics.database.fetch(OUTBOX)
    assert (row["exchange"], row["event_type"], row["mandatory"]) == ("url-shortener", "milestone.reached", True)
    body = msgspec.json.decode(row["payload"])
    assert set(body) == {
        "event_type",
        "event_id",
        "correlation_id",
        "occurred_at",
        "short_code",
        "user_id",
        "user_email",
        "milestone",
        "total_clicks",
    }
