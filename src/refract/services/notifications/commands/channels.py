"""The ways by which a delivery leaves: by mail and by webhook, and what its end means to the rest of the house."""

import logging
from collections.abc import Awaitable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.adapters.webhooks import WebhookClient
from refract.services.notifications.domain.letters import Letter, check_address, message_id_of, written
from refract.services.notifications.domain.sending import Delivery, Gone, NotDelivered, Refused, Room, reason_of
from refract.services.notifications.domain.webhooks import signed_headers
from refract.services.notifications.store.deliveries import FAIL_SOME_TO, mark_notifications, told_by
from refract.services.notifications.store.notifications import lock_recipients

log = logging.getLogger(__name__)

SUSTAINED = timedelta(hours=12)
"""A webhook that lets a delivery fail to the last attempt, and has taken nothing for so long, is disabled."""
HOPELESS = timedelta(days=1)
"""One that has taken nothing for so long is disabled by any failure: with many on their way, none gets to its last."""
FAILED_AT_ONCE = 1000

FIND_WEBHOOK = Statement(
    "find_webhook", "Reads where a webhook is.", "SELECT user_id, url, secret, status FROM webhooks WHERE id = :id"
)
WEBHOOK_WORKS = Statement(
    "webhook_works",
    "Forgets that a webhook failed.",
    "UPDATE webhooks SET failing_since = NULL, last_error = NULL WHERE id = :id AND failing_since IS NOT NULL",
)
_FAILS = """
    UPDATE webhooks SET failing_since = COALESCE(failing_since, :now), last_error = :reason
    WHERE id = :id AND status = 'active'
"""
WEBHOOK_FAILS = Statement(
    "webhook_fails",
    "Remembers since when a webhook has taken nothing, and why.",
    f"{_FAILS} RETURNING failing_since",
    sqlite=f'{_FAILS} RETURNING failing_since AS "failing_since [TIMESTAMP]"',
)
DISABLE_WEBHOOK = Statement(
    "disable_webhook",
    "Switches a webhook off, once.",
    """
    UPDATE webhooks SET status = 'disabled', disabled_at = :now, last_error = :reason
    WHERE id = :id AND status = 'active'
    """,
)


class Notice(Protocol):
    """How its owner is told that a webhook is off."""

    def __call__(
        self, tx: Transaction, *, user_id: str, event_type: str, title: str, payload: Mapping[str, Any], now: datetime
    ) -> Awaitable[None]:
        """Keep a notification in the transaction."""


class Channel(Protocol):
    """A way out. Who is slow, or has thousands coming, must not take all the places."""

    name: str
    room: Room

    async def send(self, delivery: Delivery) -> str:
        """Hand it over; the id by which a second copy is known. Raises NotDelivered."""

    async def hold(self, tx: Transaction, delivery: Delivery) -> None:
        """Lock what comes before the delivery, if its failure may concern that."""

    async def settled(
        self, tx: Transaction, delivery: Delivery, now: datetime, error: NotDelivered | None, *, for_good: bool
    ) -> None:
        """It has arrived, or failed for now or for good, and the transaction says so."""

    async def close(self) -> None:
        """Give everything back."""


class MailChannel:
    """Mails, by the server that is set."""

    name = "email"
    room = Room(places=4, part=4, one_each=True)

    def __init__(self, server: MailServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def send(self, delivery: Delivery) -> str:
        """Hand the mail to the server; its Message-ID is the delivery's."""
        message_id = message_id_of(delivery.id, self._server.sender_address)
        mail = written(
            Letter(delivery.subject, delivery.text, delivery.html or ""),
            sender=self._server.sender,
            recipient=delivery.recipient,
            message_id=message_id,
            at=self._clock.now(),
        )
        await self._server.send(mail, check_address(delivery.recipient))
        return message_id

    async def hold(self, tx: Transaction, delivery: Delivery) -> None:
        """Nobody is told of a mail that fails."""

    async def settled(
        self, tx: Transaction, delivery: Delivery, now: datetime, error: NotDelivered | None, *, for_good: bool
    ) -> None:
        """What becomes of the mail becomes of its notification, which is pending until then."""
        if for_good:
            told = told_by(delivery.notification_id, delivery.payload)
            await mark_notifications(tx, told, now if error is None else None)

    async def close(self) -> None:
        """Each mail has a connection of its own: there is nothing to close."""


class WebhookChannel:
    """Webhooks, which their owners keep; one that works no longer is switched off, and its owner told."""

    name = "webhook"
    room = Room(places=16, part=4, one_each=True)

    def __init__(self, client: WebhookClient, database: Database, clock: Clock, notice: Notice) -> None:
        self._client = client
        self._database = database
        self._clock = clock
        self._notice = notice

    async def send(self, delivery: Delivery) -> str:
        """Make the request, to the URL that the webhook has now."""
        row = await self._database.fetch_one(FIND_WEBHOOK, id=delivery.recipient)
        if row is None:
            raise Refused("the webhook was removed")
        if row["status"] != "active":
            raise Refused("the webhook is disabled")
        body = _body(delivery)
        headers = signed_headers(row["secret"], delivery.id, self._clock.now(), body)
        await self._client.post(row["url"], body, headers)
        return delivery.id

    async def hold(self, tx: Transaction, delivery: Delivery) -> None:
        """The owner, who is told if the webhook is switched off."""
        if delivery.user_id is not None:
            await lock_recipients(tx, [delivery.user_id])

    async def settled(
        self, tx: Transaction, delivery: Delivery, now: datetime, error: NotDelivered | None, *, for_good: bool
    ) -> None:
        """It works; or remember that it does not, and switch it off when it is gone, or has taken nothing for long."""
        if error is None:
            await tx.execute(WEBHOOK_WORKS, id=delivery.recipient)
            return
        reason = reason_of(error)
        row = await tx.fetch_one(WEBHOOK_FAILS, id=delivery.recipient, now=now, reason=reason)
        if row is None:
            return  # removed, or off already
        if isinstance(error, Gone) or now - row["failing_since"] >= (SUSTAINED if for_good else HOPELESS):
            await self._disable(tx, delivery.recipient, reason, now)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _disable(self, tx: Transaction, webhook: str, reason: str, now: datetime) -> None:
        row = await tx.fetch_one(FIND_WEBHOOK, id=webhook)
        if row is None or not await tx.execute(DISABLE_WEBHOOK, id=webhook, now=now, reason=reason):
            return
        await tx.execute(
            FAIL_SOME_TO, channel=self.name, recipient=webhook, reason="the webhook is disabled", batch=FAILED_AT_ONCE
        )
        await self._notice(
            tx,
            user_id=row["user_id"],
            event_type="webhook.disabled",
            title=f"Webhook disabled: {row['url']} ({reason})",
            payload={"webhook_id": webhook, "url": row["url"], "reason": reason, "occurred_at": now.isoformat()},
            now=now,
        )
        log.warning("webhook disabled", extra={"webhook": webhook, "reason": reason})


def _body(delivery: Delivery) -> bytes:
    """What is signed and sent: the same bytes at every attempt."""
    data = delivery.payload
    timestamp = data.get("occurred_at") or delivery.created_at.isoformat()
    return msgspec.json.encode({"type": delivery.kind, "timestamp": timestamp, "data": data})
