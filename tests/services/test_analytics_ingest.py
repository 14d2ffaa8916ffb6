"""Counting clicks, on both modes: each is kept and counted once, however often it comes and whatever fails."""

import random
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime import inbox
from refract.runtime.statements import Statement
from refract.services.analytics.commands import ingesting as commands
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.reactions import CLICKS as QUEUE
from refract.services.analytics.store.rollups import save_rollups
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.counting import (
    CLICKS,
    ROLLUPS,
    assert_counted,
    click_inbox,
    clicked,
    clicks_of,
    hand_over,
    ingest,
    ingesting,
    letter,
    random_clicks,
)
from tests.support.following import Between, analytics
from tests.support.outboxes import OUTBOX
from tests.support.worlds import INBOX

__all__ = ["analytics"]

ADD_FORGOTTEN = Statement(
    "add_forgotten",
    "Notes that an account is gone.",
    "INSERT INTO forgotten_users (user_id, forgotten_at) VALUES (:user_id, :now)",
)
LINKS = Statement("links", "Reads links.", "SELECT short_code, user_id, user_email, order_number FROM links ORDER BY 1")
CHANGES = Statement("changes", "Reads what is to be announced.", "SELECT short_codes FROM totals_changes ORDER BY id")


async def mark_and_ingest(analytics: Between, event: UrlClicked) -> None:
    """What the inbox does, without its patience."""
    async with analytics.database.transaction() as tx:
        await tx.fetch(inbox.MARK, reader=QUEUE.name, event_ids=[event.event_id], now=START)
        await ingesting(analytics.clock).ingest(tx, [event])


# Rows


async def test_a_click_is_kept_with_everything_known_of_it(analytics: Between) -> None:
    event = clicked(
        at=START - timedelta(microseconds=1),
        referer="https://news.example/today",
        query="utm_source=letter",
        accept_language="de-DE",
        ip_anonymized="198.51.100.0",
    )
    await ingest(analytics, event)
    [row] = await analytics.database.fetch(CLICKS)
    [click] = clicks_of([event], analytics.clock)
    elsewhere = {"user_id", "user_email", "correlation_id", "occurred_at"}
    expected = {field: getattr(click, field) or None for field in set(Click.__struct_fields__) - elsewhere}
    assert dict(row) == {**expected, "bot": False, "clicked_at": event.occurred_at}
    assert row["visitor"] == bytes.fromhex(event.ip_hash)
    assert row["referrer"] == "news.example"


async def test_what_is_not_known_is_null(analytics: Between) -> None:
    await ingest(analytics, clicked(user_agent="", ip_hash=""))
    [row] = await analytics.database.fetch(CLICKS)
    assert row["referer"] is row["user_agent"] is row["country"] is row["utm_term"] is None
    assert row["visitor"] == b"", "somebody it was"
    [rollup] = await analytics.database.fetch(ROLLUPS)
    assert rollup["by_referer"] is rollup["by_utm_term"] is rollup["bot_visitors"] is None


async def test_a_referer_is_kept_as_it_came(analytics: Between) -> None:
    await ingest(analytics, clicked(referer="HTTPS://News.example/Today?q=1#x"))
    [row] = await analytics.database.fetch(CLICKS)
    assert row["referer"] == "HTTPS://News.example/Today?q=1#x"


async def test_nobody_is_named_in_a_click(analytics: Between) -> None:
    await ingest(analytics, clicked())
    [row] = await analytics.database.fetch(CLICKS)
    assert "owner" not in str(dict(row))


# Once


async def test_single_clicks_and_arrays_count_alike(analytics: Between) -> None:
    events = random_clicks(random.Random(5), 60, codes=["a", "b", "c"])
    reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
    await hand_over(reader, *map(letter, events[:20]), letter(*events[20:50]), letter(*events[50:]))
    await assert_counted(analytics, events)


async def test_a_click_that_comes_twice_counts_once(analytics: Between) -> None:
    event = clicked()
    reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
    first = await hand_over(reader, letter(event))
    second = await hand_over(reader, letter(event), letter(event, event))
    assert len(first.acknowledged) == 1
    assert len(second.acknowledged) == 2, "a duplicate is settled"
    assert len(await analytics.database.fetch(INBOX)) == 1
    await assert_counted(analytics, [event])


async def test_clicks_without_an_id_go_by_their_request(analytics: Between) -> None:
    events = [clicked(event_id="", visitor=visitor) for visitor in (1, 2, 1)]
    await ingest(analytics, *events)
    assert {row["event_id"] for row in await analytics.database.fetch(CLICKS)} == {
        "url.clicked:request-1",
        "url.clicked:request-2",
    }


async def test_a_failure_leaves_nothing(analytics: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step fails, the transaction takes the mark back with everything else, and the click comes again."""
    steps = ("add_clicks", "add_totals", "add_links", "lock_rollups", "save_rollups", "note_changes")
    event = clicked()

    async def fail(*_: Any, **__: Any) -> None:
        raise Unavailable("database", "for a moment")

    for step in steps:
        with monkeypatch.context() as patched:
            patched.setattr(commands, step, fail)
            with pytest.raises(Unavailable):
                await mark_and_ingest(analytics, event)
        for statement in (INBOX, CLICKS, ROLLUPS, LINKS, CHANGES, OUTBOX):
            assert await analytics.database.fetch(statement) == [], f"{statement.name} after {step}"
    await ingest(analytics, event)
    await assert_counted(analytics, [event])


async def test_a_batch_that_fails_for_a_moment_is_counted_once(
    analytics: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, failures = [clicked(code) for code in "abc"], 2

    async def sometimes(*arguments: Any) -> None:
        nonlocal failures
        await save_rollups(*arguments)
        failures -= 1
        if failures >= 0:
            raise Unavailable("database", "gone for a moment")

    async def at_once(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr(commands, "save_rollups", sometimes)
    monkeypatch.setattr(inbox.Inbox, "_wait_for_dependency", at_once)
    await ingest(analytics, *events)
    await assert_counted(analytics, events)


# Links


async def test_an_owner_is_known_from_the_first_click(analytics: Between) -> None:
    await ingest(analytics, clicked("a"), clicked("b", user_id="other", user_email="other@example.com"))
    await ingest(analytics, clicked("a", user_id="somebody else"))
    assert [tuple(row.values()) for row in await analytics.database.fetch(LINKS)] == [
        ("a", "owner", "owner@example.com", -1),
        ("b", "other", "other@example.com", -1),
    ]


async def test_who_has_left_is_not_named_again(analytics: Between) -> None:
    async with analytics.database.transaction() as tx:
        await tx.execute(ADD_FORGOTTEN, user_id="owner", now=START)
    await ingest(analytics, *(clicked() for _ in range(10)))
    [link] = await analytics.database.fetch(LINKS)
    assert (link["user_id"], link["user_email"]) == ("", "")
    assert await analytics.database.fetch(OUTBOX) == [], "nobody is told of a milestone"


async def test_totals_that_changed_are_noted_once(analytics: Between) -> None:
    await ingest(analytics, clicked("b"), clicked("a"), clicked("b"))
    [change] = await analytics.database.fetch(CHANGES)
    assert change["short_codes"] == ["a", "b"]
