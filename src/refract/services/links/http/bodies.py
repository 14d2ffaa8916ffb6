"""What clients send to change links, and how it is read."""

import asyncio
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, defstruct, structs
from msgspec.json import Decoder

from refract.kernel.errors import BodyTooLarge, Invalid
from refract.runtime.web import UNREADABLE, explain
from refract.services.links.commands.bulk import ROWS
from refract.services.links.domain import fields
from refract.services.links.domain.destinations import OwnDomains, read_destination
from refract.services.links.domain.drafts import (
    NoWish,
    Wish,
    WishRow,
    checked_expiry,
    checked_notes,
    checked_redirect_status,
    checked_tags,
    checked_title,
)
from refract.services.links.domain.link import Change, Status
from refract.services.links.http.describing import BULK_ROWS

BYTES_AT_ONCE = 32 * 1024
"""Of rows, which may be read in a millisecond at worst."""

LINK_BYTES = 64 * 1024
"""The longest texts that a link may have take 52 KB where each letter is sent as two escapes."""


class ChangeBody(Struct, frozen=True, kw_only=True):
    """What is to be different about a link; what is left out stays, and an expiry of null is taken away."""

    url: fields.Url | UnsetType = UNSET
    title: fields.Title | UnsetType = UNSET
    notes: fields.Notes | UnsetType = UNSET
    tags: fields.Tags | UnsetType = UNSET
    expires_at: fields.Expiry | UnsetType | None = UNSET
    status: fields.SetStatus | UnsetType = UNSET
    redirect_status: fields.RedirectStatus | UnsetType = UNSET
    stats_public: fields.StatsPublic | UnsetType = UNSET


class BulkBody(Struct, frozen=True, kw_only=True):
    """Many URLs, each alone or as an object with options; what is wrong with a row is said in its place.

    They are left as they came until they are counted: of small ones 4 MiB have two millions, and to make an object of
    each would take a tenth of a second and 144 MB, for which every redirect of the process would wait.
    """

    urls: Annotated[Raw, BULK_ROWS]


# An array with places for what may be asked for, and one more: what lies behind is passed over, and made into nothing.
_Rows = defstruct("_Rows", [(f"row_{place}", Raw | UnsetType, UNSET) for place in range(ROWS + 1)], array_like=True)
_ROWS: Decoder[Any] = Decoder(_Rows)
_ROW: Decoder[str | Wish] = Decoder(str | Wish)


async def read_rows(body: BulkBody) -> list[WishRow]:
    """The rows of a body; raises Invalid for too few or too many of them. Others have their turn in between."""
    try:
        places = structs.astuple(_ROWS.decode(body.urls))
    except ValidationError as error:
        raise Invalid(f"{UNREADABLE}: urls: {explain(error)}") from None
    given = [row for row in places if row is not UNSET]
    if not 0 < len(given) <= ROWS:
        raise Invalid(f"urls must have 1 to {ROWS} rows")
    rows, read = [], 0
    for row in given:
        rows.append(read_row(row))
        read += memoryview(row).nbytes
        if read > BYTES_AT_ONCE:
            await asyncio.sleep(0)
            read = 0
    return rows


def read_change(body: ChangeBody, own: OwnDomains, now: datetime) -> Change:
    """The change that a body asks for; raises Invalid that names the first field that is wrong."""
    return Change(
        original_url=None if body.url is UNSET else read_destination(body.url, own).url,
        title=None if body.title is UNSET else checked_title(body.title),
        notes=None if body.notes is UNSET else checked_notes(body.notes),
        tags=None if body.tags is UNSET else checked_tags(body.tags),
        sets_expiry=body.expires_at is not UNSET,
        expires_at=checked_expiry(body.expires_at, now) if isinstance(body.expires_at, str) else None,
        status=None if body.status is UNSET else _read_status(body.status),
        redirect_status=None if body.redirect_status is UNSET else checked_redirect_status(body.redirect_status),
        stats_public=None if body.stats_public is UNSET else body.stats_public,
    )


def read_row(row: Raw) -> WishRow:
    """A row, whatever it is."""
    if memoryview(row).nbytes > LINK_BYTES:
        return NoWish(BodyTooLarge.message)  # as it would be told alone
    try:
        return _ROW.decode(row)
    except ValidationError as error:
        is_of_a_field = " - at `$" in str(error)
        return NoWish(explain(error) if is_of_a_field else "a row must be a URL or an object")
    except (UnicodeDecodeError, RecursionError):  # letters are looked at here only: no JSON, which is no row's fault
        raise Invalid(UNREADABLE) from None


def _read_status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise Invalid('status must be "active" or "disabled"') from None
