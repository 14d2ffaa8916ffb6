"""What others may know of links: where the service answers, and the events of a link's life."""

from typing import Annotated

from msgspec import Meta

from refract.kernel.events import LinkEvent, Moment

NAME = "links"
WIRE_NAME = "url-service"
PORT = 8081

Order = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Rises with every change of one link: a reader ignores an event that is not above the last one it took."""


class UrlCreated(LinkEvent, frozen=True, kw_only=True, tag="url.created"):
    """A short link was made."""

    short_code: str
    original_url: str
    user_id: str
    user_email: str
    order: Order = 0
    expires_at: Moment | None = None
    title: str = ""
    stats_public: bool = True


class UrlUpdated(LinkEvent, frozen=True, kw_only=True, tag="url.updated"):
    """A link was changed; the event carries the whole of what it is now."""

    short_code: str
    original_url: str
    user_id: str
    user_email: str
    order: Order = 0
    expires_at: Moment | None = None
    title: str = ""
    status: str = "active"
    stats_public: bool = True


class UrlDeleted(LinkEvent, frozen=True, kw_only=True, tag="url.deleted"):
    """A link was deleted, for good."""

    short_code: str
    user_id: str
    user_email: str
    order: Order = 0


class UrlClicked(LinkEvent, frozen=True, kw_only=True, tag="url.clicked"):
    """Somebody followed a link. The user is the owner of the link, not whoever followed it (decision 8).

    Neither address can be traced back (decision 11): one is a salted hash, the other lacks its last part.
    """

    short_code: str
    user_id: str
    ip_hash: str
    user_agent: str
    user_email: str = ""
    ip_anonymized: str = ""
    referer: str = ""
    query: str = ""
    """What stood behind the question mark of the short link, where campaigns name themselves (utm_…)."""
    accept_language: str = ""
