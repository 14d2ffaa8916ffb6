"""Who may do what, tried at every operation that there is, at the front door and at each service's own (33).

The operations are those that the services describe themselves: a new one fails here until it has a trial.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from refract.runtime.statements import Statement
from refract.services.gateway.api import ROUTES
from refract.services.identity.domain.one_time import token_hash
from tests.support.belongings import ALICES_PASSWORD, BOBS_PASSWORD, KEY, SECRETS, Hers, Person, belonging_to, settle
from tests.support.houses import GATEWAY, WITH_OPERATIONS, House, Operation, house

__all__ = ["house"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = {
    *(("analytics", method, f"/stats/{{code}}{more}") for method in ("GET", "HEAD") for more in ("", "/timeline")),
    ("identity", "POST", "/login"),
    ("identity", "POST", "/register"),
    ("identity", "POST", "/reset"),
    ("identity", "POST", "/reset/confirm"),
    ("identity", "POST", "/verify"),
    ("links", "GET", "/{code}"),
    ("links", "HEAD", "/{code}"),
}
"""What wants no token, on purpose; everything else has to."""

USER = Statement("user", "Reads a user.", "SELECT role, email_verified_at FROM users WHERE id = :id")


@dataclass(frozen=True)
class Trial:
    """One attempt on something of hers, and what somebody else has to be told."""

    statuses: Sequence[int]
    body: Any = None
    query: str = ""
    headers: tuple[str, ...] = ()


def trials(hers: Hers) -> dict[tuple[str, str, str], list[Trial]]:
    """By service, method and path; HEAD is tried as GET is."""
    code, alice = hers.code, hers.alice
    posing = {"user_id": alice.id, "created_by": alice.id, "workspace_id": alice.id, "owner_email": alice.email}
    mine = {"user_id": alice.id, "email": alice.email}
    stats, by_country = "analytics", "?by=country"
    link, identity, told, evil = "links", "identity", "notifications", "https://evil.example/"
    pages = (
        "",
        f"?after={quote(hers.cursor)}",
        "?q=alices",
        "?tag=alices-tag",
        f"?user_id={alice.id}",
        "?status=active",
    )
    changes: tuple[dict[str, Any], ...] = (
        {"url": evil},
        {"title": "his"},
        {"status": "disabled"},
        {"stats_public": False},
        {},
    )
    return {
        (link, "GET", "/urls"): [Trial([200, 400], query=query) for query in pages],
        (link, "GET", "/urls/{code}"): [Trial([403])],
        (link, "GET", "/urls/{code}/qr.svg"): [Trial([403]), Trial([403], query="?size=512")],
        (link, "GET", "/urls/{code}/qr.png"): [Trial([403])],
        (link, "PATCH", "/urls/{code}"): [Trial([403], change) for change in changes],
        (link, "DELETE", "/urls/{code}"): [Trial([403])],
        (link, "POST", "/shorten"): [
            Trial([409], {"url": evil, "custom_code": code}),
            Trial([200, 201], {"url": hers.url, **SECRETS}, headers=(KEY,)),
            Trial([201], {"url": "https://example.com/posing", "force_new": True, **posing}),
        ],
        (link, "POST", "/shorten/bulk"): [
            Trial([200], {"urls": [hers.url, {**posing, "url": hers.url}, {"url": evil, "custom_code": code}]}),
        ],
        (link, "GET", "/{code}"): [],  # a short link is for everybody
        (stats, "GET", "/stats/{code}"): [],  # and so are its numbers, unless she closes them
        (stats, "GET", "/stats/{code}/timeline"): [],
        (stats, "GET", "/stats/{code}/series"): [Trial([403]), Trial([403], query=f"?user_id={alice.id}")],
        (stats, "GET", "/stats/{code}/breakdown"): [Trial([403], query=by_country)],
        (stats, "GET", "/stats/{code}/visitors"): [Trial([403])],
        (stats, "GET", "/stats/{code}/clicks"): [Trial([403])],
        (stats, "GET", "/stats/{code}/export"): [Trial([403]), Trial([403], query="?format=jsonl")],
        (stats, "GET", "/stats/{code}/live"): [Trial([403])],
        (stats, "GET", "/stats/summary"): [Trial([200]), Trial([200], query=f"?user_id={alice.id}")],
        (identity, "GET", "/me"): [Trial([200]), Trial([200], query=f"?user_id={alice.id}")],
        (identity, "POST", "/logout"): [Trial([204], mine)],
        (identity, "POST", "/password"): [
            Trial([403], {"current": ALICES_PASSWORD, "new": "a password of his choice", **mine})
        ],
        (identity, "DELETE", "/me"): [Trial([403], {"password": ALICES_PASSWORD, **mine})],
        (identity, "POST", "/login"): [Trial([401], {"email": alice.email, "password": BOBS_PASSWORD})],
        (identity, "POST", "/register"): [Trial([409], {"email": alice.email.upper(), "password": BOBS_PASSWORD})],
        (identity, "POST", "/reset"): [Trial([204], {"email": alice.email})],
        (identity, "POST", "/reset/confirm"): [
            # Good for his own password once; for hers, never.
            Trial([204, 400], {"token": hers.reset, "password": BOBS_PASSWORD, **mine}),
            Trial([400], {"token": hers.verification, "password": BOBS_PASSWORD, **mine}),
            Trial([400], {"token": token_hash(hers.reset), "password": BOBS_PASSWORD, **mine}),
        ],
        (identity, "POST", "/verify"): [
            Trial([204, 400], {"token": hers.verification, **mine}),
            Trial([400], {"token": hers.reset, **mine}),
        ],
        (identity, "POST", "/keys"): [
            Trial([201], {"name": "his", "scopes": ["links:read"], **posing}),
            Trial([403], {"name": "his", "scopes": ["sms:send"], "sms_user_id": 1, "role": "administrator"}),
        ],
        (identity, "GET", "/keys"): [Trial([200, 400], query=query) for query in ("", "?status=all", *pages[1:])],
        (identity, "DELETE", "/keys/{id}"): [Trial([404]), Trial([404], query=f"?user_id={alice.id}")],
        (told, "GET", "/notifications"): [Trial([200, 400], query=query) for query in pages[:2] + pages[4:5]],
        (told, "POST", "/notifications/{id}/read"): [Trial([403]), Trial([403], mine)],
        (told, "GET", "/preferences"): [Trial([200]), Trial([200], query=f"?user_id={alice.id}")],
        (told, "PUT", "/preferences"): [
            Trial([200], {"digest": "daily", "webhooks": []}),
            Trial([400], {"digest": "weekly", **mine}),
            Trial([400], {"webhooks": [{"id": hers.webhook, "url": evil}]}),
        ],
    }  # fmt: skip


async def test_every_operation_has_a_trial_and_wants_a_token_unless_it_is_meant_to_be_public(house: House) -> None:
    hers = Hers(Person("", "", ""), *[""] * 8)
    found = await house.operations()
    tried = {(service, method, path) for service, method, path in trials(hers)}
    assert {(one.service, one.method.replace("HEAD", "GET"), one.path) for one in found} == tried
    assert {(one.service, one.method, one.path) for one in found if not one.wants_token} == PUBLIC
    assert {one.service for one in found} == set(WITH_OPERATIONS), "a service that serves something has to be tried"
    assert {row.token for row in ROUTES if row.target == "sms"} == {"administrator"}, "it is not tried here"
    for one in found:
        assert one.route is not None, f"{one} has no row in the public table"
        assert (one.route.token in {"required", "administrator"}) == one.wants_token, one


async def test_nobody_reads_or_changes_what_is_somebody_elses(house: House) -> None:
    hers, bob = await settle(house)
    planned = trials(hers)
    for operation in await house.operations():
        method = operation.method.replace("HEAD", "GET")
        for trial in planned[operation.service, method, operation.path]:
            for door in operation.doors:
                await attempt(house, hers, bob, operation, trial, door)
    await assert_the_owner_may(house, hers)


async def attempt(house: House, hers: Hers, bob: Person, operation: Operation, trial: Trial, door: str) -> None:
    """One trial at one door, in Bob's name."""
    before = await belonging_to(house, hers, operation.service)
    target = operation.target(door, code=hers.code, id=hers.id_for(operation.path)) + trial.query
    token = house.token(bob.id, bob.email) if operation.wants_token else ""
    answer = await house.call(door, operation.method, target, trial.body, *trial.headers, token=token)
    what = f"{operation.method} {target} at {door} with {trial.body}: {answer.status} {answer.body!r}"
    assert answer.status in trial.statuses, what
    told = f"{answer.headers} {answer.body.decode('latin-1')}"
    assert [mark for mark in hers.marks if mark in told and mark not in str(trial.body)] == [], what
    if operation.service == "links":
        assert hers.code not in told.replace(target, ""), what
    assert await belonging_to(house, hers, operation.service) == before, what


async def assert_the_owner_may(house: House, hers: Hers) -> None:
    """Alice may do all of it: the refusals were for who asked, and for nothing else."""
    signed = house.token(hers.alice.id, hers.alice.email)
    operations = [one for one in await house.operations() if one.wants_token and "{" in one.path]
    for operation in sorted(operations, key=lambda one: one.method == "DELETE"):
        if operation.method == "GET" and operation.path.endswith("/live"):
            continue  # it has no end; to HEAD it says whether she may
        target = operation.target(GATEWAY, code=hers.code, id=hers.id_for(operation.path))
        target += "?by=country" if target.endswith("/breakdown") else ""
        body = {"title": "hers"} if operation.method == "PATCH" else None
        answer = await house.call(GATEWAY, operation.method, target, body, token=signed)
        assert answer.status in {200, 204}, f"{operation.method} {target}: {answer.status} {answer.body!r}"
    credentials = {"email": hers.alice.email, "password": ALICES_PASSWORD}
    assert (await house.call(GATEWAY, "POST", "/api/auth/login", credentials)).status == 200


async def test_nobody_gives_himself_a_role_or_a_proof(house: House) -> None:
    email = f"mallory-{len(await house.rows('identity'))}@example.com"
    claimed = {"role": "administrator", "email_verified_at": "2026-01-01T00:00:00Z", "status": "active", "id": "u-0"}
    for door, path in ((GATEWAY, "/api/auth/register"), ("identity", "/register")):
        body = {"email": f"{door}-{email}", "password": BOBS_PASSWORD, **claimed}
        answer = await house.call(door, "POST", path, body)
        assert answer.status == 201
        row = await house.databases["identity"].fetch_one(USER, id=answer.json["user_id"])
        assert row is not None
        assert (row["role"], row["email_verified_at"]) == ("user", None)
        signed_in = await house.call(door, "POST", path.replace("register", "login"), body)
        administrators = await house.call(GATEWAY, "POST", "/api/sms/config", {}, token=signed_in.json["token"])
        assert administrators.status == 403
