"""The API keys of a user, page by page, the newest first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from refract.kernel.errors import Invalid
from refract.runtime.paging import DEFAULT_LIMIT, NEWEST, MomentCursor, read_limit
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.identity.api import LARGEST_KEY_ID
from refract.services.identity.domain.keys import KeyStatus
from refract.services.identity.store import is_user_id

ALL = "all"

_COLUMNS = (
    "id, key_prefix, name, scopes, sms_user_id, status, created_at, expires_at, last_used_at, usage_count"  # no hash
)
_BEHIND = "user_id = :user_id AND (created_at, id) < (:created_at, :id)"
_IN_ORDER = "ORDER BY created_at DESC, id DESC LIMIT :limit"

ACTIVE_KEYS = Statement(
    "active_keys",
    "Reads a page of the keys of a user that are not revoked.",
    f"SELECT {_COLUMNS} FROM api_keys WHERE {_BEHIND} AND status = 'active' {_IN_ORDER}",  # noqa: S608  # names
)
ALL_KEYS = Statement(
    "all_keys",
    "Reads a page of the keys of a user.",
    f"SELECT {_COLUMNS} FROM api_keys WHERE {_BEHIND} {_IN_ORDER}",  # noqa: S608
)


class KeyView(Struct, frozen=True, kw_only=True):
    """One key, without the key itself. What it does not have is left out."""

    id: int
    key_prefix: str
    name: str
    scopes: list[str]
    sms_user_id: int | UnsetType = UNSET
    status: KeyStatus
    created_at: datetime
    expires_at: datetime | UnsetType = UNSET
    last_used_at: datetime | UnsetType = UNSET
    usage_count: int


class KeyPage(Struct, frozen=True, kw_only=True):
    """Some keys, and where the next ones begin."""

    keys: list[KeyView]
    next_cursor: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class KeyPageRequest:
    """What a client asks of the list."""

    created_at: datetime = NEWEST.moment
    id: int = 0
    limit: int = DEFAULT_LIMIT
    with_revoked: bool = False

    @classmethod
    def read(cls, *, after: str = "", limit: str = "", status: str = "") -> Self:
        """The parameters as they stand in the URL; raises Invalid that names the first one that is wrong."""
        cursor = MomentCursor.read(after)
        key_id = UUID(cursor.key).int
        if key_id > LARGEST_KEY_ID:
            raise Invalid("after is not a cursor")
        if status not in {"", "active", ALL}:
            raise Invalid("status must be active or all")
        return cls(cursor.moment, key_id, read_limit(limit), with_revoked=status == ALL)


class KeyQueries:
    """What the owner of an account sees of their keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, user_id: str, request: KeyPageRequest) -> KeyPage:
        """A page of a user's keys; one more than asked tells whether it ends."""
        if not is_user_id(user_id):
            return KeyPage(keys=[])
        rows = await self._database.fetch(
            ALL_KEYS if request.with_revoked else ACTIVE_KEYS,
            user_id=user_id,
            created_at=request.created_at,
            id=request.id,
            limit=request.limit + 1,
        )
        shown = rows[: request.limit]
        return KeyPage(
            keys=[_view(row) for row in shown],
            next_cursor=_cursor_behind(shown[-1]) if len(rows) > request.limit else UNSET,
        )


def _cursor_behind(row: Row) -> str:
    return MomentCursor(row["created_at"], str(UUID(int=row["id"]))).write()


def _view(row: Row) -> KeyView:
    return KeyView(**{name: value for name, value in row.items() if value is not None})
