"""Forgets users whose accounts are deleted: what they were told, how they wanted to be told, what is on its way."""

from collections.abc import Sequence
from datetime import datetime

from refract.kernel.events import Event
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.identity.api import UserDeleted

FORGET_RECIPIENT = Statement(
    "forget_recipient",
    "Leaves of a user that nothing is kept of them: what comes later is dropped by that.",
    """
    INSERT INTO recipients (user_id, email, email_at, unread, forgotten_at) VALUES (:user_id, '', :now, 0, :now)
    ON CONFLICT (user_id) DO UPDATE
        SET email = '', unread = 0, forgotten_at = COALESCE(recipients.forgotten_at, excluded.forgotten_at)
    """,
)


def _forget(table: str) -> Statement:
    return Statement(
        f"forget_{table}",
        f"Deletes the {table} of a user.",
        f"DELETE FROM {table} WHERE user_id = :user_id",  # noqa: S608  # a name, not a value
    )


# In the order in which those who deliver, change preferences and mark as read lock them, each before the recipient.
BEFORE = tuple(map(_forget, ("deliveries", "preferences", "webhooks", "notifications")))
# Those who tell and who send digests lock these after the recipient; and what came since the first time.
AFTER = (*map(_forget, ("digests",)), *BEFORE)


async def forget_users(tx: Transaction, events: Sequence[Event]) -> None:
    """Forget all users who left; a mail that is being sent at this moment leaves, and no other."""
    for event in sorted((event for event in events if isinstance(event, UserDeleted)), key=lambda it: it.user_id):
        if event.user_id:
            await _forget_user(tx, event.user_id, event.occurred_at)


async def _forget_user(tx: Transaction, user_id: str, now: datetime) -> None:
    for statement in BEFORE:
        await tx.execute(statement, user_id=user_id)
    await tx.execute(FORGET_RECIPIENT, user_id=user_id, now=now)
    for statement in AFTER:
        await tx.execute(statement, user_id=user_id)
