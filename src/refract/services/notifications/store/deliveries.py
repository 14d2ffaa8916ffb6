"""Deliveries: what is on its way to whom, whose turn it is, and what became of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from refract.kernel.ids import new_event_id
from refract.runtime.ports import Reads, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.domain.sending import Delivery, Room

LEASE = timedelta(minutes=5)
"""How long a delivery belongs to whoever took it. It is longer than any attempt by more than clocks differ."""

TELLS_OF = "notifications"
"""Where in its payload a digest names the notifications that it tells of."""

_COLUMNS = (
    "id, channel, kind, user_id, recipient, subject, text, html, payload, correlation_id, notification_id, attempts, "
    "created_at, expires_at"
)

ADD = Statement(
    "add_delivery",
    "Puts something on its way, once for each cause, channel and recipient.",
    """
    INSERT INTO deliveries (
        id, source_event_id, notification_id, user_id, channel, kind, recipient, subject, text, html, payload,
        correlation_id, expires_at, next_attempt_at, created_at
    ) VALUES (
        :id, :source_event_id, :notification_id, :user_id, :channel, :kind, :recipient, :subject, :text, :html,
        :payload, :correlation_id, :expires_at, :now, :now
    )
    ON CONFLICT DO NOTHING
    """,
)
IS_DUE = Statement(
    "is_delivery_due",
    "Says whether anything of a channel may have its turn: most of the time nothing has, and nobody need write.",
    """
    SELECT 1 AS due FROM deliveries
    WHERE channel = :channel AND status = 'pending' AND next_attempt_at <= :now LIMIT 1
    """,
)
_DUE = f"""
    SELECT {_COLUMNS} FROM deliveries
    WHERE channel = :channel AND status = 'pending' AND next_attempt_at <= :now
"""  # noqa: S608  # names, not values
_FIRST = "ORDER BY next_attempt_at LIMIT :batch"
DUE = Statement(
    "due_deliveries",
    "Takes what has waited longest; what another process has in hand, and those whom this one serves, are left alone.",
    f"{_DUE} AND recipient <> ALL(:busy) AND COALESCE(user_id, '') <> ALL(:served) {_FIRST} FOR UPDATE SKIP LOCKED",
    sqlite=f"""
    {_DUE} AND recipient NOT IN (SELECT value FROM json_each(:busy))
        AND COALESCE(user_id, '') NOT IN (SELECT value FROM json_each(:served)) {_FIRST}
    """,  # noqa: S608
)
LEASE_OUT = Statement(
    "lease_out_deliveries",
    "Counts the attempt that begins, and keeps others away for as long as it can take.",
    "UPDATE deliveries SET attempts = attempts + 1, next_attempt_at = :leased_until WHERE id = ANY(:ids)",
    sqlite="""
    UPDATE deliveries SET attempts = attempts + 1, next_attempt_at = :leased_until
    WHERE id IN (SELECT value FROM json_each(:ids))
    """,
)
# The number of the attempt tells whose lease it is: whoever was too slow, and failed, finds it changed and leaves the
# row alone. Whoever was too slow and succeeded may say so: what has arrived need not be sent again.
_HELD = "id = :id AND status = 'pending' AND attempts = :attempts"
# What it said is forgotten with its end: there may be a link in it that opens an account.
_EMPTIED = "text = '', html = NULL, payload = '{}'"
_FAIL = f"UPDATE deliveries SET status = 'failed', last_error = :reason, {_EMPTIED}"  # noqa: S608
MARK_SENT = Statement(
    "mark_delivery_sent",
    "Remembers that a delivery has arrived.",
    f"""
    UPDATE deliveries SET status = 'sent', sent_at = :now, provider_message_id = :provider_message_id,
        last_error = NULL, {_EMPTIED}
    WHERE id = :id AND status = 'pending'
    """,  # noqa: S608
)
MARK_FAILED = Statement(
    "mark_delivery_failed",
    "Gives a delivery up, with the reason.",
    f"{_FAIL} WHERE {_HELD}",
)
POSTPONE = Statement(
    "postpone_delivery",
    "Puts a delivery off, with the reason.",
    f"UPDATE deliveries SET next_attempt_at = :next_attempt_at, last_error = :reason WHERE {_HELD}",  # noqa: S608
)
_TO = "channel = :channel AND recipient = :recipient AND status = 'pending'"
_SOME_TO = f"SELECT id FROM deliveries WHERE {_TO} LIMIT :batch"  # noqa: S608
FAIL_SOME_TO = Statement(
    "fail_deliveries_to",
    "Gives up what is on its way to a recipient who takes nothing any more, of much a part: the rest finds out alone.",
    f"{_FAIL} WHERE id = ANY(ARRAY({_SOME_TO} FOR UPDATE SKIP LOCKED))",
    sqlite=f"{_FAIL} WHERE id IN ({_SOME_TO})",
)
_MARK = "UPDATE notifications SET status = :status, sent_at = :sent_at WHERE status = 'pending'"
# In the order in which whoever reads them all goes over them.
_IN_ORDER = "SELECT id FROM notifications WHERE id = ANY(:ids::uuid[]) ORDER BY created_at, id FOR UPDATE"
MARK_NOTIFICATIONS = Statement(
    "mark_notifications",
    "Shows in the list what became of the mail, or of the digest.",
    f"{_MARK} AND id IN ({_IN_ORDER})",
    sqlite=f"{_MARK} AND id IN (SELECT value FROM json_each(:ids))",  # noqa: S608
)
PRUNE = Statement(
    "prune_deliveries",
    "Deletes one batch of what is over and older than the retention.",
    """
    DELETE FROM deliveries WHERE id IN (
        SELECT id FROM deliveries WHERE status <> 'pending' AND created_at < :before ORDER BY created_at LIMIT :batch
    )
    """,
)
_OLD = """
    SELECT id, channel, notification_id, payload FROM deliveries
    WHERE status = 'pending' AND next_attempt_at < :now AND created_at < :before LIMIT :batch
"""
OLD = Statement(
    "old_deliveries",
    "Takes a batch of what nobody delivered for longer than all attempts take: its channel was switched off, perhaps.",
    f"{_OLD} FOR UPDATE SKIP LOCKED",
    sqlite=_OLD,
)
GIVE_UP = Statement(
    "give_up_deliveries",
    "Gives deliveries up, with the reason.",
    f"{_FAIL} WHERE id = ANY(:ids::uuid[])",
    sqlite=f"{_FAIL} WHERE id IN (SELECT value FROM json_each(:ids))",  # noqa: S608
)
_LATE = "SELECT id FROM deliveries WHERE status = 'pending' AND next_attempt_at > :never LIMIT :batch"
HURRY = Statement(
    "hurry_deliveries",
    "Makes a batch due of what would not be for longer than any pause: the clock was set back since.",
    f"UPDATE deliveries SET next_attempt_at = :now WHERE id = ANY(ARRAY({_LATE} FOR UPDATE SKIP LOCKED))",  # noqa: S608
    sqlite=f"UPDATE deliveries SET next_attempt_at = :now WHERE id IN ({_LATE})",  # noqa: S608
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """Something to be put on its way; `recipient` is an address, or the id of a webhook."""

    source_event_id: str
    channel: str
    kind: str
    recipient: str
    user_id: str | None
    notification_id: str | None = None
    correlation_id: str = ""
    subject: str = ""
    text: str = ""
    html: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    expires_at: datetime | None = None


async def add_deliveries(tx: Transaction, deliveries: Sequence[NewDelivery], now: datetime) -> None:
    """Put deliveries on their way; one that is there already, by cause, channel and recipient, is left as it is."""
    rows = [
        {name: getattr(delivery, name) for name in NewDelivery.__slots__}
        | {"id": new_event_id(), "payload": dict(delivery.payload), "now": now}
        for delivery in deliveries
    ]
    if rows:
        await tx.execute_many(ADD, rows)


async def mark_notifications(tx: Transaction, ids: Collection[str], sent_at: datetime | None) -> None:
    """Show in the list that the mail which these waited for was sent then, or, without a moment, that it failed."""
    if ids:
        status = "failed" if sent_at is None else "sent"
        await tx.execute(MARK_NOTIFICATIONS, ids=sorted(ids), status=status, sent_at=sent_at)


def told_by(notification_id: str | None, payload: Mapping[str, Any]) -> list[str]:
    """The notifications that a mail tells of: its own, or those of a digest."""
    return list(payload.get(TELLS_OF, ())) if notification_id is None else [notification_id]


async def is_due(database: Reads, channel: str, now: datetime) -> bool:
    """Whether anything of a channel may have its turn."""
    return await database.fetch_one(IS_DUE, channel=channel, now=now) is not None


async def take_due(
    tx: Transaction, channel: str, now: datetime, room: Room, under_way: Sequence[Delivery]
) -> list[Delivery]:
    """Lease the deliveries that find a place beside those under way; if any could, at least one does."""
    rows = await tx.fetch(
        DUE,
        channel=channel,
        now=now,
        busy=sorted(room.busy(under_way)),
        served=sorted(room.served(under_way)),
        batch=room.left(under_way),
    )
    taken: list[Delivery] = []
    for delivery in map(_delivery_of, rows):
        if room.takes(delivery, [*under_way, *taken]):
            taken.append(delivery)
    if taken:
        await tx.execute(LEASE_OUT, ids=[delivery.id for delivery in taken], leased_until=now + LEASE)
    return taken


def _delivery_of(row: Row) -> Delivery:
    return Delivery(
        **{name: row[name] for name in Delivery.__slots__ if name != "attempts"}, attempts=row["attempts"] + 1
    )
