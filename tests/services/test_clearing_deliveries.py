"""What is over is forgotten after its time, and what nobody will ever deliver comes to an end."""

from refract.services.notifications.commands.clearing import KEPT, Clearing
from tests.support.deliveries import (
    Deliveries,
    Sending,
    deliveries,
    notifications_dsn,
    notifications_file,
    notifications_location,
)

__all__ = ["deliveries", "notifications_dsn", "notifications_file", "notifications_location"]


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
