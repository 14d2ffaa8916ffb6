"""Changes how a user wants to be told: channels, digest and webhooks, all of them in one transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid, Unauthenticated
from refract.kernel.ids import new_event_id
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.domain.digests import next_digest
from refract.services.notifications.domain.preferences import LINK_EVENTS, Digest, Preferences
from refract.services.notifications.domain.webhooks import check_webhook_url, new_secret
from refract.services.notifications.store.notifications import hold_recipients
from refract.services.notifications.store.wishes import Webhook, webhooks_of

MOST_WEBHOOKS = 10

OPEN_PREFERENCES = Statement(
    "open_preferences",
    "Reads what a user has chosen and holds it, so that of two changes the second builds on the first.",
    """
    INSERT INTO preferences (user_id, document, updated_at) VALUES (:user_id, :document, :now)
    ON CONFLICT (user_id) DO UPDATE SET updated_at = :now
    RETURNING document
    """,
)
SAVE_PREFERENCES = Statement(
    "save_preferences",
    "Writes what a user has chosen.",
    "UPDATE preferences SET document = :document WHERE user_id = :user_id",
)
BEGIN_DIGESTS = Statement(
    "begin_digests",
    "Gathers the mails of a user from now on, or for another period.",
    """
    INSERT INTO digests (user_id, every, next_at) VALUES (:user_id, :every, :next_at)
    ON CONFLICT (user_id) DO UPDATE SET every = :every, next_at = :next_at
    """,
)
END_DIGESTS = Statement(
    "end_digests",
    "Gathers no more, and has what was gathered sent now.",
    "UPDATE digests SET every = 'off', next_at = :now WHERE user_id = :user_id",
)
ADD_WEBHOOK = Statement(
    "add_webhook",
    "Keeps a new webhook.",
    """
    INSERT INTO webhooks (id, user_id, url, secret, events, status, disabled_at, created_at, updated_at)
    VALUES (:id, :user_id, :url, :secret, :events, :status, :disabled_at, :now, :now)
    """,
)
SAVE_WEBHOOK = Statement(
    "save_webhook",
    "Writes a webhook that was changed; one that begins anew has no failures.",
    """
    UPDATE webhooks SET url = :url, events = :events, status = :status, disabled_at = :disabled_at,
        failing_since = NULL, last_error = NULL, updated_at = :now
    WHERE id = :id
    """,
)
REMOVE_WEBHOOKS = Statement(
    "remove_webhooks",
    "Forgets webhooks, and their secrets with them.",
    "DELETE FROM webhooks WHERE id = ANY(:ids::uuid[])",
    sqlite="DELETE FROM webhooks WHERE id IN (SELECT value FROM json_each(:ids))",
)


@dataclass(frozen=True, slots=True)
class WebhookWish:
    """A webhook as its user wants it; None leaves a thing as it is, or to the default. Known by its id or its URL."""

    url: str
    id: str | None = None
    events: Sequence[str] | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be different. The list of webhooks is the whole list: who is not in it goes."""

    channels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    digest: str | None = None
    webhooks: Sequence[WebhookWish] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it is now, with the secrets of new webhooks, which are never shown again."""

    preferences: Preferences
    webhooks: Sequence[Webhook]
    secrets: Mapping[str, str]


class Preferring:
    """What users may choose."""

    def __init__(self, database: Database, clock: Clock, *, allow_private: bool = False) -> None:
        self._database = database
        self._clock = clock
        self._allow_private = allow_private

    async def change(self, user_id: str, wish: Wish) -> Outcome:
        """Change what is named and leave the rest; raises Invalid, and then nothing changes."""
        wanted = None if wish.webhooks is None else self._checked(wish.webhooks)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if await hold_recipients(tx, [user_id], now):
                raise Unauthenticated  # the account was deleted while this was on its way
            before = await _opened(tx, user_id, now)
            after = before.changed(wish.channels, wish.digest)
            await tx.execute(SAVE_PREFERENCES, user_id=user_id, document=after.document())
            webhooks = await webhooks_of(tx, user_id)
            secrets: dict[str, str] = {}
            if wanted is not None:
                changes = _matched(webhooks, wanted, now)
                secrets = await _save_webhooks(tx, user_id, webhooks, changes, now)
                webhooks = changes
            if after.digest is not before.digest:
                await _change_digest(tx, user_id, after.digest, now)
        return Outcome(after, webhooks, secrets)

    def _checked(self, wishes: Sequence[WebhookWish]) -> list[WebhookWish]:
        if len(wishes) > MOST_WEBHOOKS:
            raise Invalid(f"webhooks must be at most {MOST_WEBHOOKS}")
        checked = [replace(wish, url=self._url(wish.url), events=_events(wish.events)) for wish in wishes]
        if len({wish.url for wish in checked}) < len(checked):
            raise Invalid("webhooks has a url twice")
        if any(wish.status not in {None, "active", "disabled"} for wish in checked):
            raise Invalid("the status of a webhook must be active or disabled")
        return checked

    def _url(self, text: str) -> str:
        try:
            return check_webhook_url(text, allow_private=self._allow_private)
        except Invalid as error:
            raise Invalid(f"webhooks: {error.message}") from None


async def _opened(tx: Transaction, user_id: str, now: datetime) -> Preferences:
    row = await tx.fetch_one(OPEN_PREFERENCES, user_id=user_id, document=Preferences().document(), now=now)
    assert row is not None, "INSERT … RETURNING always returns its row"
    return Preferences.of_document(row["document"])


async def _change_digest(tx: Transaction, user_id: str, digest: Digest, now: datetime) -> None:
    if digest is Digest.OFF:
        await tx.execute(END_DIGESTS, user_id=user_id, now=now)
    else:
        await tx.execute(BEGIN_DIGESTS, user_id=user_id, every=digest.value, next_at=next_digest(digest, now))


def _events(names: Sequence[str] | None) -> Sequence[str] | None:
    if names is None:
        return None
    if not names or not set(names) <= set(LINK_EVENTS):
        raise Invalid(f"the events of a webhook must be some of {', '.join(LINK_EVENTS)}")
    return [event for event in LINK_EVENTS if event in names]


def _matched(known: Sequence[Webhook], wishes: Sequence[WebhookWish], now: datetime) -> list[Webhook]:
    """The webhooks that are wanted: those that are known with their changes, and new ones."""
    by_id, by_url = {webhook.id: webhook for webhook in known}, {webhook.url: webhook for webhook in known}
    named = {wish.id for wish in wishes if wish.id is not None}
    if not named <= by_id.keys():
        raise Invalid("webhooks has an id that is none of yours")
    wanted = []
    for wish in wishes:
        found = by_id[wish.id] if wish.id is not None else by_url.get(wish.url)
        if found is not None and wish.id is None and found.id in named:
            found = None  # its owner gives that one another URL, and this is a new one
        wanted.append(_made(wish, now) if found is None else _changed(found, wish))
    if len({webhook.id for webhook in wanted}) < len(wanted):
        raise Invalid("webhooks has an id twice")
    return wanted


def _made(wish: WebhookWish, now: datetime) -> Webhook:
    return Webhook(new_event_id(), wish.url, tuple(wish.events or LINK_EVENTS), wish.status or "active", now)


def _changed(webhook: Webhook, wish: WebhookWish) -> Webhook:
    # What failed at the old place says nothing of the new one.
    status = wish.status or ("active" if wish.url != webhook.url else webhook.status)
    changed = replace(webhook, url=wish.url, events=tuple(wish.events or webhook.events), status=status)
    return changed if changed == webhook else replace(changed, failing_since=None, last_error=None)


async def _save_webhooks(
    tx: Transaction, user_id: str, known: Collection[Webhook], wanted: Sequence[Webhook], now: datetime
) -> dict[str, str]:
    """Make the webhooks of a user these; returns the secrets of those that are new."""
    before = {webhook.id: webhook for webhook in known}
    removed = before.keys() - {webhook.id for webhook in wanted}
    if removed:
        await tx.execute(REMOVE_WEBHOOKS, ids=sorted(removed))
    secrets = {}
    for webhook in wanted:
        if webhook == before.get(webhook.id):
            continue
        values = {
            "id": webhook.id,
            "url": webhook.url,
            "events": list(webhook.events),
            "status": webhook.status,
            "disabled_at": now if webhook.status == "disabled" else None,
            "now": now,
        }
        if webhook.id in before:
            await tx.execute(SAVE_WEBHOOK, **values)
        else:
            secrets[webhook.id] = new_secret()
            await tx.execute(ADD_WEBHOOK, user_id=user_id, secret=secrets[webhook.id], **values)
    return secrets
