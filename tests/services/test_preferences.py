"""GET and PUT /preferences: channels, digest, webhooks; whole or not at all."""

import asyncio
from typing import Any

import pytest
from msgspec.json import encode

from refract.kernel.ids import new_event_id
from refract.runtime.statements import Statement
from refract.services.notifications.settings import SendingSettings
from refract.services.notifications.store.notifications import lock_recipients
from tests.support.notices import ALICE, BOB, ON_SQLITE, NoticesWorld
from tests.support.patience import patient
from tests.support.waiting import eventually

__all__ = ["patient"]

DEFAULTS: dict[str, Any] = {
    "channels": {
        "url.created": ["log"],
        "url.deleted": ["log"],
        "milestone.reached": ["log", "email"],
        "webhook.disabled": ["log", "email"],
    },
    "digest": "off",
    "webhooks": [],
}
EVERY_EVENT = ["url.created", "url.deleted", "milestone.reached"]
HOOK = "https://hooks.example.com/refract"
OTHER = "https://other.example.com/"

SECRETS = Statement("secrets", "Reads the secrets.", "SELECT url, secret FROM webhooks")
SWITCH_OFF = Statement(
    "switch_off",
    "Does what happens after sustained failure.",
    "UPDATE webhooks SET status = 'disabled', failing_since = :now, last_error = 'no answer', disabled_at = :now",
)


async def shown(world: NoticesWorld, user: str = ALICE) -> Any:
    answer = await world.call("GET", "/preferences", user=user)
    assert answer.status == 200
    return answer.json


async def secrets_of(world: NoticesWorld) -> dict[str, str]:
    return {row["url"]: row["secret"] for row in await world.database.fetch(SECRETS)}


async def switch_off(world: NoticesWorld) -> None:
    async with world.database.transaction() as tx:
        await tx.execute(SWITCH_OFF, now=world.clock.now())


# Channels and digest.


@ON_SQLITE
async def test_who_chose_nothing_has_the_defaults(notices: NoticesWorld) -> None:
    assert await shown(notices) == DEFAULTS


async def test_what_is_left_out_stays(notices: NoticesWorld) -> None:
    changed = await notices.prefer(channels={"url.created": ["email", "log", "email"], "milestone.reached": []})
    assert changed["channels"] == DEFAULTS["channels"] | {"url.created": ["log", "email"], "milestone.reached": []}
    changed = await notices.prefer(digest="weekly")
    assert changed["digest"] == "weekly"
    assert changed["channels"]["milestone.reached"] == []
    assert await notices.prefer() == changed
    assert await shown(notices) == changed
    assert await shown(notices, BOB) == DEFAULTS


@ON_SQLITE
async def test_what_was_shown_can_be_sent_back(notices: NoticesWorld) -> None:
    made = await notices.prefer(webhooks=[{"url": HOOK}], digest="daily")
    assert (await notices.prefer(**made))["webhooks"][0]["id"] == made["webhooks"][0]["id"]
    await switch_off(notices)
    current = await shown(notices)
    assert current["webhooks"][0]["last_error"] == "no answer"
    assert await notices.prefer(**current) == current, "and a webhook that is off stays off"


WRONG: list[tuple[Any, str]] = [
    (b"", "invalid request body"),
    (b"{", "invalid request body"),
    (b"\xff", "invalid request body"),
    (b"[" * 20_000, "invalid request body"),
    (b"null", "invalid request body: expected object, got null"),
    ([], "invalid request body: expected object, got array"),
    ("text", "invalid request body: expected object, got string"),
    ({"digests": "daily"}, "unknown field"),
    ({"digest": "hourly"}, "digest must be one of off, daily, weekly"),
    ({"digest": ""}, "digest must be one of off, daily, weekly"),
    ({"digest": None}, "digest: expected string, got null"),
    ({"digest": ["daily"]}, "digest: expected string, got array"),
    ({"channels": None}, "channels: expected object, got null"),
    ({"channels": ["log"]}, "channels: expected object, got array"),
    ({"channels": {"url.created": "log"}}, "expected array, got string"),
    ({"channels": {"url.created": [1]}}, "expected string, got integer"),
    ({"channels": {"url.created": ["sms"]}}, "channels of url.created must be one of log, email"),
    ({"channels": {"url.created": ["LOG"]}}, "must be one of log, email"),
    ({"channels": {"url.clicked": []}}, "channels has an event that is not one of"),
    ({"channels": {"": []}}, "channels has an event that is not one of"),
    ({"channels": {"a\0b": []}}, "channels has an event that is not one of"),
    ({"webhooks": {}}, "webhooks: expected array, got object"),
    ({"webhooks": [HOOK]}, "expected object, got string"),
    ({"webhooks": [{}]}, "missing required field url"),
    ({"webhooks": [{"url": None}]}, "expected string, got null"),
    ({"webhooks": [{"url": HOOK, "event": []}]}, "unknown field"),
    ({"webhooks": [{"url": HOOK, "events": []}]}, "the events of a webhook must be some of"),
    ({"webhooks": [{"url": HOOK, "events": ["webhook.disabled"]}]}, "the events of a webhook must be some of"),
    ({"webhooks": [{"url": HOOK, "status": "broken"}]}, "must be active or disabled"),
    ({"webhooks": [{"url": HOOK, "id": "x"}]}, "webhooks has an id that is none of yours"),
    ({"webhooks": [{"url": HOOK, "id": new_event_id()}]}, "an id that is none of yours"),
    ({"webhooks": [{"url": HOOK}, {"url": HOOK}]}, "webhooks has a url twice"),
    ({"webhooks": [{"url": HOOK}, {"url": f"{HOOK}#x"}]}, "webhooks has a url twice"),
    ({"webhooks": [{"url": f"{HOOK}/{n}"} for n in range(11)]}, "webhooks must be at most 10"),
    ({"webhooks": [{"url": "ftp://x.example/"}]}, "webhooks: url must begin with https://"),
    ({"webhooks": [{"url": ""}]}, "webhooks: url must begin with https://"),
    ({"webhooks": [{"url": f"{HOOK}\r\nx: y"}]}, "control characters"),
    ({"webhooks": [{"url": "https://" + "x" * 3_000}]}, "at most 2048 characters"),
    ({"webhooks": [{"url": "https://a:b@x.example/"}]}, "credentials"),
    ({"webhooks": [{"url": "http://127.0.0.1/"}]}, "private or local address"),
    ({"webhooks": [{"url": "http://0x7f.1/"}]}, "private or local address"),
    ({"webhooks": [{"url": "http://169.254.169.254/"}]}, "private or local address"),
    ({"webhooks": [{"url": "http://localhost/"}]}, "private or local address"),
]


@ON_SQLITE
async def test_what_is_wrong_is_said_and_nothing_changes(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily", webhooks=[{"url": OTHER}])
    before = await shown(notices)
    for body, message in WRONG:
        answer = await notices.call("PUT", "/preferences", body if isinstance(body, bytes) else encode(body))
        assert answer.status == 400, body
        assert message in answer.json["error"], body
        assert len(answer.json["error"]) < 300, body
        if isinstance(body, dict):
            # With something else beside it that is right: all of it, or nothing.
            beside = {"digest": "weekly", "webhooks": [], **body}
            assert (await notices.call("PUT", "/preferences", beside)).status == 400, body
    assert await shown(notices) == before


@ON_SQLITE
async def test_a_body_that_is_too_large_is_refused(notices: NoticesWorld) -> None:
    answer = await notices.call("PUT", "/preferences", b'{"digest": "' + b"x" * 70_000 + b'"}')
    assert (answer.status, answer.json) == (400, {"error": "request body too large"})


# Webhooks.


@ON_SQLITE
async def test_the_secret_of_a_webhook_is_shown_once(notices: NoticesWorld) -> None:
    [made] = (await notices.prefer(webhooks=[{"url": HOOK}]))["webhooks"]
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert await secrets_of(notices) == {HOOK: secret}
    assert (made["url"], made["events"], made["status"]) == (HOOK, EVERY_EVENT, "active")
    assert await shown(notices) == DEFAULTS | {"webhooks": [made]}
    assert (await notices.prefer(digest="off"))["webhooks"] == [made]
    assert (await notices.prefer(webhooks=[{"url": HOOK}]))["webhooks"] == [made], "known by its URL"


async def test_the_list_is_the_whole_list(notices: NoticesWorld) -> None:
    made = (await notices.prefer(webhooks=[{"url": HOOK}, {"url": OTHER, "events": ["url.deleted"]}]))["webhooks"]
    assert len({hook["secret"] for hook in made}) == 2
    secrets = await secrets_of(notices)
    ids = {hook["url"]: hook["id"] for hook in made}
    # One goes, one is given another URL, one is new at the place that became free.
    moved = [{"id": ids[HOOK], "url": "https://new.example/"}, {"url": HOOK, "events": ["milestone.reached"]}]
    after = (await notices.prefer(webhooks=moved))["webhooks"]
    assert [(hook["url"], "secret" in hook) for hook in after] == [("https://new.example/", False), (HOOK, True)]
    assert after[0]["id"] == ids[HOOK]
    assert after[1]["id"] not in ids.values()
    kept = await secrets_of(notices)
    assert set(kept) == {"https://new.example/", HOOK}
    assert kept["https://new.example/"] == secrets[HOOK]
    assert (await notices.prefer(webhooks=[]))["webhooks"] == []
    assert await secrets_of(notices) == {}


@ON_SQLITE
async def test_two_webhooks_can_change_places(notices: NoticesWorld) -> None:
    one, two = (await notices.prefer(webhooks=[{"url": HOOK}, {"url": OTHER}]))["webhooks"]
    swapped = [{"id": one["id"], "url": OTHER}, {"id": two["id"], "url": HOOK}]
    await notices.prefer(webhooks=swapped)
    assert await secrets_of(notices) == {OTHER: one["secret"], HOOK: two["secret"]}


async def test_a_webhook_that_is_off_is_switched_on_by_its_owner(notices: NoticesWorld) -> None:
    [made] = (await notices.prefer(webhooks=[{"url": HOOK}]))["webhooks"]
    await switch_off(notices)
    [off] = (await notices.prefer(webhooks=[{"url": HOOK, "events": ["url.created"]}]))["webhooks"]
    assert off["status"] == "disabled", "another choice of events is no word about that"
    await switch_off(notices)
    [on] = (await notices.prefer(webhooks=[{"url": HOOK, "status": "active"}]))["webhooks"]
    assert (on["id"], on["status"]) == (made["id"], "active")
    assert "last_error" not in on
    assert "failing_since" not in on
    assert (await shown(notices))["webhooks"] == [on]
    await switch_off(notices)
    [moved] = (await notices.prefer(webhooks=[{"id": made["id"], "url": OTHER}]))["webhooks"]
    assert moved["status"] == "active", "what failed at the old place says nothing of the new one"


@ON_SQLITE
async def test_nobody_has_a_hand_on_anothers_webhooks(notices: NoticesWorld) -> None:
    [made] = (await notices.prefer(webhooks=[{"url": HOOK}]))["webhooks"]
    answer = await notices.call("PUT", "/preferences", {"webhooks": [{"id": made["id"], "url": OTHER}]}, user=BOB)
    assert (answer.status, answer.json) == (400, {"error": "webhooks has an id that is none of yours"})
    [bobs] = (await notices.prefer(user=BOB, webhooks=[{"url": HOOK}]))["webhooks"]
    assert bobs["id"] != made["id"]
    assert bobs["secret"] != made["secret"]
    await notices.prefer(user=BOB, webhooks=[])
    assert [hook["id"] for hook in (await shown(notices))["webhooks"]] == [made["id"]]


@ON_SQLITE
async def test_one_id_for_two_is_refused(notices: NoticesWorld) -> None:
    [made] = (await notices.prefer(webhooks=[{"url": HOOK}]))["webhooks"]
    twice = [{"id": made["id"], "url": HOOK}, {"id": made["id"], "url": OTHER}]
    answer = await notices.call("PUT", "/preferences", {"webhooks": twice})
    assert (answer.status, answer.json) == (400, {"error": "webhooks has an id twice"})


@ON_SQLITE
async def test_private_addresses_are_for_who_allows_them(notices: NoticesWorld) -> None:
    await notices.serve(sending=SendingSettings(allow_private=True))
    [made] = (await notices.prefer(webhooks=[{"url": "http://127.0.0.1:9000/hook"}]))["webhooks"]
    assert made["url"] == "http://127.0.0.1:9000/hook"


@pytest.mark.usefixtures("patient")
async def test_changes_at_once_build_on_each_other(notices: NoticesWorld) -> None:
    await notices.serve()
    events = list(DEFAULTS["channels"])
    await asyncio.gather(
        *(notices.prefer(channels={event: []}) for event in events),
        *(notices.prefer(webhooks=[{"url": HOOK}]) for _ in range(4)),
        notices.prefer(digest="daily"),
    )
    after = await shown(notices)
    assert after["channels"] == {event: [] for event in events}
    assert after["digest"] == "daily"
    assert len(after["webhooks"]) == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
async def test_who_changes_a_webhook_and_who_disables_it_wait_for_each_other(notices: NoticesWorld) -> None:
    """Both lock the user before the webhook; else one of them would be refused as deadlocked."""
    await notices.prefer(digest="daily", webhooks=[{"url": HOOK}])
    change: dict[str, Any] = {"digest": "weekly", "webhooks": [{"url": HOOK, "events": ["url.created"]}]}
    async with notices.database.transaction() as tx:
        await lock_recipients(tx, [ALICE])
        await tx.execute(SWITCH_OFF, now=notices.clock.now())
        changing = asyncio.create_task(notices.prefer(**change))
        await eventually(notices.somebody_waits)
        await notices.telling().notice(
            tx, user_id=ALICE, event_type="webhook.disabled", title="Off", payload={}, now=notices.clock.now()
        )
    assert (await changing)["digest"] == "weekly"
