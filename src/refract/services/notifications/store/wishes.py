"""What users wish: their preferences, their digests and their webhooks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from refract.runtime.ports import Reads, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.domain.preferences import Preferences

_WISHES = """
    SELECT recipients.user_id, recipients.email, recipients.forgotten_at, preferences.document
    FROM recipients LEFT JOIN preferences ON preferences.user_id = recipients.user_id
"""
FIND_WISHES = Statement(
    "find_wishes",
    "Reads the addresses and the preferences of users.",
    f"{_WISHES} WHERE recipients.user_id = ANY(:user_ids)",
    sqlite=f"{_WISHES} WHERE recipients.user_id IN (SELECT value FROM json_each(:user_ids))",  # noqa: S608
)

_GATHERING = "SELECT user_id FROM digests WHERE every <> 'off' AND user_id"
GATHERING = Statement(
    "gathering_users",
    "Reads which users gather their mails.",
    f"{_GATHERING} = ANY(:user_ids)",
    sqlite=f"{_GATHERING} IN (SELECT value FROM json_each(:user_ids))",  # noqa: S608  # a statement of ours
)

_WEBHOOKS = "SELECT id, user_id, url, events, status, failing_since, last_error, created_at FROM webhooks"
ACTIVE_WEBHOOKS = Statement(
    "active_webhooks",
    "Reads the webhooks of users that are to be called.",
    f"{_WEBHOOKS} WHERE user_id = ANY(:user_ids) AND status = 'active' ORDER BY id",
    sqlite=f"""
    {_WEBHOOKS} WHERE user_id IN (SELECT value FROM json_each(:user_ids)) AND status = 'active' ORDER BY id
    """,  # noqa: S608  # names, not values
)
WEBHOOKS_OF = Statement(
    "webhooks_of",
    "Reads all webhooks of a user, the oldest first.",
    f"{_WEBHOOKS} WHERE user_id = :user_id ORDER BY id",
)
FIND_PREFERENCES = Statement(
    "find_preferences",
    "Reads what a user has chosen.",
    "SELECT document FROM preferences WHERE user_id = :user_id",
)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A place that a user has us call, of the events that they chose."""

    id: str
    url: str
    events: tuple[str, ...]
    status: str
    created_at: datetime
    failing_since: datetime | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """All that a user wishes."""

    email: str
    preferences: Preferences
    gathers: bool
    forgotten: bool = False
    """Their account is deleted: they are not told anything."""
    webhooks: list[Webhook] = field(default_factory=list)


async def find_wishes(tx: Transaction, user_ids: Collection[str]) -> dict[str, Wishes]:
    """What users wish, of those that were met. They are locked, so that whoever switches a digest off, or sends it,
    waits for those who are just adding to it.
    """
    ordered = sorted(user_ids)
    gathering = {row["user_id"] for row in await tx.fetch(GATHERING, user_ids=ordered)}
    wishes = {
        row["user_id"]: Wishes(
            row["email"],
            Preferences.of_document(row["document"]),
            gathers=row["user_id"] in gathering,
            forgotten=row["forgotten_at"] is not None,
        )
        for row in await tx.fetch(FIND_WISHES, user_ids=ordered)
    }
    for row in await tx.fetch(ACTIVE_WEBHOOKS, user_ids=ordered):
        wishes[row["user_id"]].webhooks.append(webhook_of(row))
    return wishes


async def find_preferences(reads: Reads, user_id: str) -> Preferences:
    """What a user has chosen, or the defaults."""
    row = await reads.fetch_one(FIND_PREFERENCES, user_id=user_id)
    return Preferences.of_document(None if row is None else row["document"])


async def webhooks_of(reads: Reads, user_id: str) -> Sequence[Webhook]:
    """All webhooks of a user, the oldest first."""
    return [webhook_of(row) for row in await reads.fetch(WEBHOOKS_OF, user_id=user_id)]


def webhook_of(row: Row) -> Webhook:
    """The webhook of a row."""
    values: dict[str, Any] = {name: row[name] for name in ("id", "url", "status", "created_at", "last_error")}
    return Webhook(**values, events=tuple(row["events"]), failing_since=row["failing_since"])
