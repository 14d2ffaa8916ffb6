"""What clients send to change links, and how it is read."""

from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from refract.kernel.errors import Invalid
from refract.services.links.domain.destinations import OwnDomains, read_destination
from refract.services.links.domain.drafts import (
    checked_expiry,
    checked_notes,
    checked_redirect_status,
    checked_tags,
    checked_title,
)
from refract.services.links.domain.link import Change, Status


class ChangeBody(Struct, frozen=True, kw_only=True):
    """What is to be different about a link; what is left out stays, and an expiry of null is taken away."""

    url: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    notes: str | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType | None = UNSET
    status: str | UnsetType = UNSET
    redirect_status: int | UnsetType = UNSET
    stats_public: bool | UnsetType = UNSET


class BulkBody(Struct, frozen=True, kw_only=True):
    """Many URLs, each alone or as an object with options; what is wrong with a row is said in its place."""

    urls: list[Any]


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


def _read_status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise Invalid('status must be "active" or "disabled"') from None
