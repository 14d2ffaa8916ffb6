"""What is over is forgotten after its time, and what nobody will ever deliver comes to an end."""

import pytest

from refract.services.notifications.commands import clearing as clearing_up
from refract.services.notifications.commands.clearing import KEPT, TOO_OLD, Clearing
from tests.support.deliveries import Deliveries, Sending


async def test_what_is_over_is_forgotten_after_its_time(deliveries: Deliveries) -> None:
    sent = await deliveries.add()
    await deliveries.round(deliveries.lane(Sending()))
    clearing = Clearing(deliveries.database, deliveries.clock)
    deliveries.clock.advance(KEPT.total_seconds())
    waiting = await deliveries.add()
    assert await clearing.clear() == 0
    deliveries.clock.advance(1)
    assert await clearing.clear() == 1
    [row] = await deliveries.rows()
    assert row["id"] == waiting != sent


async def test_what_nobody_delivers_is_given_up(deliveries: Deliveries) -> None:
    """SMTP_URL was taken away, and the mails are still there."""
    notification = await deliveries.add_notification()
    delivery = await deliveries.add(notification_id=notification)
    deliveries.clock.advance(7 * 86_400)
    await Clearing(deliveries.database, deliveries.clock).clear()
    assert (await deliveries.row(delivery))["status"] == "pending"
    deliveries.clock.advance(1)
    await Clearing(deliveries.database, deliveries.clock).clear()
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"], row["text"]) == ("failed", "not delivered within 7 days", "")
    assert [told["status"] for told in await deliveries.notifications()] == ["failed"]


async def test_a_clock_that_was_set_back_delays_nothing_for_long(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    deliveries.clock.advance(-86_400)
    lane = deliveries.lane(Sending())
    assert await deliveries.round(lane) == 0
    await Clearing(deliveries.database, deliveries.clock).clear()
    assert await deliveries.round(lane) == 1
    assert (await deliveries.row(delivery))["status"] == "sent"


async def test_much_is_cleared_up_in_batches(deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing_up, "BATCH", 2)
    told = [await deliveries.add_notification() for _ in range(5)]
    for notification in told:
        await deliveries.add(notification_id=notification)
    clearing = Clearing(deliveries.database, deliveries.clock)
    deliveries.clock.advance(-86_400)
    await clearing.clear()
    assert {row["next_attempt_at"] for row in await deliveries.rows()} == {deliveries.clock.now()}, (
        "the clock went back"
    )
    deliveries.clock.advance(86_400 + TOO_OLD.total_seconds() + 1)
    await clearing.clear()
    assert {row["status"] for row in await deliveries.rows()} == {"failed"}
    assert [row["status"] for row in await deliveries.notifications()] == ["failed"] * 5


async def test_a_digest_that_nobody_delivers_fails_with_all_it_tells_of(deliveries: Deliveries) -> None:
    told = [await deliveries.add_notification() for _ in range(3)]
    await deliveries.add(kind="digest", payload={"notifications": told[:2]})
    deliveries.clock.advance(TOO_OLD.total_seconds() + 1)
    await Clearing(deliveries.database, deliveries.clock).clear()
    assert [row["status"] for row in await deliveries.notifications()] == ["failed", "failed", "pending"]
