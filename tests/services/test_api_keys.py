"""API keys in the hands of their owners: made, listed, revoked, and gone with the account; on both modes."""

import hashlib
import re
from typing import Any

import pytest

from refract.runtime.statements import Statement
from refract.services.identity.commands.deleting import erase, hold_administrators
from refract.services.identity.commands.resolving_keys import RESOLVE_KEY
from refract.services.identity.queries.keys import ACTIVE_KEYS, ALL_KEYS
from refract.services.identity.store import Users
from tests.support.api_keys import READER, SENDER, kept, owner, resolve, signed, told
from tests.support.clocks import START
from tests.support.databases import empty_location
from tests.support.http import Answer
from tests.support.identity import ON_SQLITE, IdentityWorld, identity, identity_location

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

NO_OUTBOX = Statement("no_outbox", "Takes the outbox away.", "ALTER TABLE outbox RENAME TO outbox_elsewhere")

UNREADABLE = "invalid request body:"
NO_SCOPES = "scopes must be out of links:read, links:write, stats:read, notifications:read, sms:send"
NO_SMS_USER = "sms_user_id must be a number from 0 to 2^63 - 1"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name is required"),
    ({"name": "x" * 101}, "name must be at most 100 characters"),
    ({"name": "a\0b"}, "name must not contain control characters"),
    ({"name": None}, f"{UNREADABLE} name: expected string, got null"),
    ({"scopes": []}, "scopes are required"),
    ({"scopes": ["links:read"] * 2}, "scopes must not be repeated"),
    ({"scopes": ["links:all"]}, NO_SCOPES),
    ({"scopes": "links:read"}, f"{UNREADABLE} scopes: expected array, got string"),
    ({"scopes": [1]}, f"{UNREADABLE} scopes[0]: expected string, got integer"),
    ({"expires_at": "2026-03-01T12:00:00Z"}, "expires_at must be in the future"),
    ({"expires_at": "2026-03-02T12:00:00"}, f"{UNREADABLE} expires_at: expected datetime with a timezone component"),
    ({"expires_at": "9999-12-31T23:59:59-01:00"}, "expires_at is too far away"),
    ({"expires_at": "tomorrow"}, f"{UNREADABLE} expires_at: invalid RFC3339 encoded datetime"),
    ({"expires_at": 1_900_000_000}, f"{UNREADABLE} expires_at: expected datetime or null, got integer"),
    ({"sms_user_id": 1}, "scope sms:send and sms_user_id go together"),
    ({"sms_user_id": "1"}, f"{UNREADABLE} sms_user_id: expected integer or null, got string"),
    ({"sms_user_id": True}, f"{UNREADABLE} sms_user_id: expected integer or null, got boolean"),
    ({"scopes": ["sms:send"], "sms_user_id": -1}, NO_SMS_USER),
    ({"scopes": ["sms:send"], "sms_user_id": 1 << 63}, NO_SMS_USER),
    ({"name": "x" * 5_000}, "request body too large"),
]


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json.get("error") if answer.body else None


# Making.


async def test_a_key_is_shown_once_and_its_hash_is_kept(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    scopes = ["stats:read", "links:write", "links:read"]
    answer = await alice.asks(name="  Blog automation ", scopes=scopes, expires_at="2027-01-01T01:00:00+01:00")
    assert answer.status == 201
    assert answer.headers["cache-control"] == "no-store"
    key = answer.json["key"]
    assert re.fullmatch("refract_[0-9a-zA-Z]{40}", key)
    shown = {
        "id": answer.json["id"],
        "key_prefix": key[:16],
        "name": "Blog automation",
        "scopes": ["links:read", "links:write", "stats:read"],
        "status": "active",
        "created_at": "2026-03-01T12:00:00Z",
        "expires_at": "2027-01-01T00:00:00Z",
    }
    assert answer.json == {**shown, "key": key}
    [row] = await kept(identity)
    key_hash = hashlib.blake2b(key.encode(), digest_size=32).hexdigest()
    assert (row["user_id"], row["key_hash"], row["usage_count"]) == (alice.user.id, key_hash, 0)
    assert key[16:] not in str(dict(row))
    assert await alice.sees() == [{**shown, "usage_count": 0}]
    event = {"key_id": shown["id"], "user_id": alice.user.id, "key_hash": key_hash}
    assert await told(identity, "apikey.created") == [event]


@ON_SQLITE
async def test_what_a_key_does_not_have_is_left_out(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes(expires_at=None, sms_user_id=None)
    assert made.keys() == {"id", "key", "key_prefix", "name", "scopes", "status", "created_at"}
    [seen] = await alice.sees()
    assert seen.keys() == made.keys() - {"key"} | {"usage_count"}


async def test_a_key_for_messages_is_bound_and_made_by_administrators_alone(identity: IdentityWorld) -> None:
    alice, root = await owner(identity), await owner(identity, "root@example.com", role="administrator")
    for number in (0, (1 << 63) - 1):
        assert (await root.makes(**SENDER | {"sms_user_id": number}))["sms_user_id"] == number
    assert [seen["sms_user_id"] for seen in await root.sees()] == [(1 << 63) - 1, 0]
    refused = (403, "only administrators may make keys that send messages")
    assert said(await alice.asks(**SENDER)) == refused
    # What counts is who they are, and not what their token says of it.
    claiming = identity.signer.sign(alice.user.id, alice.user.email, role="administrator").token
    assert said(await identity.call("POST", "/keys", SENDER, token=claiming)) == refused
    assert said(await alice.asks(scopes=["sms:send"])) == (400, "scope sms:send and sms_user_id go together")
    assert len(await kept(identity)) == 2


@ON_SQLITE
async def test_what_cannot_be_made(identity: IdentityWorld) -> None:
    root = await owner(identity, role="administrator")
    for changes, message in WRONG:
        assert said(await root.asks(**changes)) == (400, message)
    assert await kept(identity) == []


@ON_SQLITE
async def test_what_is_no_wish_at_all(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    for body in (b"", b"{", b"[]", b"null", b'{"name": "\\ud800", "scopes": ["links:read"]}', b"[" * 3_000):
        assert (await identity.call("POST", "/keys", body, token=alice.token)).status == 400, body
    longest = await alice.makes(name="\N{OWL}" * 100, scopes=["links:read", "links:write"])
    assert longest["name"] == "\N{OWL}" * 100


async def test_the_key_and_its_event_are_one(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes()
    async with identity.database.transaction() as tx:
        await tx.execute(NO_OUTBOX)
    assert (await alice.asks()).status == 500
    assert (await alice.revokes(made["id"])).status == 500
    assert [(row["id"], row["status"]) for row in await kept(identity)] == [(made["id"], "active")]


# Listing.


async def test_the_list_has_the_callers_own_the_newest_first_and_pages(identity: IdentityWorld) -> None:
    alice, bob = await owner(identity), await owner(identity, "bob@example.com")
    await bob.makes(name="bobs")
    made = []
    for number in range(5):
        identity.clock.advance(number // 2)  # some are of one moment
        made.append(await alice.makes(name=f"key {number}"))
    await alice.revokes(made[3]["id"])
    for query, names in (("", "4210"), ("status=active", "4210"), ("status=all", "43210")):
        assert [seen["name"] for seen in await alice.sees(f"?{query}")] == [f"key {name}" for name in names]
        walked, after = [], ""
        while True:
            page = (await alice.lists(f"?{query}&limit=2{after}")).json
            walked += [seen["name"][-1] for seen in page["keys"]]
            if "next_cursor" not in page:
                break
            assert len(page["keys"]) == 2
            after = f"&after={page['next_cursor']}"
        assert "".join(walked) == names
    assert {seen["name"]: seen["status"] for seen in await alice.sees("?status=all")}["key 3"] == "revoked"
    head = await identity.call("HEAD", "/keys", token=alice.token)
    assert (head.status, head.body) == (200, b"")


@ON_SQLITE
async def test_wrong_parameters_are_named(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    too_large = "0-7N42dgm5tFLK9N8MT7fHC8"  # 2^128 in base62
    for after in ("x", "%00", "0", "0-", "-0", "uC1mK9ab-3xQ7-", "1%27%20OR%201=1", "0-aZl8N0y58M8", too_large):
        assert said(await alice.lists(f"?after={after}")) == (400, "after is not a cursor"), after
    for limit in ("0", "-1", "x", "1.5", "%00"):
        assert said(await alice.lists(f"?limit={limit}")) == (400, "limit must be a positive integer")
    for status in ("revoked", "ALL", "x", "%00"):
        assert said(await alice.lists(f"?status={status}")) == (400, "status must be active or all")
    assert (await alice.lists("?after=0-aZl8N0y58M7")).status == 200  # 2^63 - 1


@ON_SQLITE
async def test_every_question_has_its_index(identity: IdentityWorld) -> None:
    page = {"user_id": "u", "created_at": START, "id": 1, "limit": 1}
    for statement, parameters, index in (
        (ACTIVE_KEYS, page, "api_keys_user"),
        (ALL_KEYS, page, "api_keys_owner"),
        (RESOLVE_KEY, {"key_hash": "h"}, "api_keys_hash"),
    ):
        explained = Statement("explained", "Asks how.", f"EXPLAIN QUERY PLAN {statement.for_sqlite()}")
        steps = [row["detail"] for row in await identity.database.fetch(explained, **parameters)]
        assert any(f"USING INDEX {index} " in step for step in steps), steps


# Revoking.


async def test_a_revoked_key_is_told_once_and_again_is_no_error(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made, other = await alice.makes(), await alice.makes()
    answer = await alice.revokes(made["id"])
    assert (answer.status, answer.body) == (204, b"")
    assert (await alice.revokes(made["id"])).status == 204
    [event] = await told(identity, "apikey.revoked")
    key_hash = hashlib.blake2b(made["key"].encode(), digest_size=32).hexdigest()
    assert event == {"key_id": made["id"], "user_id": alice.user.id, "key_hash": key_hash}
    assert {row["id"]: row["status"] for row in await kept(identity)} == {made["id"]: "revoked", other["id"]: "active"}
    assert (await resolve(identity, made["key"])).status == 401
    assert (await resolve(identity, other["key"])).status == 200


async def test_what_is_somebody_elses_or_nobodys_is_not_found(identity: IdentityWorld) -> None:
    alice, bob = await owner(identity), await owner(identity, "bob@example.com")
    made = await alice.makes()
    assert said(await bob.revokes(made["id"])) == (404, "not found")
    wrong = ("0", "-1", "x", "1.0", "+1", "%C2%B2", "%00", str(1 << 63), "9" * 5_000, made["id"] + 1)
    for key_id in wrong:
        assert said(await alice.revokes(key_id)) == (404, "not found"), key_id
    assert [row["status"] for row in await kept(identity)] == ["active"]
    assert await told(identity, "apikey.revoked") == []


# Who may.


@ON_SQLITE
async def test_a_key_may_do_nothing_to_an_account(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes()
    token = (await resolve(identity, made["key"])).json["token"]
    paths = (await identity.call("GET", "/docs/openapi.json")).json["paths"]
    tried = []
    for path, methods in paths.items():
        for method in [method.upper() for method, described in methods.items() if described.get("security")]:
            target = path.replace("{id}", str(made["id"]))
            answer = await identity.call(method, target, None if method in {"GET", "HEAD"} else b"{", token=token)
            refused = (answer.status, answer.body) == (403, b'{"error":"api keys may not manage accounts"}')
            tried.append((method, path, refused or (method == "HEAD" and answer.status == 403)))
    assert {(method, path) for method, path, refused in tried if not refused} == {("GET", "/me"), ("HEAD", "/me")}
    assert {("POST", "/keys"), ("GET", "/keys"), ("DELETE", "/keys/{id}"), ("POST", "/password"), ("POST", "/logout"),
            ("DELETE", "/me")} <= {(method, path) for method, path, _ in tried}  # fmt: skip
    assert (await identity.call("GET", "/me", token=token)).json["user_id"] == alice.user.id
    assert (await resolve(identity, made["key"])).status == 200
    assert len(await kept(identity)) == 1


async def test_strangers_and_dead_tokens_have_no_keys(identity: IdentityWorld) -> None:
    alice = await owner(identity, token_generation=2)
    suspended = await owner(identity, "bob@example.com", status="suspended")
    nobody = identity.signer.sign("somebody", "nobody@example.com").token
    for token in (None, alice.token, suspended.token, nobody):
        assert said(await identity.call("POST", "/keys", READER, token=token)) == (401, "unauthorized")
        assert said(await identity.call("DELETE", "/keys/1", token=token)) == (401, "unauthorized")
    assert said(await identity.call("GET", "/keys")) == (401, "unauthorized")
    assert (await identity.call("GET", "/keys", token=nobody)).json == {"keys": []}
    assert await kept(identity) == []
    alive = signed(identity, alice.user, generation=2)
    assert (await identity.call("POST", "/keys", READER, token=alive)).status == 201


# The end of an account.


async def test_keys_end_with_the_account(identity: IdentityWorld) -> None:
    alice, bob = await owner(identity), await owner(identity, "bob@example.com")
    mine, gone, his = await alice.makes(), await alice.makes(), await bob.makes()
    await alice.revokes(gone["id"])
    await end(identity, alice.user.id)
    assert [row["id"] for row in await kept(identity)] == [his["id"]]
    assert (await resolve(identity, mine["key"])).status == 401
    assert (await resolve(identity, his["key"])).status == 200
    [revoked] = await told(identity, "user.revoked")
    assert revoked["user_id"] == alice.user.id, "by that the gateway forgets what it remembers"
    # No id is given twice: limits are counted by it.
    await end(identity, bob.user.id)
    carol = await owner(identity, "carol@example.com")
    assert (await carol.makes())["id"] > his["id"]


async def end(identity: IdentityWorld, user_id: str) -> None:
    async with identity.database.transaction() as tx:
        administrators = await hold_administrators(tx)
        await erase(tx, await Users().get(tx, user_id), administrators, identity.clock.now())
