"""Which links a page shows, and the cursor from one page to the next."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from refract.kernel.errors import Invalid
from refract.kernel.ids import decode_base62, encode_base62
from refract.runtime.paging import DEFAULT_LIMIT, read_limit
from refract.runtime.ports import Row
from refract.services.links.domain.destinations import URL_LENGTH
from refract.services.links.domain.link import Status

BEYOND_ALL = 2**63 - 1
"""No id and no count of clicks is above it: the first page begins there."""

# No link has any of them where it is searched, and the line end is what stands between the parts that are.
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_DIGITS_OF_A_KEY = 11  # what 2^63 has in base62

Choice = TypeVar("Choice", bound=StrEnum)


class Sort(StrEnum):
    """What comes first: the newest, or the most clicked."""

    CREATED = "created"
    CLICKS = "clicks"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last link of a page: what follows is below it, however many links were added above meanwhile."""

    link_id: int = BEYOND_ALL
    clicks: int = BEYOND_ALL

    @classmethod
    def read(cls, text: str, sort: Sort) -> Self:
        """A cursor that `write` wrote for the same order; anything else is Invalid."""
        keys = text[1:].split("-")
        try:
            cursor = cls(*map(_key, keys))
        except (ValueError, TypeError):  # no numbers; too many of them
            raise Invalid("after is not a cursor") from None
        if cursor.write(sort) != text:
            raise Invalid("after is not a cursor")
        return cursor

    @classmethod
    def at(cls, row: Row, sort: Sort) -> Self:
        """The cursor behind a link."""
        return cls(row["id"], row["total_clicks"]) if sort is Sort.CLICKS else cls(row["id"])

    def write(self, sort: Sort) -> str:
        """A text of letters and digits; the first letter tells the orders apart."""
        if sort is Sort.CREATED:
            return f"c{encode_base62(self.link_id)}"
        return f"k{encode_base62(self.link_id)}-{encode_base62(self.clicks)}"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a client asks of a list; an empty filter is none."""

    sort: Sort = Sort.CREATED
    cursor: Cursor = Cursor()  # it is frozen
    limit: int = DEFAULT_LIMIT
    text: str = ""
    tag: str = ""
    status: Status | None = None

    @property
    def searches(self) -> bool:
        """Whether it may look at many more links than it shows; the others walk down an index from link to link."""
        return bool(self.text or self.status or (self.tag and self.sort is Sort.CLICKS))

    @property
    def finds_nothing(self) -> bool:
        """Whether it asks for more letters than any part of a link has."""
        return len(self.text) > URL_LENGTH

    @classmethod
    def read(
        cls, *, after: str = "", limit: str = "", q: str = "", tag: str = "", status: str = "", sort: str = ""
    ) -> Self:
        """The parameters as they stand in the URL; raises Invalid that names the first one that is wrong."""
        order = _choice("sort", sort, Sort) if sort else Sort.CREATED
        return cls(
            sort=order,
            cursor=Cursor.read(after, order) if after else Cursor(),
            limit=read_limit(limit),
            text=_text("q", q),
            tag=_tag(tag),
            status=_choice("status", status, Status) if status else None,
        )


def _key(text: str) -> int:
    number = decode_base62(text[: _DIGITS_OF_A_KEY + 1])
    if number > BEYOND_ALL:
        raise ValueError("no link has such a key")
    return number


def _text(name: str, text: str) -> str:
    if _CONTROL.search(text) is not None:
        raise Invalid(f"{name} must not contain control characters")
    return text


def _tag(text: str) -> str:
    """As tags are kept, without space around them. None is called nothing: that would show all links."""
    tag = _text("tag", text).strip()
    if text and not tag:
        raise Invalid("a tag must not be empty")
    return tag


def _choice(name: str, text: str, choices: type[Choice]) -> Choice:
    try:
        return choices(text)
    except ValueError:
        raise Invalid(f"{name} must be one of {', '.join(choices)}") from None
