"""A link as its owner sees it."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from refract.kernel.clock import Clock
from refract.runtime.ports import Row
from refract.services.links.domain.link import Link, Status, status_at

_encoder = msgspec.json.Encoder()


class LinkView(Struct, frozen=True, kw_only=True):
    """One link in an answer; what it does not have is left out."""

    short_code: str
    short_url: str
    original_url: str
    title: str
    notes: str
    tags: list[str]
    status: Status
    is_active: bool
    redirect_status: int
    stats_public: bool
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | UnsetType = UNSET
    total_clicks: int
    last_clicked_at: datetime | UnsetType = UNSET


class LinkPage(Struct, frozen=True, kw_only=True):
    """Some links in their order, and where the next ones begin."""

    urls: list[LinkView]
    next_cursor: str | UnsetType = UNSET


class LinkViews:
    """Makes views of links: it knows where short links are served, and what time it is."""

    def __init__(self, base_url: str, clock: Clock) -> None:
        self._base_url = base_url
        self._clock = clock

    def of(self, link: Link) -> LinkView:
        """The view of a link that was just read or written."""
        return self._made(partial(getattr, link))

    def of_row(self, row: Row) -> LinkView:
        """The view of a row, without a link in between."""
        return self._made(row.__getitem__)

    def render(self, link: Link) -> bytes:
        """The same as the JSON that clients see."""
        return _encoder.encode(self.of(link))

    def short_url(self, short_code: str) -> str:
        """Where a code is served."""
        return f"{self._base_url}/{short_code}"

    def _made(self, get: Callable[[str], Any]) -> LinkView:
        expires_at, last_clicked_at = get("expires_at"), get("last_clicked_at")
        status = status_at(Status(get("status")), expires_at, self._clock.now())
        return LinkView(
            short_code=get("short_code"),
            short_url=self.short_url(get("short_code")),
            original_url=get("original_url"),
            title=get("title"),
            notes=get("notes"),
            tags=list(get("tags") or ()),
            status=status,
            is_active=status is Status.ACTIVE,
            redirect_status=get("redirect_status"),
            stats_public=get("stats_public"),
            created_at=get("created_at"),
            updated_at=get("updated_at"),
            expires_at=UNSET if expires_at is None else expires_at,
            total_clicks=get("total_clicks"),
            last_clicked_at=UNSET if last_clicked_at is None else last_clicked_at,
        )
