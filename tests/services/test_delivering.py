"""Deliveries, in both modes: whose turn it is, what is written down, how long the pauses are, and when it ends."""

import asyncio
import logging
from datetime import timedelta

import pytest

from refract.runtime.telemetry import log_fields
from refract.services.notifications.domain.sending import MAX_ATTEMPTS, Away, Postponed, Refused
from refract.services.notifications.store.deliveries import LEASE
from tests.support.deliveries import TO, Deliveries, Sending
from tests.support.mail_servers import CUT, HANG, bad_office, post_office
from tests.support.receivers import receiver
from tests.support.waiting import eventually
from tests.support.worlds import running

MINUTE = timedelta(minutes=1)


async def test_a_mail_is_sent_once_and_written_down(deliveries: Deliveries) -> None:
    notification = await deliveries.add_notification()
    delivery = await deliveries.add(notification_id=notification)
    with post_office() as office:
        lane = deliveries.mail_lane(office.settings())
        assert await deliveries.round(lane) == 1
        assert await deliveries.round(lane) == 0
    [mail] = office.mails
    row = await deliveries.row(delivery)
    assert mail["Message-ID"] == row["provider_message_id"] == f"<{delivery}@sho.rt>"
    assert (row["status"], row["attempts"], row["sent_at"]) == ("sent", 1, deliveries.clock.now())
    assert (row["text"], row["html"], row["payload"], row["last_error"]) == ("", None, {}, None)
    [told] = await deliveries.notifications()
    assert (told["status"], told["sent_at"]) == ("sent", deliveries.clock.now())
    assert deliveries.counted("email", "sent") == 1


async def test_a_refused_recipient_fails_at_once(deliveries: Deliveries) -> None:
    notification = await deliveries.add_notification()
    delivery = await deliveries.add("nobody@example.com", notification_id=notification)
    with post_office() as office:
        office.refusals["nobody@example.com"] = "550 5.1.1 no such user"
        await deliveries.round(deliveries.mail_lane(office.settings()))
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 1, "550 5.1.1 no such user")
    assert (row["text"], row["html"]) == ("", None)
    assert [told["status"] for told in await deliveries.notifications()] == ["failed"]


async def test_a_busy_server_gets_it_later(deliveries: Deliveries) -> None:
    notification = await deliveries.add_notification()
    delivery = await deliveries.add(notification_id=notification)
    with post_office() as office:
        lane = deliveries.mail_lane(office.settings())
        office.refusals[TO] = "450 4.2.0 greylisted"
        await deliveries.round(lane)
        row = await deliveries.row(delivery)
        assert (row["status"], row["last_error"]) == ("pending", "450 4.2.0 greylisted")
        assert row["next_attempt_at"] == deliveries.clock.now() + MINUTE
        assert row["text"] == "Hello.\n"
        assert [told["status"] for told in await deliveries.notifications()] == ["pending"]
        deliveries.clock.advance(59)
        assert await deliveries.round(lane) == 0
        office.refusals.clear()
        deliveries.clock.advance(1)
        assert await deliveries.round(lane) == 1
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"], row["last_error"]) == ("sent", 2, None)
    assert office.mails[0]["Message-ID"] == f"<{delivery}@sho.rt>"


async def test_the_pauses_grow_and_have_an_end(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    lane = deliveries.lane(Sending(*(Postponed(f"no {number}") for number in range(1, 20))))
    minutes = []
    while True:
        assert await deliveries.round(lane) == 1
        row = await deliveries.row(delivery)
        if row["status"] == "failed":
            break
        minutes.append((row["next_attempt_at"] - deliveries.clock.now()) / MINUTE)
        await deliveries.turn_to(row["next_attempt_at"])
    assert minutes == [1, 3, 9, 27, 81, 243, 360, 360, 360]
    assert (row["attempts"], row["last_error"]) == (MAX_ATTEMPTS, "no 10")
    deliveries.clock.advance(86_400)
    assert await deliveries.round(lane) == 0


async def test_who_asks_for_a_longer_pause_is_given_it(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    await deliveries.round(deliveries.lane(Sending(Postponed("busy", timedelta(minutes=30)))))
    assert (await deliveries.row(delivery))["next_attempt_at"] == deliveries.clock.now() + 30 * MINUTE


async def test_a_mail_whose_link_is_over_is_not_sent(deliveries: Deliveries) -> None:
    delivery = await deliveries.add(expires_at=deliveries.clock.now() + MINUTE)
    deliveries.clock.advance(60)
    sending = Sending()
    await deliveries.round(deliveries.lane(sending))
    assert sending.sent == []
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"]) == ("failed", "its time was over before it could be delivered")


async def test_nobody_waits_for_an_attempt_that_would_come_too_late(deliveries: Deliveries) -> None:
    delivery = await deliveries.add(expires_at=deliveries.clock.now() + timedelta(seconds=59))
    await deliveries.round(deliveries.lane(Sending(Postponed("busy"))))
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"]) == ("failed", "busy")


async def test_while_it_is_under_way_it_is_nobody_elses(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    sending = Sending()
    sending.gate.clear()
    one, other = deliveries.lane(sending), deliveries.lane(sending)
    assert await one.begin() == 1
    assert await other.begin() == await one.begin() == 0
    row = await deliveries.row(delivery)
    assert row["next_attempt_at"] == deliveries.clock.now() + LEASE
    assert row["attempts"] == 1
    sending.gate.set()
    await one.finish()
    assert [sent.id for sent in sending.sent] == [delivery]


async def test_who_is_slower_than_the_lease_changes_nothing(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    slow, quick = Sending(Refused("too late to matter")), Sending()
    slow.gate.clear()
    first = deliveries.lane(slow)
    await first.begin()
    deliveries.clock.advance(LEASE.total_seconds())
    assert await deliveries.round(deliveries.lane(quick)) == 1
    slow.gate.set()
    await first.finish()
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"], row["last_error"]) == ("sent", 2, None)
    assert slow.settlements == []
    assert deliveries.counted("email", "overtaken") == 1


@pytest.mark.parametrize(
    ("error", "status", "reason"), [(Refused("too late to matter"), "pending", "later"), (None, "sent", None)]
)
async def test_but_what_has_arrived_has_arrived(
    deliveries: Deliveries, error: Refused | None, status: str, reason: str | None
) -> None:
    delivery = await deliveries.add()
    slow = Sending(error)
    slow.gate.clear()
    first = deliveries.lane(slow)
    await first.begin()
    deliveries.clock.advance(LEASE.total_seconds())
    await deliveries.round(deliveries.lane(Sending(Postponed("later"))))
    slow.gate.set()
    await first.finish()
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"], row["last_error"]) == (status, 2, reason)


async def test_two_lanes_share_the_work_and_do_none_of_it_twice(deliveries: Deliveries) -> None:
    ids = {await deliveries.add() for _ in range(30)}
    sending = [Sending(), Sending()]
    lanes = [deliveries.lane(one) for one in sending]
    async with running(*(lane.run for lane in lanes)):
        await eventually(lambda: deliveries.counted("email", "sent") == 30, timeout=60)
    sent = [delivery.id for one in sending for delivery in one.sent]
    assert sorted(sent) == sorted(ids)
    assert {row["status"] for row in await deliveries.rows()} == {"sent"}


async def test_attempts_that_were_cut_off_count(deliveries: Deliveries) -> None:
    """Whatever it is that ends the process in mid-send does so ten times at most."""
    delivery = await deliveries.add()
    await deliveries.run("UPDATE deliveries SET attempts = :attempts", attempts=MAX_ATTEMPTS)
    sending = Sending()
    await deliveries.round(deliveries.lane(sending))
    assert sending.sent == []
    assert (await deliveries.row(delivery))["last_error"] == "given up: 10 attempts were cut off"


async def test_no_more_are_under_way_than_there_are_places(deliveries: Deliveries) -> None:
    for _ in range(10):
        await deliveries.add()
    sending = Sending(places=3)
    sending.gate.clear()
    lane = deliveries.lane(sending)
    async with running(lane.run):
        await eventually(lambda: sending.under_way == 3)
        assert await lane.begin() == 0
        sending.gate.set()
        await eventually(lambda: deliveries.counted("email", "sent") == 10)
    assert sending.most_under_way == 3


async def test_a_server_that_is_away_is_left_alone_for_a_while(deliveries: Deliveries) -> None:
    for _ in range(9):
        await deliveries.add()
    sending = Sending(*[Away("down")] * 6, places=2)
    lane = deliveries.lane(sending)
    begun = []
    for seconds in (0, 0.9, 0.1, 1.9, 0.1, 3.9, 0.1):
        deliveries.clock.advance(seconds)
        begun.append(await deliveries.round(lane))
    # Two fail, and then it rests for 1 s, 2 s, 4 s; what was tried waits its own minute.
    assert begun == [2, 0, 2, 0, 2, 0, 2]
    assert await deliveries.round(lane) == 1
    assert deliveries.counted("email", "sent") == 3


async def test_a_server_that_came_back_has_a_clean_slate(deliveries: Deliveries) -> None:
    for _ in range(6):
        await deliveries.add()
    lane = deliveries.lane(Sending(Away("down"), Away("down"), None, Away("down"), places=1))
    begun = []
    for seconds in (0, 1, 2, 0, 1):
        deliveries.clock.advance(seconds)
        begun.append(await deliveries.round(lane))
    assert begun == [1, 1, 1, 1, 1], "the last rest is as short as the first"


async def test_a_failure_that_nobody_thought_of_is_a_failure(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = await deliveries.add()
    lane = deliveries.lane(Sending(ZeroDivisionError("oh")))
    await deliveries.round(lane)
    row = await deliveries.row(delivery)
    assert (row["status"], row["last_error"]) == ("pending", "internal error: ZeroDivisionError")
    assert "in a way that nobody thought of" in caplog.text
    deliveries.clock.advance(60)
    assert await deliveries.round(lane) == 1


async def test_a_fault_of_ours_ends_no_lane(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await deliveries.add()
    sending = Sending()
    lane = deliveries.lane(sending)
    with monkeypatch.context() as patched:
        patched.setattr(sending, "settled", None)
        await deliveries.round(lane)
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"], row["next_attempt_at"]) == ("pending", 1, deliveries.clock.now() + LEASE)
    assert "delivery not written down" in caplog.text
    deliveries.clock.advance(LEASE.total_seconds())
    assert await deliveries.round(lane) == 1
    assert (await deliveries.row(delivery))["status"] == "sent"


async def test_every_line_has_the_correlation_id(deliveries: Deliveries, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    fields = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields.append(log_fields(record, "test"))

    logger = logging.getLogger("refract.services.notifications.commands.delivering")
    logger.addHandler(noting := Noting())
    try:
        await deliveries.add(correlation_id="one")
        deliveries.clock.advance(1)  # of the same moment, either may come first
        await deliveries.add(correlation_id="two")
        await deliveries.round(deliveries.lane(Sending(None, Postponed("later"), places=1)))
        await deliveries.round(deliveries.lanes[0])
    finally:
        logger.removeHandler(noting)
    assert [(line["msg"], line["correlation_id"]) for line in fields] == [
        ("delivered", "one"),
        ("not delivered", "two"),
    ]
    assert not any(TO in str(line) for line in fields)


async def test_the_oldest_comes_first(deliveries: Deliveries) -> None:
    ids = []
    for _ in range(3):
        ids.append(await deliveries.add())
        deliveries.clock.advance(1)
    sending = Sending(places=1)
    lane = deliveries.lane(sending)
    while await deliveries.round(lane):
        pass
    assert [delivery.id for delivery in sending.sent] == ids


async def test_the_same_cause_is_delivered_once(deliveries: Deliveries) -> None:
    await deliveries.add(source_event_id="event")
    with pytest.raises(ValueError, match="not enough values"):
        await deliveries.add(source_event_id="event")
    assert len(await deliveries.rows()) == 1


async def test_who_has_many_mails_coming_keeps_nobody_waiting(deliveries: Deliveries) -> None:
    """A thousand mails about a thousand links stand before another's link to a new password."""
    for _ in range(5):
        await deliveries.add()
    await deliveries.add("bob@example.com")
    async with bad_office(DATA=HANG) as office:
        lane = deliveries.mail_lane(office.settings(), timeout=30, longest=30)
        while await lane.begin():
            pass
        taken = [row["recipient"] for row in await deliveries.rows() if row["attempts"]]
        assert sorted(taken) == [TO, "bob@example.com"]
        await lane.drain()


@pytest.mark.parametrize("way", [HANG, CUT])
async def test_a_dead_mail_server_delays_nothing_but_mail(deliveries: Deliveries, way: bytes) -> None:
    mail = await deliveries.add()
    async with bad_office(GREETING=way) as office, receiver() as receiving:
        webhook = await deliveries.add_webhook(receiving.url())
        await deliveries.to_webhook(webhook)
        mails = deliveries.mail_lane(office.settings(), timeout=30, longest=30)
        async with running(mails.run, deliveries.webhook_lane().run):
            await eventually(lambda: office.steps)
            await eventually(lambda: deliveries.counted("webhook", "sent") == 1)
        assert (await deliveries.row(mail))["status"] == "pending"
        await mails.drain()


async def test_at_the_end_what_is_under_way_comes_to_its_end(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    sending = Sending()
    sending.gate.clear()
    lane = deliveries.lane(sending, last_seconds=10)
    await lane.begin()
    asyncio.get_running_loop().call_later(0.05, sending.gate.set)
    await lane.drain()
    assert (await deliveries.row(delivery))["status"] == "sent"


async def test_but_it_is_not_waited_for_long(deliveries: Deliveries, caplog: pytest.LogCaptureFixture) -> None:
    delivery = await deliveries.add()
    sending = Sending()
    sending.gate.clear()
    lane = deliveries.lane(sending, last_seconds=0.05)
    await lane.begin()
    await lane.drain()
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert "deliveries cut off" in caplog.text
    deliveries.clock.advance(LEASE.total_seconds())
    assert await deliveries.round(deliveries.lane(Sending())) == 1
