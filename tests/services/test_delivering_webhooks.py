"""Webhooks in both modes: signed, repeated under the same id, one after the other, and switched off when dead."""

import asyncio
import base64
import hashlib
import hmac
from datetime import timedelta

import pytest

from refract.services.notifications.commands import channels
from refract.services.notifications.commands.channels import HOPELESS, SUSTAINED, WebhookChannel
from refract.services.notifications.domain.sending import MAX_ATTEMPTS
from refract.services.notifications.domain.webhooks import new_secret
from tests.support.deliveries import USER, Deliveries
from tests.support.receivers import OK, Request, receiver, status
from tests.support.waiting import eventually
from tests.support.worlds import running

DOWN = status(500)


def is_signed(request: Request, secret: str) -> bool:
    """What a receiver does, by the words of the standard."""
    key = base64.b64decode(secret[len("whsec_") :])
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return request.headers["webhook-signature"] == f"v1,{signature}"


async def test_a_webhook_is_called_with_a_signature(deliveries: Deliveries) -> None:
    secret = new_secret()
    async with receiver() as receiving:
        webhook = await deliveries.add_webhook(receiving.url(), secret=secret)
        delivery = await deliveries.to_webhook(webhook)
        assert await deliveries.round(deliveries.webhook_lane()) == 1
    [request] = receiving.requests
    assert is_signed(request, secret)
    assert request.headers["webhook-id"] == delivery
    assert int(request.headers["webhook-timestamp"]) == deliveries.clock.now().timestamp()
    data = {"short_code": "abc", "occurred_at": "2026-03-01T12:00:00Z"}
    assert request.json == {"type": "url.created", "timestamp": "2026-03-01T12:00:00Z", "data": data}
    row = await deliveries.row(delivery)
    assert (row["status"], row["provider_message_id"], row["payload"]) == ("sent", delivery, {})


async def test_a_second_attempt_is_the_same_message_at_another_time(deliveries: Deliveries) -> None:
    secret = new_secret()
    async with receiver(DOWN, OK) as receiving:
        webhook = await deliveries.add_webhook(receiving.url(), secret=secret)
        await deliveries.to_webhook(webhook)
        lane = deliveries.webhook_lane()
        await deliveries.round(lane)
        row = await deliveries.webhook(webhook)
        assert (row["failing_since"], row["last_error"]) == (deliveries.clock.now(), "status 500")
        deliveries.clock.advance(60)
        await deliveries.round(lane)
    first, second = receiving.requests
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 60
    assert is_signed(first, secret)
    assert is_signed(second, secret)
    row = await deliveries.webhook(webhook)
    assert (row["status"], row["failing_since"], row["last_error"]) == ("active", None, None)


async def test_an_edited_webhook_is_called_where_it_is_now(deliveries: Deliveries) -> None:
    async with receiver() as before, receiver() as after:
        webhook = await deliveries.add_webhook(before.url())
        await deliveries.to_webhook(webhook)
        await deliveries.run("UPDATE webhooks SET url = :url", url=after.url())
        await deliveries.round(deliveries.webhook_lane())
    assert (before.connections, after.connections) == (0, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DELETE FROM webhooks", "the webhook was removed"),
        ("UPDATE webhooks SET status = 'disabled'", "the webhook is disabled"),
    ],
)
async def test_a_webhook_that_is_no_more_gets_nothing(deliveries: Deliveries, change: str, reason: str) -> None:
    async with receiver() as receiving:
        delivery = await deliveries.to_webhook(await deliveries.add_webhook(receiving.url()))
        await deliveries.run(change)
        await deliveries.round(deliveries.webhook_lane())
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"], receiving.connections) == ("failed", reason, 0)
    assert deliveries.notices == []


async def test_a_receiver_that_is_gone_is_switched_off_at_once(deliveries: Deliveries) -> None:
    async with receiver(status(410)) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        first = await deliveries.to_webhook(webhook)
        deliveries.clock.advance(1)
        second = await deliveries.to_webhook(webhook)
        other = await deliveries.to_webhook(await deliveries.add_webhook(receiving.url(path="/other")))
        deliveries.clock.advance(-1)
        await deliveries.round(deliveries.webhook_lane())
    row = await deliveries.webhook(webhook)
    assert (row["status"], row["disabled_at"]) == ("disabled", deliveries.clock.now())
    reasons = [(await deliveries.row(one))["last_error"] for one in (first, second, other)]
    assert reasons == ["status 410: the receiver is gone", "the webhook is disabled", None]
    [notice] = deliveries.notices
    assert (notice["user_id"], notice["event_type"]) == (USER, "webhook.disabled")
    assert notice["payload"]["webhook_id"] == webhook
    assert receiving.url() in notice["title"]


async def give_up(deliveries: Deliveries, delivery: str) -> None:
    """Let a delivery fail to its last attempt."""
    lane = deliveries.webhook_lane()
    while (row := await deliveries.row(delivery))["status"] == "pending":
        await deliveries.turn_to(max(row["next_attempt_at"], deliveries.clock.now()))
        await deliveries.round(lane)


async def test_a_receiver_that_fails_for_a_day_is_switched_off(deliveries: Deliveries) -> None:
    async with receiver(DOWN) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        first = await deliveries.to_webhook(webhook)
        begun = deliveries.clock.now()
        await give_up(deliveries, first)
    assert len(receiving.requests) == MAX_ATTEMPTS
    assert deliveries.clock.now() - begun == timedelta(minutes=1444)
    assert (await deliveries.webhook(webhook))["status"] == "disabled"
    assert [notice["payload"]["reason"] for notice in deliveries.notices] == ["status 500"]


async def test_one_that_takes_other_messages_stays_on(deliveries: Deliveries) -> None:
    """It is the message that it does not like."""
    answers = [DOWN] * (MAX_ATTEMPTS - 1) + [OK, DOWN]
    async with receiver(*answers) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        disliked = await deliveries.to_webhook(webhook)
        lane = deliveries.webhook_lane()
        for _ in range(MAX_ATTEMPTS - 1):
            await deliveries.turn_to((await deliveries.row(disliked))["next_attempt_at"])
            await deliveries.round(lane)
        liked = await deliveries.to_webhook(webhook)
        await deliveries.round(lane)
        assert (await deliveries.row(liked))["status"] == "sent"
        await give_up(deliveries, disliked)
    row = await deliveries.webhook(webhook)
    assert (row["status"], row["failing_since"]) == ("active", deliveries.clock.now())
    assert deliveries.notices == []


@pytest.mark.parametrize(("failing", "disabled"), [(SUSTAINED, True), (SUSTAINED - timedelta(seconds=1), False)])
async def test_how_long_is_long(deliveries: Deliveries, failing: timedelta, disabled: bool) -> None:
    async with receiver(DOWN) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        await deliveries.to_webhook(webhook)
        since = deliveries.clock.now() - failing
        await deliveries.run("UPDATE webhooks SET failing_since = :since", since=since)
        await deliveries.run("UPDATE deliveries SET attempts = :attempts", attempts=MAX_ATTEMPTS - 1)
        await deliveries.round(deliveries.webhook_lane())
    assert ((await deliveries.webhook(webhook))["status"] == "disabled") is disabled


@pytest.mark.parametrize(("failing", "disabled"), [(HOPELESS, True), (HOPELESS - timedelta(seconds=1), False)])
async def test_with_many_on_their_way_none_has_to_come_to_its_last_attempt(
    deliveries: Deliveries, failing: timedelta, disabled: bool
) -> None:
    """A webhook that never answers gets one request in 15 s: of thousands none would be tried ten times in a week."""
    async with receiver(DOWN) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        await deliveries.to_webhook(webhook)
        since = deliveries.clock.now() - failing
        await deliveries.run("UPDATE webhooks SET failing_since = :since", since=since)
        await deliveries.round(deliveries.webhook_lane())
    assert ((await deliveries.webhook(webhook))["status"] == "disabled") is disabled
    assert len(deliveries.notices) == disabled


async def test_of_very_many_a_part_is_given_up_and_the_rest_finds_out(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one statement would take longer than a statement may, again and again."""
    monkeypatch.setattr(channels, "FAILED_AT_ONCE", 3)
    async with receiver(status(410)) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        for _ in range(8):
            await deliveries.to_webhook(webhook)
        lane = deliveries.webhook_lane()
        await deliveries.round(lane)
        assert [row["status"] for row in await deliveries.rows()].count("failed") == 4
        while await deliveries.round(lane):
            pass
    assert {row["status"] for row in await deliveries.rows()} == {"failed"}
    assert (len(receiving.requests), len(deliveries.notices)) == (1, 1)


async def test_two_that_find_it_dead_tell_its_owner_once(deliveries: Deliveries) -> None:
    async with receiver(status(410)) as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        await deliveries.to_webhook(webhook)
        await deliveries.to_webhook(webhook)
        one, other = deliveries.webhook_lane(), deliveries.webhook_lane()
        await one.begin()
        await other.begin()
        await asyncio.gather(one.finish(), other.finish())
    assert len(deliveries.notices) == 1
    assert {row["status"] for row in await deliveries.rows()} == {"failed"}


async def test_a_private_address_is_never_called(deliveries: Deliveries) -> None:
    async with receiver() as receiving:
        delivery = await deliveries.to_webhook(await deliveries.add_webhook(receiving.url()))
        await deliveries.round(deliveries.webhook_lane(allow_private=False))
    assert receiving.connections == 0
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"]) == ("pending", "the address is private or local")


async def test_a_slow_receiver_takes_one_place_only(deliveries: Deliveries) -> None:
    async with receiver(None) as slow, receiver() as quick:
        webhook = await deliveries.add_webhook(slow.url())
        for _ in range(20):
            await deliveries.to_webhook(webhook)
        for number in range(5):
            await deliveries.to_webhook(await deliveries.add_webhook(quick.url(path=f"/{number}")))
        async with running(deliveries.webhook_lane(timeout=60).run):
            await eventually(lambda: deliveries.counted("webhook", "sent") == 5)
            await eventually(lambda: slow.most_open)
        assert slow.most_open == 1


async def test_a_user_has_a_part_of_the_places_and_no_more(deliveries: Deliveries) -> None:
    """However many webhooks they have, and however slow these are."""
    async with receiver(None) as slow, receiver() as quick:
        for number in range(10):
            webhook = await deliveries.add_webhook(slow.url(path=f"/{number}"))
            for _ in range(3):
                await deliveries.to_webhook(webhook)
        for number in range(5):
            others = await deliveries.add_webhook(quick.url(path=f"/{number}"), user_id="another")
            await deliveries.to_webhook(others, user_id="another")
        await deliveries.to_webhook(await deliveries.add_webhook(quick.url(path="/nobody")), user_id=None)
        async with running(deliveries.webhook_lane(timeout=60).run):
            await eventually(lambda: deliveries.counted("webhook", "sent") == 6)
            await eventually(lambda: slow.most_open >= WebhookChannel.room.part)
        assert slow.most_open == WebhookChannel.room.part < WebhookChannel.room.places


async def test_a_receiver_gets_one_after_the_other(deliveries: Deliveries) -> None:
    async with receiver() as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        ids = []
        for _ in range(8):
            ids.append(await deliveries.to_webhook(webhook))
            deliveries.clock.advance(1)
        async with running(deliveries.webhook_lane().run):
            await eventually(lambda: deliveries.counted("webhook", "sent") == 8)
    assert receiving.most_open == 1
    assert [request.headers["webhook-id"] for request in receiving.requests] == ids
