"""Reads what a user was told, page by page, and how much of it is unread."""

from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from refract.runtime.paging import MomentCursor
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.notifications.queries.paging import PageRequest

# In one, because each takes a turn at the database: a row for each notification, or one without any.
PAGE_OF_NOTIFICATIONS = Statement(
    "page_of_notifications",
    "Reads a page of a user's notifications, the newest first, and how much the user has not read.",
    """
    SELECT page.*, COALESCE((SELECT unread FROM recipients WHERE user_id = :user_id), 0) AS unread
    FROM (SELECT 1 AS one) AS always LEFT JOIN (
        SELECT id, event_type, title, short_code, status, created_at, sent_at, read_at FROM notifications
        WHERE user_id = :user_id AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit
    ) AS page ON true
    ORDER BY page.created_at DESC, page.id DESC
    """,
)


class NotificationView(Struct, frozen=True, kw_only=True):
    """One notification: what happened, and whether it was mailed and read. What it does not have is left out."""

    id: str
    event_type: str
    title: str
    short_code: str | UnsetType = UNSET
    status: str
    created_at: datetime
    sent_at: datetime | UnsetType = UNSET
    read_at: datetime | UnsetType = UNSET


class NotificationPage(Struct, frozen=True, kw_only=True):
    """Some notifications, how many are unread of all, and where the next ones begin."""

    notifications: list[NotificationView]
    unread: int
    next_cursor: str | UnsetType = UNSET


class NotificationQueries:
    """The notifications of this database, straight from rows to what is shown."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, user_id: str, request: PageRequest) -> NotificationPage:
        """A page of a user's notifications; one more than asked tells whether it ends."""
        rows = await self._database.fetch(
            PAGE_OF_NOTIFICATIONS,
            user_id=user_id,
            created_at=request.cursor.moment,
            id=request.cursor.key,
            limit=request.limit + 1,
        )
        shown = [row for row in rows[: request.limit] if row["id"] is not None]
        return NotificationPage(
            notifications=[_view(row) for row in shown],
            unread=rows[0]["unread"],
            next_cursor=_cursor_behind(shown[-1]).write() if len(rows) > request.limit else UNSET,
        )


def _cursor_behind(row: Row) -> MomentCursor:
    return MomentCursor(row["created_at"], row["id"])


def _view(row: Row) -> NotificationView:
    short_code, sent_at, read_at = row["short_code"], row["sent_at"], row["read_at"]
    return NotificationView(
        id=row["id"],
        event_type=row["event_type"],
        title=row["title"],
        short_code=UNSET if short_code is None else short_code,
        status=row["status"],
        created_at=row["created_at"],
        sent_at=UNSET if sent_at is None else sent_at,
        read_at=UNSET if read_at is None else read_at,
    )
