"""Forgets users whose accounts are deleted: what they were told, how they wanted to be told, what is on its way."""

from collections.abc import Sequence

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


# In the order in which others lock them (store/notifications.py). Whoever adds to them holds the recipient.
FORGET = tuple(map(_forget, ("deliveries", "preferences", "webhooks", "digests", "notifications")))


async def forget_users(tx: Transaction, events: Sequence[Event]) -> None:
    """Forget all users who left; a mail that is being sent at this moment leaves, and no other."""
    left = {event.user_id: event.occurred_at for event in events if isinstance(event, UserDeleted) and event.user_id}
    ordered = sorted(left)
    await tx.execute_many(FORGET_RECIPIENT, [{"user_id": user_id, "now": left[user_id]} for user_id in ordered])
    for statement in FORGET:
        await tx.execute_many(statement, [{"user_id": user_id} for user_id in ordered])
