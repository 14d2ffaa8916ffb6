"""Reads attempts page by page, the newest first."""

from datetime import datetime
from functools import cache

from msgspec import UNSET, Struct, UnsetType, field

from refract.runtime.paging import MomentCursor
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.sms.domain.attempts import Path, Status
from refract.services.sms.queries.requests import STATUSES, PageRequest

_COLUMNS = "event_id, user_id, status, path, message, reason, correlation_id, message_id, occurred_at"


class AttemptView(Struct, frozen=True, kw_only=True):
    """One attempt, by the names that it has on its topic. What it does not have is left out."""

    event_id: str
    user_id: int | None = field(name="userId")
    status: Status
    path: Path
    message: str
    reason: str | UnsetType = UNSET
    correlation_id: str
    message_id: str | UnsetType = UNSET
    occurred_at: datetime


class AttemptPage(Struct, frozen=True, kw_only=True):
    """Some attempts, and where the next ones begin."""

    attempts: list[AttemptView]
    next_cursor: str | UnsetType = UNSET


class AttemptQueries:
    """The attempts of this database, straight from rows to what is shown."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, request: PageRequest) -> AttemptPage:
        """Attempts; one more than asked tells whether the page is the last."""
        rows = await self._database.fetch(
            page_of_attempts(request.status, of_one=request.user_id is not None),
            user_id=request.user_id,
            start=request.start,
            end=request.end,
            occurred_at=request.cursor.moment,
            event_id=request.cursor.key,
            limit=request.limit + 1,
        )
        shown = rows[: request.limit]
        return AttemptPage(
            attempts=[_view(row) for row in shown],
            next_cursor=_cursor_behind(shown[-1]).write() if len(rows) > request.limit else UNSET,
        )


def _cursor_behind(row: Row) -> MomentCursor:
    return MomentCursor(row["occurred_at"], row["event_id"])


@cache
def page_of_attempts(status: Status | None, *, of_one: bool) -> Statement:
    """The statement for a page of all attempts or of one status, of all users or of one."""
    whose, index = ("user_id = :user_id AND ", "attempts_by_user") if of_one else ("", "attempts_by_status")

    def text(table: str) -> str:
        looks = [
            f"""
            SELECT * FROM (
                SELECT {_COLUMNS} FROM {table}
                WHERE {whose}status = '{one}' AND occurred_at >= :start AND occurred_at < :end
                    AND (occurred_at, event_id) < (:occurred_at, :event_id)
                ORDER BY occurred_at DESC, event_id DESC LIMIT :limit
            ) AS {one}
            """  # noqa: S608  # names and words of ours, not values
            for one in ((status,) if status else STATUSES)
        ]
        return f"{'UNION ALL'.join(looks)} ORDER BY occurred_at DESC, event_id DESC LIMIT :limit"

    return Statement(
        f"page_of_{status or 'attempts'}{'_of_one' if of_one else ''}",
        "Reads a page of attempts, the newest first: one look into an index for each status.",
        text("attempts"),
        sqlite=text(f"attempts INDEXED BY {index}"),  # which knows nothing of how many attempts a user has
    )


def _view(row: Row) -> AttemptView:
    return AttemptView(
        event_id=row["event_id"],
        user_id=row["user_id"],
        status=row["status"],
        path=row["path"],
        message=row["message"],
        reason=row["reason"] or UNSET,
        correlation_id=row["correlation_id"],
        message_id=row["message_id"] or UNSET,
        occurred_at=row["occurred_at"],
    )
