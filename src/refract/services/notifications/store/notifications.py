"""What users were told, and how much of it they have not read.

Everybody locks in one order, which ADR 0029 gives the reasons of: marks of the inbox, recipients by their ids,
deliveries, preferences, webhooks, digests, notifications by the moment they were made at.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.domain.notices import Notice

COLUMNS = (
    "id",
    "user_id",
    "event_type",
    "event_id",
    "title",
    "short_code",
    "payload",
    "status",
    "gathered",
    "created_at",
    "sent_at",
)

APART = timedelta(hours=1)
"""More than the clocks of two processes differ."""

# An address of a time that has not come is one of a clock that was set back since: any other is better.
_WORSE = "(recipients.email = '' OR recipients.email_at <= excluded.email_at OR recipients.email_at > :never)"
# Of a user who left, nothing is kept any more.
_BETTER = f"recipients.forgotten_at IS NULL AND excluded.email <> '' AND {_WORSE}"
MEET_RECIPIENT = Statement(
    "meet_recipient",
    "Counts what a user has not read, and keeps the address of the newest event that has one.",
    f"""
    INSERT INTO recipients (user_id, email, email_at, unread) VALUES (:user_id, :email, :email_at, :unread)
    ON CONFLICT (user_id) DO UPDATE SET
        unread = CASE WHEN recipients.forgotten_at IS NULL THEN recipients.unread + excluded.unread ELSE 0 END,
        email = CASE WHEN {_BETTER} THEN excluded.email ELSE recipients.email END,
        email_at = CASE WHEN {_BETTER} THEN excluded.email_at ELSE recipients.email_at END
    """,  # noqa: S608  # names, not values
)

FORGOTTEN = Statement(
    "forgotten_recipients",
    "Finds those of some users who left.",
    "SELECT user_id FROM recipients WHERE user_id = ANY(:user_ids) AND forgotten_at IS NOT NULL",
    sqlite="""
    SELECT user_id FROM recipients
    WHERE user_id IN (SELECT value FROM json_each(:user_ids)) AND forgotten_at IS NOT NULL
    """,
)

_OF_SOME = "SELECT user_id FROM recipients WHERE user_id"
LOCK_RECIPIENTS = Statement(
    "lock_recipients",
    "Holds users until the transaction ends, in the order in which Python sorts them.",
    f'{_OF_SOME} = ANY(:user_ids) ORDER BY user_id COLLATE "C" FOR UPDATE',
    sqlite=f"{_OF_SOME} IN (SELECT value FROM json_each(:user_ids))",  # noqa: S608  # a statement of ours
)

COUNT_READ = Statement(
    "count_read",
    "Takes what a user has read, or what is forgotten, from the count of what is unread.",
    """
    UPDATE recipients SET unread = CASE WHEN unread > :read THEN unread - :read ELSE 0 END WHERE user_id = :user_id
    """,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A notice as it is kept. `gathered`: its mail waits for a digest."""

    id: str
    notice: Notice
    status: str
    gathered: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a batch of notices says of one user."""

    user_id: str
    email: str
    email_at: datetime
    unread: int


async def meet_recipients(tx: Transaction, meetings: Collection[Meeting], now: datetime) -> None:
    """Keep users as events know them; one after the other, so that two readers wait instead of deadlocking."""
    ordered = sorted(meetings, key=lambda meeting: meeting.user_id)
    await tx.execute_many(
        MEET_RECIPIENT,
        [
            {
                "user_id": meeting.user_id,
                "email": meeting.email,
                "email_at": meeting.email_at,
                "unread": meeting.unread,
                "never": now + APART,
            }
            for meeting in ordered
        ],
    )


async def hold_recipients(tx: Transaction, user_ids: Collection[str], now: datetime) -> set[str]:
    """Those of some users who left. The others stay until the transaction ends: whoever forgets them waits for it."""
    await meet_recipients(tx, [Meeting(user_id, "", now, 0) for user_id in set(user_ids)], now)
    return {row["user_id"] for row in await tx.fetch(FORGOTTEN, user_ids=sorted(user_ids))}


async def lock_recipients(tx: Transaction, user_ids: Collection[str]) -> None:
    """Hold users, if they were met, before anything of theirs is locked: of all who change it, one is at it."""
    await tx.fetch(LOCK_RECIPIENTS, user_ids=sorted(set(user_ids)))


async def add_notifications(tx: Transaction, kept: Sequence[Kept], now: datetime) -> None:
    """Keep what users are told."""
    await tx.insert_many("notifications", COLUMNS, [_row(each, now) for each in kept])


async def count_read(tx: Transaction, read: Mapping[str, int]) -> None:
    """Take so many from what each user has not read; the users are locked."""
    await tx.execute_many(COUNT_READ, [{"user_id": user_id, "read": read[user_id]} for user_id in sorted(read)])


def _row(kept: Kept, now: datetime) -> tuple[Any, ...]:
    notice = kept.notice
    return (
        kept.id,
        notice.user_id,
        notice.event_type,
        notice.event_id,
        notice.title,
        notice.short_code,
        dict(notice.payload),
        kept.status,
        kept.gathered,
        now,
        now if kept.status == "sent" else None,
    )
