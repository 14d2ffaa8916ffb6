"""The tokens that are dead before their time, for the gateway, page by page."""

import uuid
from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid
from refract.runtime.ports import Database
from refract.runtime.statements import Statement

PAGE = 1_000

LIVE_REVOCATIONS = Statement(
    "live_revocations",
    "Reads a page of what was taken back and could still be shown.",
    """
    SELECT id, user_id, token_id, generation, until FROM revocations
    WHERE id > :after AND until > :now ORDER BY id LIMIT :limit
    """,
)


class RevocationView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One token by its id, or every token of a user below a generation; over at `until`."""

    user_id: str
    until: datetime
    token_id: str = ""
    generation: int = 0


class RevocationPage(Struct, frozen=True, kw_only=True):
    """Some of them, and where the next page begins, if there is one."""

    revocations: list[RevocationView]
    next_cursor: str | UnsetType = UNSET


class RevocationQueries:
    """What the gateway asks at its start and after a gap. What is added while it reads, it hears by event."""

    def __init__(self, database: Database, clock: Clock, *, page: int = PAGE) -> None:
        self._database = database
        self._clock = clock
        self._page = page

    async def page(self, after: str = "") -> RevocationPage:
        """The page behind a cursor, or the first."""
        cursor = _read_cursor(after) if after else ""
        rows = await self._database.fetch(LIVE_REVOCATIONS, after=cursor, now=self._clock.now(), limit=self._page + 1)
        shown = rows[: self._page]
        return RevocationPage(
            revocations=[
                RevocationView(
                    user_id=row["user_id"],
                    until=row["until"],
                    token_id=row["token_id"],
                    generation=row["generation"],
                )
                for row in shown
            ],
            next_cursor=shown[-1]["id"] if len(rows) > self._page else UNSET,
        )


def _read_cursor(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise Invalid("after is not a cursor") from None
