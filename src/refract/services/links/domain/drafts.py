"""What somebody wants to have shortened: as it was asked for, and as it stands once it has been checked."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta

from refract.kernel.errors import Invalid, Kind, RefractError
from refract.services.links.domain.codes import check_alias
from refract.services.links.domain.destinations import Destination, OwnDomains, read_destination
from refract.services.links.domain.fields import (
    Alias,
    Expiry,
    Notes,
    StatsPublic,
    Tags,
    Title,
    WantedRedirectStatus,
    WantedUrl,
)
from refract.services.links.domain.link import NOTES_LENGTH, REDIRECT_STATUSES, TAG_LENGTH, TAGS, TITLE_LENGTH

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL_IN_NOTES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # which may have several lines
_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)  # the parser below takes more than that


class Unsafe(RefractError):
    """A destination that nobody should be sent to."""

    kind: ClassVar[Kind] = Kind.UNPROCESSABLE

    def __init__(self, reason: str) -> None:
        super().__init__(f"url is flagged as unsafe: {reason}")


class NoWish(msgspec.Struct, frozen=True):
    """A row of a list of wishes that cannot be read as one, and what is wrong with it."""

    reason: str


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A request to shorten, unchecked but for its types."""

    url: WantedUrl = None
    custom_code: Alias | None = None
    expires_at: Expiry | None = None
    title: Title | None = None
    notes: Notes | None = None
    tags: Tags | None = None
    redirect_status: WantedRedirectStatus = None
    stats_public: StatsPublic | None = None
    force_new: Annotated[bool, Meta(description="Whether to make another link where one stands for the URL.")] = False

    @property
    def describes(self) -> bool:
        """Whether it has texts about the link, which may be many times as long as the rest."""
        return bool(self.title or self.notes or self.tags)

    @classmethod
    def of(cls, row: "WishRow") -> "Wish":
        """The wish that a row of a list stands for; raises Invalid where it stands for none."""
        if isinstance(row, NoWish):
            raise Invalid(row.reason)
        return cls(url=row) if isinstance(row, str) else row


WishRow = str | Wish | NoWish
"""One row of a list of wishes: a URL alone, a wish, or neither."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked wish. None leaves `redirect_status` and `stats_public` to the instance."""

    destination: Destination
    alias: str | None = None
    expires_at: datetime | None = None
    title: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    redirect_status: int | None = None
    stats_public: bool | None = None
    force_new: bool = False

    @classmethod
    def of(cls, wish: Wish, own: OwnDomains, now: datetime) -> Self:
        """Check a wish; Invalid says what is wrong with it."""
        destination = read_destination(wish.url or "", own)
        return cls(
            destination=destination,
            expires_at=None if wish.expires_at is None else checked_expiry(wish.expires_at, now),
            alias=check_alias(wish.custom_code) if wish.custom_code else None,
            title=checked_title(wish.title or ""),
            notes=checked_notes(wish.notes or ""),
            tags=checked_tags(wish.tags or ()),
            redirect_status=None if wish.redirect_status is None else checked_redirect_status(wish.redirect_status),
            stats_public=wish.stats_public,
            force_new=wish.force_new,
        )

    @property
    def is_plain(self) -> bool:
        """Whether it asks for nothing but a link to its URL, so that any such link will do (decision 5).

        A value that is given counts as an option even where it is the default: a link that stands there already may
        have been given another one since.
        """
        return not (self.alias or self.title or self.notes or self.tags or self.force_new) and (
            self.expires_at is None and self.redirect_status is None and self.stats_public is None
        )


def checked_expiry(text: str, now: datetime) -> datetime:
    """A moment after `now`, in UTC."""
    if _RFC3339.fullmatch(text) is None:
        raise Invalid("expires_at must be RFC3339 format")
    try:
        moment = msgspec.convert(text, datetime).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):  # the 31st of February; the last hours of the year 9999
        raise Invalid("expires_at must be RFC3339 format") from None
    if moment <= now:
        raise Invalid("expires_at must be in the future")
    return moment


def checked_title(text: str) -> str:
    """A title of one line, without space around it."""
    return _checked_text("title", text, TITLE_LENGTH, _CONTROL)


def checked_notes(text: str) -> str:
    """Notes of any number of lines, without space around them."""
    return _checked_text("notes", text, NOTES_LENGTH, _CONTROL_IN_NOTES)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without space around them, each once, in the order in which the store returns them."""
    given = set(tags)
    if len(given) > TAGS:  # before each is looked at: a body has room for very many
        raise Invalid(f"tags must be at most {TAGS}")
    checked = {_checked_text("a tag", tag, TAG_LENGTH, _CONTROL) for tag in given}
    if "" in checked:
        raise Invalid("a tag must not be empty")
    return tuple(sorted(checked))


def checked_redirect_status(status: int) -> int:
    """A status that sends a browser on."""
    if status not in REDIRECT_STATUSES:
        raise Invalid("redirect_status must be 301, 302, 307 or 308")
    return status


def _checked_text(name: str, text: str, length: int, refused: re.Pattern[str]) -> str:
    text = text.strip()
    if len(text) > length:
        raise Invalid(f"{name} must be at most {length} characters")
    if refused.search(text) is not None:
        raise Invalid(f"{name} must not contain control characters")
    return text
