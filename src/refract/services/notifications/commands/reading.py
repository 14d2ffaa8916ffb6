"""Marks notifications as read, one or all of a user."""

import logging
import uuid
from datetime import datetime

from refract.kernel.clock import Clock
from refract.kernel.errors import Forbidden, NotFound
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.store.notifications import count_read, lock_recipients

log = logging.getLogger(__name__)

READ_BATCH = 1_000

MARK_READ = Statement(
    "mark_read",
    "Marks a notification of a user as read, unless it is.",
    "UPDATE notifications SET read_at = :now WHERE id = :id AND user_id = :user_id AND read_at IS NULL",
)

FIND_OWNER = Statement(
    "find_owner", "Reads whose a notification is.", "SELECT user_id FROM notifications WHERE id = :id"
)

LAST_UNREAD = Statement(
    "last_unread",
    "Reads when the newest came that a user has not read.",
    """
    SELECT created_at FROM notifications WHERE user_id = :user_id AND read_at IS NULL
    ORDER BY created_at DESC LIMIT 1
    """,
)
_UNREAD = """
    SELECT id FROM notifications WHERE user_id = :user_id AND read_at IS NULL AND created_at <= :until
    ORDER BY created_at, id LIMIT :batch
"""
MARK_ALL_READ = Statement(
    "mark_all_read",
    "Marks a batch of what a user has not read; of two who do so at once, each marks what the other has not.",
    f"""
    UPDATE notifications SET read_at = :now WHERE read_at IS NULL AND id IN ({_UNREAD} FOR UPDATE)
    """,  # noqa: S608  # names, not values
    sqlite=f"UPDATE notifications SET read_at = :now WHERE id IN ({_UNREAD})",  # noqa: S608
)


class Reading:
    """What a user has seen. To read again what was read changes nothing."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self, user_id: str, notification_id: str) -> None:
        """Mark one as read; raises NotFound, or Forbidden where it is another's."""
        if not _is_uuid(notification_id):
            raise NotFound
        async with self._database.transaction() as tx:
            await lock_recipients(tx, [user_id])
            marked = await tx.execute(MARK_READ, id=notification_id, user_id=user_id, now=self._clock.now())
            if marked:
                await count_read(tx, {user_id: marked})
            else:
                await _check_owner(tx, user_id, notification_id)

    async def read_all(self, user_id: str) -> int:
        """Mark everything as read that is there by now, in batches; returns how many."""
        # Not by the clock: whoever kept the newest may have another, or it was set back since.
        last = await self._database.fetch_one(LAST_UNREAD, user_id=user_id)
        marked = 0
        while last is not None:
            batch = await self._read_batch(user_id, last["created_at"])
            marked += batch
            if batch < READ_BATCH:
                break
        return marked

    async def _read_batch(self, user_id: str, until: datetime) -> int:
        async with self._database.transaction() as tx:
            await lock_recipients(tx, [user_id])
            batch = await tx.execute(
                MARK_ALL_READ, user_id=user_id, now=self._clock.now(), until=until, batch=READ_BATCH
            )
            if batch:
                await count_read(tx, {user_id: batch})
        return batch


async def _check_owner(tx: Transaction, user_id: str, notification_id: str) -> None:
    row = await tx.fetch_one(FIND_OWNER, id=notification_id)
    if row is None:
        raise NotFound
    if row["user_id"] != user_id:
        log.warning("another's notification touched", extra={"user_id": user_id, "notification_id": notification_id})
        raise Forbidden


def _is_uuid(text: str) -> bool:
    """PostgreSQL takes nothing else for an id, and takes some spellings that SQLite would not find."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
