"""A link and its life: values that change into new values, and say what happened."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, TypeVar

from refract.kernel.errors import Invalid, Kind, RefractError
from refract.services.links.api import UrlCreated, UrlDeleted, UrlUpdated

T = TypeVar("T")

REDIRECT_STATUSES = (301, 302, 307, 308)
TITLE_LENGTH = 200
NOTES_LENGTH = 2_000
TAG_LENGTH = 50
TAGS = 20


class Status(StrEnum):
    """Where a link stands in its life (004 §7.1)."""

    ACTIVE = "active"
    EXPIRED = "expired"
    DISABLED = "disabled"
    DELETED = "deleted"


class Expired(RefractError):
    """A link whose time is over."""

    kind: ClassVar[Kind] = Kind.GONE
    message = "this link has expired"


class Disabled(RefractError):
    """A link that its owner has switched off."""

    kind: ClassVar[Kind] = Kind.GONE
    message = "this link has been disabled"


class Deleted(RefractError):
    """A link that is no more; its code is never handed out again."""

    kind: ClassVar[Kind] = Kind.GONE
    message = "this link is no longer active"


class CodeTaken(RefractError):
    """The alias belongs to somebody's link, perhaps to a deleted one."""

    kind: ClassVar[Kind] = Kind.CONFLICT
    message = "short code already taken"


class CodesExhausted(RefractError):
    """Five codes in a row were taken."""

    kind: ClassVar[Kind] = Kind.UNAVAILABLE
    message = "could not generate unique code; try again"


class NotAllowedNow(RefractError):
    """A change that the link's status does not allow."""

    kind: ClassVar[Kind] = Kind.CONFLICT


GONE: dict[Status, type[RefractError]] = {
    Status.EXPIRED: Expired,
    Status.DISABLED: Disabled,
    Status.DELETED: Deleted,
}
"""What a redirect says of a link that does not redirect."""


def status_at(status: Status, expires_at: datetime | None, now: datetime) -> Status:
    """The status that counts: expiry needs no job to take effect, and only an active link expires."""
    if status is Status.ACTIVE and expires_at is not None and expires_at <= now:
        return Status.EXPIRED
    return status


@dataclass(frozen=True, slots=True)
class Owner:
    """Who makes and manages links, as the token says. The personal workspace has the owner's own id."""

    user_id: str
    email: str

    @property
    def workspace_id(self) -> str:
        """Whose links these are."""
        return self.user_id


@dataclass(frozen=True, slots=True)
class Change:
    """What an owner wants changed; `expires_at` is only looked at with `sets_expiry`, because None clears it."""

    original_url: str | None = None
    title: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] | None = None
    sets_expiry: bool = False
    expires_at: datetime | None = None
    status: Status | None = None
    redirect_status: int | None = None
    stats_public: bool | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A short code and where it leads.

    `version` is the order number of its events. `url_key` is what makes shortening idempotent: the digest of the
    normalised destination, or None where the link does not stand for its URL alone.
    """

    id: int
    short_code: str
    original_url: str
    workspace_id: str
    created_by: str
    owner_email: str
    created_at: datetime
    updated_at: datetime
    stats_public: bool
    status: Status = Status.ACTIVE
    redirect_status: int = 301
    title: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    expires_at: datetime | None = None
    version: int = 1
    url_key: bytes | None = None
    total_clicks: int = 0
    last_clicked_at: datetime | None = None

    def created(self) -> UrlCreated:
        """The event of its making."""
        return UrlCreated(
            occurred_at=self.created_at,
            short_code=self.short_code,
            original_url=self.original_url,
            user_id=self.created_by,
            user_email=self.owner_email,
            order=self.version,
            expires_at=self.expires_at,
            title=self.title,
            stats_public=self.stats_public,
        )

    def changed(self, change: Change, now: datetime) -> tuple["Link", UrlUpdated | None]:
        """The link after a change, and what happened: nothing where nothing is different."""
        current = status_at(self.status, self.expires_at, now)
        if current is Status.DELETED:
            raise Deleted
        self._check_transition(current, change, now)
        moves = change.original_url is not None and change.original_url != self.original_url
        over = current is Status.EXPIRED  # whether or not the sweep has been here
        after = replace(
            self,
            original_url=_chosen(change.original_url, self.original_url),
            title=_chosen(change.title, self.title),
            notes=_chosen(change.notes, self.notes),
            tags=_chosen(change.tags, self.tags),
            expires_at=change.expires_at if change.sets_expiry else self.expires_at,
            status=_chosen(change.status, current),
            redirect_status=_chosen(change.redirect_status, self.redirect_status),
            stats_public=_chosen(change.stats_public, self.stats_public),
            url_key=None if moves or over else self.url_key,
        )
        if after == self:
            return self, None
        after = replace(after, version=self.version + 1, updated_at=now)
        return after, after.updated(now)

    def _check_transition(self, current: Status, change: Change, now: datetime) -> None:
        """active to disabled and back, by the owner; what has expired stays so (004 §7.1)."""
        if change.status is not None and change.status not in {Status.ACTIVE, Status.DISABLED}:
            raise Invalid('status must be "active" or "disabled"')
        if current is Status.EXPIRED and (change.status is not None or change.sets_expiry):
            raise NotAllowedNow("an expired link keeps its status and its expiry")
        expires_at = change.expires_at if change.sets_expiry else self.expires_at
        if change.status is Status.ACTIVE and expires_at is not None and expires_at <= now:
            raise NotAllowedNow("the link would expire at once: change expires_at too")

    def expired(self, now: datetime) -> tuple["Link", UrlUpdated]:
        """The link marked as what it has been since its time was over; its URL is free to be shortened again."""
        after = replace(self, status=Status.EXPIRED, url_key=None, version=self.version + 1, updated_at=now)
        return after, after.updated(now)

    def retired(self, now: datetime) -> tuple["Link", UrlDeleted | None]:
        """The link after its deletion; deleting it again changes nothing."""
        if self.status is Status.DELETED:
            return self, None
        after = replace(self, status=Status.DELETED, url_key=None, version=self.version + 1, updated_at=now)
        event = UrlDeleted(
            occurred_at=now,
            short_code=after.short_code,
            user_id=after.created_by,
            user_email=after.owner_email,
            order=after.version,
        )
        return after, event

    def updated(self, now: datetime) -> UrlUpdated:
        """The event that carries the whole of what the link is now."""
        return UrlUpdated(
            occurred_at=now,
            short_code=self.short_code,
            original_url=self.original_url,
            user_id=self.created_by,
            user_email=self.owner_email,
            order=self.version,
            expires_at=self.expires_at,
            title=self.title,
            status=self.status.value,
            stats_public=self.stats_public,
        )


def _chosen(wanted: T | None, present: T) -> T:
    return present if wanted is None else wanted
