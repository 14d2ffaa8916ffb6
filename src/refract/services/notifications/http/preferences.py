"""The routes of how a user wants to be told."""

from typing import Annotated, Any

from litestar import HttpMethod, put, route
from msgspec import UNSET, Struct, UnsetType

from refract.runtime.describing import answers, body
from refract.runtime.web import takes_body
from refract.services.notifications.commands.preferring import Preferring, WebhookWish, Wish
from refract.services.notifications.http.describing import PREFERENCES, TAGS, WEBHOOK, errors
from refract.services.notifications.http.notifications import Caller
from refract.services.notifications.queries.preferences import PreferenceQueries, PreferencesView, view_of

PREFERENCES_BYTES = 64 * 1024

CHANGE = {
    "channels": {"url.created": []},
    "digest": "weekly",
    "webhooks": [{"url": WEBHOOK["url"], "events": WEBHOOK["events"]}],
}
CHANGED = {
    **PREFERENCES,
    "channels": {**PREFERENCES["channels"], "url.created": []},
    "digest": "weekly",
    "webhooks": [{**WEBHOOK, "secret": "whsec_…"}],
}


class WebhookBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook in the list; one that is known by its `id`, or by its `url`, keeps its secret.

    What only we can say may be sent back as it was shown, and is passed over.
    """

    url: str
    id: str | UnsetType = UNSET
    events: list[str] | UnsetType = UNSET
    status: str | UnsetType = UNSET
    created_at: Any = UNSET
    failing_since: Any = UNSET
    last_error: Any = UNSET
    secret: Any = UNSET


class PreferencesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different; what is left out stays."""

    channels: dict[str, list[str]] | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    webhooks: list[WebhookBody] | UnsetType = UNSET


def preference_routes(queries: PreferenceQueries, preferring: Preferring) -> list[Any]:
    """GET and PUT /preferences."""

    @route(
        "/preferences",
        http_method=(HttpMethod.GET, HttpMethod.HEAD),
        summary="Read preferences",
        description=(
            "By which channels the caller is told of which events, beside the list of notifications, which has "
            "everything. `log` is a line in the log of an instance that sends no mails, in place of the mail."
        ),
        tags=TAGS,
        responses={200: answers(PreferencesView, "The preferences.", PREFERENCES), **errors()},
    )
    async def show_preferences(caller: Caller) -> PreferencesView:
        return await queries.of(caller.subject)

    @put(
        "/preferences",
        summary="Change preferences",
        description=(
            "Whatever is left out stays as it is, events of `channels` too. With a `digest` mails come together, at 8 "
            "o'clock UTC, every day or on Mondays. `webhooks` is the whole list, at most 10: one that is not in it is "
            "removed, a new one is given a `secret`, which is shown here and never again. Requests are signed with it "
            "as Standard Webhooks says. A `status` of `active` switches one on that was disabled."
        ),
        tags=TAGS,
        responses={200: answers(PreferencesView, "The preferences as they are now.", CHANGED), **errors(400)},
        **takes_body(PREFERENCES_BYTES),
    )
    async def change_preferences(caller: Caller, data: Annotated[PreferencesBody, body(CHANGE)]) -> PreferencesView:
        outcome = await preferring.change(caller.subject, _wish(data))
        return view_of(outcome.preferences, outcome.webhooks, outcome.secrets)

    return [show_preferences, change_preferences]


def _wish(data: PreferencesBody) -> Wish:
    return Wish(
        channels={} if data.channels is UNSET else data.channels,
        digest=None if data.digest is UNSET else data.digest,
        webhooks=None if data.webhooks is UNSET else [_webhook_wish(webhook) for webhook in data.webhooks],
    )


def _webhook_wish(webhook: WebhookBody) -> WebhookWish:
    return WebhookWish(
        url=webhook.url,
        id=None if webhook.id is UNSET else webhook.id,
        events=None if webhook.events is UNSET else webhook.events,
        status=None if webhook.status is UNSET else webhook.status,
    )
