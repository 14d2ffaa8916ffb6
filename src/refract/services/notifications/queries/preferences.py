"""Preferences as their user sees them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from refract.runtime.ports import Database
from refract.services.notifications.domain.preferences import Preferences
from refract.services.notifications.store.wishes import Webhook, find_preferences, webhooks_of


class WebhookView(Struct, frozen=True, kw_only=True):
    """A webhook; its secret is in the answer to the request that made it, and never again."""

    id: str
    url: str
    events: list[str]
    status: str
    created_at: datetime
    failing_since: datetime | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    secret: str | UnsetType = UNSET


class PreferencesView(Struct, frozen=True, kw_only=True):
    """How a user is told: channels by event, digest, webhooks."""

    channels: dict[str, list[str]]
    digest: str
    webhooks: list[WebhookView]


class PreferenceQueries:
    """The preferences of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, user_id: str) -> PreferencesView:
        """What a user has chosen, or the defaults."""
        preferences = await find_preferences(self._database, user_id)
        return view_of(preferences, await webhooks_of(self._database, user_id))


def view_of(
    preferences: Preferences, webhooks: Sequence[Webhook], secrets: Mapping[str, str] | None = None
) -> PreferencesView:
    """Preferences as they are shown; with the secrets of webhooks that were just made."""
    shown = secrets or {}
    return PreferencesView(
        channels={event: [channel.value for channel in chosen] for event, chosen in preferences.channels.items()},
        digest=preferences.digest.value,
        webhooks=[
            WebhookView(
                id=webhook.id,
                url=webhook.url,
                events=list(webhook.events),
                status=webhook.status,
                created_at=webhook.created_at,
                failing_since=UNSET if webhook.failing_since is None else webhook.failing_since,
                last_error=UNSET if webhook.last_error is None else webhook.last_error,
                secret=shown.get(webhook.id, UNSET),
            )
            for webhook in webhooks
        ],
    )
