"""Keeps what analytics knows of each link at its last version, and forgets who owned the links of a deleted account."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from refract.kernel.events import Event
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.identity.api import UserDeleted
from refract.services.links.api import UrlCreated, UrlDeleted, UrlUpdated

LinkChange = UrlCreated | UrlUpdated | UrlDeleted

DELETED = "deleted"

_IS_FORGOTTEN = "EXISTS (SELECT 1 FROM forgotten_users WHERE forgotten_users.user_id = :user_id)"

# The look at the forgotten users is a part of the statement that writes: one before it could miss whoever is
# forgotten in between. An event on its way may still name them.
_INSERT = f"""
    INSERT INTO links (short_code, user_id, user_email, title, order_number, status, stats_public, deleted_at)
    VALUES (
        :short_code,
        CASE WHEN {_IS_FORGOTTEN} THEN '' ELSE :user_id END,
        CASE WHEN {_IS_FORGOTTEN} THEN '' ELSE :user_email END,
        CASE WHEN {_IS_FORGOTTEN} THEN '' ELSE :title END,
        :order_number, :status, :stats_public, :deleted_at
    )
    ON CONFLICT (short_code) DO UPDATE
"""  # noqa: S608  # names, not values

FOLLOW_CHANGE = Statement(
    "follow_change",
    "Keeps a link as it was made or changed to, unless a later version is known.",
    f"""
    {_INSERT}
    SET user_id = excluded.user_id, user_email = excluded.user_email, title = excluded.title,
        order_number = excluded.order_number, status = excluded.status, stats_public = excluded.stats_public
    WHERE links.order_number < excluded.order_number
    """,
)
FOLLOW_DELETION = Statement(
    "follow_deletion",
    "Marks a link as deleted, with its title as it was, unless a later version is known.",
    f"""
    {_INSERT}
    SET user_id = excluded.user_id, user_email = excluded.user_email,
        order_number = excluded.order_number, status = excluded.status, deleted_at = excluded.deleted_at
    WHERE links.order_number < excluded.order_number
    """,
)

KEEP_WRITERS_OUT = Statement(
    "keep_writers_out",
    "Waits for those who write links now, and lets nobody begin: theirs would name a user who is being forgotten.",
    "LOCK TABLE links IN SHARE ROW EXCLUSIVE MODE",
    sqlite="SELECT 1",  # there is one writer at a time
)
REMEMBER_FORGOTTEN = Statement(
    "remember_forgotten",
    "Notes that an account is deleted, for events that come after it.",
    "INSERT INTO forgotten_users (user_id, forgotten_at) VALUES (:user_id, :now) ON CONFLICT (user_id) DO NOTHING",
)
FORGET_OWNER = Statement(
    "forget_owner",
    "Takes an owner off their links; the counts stay, and are nobody's.",
    "UPDATE links SET user_id = '', user_email = '', title = '' WHERE user_id = :user_id",
)


async def follow(tx: Transaction, events: Sequence[Event]) -> None:
    """Take what events say of links and of their owners."""
    # Those who left come first: whoever has written links cannot keep other writers out without a deadlock.
    for event in sorted((event for event in events if isinstance(event, UserDeleted)), key=lambda it: it.user_id):
        await forget_user(tx, event.user_id, event.occurred_at)
    await follow_links(tx, events)


async def follow_links(tx: Transaction, events: Sequence[Event]) -> None:
    """Take the last version of each link that the events are about; older ones than are known change nothing.

    A deletion does not say what it was that is gone: what a change before it says is taken first.
    """
    changes: dict[str, LinkChange] = {}
    deletions: dict[str, LinkChange] = {}
    for event in events:
        if isinstance(event, LinkChange):
            latest = deletions if isinstance(event, UrlDeleted) else changes
            known = latest.get(event.short_code)
            if known is None or known.order < event.order:
                latest[event.short_code] = event
    # In the order of their codes, so that two readers wait for each other instead of deadlocking.
    for short_code in sorted(changes.keys() | deletions.keys()):
        if (change := changes.get(short_code)) is not None:
            await tx.execute(FOLLOW_CHANGE, **_columns(change))
        if (deletion := deletions.get(short_code)) is not None:
            await tx.execute(FOLLOW_DELETION, **_columns(deletion))


async def forget_user(tx: Transaction, user_id: str, now: datetime) -> None:
    """Make the counts of a deleted account's links anonymous, also for events that come late."""
    if not user_id:
        return  # that is the owner of what is forgotten already
    await tx.execute(KEEP_WRITERS_OUT)
    await tx.execute(REMEMBER_FORGOTTEN, user_id=user_id, now=now)
    await tx.execute(FORGET_OWNER, user_id=user_id)


def _columns(change: LinkChange) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "short_code": change.short_code,
        "user_id": change.user_id,
        "user_email": change.user_email,
        "order_number": change.order,
    }
    if isinstance(change, UrlDeleted):
        # What it does not say of the link stands for one of which nothing else is known.
        return columns | {"title": "", "status": DELETED, "stats_public": True, "deleted_at": change.occurred_at}
    status = change.status if isinstance(change, UrlUpdated) else "active"
    return columns | {
        "title": change.title,
        "status": status,
        "stats_public": change.stats_public,
        "deleted_at": None,
    }
