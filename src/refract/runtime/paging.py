"""How many rows of a list a client asks for, and where a page of what happened begins."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

from refract.kernel.errors import Invalid
from refract.kernel.ids import decode_base62, encode_base62

DEFAULT_LIMIT = 20
LARGEST_LIMIT = 100

_MOST_DIGITS = 18
"""Of a number that is worth reading: beyond, it is more than anybody gets."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BEYOND_ALL = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST_CURSOR = 40  # eleven digits of microseconds, a dash, and the 22 that 128 bits have in base62


def read_limit(text: str, default: int = DEFAULT_LIMIT, largest: int = LARGEST_LIMIT) -> int:
    """The parameter `limit` as it stands in the URL, which may be absent; more than the largest is the largest."""
    if not text:
        return default
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise Invalid("limit must be a positive integer")
    return largest if len(digits.lstrip("0")) > _MOST_DIGITS else min(int(digits), largest)


@dataclass(frozen=True, slots=True)
class MomentCursor:
    """The last row of a page, by its moment and its UUID: what follows is older, however many came since."""

    moment: datetime = _BEYOND_ALL
    key: str = str(UUID(int=0))

    @classmethod
    def read(cls, text: str) -> Self:
        """A cursor that `write` wrote, or the first page where there is none; anything else is Invalid."""
        if not text:
            return cls()
        moment, _, key = text[: _LONGEST_CURSOR + 1].partition("-")
        try:
            cursor = cls(_EPOCH + decode_base62(moment) * _MICROSECOND, str(UUID(int=decode_base62(key))))
        except (ValueError, OverflowError):  # no numbers; beyond 128 bits or the year 9999
            raise Invalid("after is not a cursor") from None
        if cursor.write() != text:
            raise Invalid("after is not a cursor")
        return cursor

    def write(self) -> str:
        """A text of letters, digits and a dash."""
        microseconds = (self.moment - _EPOCH) // _MICROSECOND
        return f"{encode_base62(microseconds)}-{encode_base62(UUID(self.key).int)}"


NEWEST = MomentCursor()
"""The first page begins there."""
