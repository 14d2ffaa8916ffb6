"""Which notifications a page shows."""

from dataclasses import dataclass
from typing import Self

from refract.runtime.paging import DEFAULT_LIMIT, NEWEST, MomentCursor, read_limit


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a client asks of the list."""

    cursor: MomentCursor = NEWEST
    limit: int = DEFAULT_LIMIT

    @classmethod
    def read(cls, *, after: str = "", limit: str = "") -> Self:
        """The parameters as they stand in the URL; raises Invalid that names the first one that is wrong."""
        return cls(cursor=MomentCursor.read(after), limit=read_limit(limit))
