"""Which notifications a page shows, and the cursor from one page to the next."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

from refract.kernel.errors import Invalid
from refract.kernel.ids import decode_base62, encode_base62
from refract.runtime.paging import DEFAULT_LIMIT, read_limit
from refract.runtime.ports import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BEYOND_ALL = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST_CURSOR = 40  # eleven digits of microseconds, a dash, and the 22 that 128 bits have in base62


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last notification of a page: what follows is older, however many came since."""

    created_at: datetime = _BEYOND_ALL
    id: str = str(UUID(int=0))

    @classmethod
    def read(cls, text: str) -> Self:
        """A cursor that `write` wrote; anything else is Invalid."""
        moment, _, key = text[: _LONGEST_CURSOR + 1].partition("-")
        try:
            cursor = cls(_EPOCH + decode_base62(moment) * _MICROSECOND, str(UUID(int=decode_base62(key))))
        except (ValueError, OverflowError):  # no numbers; beyond 128 bits or the year 9999
            raise Invalid("after is not a cursor") from None
        if cursor.write() != text:
            raise Invalid("after is not a cursor")
        return cursor

    @classmethod
    def at(cls, row: Row) -> Self:
        """The cursor behind a notification."""
        return cls(row["created_at"], row["id"])

    def write(self) -> str:
        """A text of letters, digits and a dash."""
        microseconds = (self.created_at - _EPOCH) // _MICROSECOND
        return f"{encode_base62(microseconds)}-{encode_base62(UUID(self.id).int)}"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a client asks of the list."""

    cursor: Cursor = Cursor()  # it is frozen
    limit: int = DEFAULT_LIMIT

    @classmethod
    def read(cls, *, after: str = "", limit: str = "") -> Self:
        """The parameters as they stand in the URL; raises Invalid that names the first one that is wrong."""
        return cls(
            cursor=Cursor.read(after) if after else Cursor(),
            limit=read_limit(limit),
        )
