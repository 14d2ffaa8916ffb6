"""The mails that other services ask for: put on their way, or logged where there is no mail server."""

import logging
from collections.abc import Sequence

from refract.kernel.clock import Clock
from refract.kernel.errors import PoisonMessage
from refract.kernel.events import Event, EventDecoder
from refract.runtime.ports import Transaction
from refract.services.identity.api import EmailPasswordResetRequested, EmailVerificationRequested
from refract.services.notifications.domain.letters import check_address, letter_of_mail
from refract.services.notifications.domain.sending import Refused
from refract.services.notifications.store.deliveries import NewDelivery, add_deliveries
from refract.services.notifications.store.notifications import hold_recipients

log = logging.getLogger(__name__)

MailAsked = EmailVerificationRequested | EmailPasswordResetRequested


def mail_decoder() -> EventDecoder:
    """What the queue of mails is read with."""
    return EventDecoder(EmailVerificationRequested, EmailPasswordResetRequested)


class Mailing:
    """Takes mails over. With the event marked as handled the mail is a delivery, which has all the time it needs."""

    def __init__(self, clock: Clock, *, has_server: bool) -> None:
        self._clock = clock
        self._has_server = has_server

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Put the mails of events on their way; PoisonMessage for one that can be nobody's mail."""
        asked = [event for event in events if isinstance(event, MailAsked)]
        forgotten = await hold_recipients(tx, {event.user_id for event in asked}, self._clock.now())
        asked = [event for event in asked if event.user_id not in forgotten]
        deliveries = [_delivery(event) for event in asked]
        if self._has_server:
            await add_deliveries(tx, deliveries, self._clock.now())
            return
        for event in asked:
            # Whoever runs an instance without a mail server finds the link here, and hands it on.
            log.info(
                "mail not sent, because SMTP_URL is not set",
                extra={
                    "event_type": event.routing_key(),
                    "user_email": event.data.recipient,
                    "subject": event.data.subject,
                    "link": event.data.link,
                    "expires_at": event.data.expires_at.isoformat(),
                    "correlation_id": event.correlation_id,
                },
            )


def _delivery(event: MailAsked) -> NewDelivery:
    try:
        letter = letter_of_mail(event.data)
        check_address(event.data.recipient)
    except Refused as error:
        raise PoisonMessage(f"{event.routing_key()}: {error}") from None
    return NewDelivery(
        source_event_id=event.identity,
        channel="email",
        kind=event.routing_key(),
        recipient=event.data.recipient,
        user_id=event.user_id,
        correlation_id=event.correlation_id,
        subject=letter.subject,
        text=letter.text,
        html=letter.html,
        expires_at=event.data.expires_at,
    )
