"""What the reader of notifications.events puts on its way: mails, lines and webhooks, as their owners chose."""

import logging
from datetime import timedelta

import pytest

from refract.services.notifications.commands.telling import MOST_AT_ONCE
from tests.support.clocks import START
from tests.support.notices import (
    ALICE,
    BASE_URL,
    BOB,
    EMAILS,
    ON_SQLITE,
    RECIPIENTS,
    URL,
    NoticesWorld,
    created,
    deleted,
    lines,
    reached,
)


async def test_a_mail_is_put_on_its_way_for_what_its_owner_wants(
    notices: NoticesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    milestone = reached(short_code="hot", total_clicks=1_003)
    await notices.tell(created(), milestone, sends_mail=True)
    made, hot = await notices.notifications()
    assert (made["status"], hot["status"], hot["sent_at"]) == ("sent", "pending", None)
    [mail] = await notices.deliveries()
    assert mail["notification_id"] == hot["id"]
    assert (mail["channel"], mail["kind"], mail["status"]) == ("email", "milestone.reached", "pending")
    assert (mail["recipient"], mail["user_id"]) == (EMAILS[ALICE], ALICE)
    assert (mail["source_event_id"], mail["correlation_id"]) == (milestone.event_id, milestone.correlation_id)
    assert mail["subject"] == "Link hot reached 1,000 clicks"
    assert mail["text"].splitlines()[::2] == [
        "Link hot reached 1,000 clicks",
        "It has 1,003 clicks by now.",
        f"{BASE_URL}/hot",
        "You choose which mails you get in your preferences.",
    ]
    assert f'href="{BASE_URL}/hot"' in mail["html"]
    assert lines(caplog) == [], "the line stands for mails of an instance that sends none"


async def test_many_of_one_user_at_once_are_one_mail(notices: NoticesWorld) -> None:
    """Who makes a thousand links in bulk, with any address for theirs, must not have a thousand mails sent there."""
    await notices.prefer(channels={"url.created": ["email"]})
    await notices.prefer(user=BOB, channels={"url.created": ["email"]})
    links = [created() for _ in range(MOST_AT_ONCE + 1)]
    await notices.tell(*links, *(created(BOB) for _ in range(MOST_AT_ONCE)), sends_mail=True)
    mails = await notices.deliveries()
    assert [mail["recipient"] for mail in mails if mail["kind"] == "url.created"] == [EMAILS[BOB]] * MOST_AT_ONCE
    [one] = [mail for mail in mails if mail["kind"] != "url.created"]
    assert (one["recipient"], one["subject"]) == (EMAILS[ALICE], "Your links: 11 new links")
    assert all(link.short_code in one["text"] for link in links)
    rows = await notices.notifications()
    assert one["payload"] == {"notifications": [row["id"] for row in rows if row["user_id"] == ALICE]}
    assert {row["status"] for row in rows} == {"pending"}


@ON_SQLITE
async def test_channels_decide_mail_and_line(notices: NoticesWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    await notices.prefer(channels={"url.created": ["email"], "milestone.reached": []})
    await notices.tell(created(), reached(), deleted(), sends_mail=True)
    assert [row["kind"] for row in await notices.deliveries()] == ["url.created"]
    await notices.tell(created(), reached(), deleted())
    assert [line["event_type"] for line in lines(caplog)] == ["url.created", "url.deleted"]
    assert len(await notices.notifications()) == 6, "the list in the product has everything"


@ON_SQLITE
async def test_a_user_without_an_address_gets_no_mail(notices: NoticesWorld) -> None:
    await notices.tell(reached(user_email=""), sends_mail=True)
    assert await notices.deliveries() == []
    [row] = await notices.notifications()
    assert row["status"] == "sent"


async def addresses(world: NoticesWorld) -> list[str]:
    return [row["email"] for row in await world.database.fetch(RECIPIENTS)]


async def test_the_address_is_that_of_the_newest_event_that_has_one(notices: NoticesWorld) -> None:
    later = START + timedelta(seconds=5)
    notices.clock.advance(60)
    await notices.tell(created(user_email="", occurred_at=later))
    await notices.tell(created(user_email="first@example.com", occurred_at=START))
    assert await addresses(notices) == ["first@example.com"], "better an old one than none"
    await notices.tell(created(user_email="new@example.com", occurred_at=later))
    await notices.tell(created(user_email="", occurred_at=later + timedelta(seconds=9)))
    await notices.tell(created(user_email="old@example.com", occurred_at=START + timedelta(seconds=1)))
    await notices.tell(
        reached(user_email="ahead@example.com", occurred_at=later - timedelta(seconds=1)), sends_mail=True
    )
    [mail] = await notices.deliveries()
    assert mail["recipient"] == "new@example.com"
    await notices.tell(reached(user_email="ahead@example.com", occurred_at=START + timedelta(days=99)))
    notices.clock.advance(1)
    await notices.tell(reached(user_email="now@example.com", occurred_at=notices.clock.now()), sends_mail=True)
    assert (await notices.deliveries())[-1]["recipient"] == "now@example.com", "a clock that was ahead does not stay"


async def test_a_clock_that_was_set_back_does_not_keep_an_old_address(notices: NoticesWorld) -> None:
    notices.clock.advance(86_400)
    await notices.tell(created(user_email="old@example.com", occurred_at=notices.clock.now()))
    notices.clock.advance(-86_400)
    await notices.tell(created(user_email="new@example.com", occurred_at=notices.clock.now()))
    assert await addresses(notices) == ["new@example.com"]
    notices.clock.advance(-1)  # as clocks of two processes differ
    await notices.tell(created(user_email="old@example.com", occurred_at=notices.clock.now()))
    assert await addresses(notices) == ["new@example.com"]


async def test_webhooks_get_what_their_owner_chose(notices: NoticesWorld) -> None:
    hooks = [
        {"url": "https://one.example/", "events": ["milestone.reached"]},
        {"url": "https://all.example/"},
        {"url": "https://off.example/", "status": "disabled"},
    ]
    ids = {hook["url"]: hook["id"] for hook in (await notices.prefer(webhooks=hooks))["webhooks"]}
    await notices.prefer(user=BOB, webhooks=[{"url": "https://bobs.example/"}])
    event, milestone = created(title="Spring"), reached()
    await notices.tell(event, milestone)
    calls = await notices.deliveries()
    assert {row["channel"] for row in calls} == {"webhook"}
    assert sorted((row["recipient"], row["kind"]) for row in calls) == sorted(
        [
            (ids["https://one.example/"], "milestone.reached"),
            (ids["https://all.example/"], "milestone.reached"),
            (ids["https://all.example/"], "url.created"),
        ]
    )
    [call] = [row for row in calls if row["kind"] == "url.created"]
    assert call["payload"] == {
        "occurred_at": "2026-03-01T12:00:00Z",
        "short_code": event.short_code,
        "original_url": URL,
        "user_id": ALICE,
        "title": "Spring",
    }
    assert {row["status"] for row in await notices.notifications()} == {"sent"}, "it is that of the mail"


@ON_SQLITE
async def test_another_part_of_the_house_can_tell_a_user_something(notices: NoticesWorld) -> None:
    await notices.tell(created())
    async with notices.database.transaction() as tx:
        await notices.telling(sends_mail=True).notice(
            tx,
            user_id=ALICE,
            event_type="webhook.disabled",
            title="Webhook\nswitched off",
            payload={"url": "https://x.example/"},
            now=notices.clock.now(),
        )
    [mail] = await notices.deliveries()
    assert (mail["kind"], mail["recipient"], mail["subject"]) == (
        "webhook.disabled",
        EMAILS[ALICE],
        "Webhook switched off",
    )
    assert await notices.unread() == {ALICE: 2}
