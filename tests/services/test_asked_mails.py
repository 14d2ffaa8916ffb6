"""Mails that identity asks for: read from their queue, sent by a real server, logged without one, refused when bad."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from refract.kernel.events import PLATFORM_EXCHANGE
from refract.runtime.inbox import Inbox
from refract.runtime.messages import Message, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.ports import EventBus
from refract.services.identity.api import EmailPasswordResetRequested, EmailVerificationRequested, Mail
from refract.services.notifications.commands.mailing import Mailing, mail_decoder
from refract.services.notifications.reactions import MAILS
from tests.support.databases import Location
from tests.support.deliveries import TO, USER, Deliveries
from tests.support.mail_servers import post_office
from tests.support.waiting import eventually
from tests.support.worlds import buses_beside, running

LINK = "https://sho.rt/verify#token=s3cr3t"
Asked = EmailVerificationRequested | EmailPasswordResetRequested

pytestmark = pytest.mark.usefixtures("patient_bus")


@dataclass
class Desk:
    """The reader of the queue of mails, with a name that no other test uses."""

    deliveries: Deliveries
    bus: EventBus
    queue: Queue
    metrics: Metrics

    def inbox(self, *, has_server: bool) -> Inbox:
        return Inbox(
            self.queue,
            mail_decoder(),
            Mailing(self.deliveries.clock, has_server=has_server),
            database=self.deliveries.database,
            bus=self.bus,
            clock=self.deliveries.clock,
            metrics=self.metrics,
        )

    async def publish(self, event: Asked) -> None:
        message = Message.of(event)
        await self.bus.publish(message_to(self.queue, message))

    def handled(self) -> float:
        return self.metrics.registry.get_sample_value("inbox_handled_total", {"reader": self.queue.name}) or 0.0


def message_to(queue: Queue, message: Message) -> Message:
    return Message(
        queue.bindings[0].exchange,
        message.routing_key,
        message.body,
        message.message_id,
        message.correlation_id,
        mandatory=True,
    )


@pytest.fixture
async def desk(
    deliveries: Deliveries, notifications_location: Location, request: pytest.FixtureRequest
) -> AsyncIterator[Desk]:
    buses = buses_beside(notifications_location, request)
    bus = await buses.open()
    queue = buses.queue("mails", "email.#")
    await bus.declare(queue)
    yield Desk(deliveries, bus, queue, Metrics())
    await buses.close()


def asked(
    recipient: str = TO, subject: str = "Confirm your email address", link: str = LINK, *, event_id: str = "evt_1"
) -> EmailVerificationRequested:
    now = datetime.now(UTC)
    mail = Mail(
        recipient=recipient,
        subject=subject,
        template="email_verification",
        link=link,
        expires_at=datetime(2026, 3, 2, 12, tzinfo=UTC),
    )
    return EmailVerificationRequested(
        occurred_at=now, event_id=event_id, correlation_id="a-registration", user_id=USER, data=mail
    )


def reset_asked() -> EmailPasswordResetRequested:
    mail = Mail(
        recipient=TO,
        subject="Choose a new password",
        template="password_reset",
        link="https://sho.rt/reset#token=s3cr3t",
        expires_at=datetime(2026, 3, 1, 13, tzinfo=UTC),
    )
    return EmailPasswordResetRequested(
        occurred_at=datetime.now(UTC), event_id="evt_reset", correlation_id="a-reset", user_id=USER, data=mail
    )


BOTH = pytest.mark.parametrize("event", [asked(), reset_asked()], ids=["verification", "reset"])


def test_the_queue_is_the_one_of_the_specification() -> None:
    assert MAILS.name == "smtp_send_email_v2"
    assert [(one.exchange, one.pattern) for one in MAILS.bindings] == [(PLATFORM_EXCHANGE, "email.#")]


@BOTH
async def test_a_mail_that_was_asked_for_arrives(desk: Desk, event: Asked) -> None:
    deliveries = desk.deliveries
    with post_office() as office:
        lane = deliveries.mail_lane(office.settings())
        async with running(desk.inbox(has_server=True).run, lane.run):
            await desk.publish(event)
            await desk.publish(event)  # at least once, and perhaps twice
            await eventually(lambda: deliveries.counted("email", "sent") == 1)
    [mail] = office.mails
    assert (mail["To"], mail["Subject"]) == (TO, event.data.subject)
    text, html = (part.get_content() for part in mail.iter_parts())
    assert event.data.link in text
    assert f'<a href="{event.data.link}">' in html
    assert f"until {event.data.expires_at:%Y-%m-%d %H:%M} UTC" in text
    [row] = await deliveries.rows()
    assert (row["kind"], row["user_id"], row["correlation_id"]) == (event.routing_key(), USER, event.correlation_id)
    assert row["expires_at"] == event.data.expires_at
    assert "s3cr3t" not in str(dict(row)), "the token must not outlive its mail"


async def test_a_mail_that_fails_for_good_leaves_no_token_either(desk: Desk) -> None:
    deliveries = desk.deliveries
    with post_office() as office:
        office.refusals[TO] = "550 no"
        async with running(desk.inbox(has_server=True).run, deliveries.mail_lane(office.settings()).run):
            await desk.publish(asked())
            await eventually(lambda: deliveries.counted("email", "failed") == 1)
    assert "s3cr3t" not in str([dict(row) for row in await deliveries.rows()])


@BOTH
async def test_without_a_mail_server_the_link_is_logged(
    desk: Desk, event: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract.services.notifications.commands.mailing")
    async with running(desk.inbox(has_server=False).run):
        await desk.publish(event)
        await eventually(lambda: desk.handled() == 1)
    [line] = [record for record in caplog.records if record.getMessage().startswith("mail not sent")]
    said = vars(line)
    assert line.levelno == logging.INFO
    assert (said["event_type"], said["user_email"], said["link"], said["correlation_id"]) == (
        event.routing_key(),
        TO,
        event.data.link,
        event.correlation_id,
    )
    assert await desk.deliveries.rows() == []


@pytest.mark.parametrize("has_server", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        asked("alice@example.com\r\nBcc: eve@evil.example"),
        asked("alice@example.com, eve@evil.example"),
        asked("alice@example.com>\nRCPT TO:<eve@evil.example"),
        asked("nobody"),
        asked(""),
        asked(subject="Hello\r\nBcc: eve@evil.example"),
        asked(subject="Hello\n\nand a body"),
        asked(subject="Hello\u2028there"),
    ],
)
async def test_what_would_break_out_of_its_header_is_buried(
    desk: Desk, bad: EmailVerificationRequested, has_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.runtime.inbox.FIRST_PAUSE", 0.0)
    async with running(desk.inbox(has_server=has_server).run):
        await desk.publish(bad)
        await desk.publish(msgspec.structs.replace(asked("bob@example.com"), event_id="evt_2"))
        await eventually(lambda: desk.bus.dead_letters(desk.queue.name, 10))
        await eventually(lambda: desk.handled() == 1)
    [letter] = await desk.bus.dead_letters(desk.queue.name, 10)
    assert "the subject has" in letter.reason or "not a mail address" in letter.reason
    assert [row["recipient"] for row in await desk.deliveries.rows()] == (["bob@example.com"] if has_server else [])


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"event_id": "evt_1", "timestamp": "2026-03-01T12:00:00Z", "payload": {}}', b"\xff"],
)
async def test_what_is_no_mail_is_buried(desk: Desk, body: bytes) -> None:
    exchange = desk.queue.bindings[0].exchange
    async with running(desk.inbox(has_server=True).run):
        await desk.bus.publish(Message(exchange, "email.verification.requested", body, "one"))
        await desk.bus.publish(Message(exchange, "email.unheard.of", body, "two"))
        await eventually(lambda: _two_dead(desk))


async def _two_dead(desk: Desk) -> bool:
    return len(await desk.bus.dead_letters(desk.queue.name, 10)) == 2


async def test_a_mail_that_waited_too_long_is_not_sent(desk: Desk) -> None:
    deliveries = desk.deliveries
    deliveries.clock.advance(timedelta(days=1).total_seconds())
    with post_office() as office:
        async with running(desk.inbox(has_server=True).run, deliveries.mail_lane(office.settings()).run):
            await desk.publish(asked())
            await eventually(lambda: deliveries.counted("email", "failed") == 1)
    assert office.mails == []
