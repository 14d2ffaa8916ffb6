"""Who may do what, tried at every operation that there is, at the front door and at each service's own (31, 33, 34).

The operations are those that the services describe themselves: a new one fails here until it has a trial.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.statements import Statement
from refract.services.analytics.commands.following import follow_links
from refract.services.gateway.api import ROUTES
from refract.services.identity.commands.mailing import KEEP_TOKEN
from refract.services.identity.domain.one_time import OneTimeToken, Purpose, token_hash
from refract.services.links.api import UrlCreated
from refract.services.notifications.commands.telling import Telling
from refract.services.notifications.domain.notices import Notice
from tests.support.forging import forgeries, token
from tests.support.houses import GATEWAY, WITH_OPERATIONS, House, Operation, house
from tests.support.http import Answer, Client

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

ALICES_PASSWORD = "the password that alice has"
BOBS_PASSWORD = "the password that bob has"
SECRETS = {"title": "alices-title", "notes": "alices-notes", "tags": ["alices-tag"]}
KEY = "Idempotency-Key: the-key-of-both"
HOOK = "https://hooks.example.com/alices-hook"

USER = Statement("user", "Reads a user.", "SELECT role, email_verified_at FROM users WHERE id = :id")


@dataclass(frozen=True)
class Person:
    """Somebody with an account."""

    id: str
    email: str
    password: str


@dataclass(frozen=True)
class Hers:
    """What is Alice's, and must stay so."""

    alice: Person
    code: str
    url: str
    cursor: str
    reset: str
    """A token that was mailed to Bob, who may reset his own password with it."""
    verification: str
    """The same for his address."""
    notification: str
    webhook: str

    @property
    def marks(self) -> tuple[str, ...]:
        """Words by which an answer shows that something of hers was read."""
        return (self.alice.id, self.alice.email, self.url, "alices-title", "alices-notes", "alices-tag", HOOK)


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
        (told, "GET", "/notifications"): [Trial([200, 400], query=query) for query in pages[:2] + pages[4:5]],
        (told, "POST", "/notifications/{id}/read"): [Trial([403]), Trial([403], mine)],
        (told, "GET", "/preferences"): [Trial([200]), Trial([200], query=f"?user_id={alice.id}")],
        (told, "PUT", "/preferences"): [
            Trial([200], {"digest": "daily", "webhooks": []}),
            Trial([400], {"digest": "weekly", **mine}),
            Trial([400], {"webhooks": [{"id": hers.webhook, "url": evil}]}),
        ],
    }  # fmt: skip


async def register(house: House, name: str, password: str) -> Person:
    """A new account, under a name that nobody has."""
    email = f"{name}-{len(await house.rows('identity'))}@example.com"
    body = {"email": email, "password": password}
    answer = await house.call(GATEWAY, "POST", "/api/auth/register", body)
    assert answer.status == 201, answer.body
    return Person(answer.json["user_id"], email, password)


async def mailed(house: House, purpose: Purpose, person: Person) -> str:
    """A one-time token as somebody finds it in a mail."""
    issued = OneTimeToken.issue(purpose, person.id, SystemClock().now())
    async with house.databases["identity"].transaction() as tx:
        await tx.execute(
            KEEP_TOKEN,
            token_hash=token_hash(issued.text),
            user_id=person.id,
            purpose=purpose.value,
            expires_at=issued.expires_at,
            created_at=issued.created_at,
        )
    return issued.text


async def settle(house: House) -> tuple[Hers, Person]:
    """Alice with links of hers, and Bob."""
    alice = await register(house, "alice", ALICES_PASSWORD)
    bob = await register(house, "bob", BOBS_PASSWORD)
    made, url = [], f"https://example.com/{secrets.token_hex(8)}"
    for number in range(2):
        body = {"url": f"{url}/{number}", **SECRETS}
        headers = (KEY,) if number == 0 else ()
        answer = await house.call(
            GATEWAY, "POST", "/api/shorten", body, *headers, token=house.token(alice.id, alice.email)
        )
        assert answer.status == 201, answer.body
        made.append(answer.json["short_code"])
    await clicked(house, alice, made[0])
    page = await house.call(GATEWAY, "GET", "/api/urls?limit=1", token=house.token(alice.id, alice.email))
    return Hers(
        alice,
        made[0],
        f"{url}/0",
        page.json["next_cursor"],
        await mailed(house, Purpose.RESET, bob),
        await mailed(house, Purpose.VERIFY, bob),
        await notified(house, alice, made[0]),
        await hooked(house, alice),
    ), bob


async def clicked(house: House, person: Person, code: str) -> None:
    """Let analytics know whose a link is, as it hears it from links."""
    event = UrlCreated(
        occurred_at=SystemClock().now(),
        event_id=UrlCreated.new_id(),
        short_code=code,
        original_url="https://example.com/",
        user_id=person.id,
        user_email=person.email,
        title="alices-title",
        order=1,
    )
    async with house.databases["analytics"].transaction() as tx:
        await follow_links(tx, [event])


async def notified(house: House, person: Person, code: str) -> str:
    """The id of something that somebody was told."""
    notice = Notice(
        user_id=person.id,
        user_email=person.email,
        event_type="url.deleted",
        event_id=secrets.token_hex(8),
        title="alices-title",
        occurred_at=SystemClock().now(),
        payload={},
        short_code=code,
    )
    async with house.databases["notifications"].transaction() as tx:
        await Telling(SystemClock(), sends_mail=False).tell(tx, [notice])
    page = await house.call(GATEWAY, "GET", "/api/notifications", token=house.token(person.id, person.email))
    identifier: str = page.json["notifications"][0]["id"]
    return identifier


async def hooked(house: House, person: Person) -> str:
    """The id of a webhook that somebody has."""
    body, token = {"webhooks": [{"url": HOOK}]}, house.token(person.id, person.email)
    answer = await house.call(GATEWAY, "PUT", "/api/preferences", body, token=token)
    identifier: str = answer.json["webhooks"][0]["id"]
    return identifier


def doors(operation: Operation) -> list[str]:
    """Where an operation can be asked for."""
    return [operation.service] if operation.route is None else [GATEWAY, operation.service]


async def test_every_operation_has_a_trial_and_wants_a_token_unless_it_is_meant_to_be_public(house: House) -> None:
    hers = Hers(Person("", "", ""), *[""] * 7)
    found = await house.operations()
    tried = {(service, method, path) for service, method, path in trials(hers)}
    assert {(one.service, one.method.replace("HEAD", "GET"), one.path) for one in found} == tried
    assert {(one.service, one.method, one.path) for one in found if not one.wants_token} == PUBLIC
    assert {one.service for one in found} == set(WITH_OPERATIONS), "a service that serves something has to be tried"
    assert {row.token for row in ROUTES if row.target == "sms"} == {"administrator"}, "it is not tried here"
    for one in found:
        assert one.route is not None, f"{one} has no row in the public table"
        assert (one.route.token in {"required", "administrator"}) == one.wants_token, one


# 33: another user's object


async def test_nobody_reads_or_changes_what_is_somebody_elses(house: House) -> None:
    hers, bob = await settle(house)
    planned = trials(hers)
    for operation in await house.operations():
        method = operation.method.replace("HEAD", "GET")
        for trial in planned[operation.service, method, operation.path]:
            for door in doors(operation):
                await attempt(house, hers, bob, operation, trial, door)
    await assert_the_owner_may(house, hers)


async def attempt(house: House, hers: Hers, bob: Person, operation: Operation, trial: Trial, door: str) -> None:
    """One trial at one door, in Bob's name."""
    before = await belonging_to(house, hers, operation.service)
    target = operation.target(door, code=hers.code, id=hers.notification) + trial.query
    token = house.token(bob.id, bob.email) if operation.wants_token else ""
    answer = await house.call(door, operation.method, target, trial.body, *trial.headers, token=token)
    what = f"{operation.method} {target} at {door} with {trial.body}: {answer.status} {answer.body!r}"
    assert answer.status in trial.statuses, what
    told = f"{answer.headers} {answer.body.decode('latin-1')}"
    assert [mark for mark in hers.marks if mark in told and mark not in str(trial.body)] == [], what
    if operation.service == "links":
        assert hers.code not in told.replace(target, ""), what
    assert await belonging_to(house, hers, operation.service) == before, what


async def belonging_to(house: House, hers: Hers, service: str) -> list[str]:
    """The rows of a service that speak of Alice or of her links. That somebody asked for a mail to her may be noted."""
    marks = (hers.alice.id, hers.alice.email, f"'{hers.code}'")
    rows = await house.rows(service)
    return [row for row in rows if any(mark in row for mark in marks) and "identity.reset.asked" not in row]


async def assert_the_owner_may(house: House, hers: Hers) -> None:
    """Alice may do all of it: the refusals were for who asked, and for nothing else."""
    signed = house.token(hers.alice.id, hers.alice.email)
    operations = [one for one in await house.operations() if one.wants_token and "{" in one.path]
    for operation in sorted(operations, key=lambda one: one.method == "DELETE"):
        if operation.method == "GET" and operation.path.endswith("/live"):
            continue  # it has no end; to HEAD it says whether she may
        target = operation.target(GATEWAY, code=hers.code, id=hers.notification)
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


# 31: forged tokens


def is_refused(answer: Answer, method: str = "GET") -> bool:
    """Whether a stranger was told nothing but that."""
    return answer.status == 401 and (method == "HEAD" or answer.json == {"error": "unauthorized"})


async def test_no_forged_token_is_believed_at_any_door(house: House) -> None:
    genuine, all_forged = token(house.secret.encode()), dict(forgeries(house.secret.encode()))
    assert {"'none'", "RS256", "issuer", "expired", "payload", "empty", "kid"} <= set(" ".join(all_forged).split())
    before = [await house.rows(name) for name in house.databases]
    for door, path in ((GATEWAY, "/api/me"), ("identity", "/me"), (GATEWAY, "/api/urls"), ("links", "/urls")):
        async with await Client.connect(house.ports[door]) as client:
            assert (await client.get(path, f"Authorization: Bearer {genuine}")).status == 200
            reached = house.reached.total()
            for name, forged in all_forged.items():
                assert is_refused(await client.get(path, f"Authorization: Bearer {forged}")), f"{door}: {name}"
            assert is_refused(await client.get(path))
            assert is_refused(await client.get(f"{path}?access_token={genuine}&token={genuine}"))
            if door == GATEWAY:
                for name, forged in all_forged.items():
                    cookie = f"Cookie: refract_session={forged.partition(',')[0]}"
                    assert name == "twice" or is_refused(await client.get(path, cookie)), f"session: {name}"
                assert house.reached.total() == reached, "what is refused here is not asked of anybody else"
    assert [await house.rows(name) for name in house.databases] == before


async def test_every_operation_that_wants_a_token_refuses_a_forged_one(house: House) -> None:
    all_forged = dict(forgeries(house.secret.encode()))
    kinds = ("alg 'none' without a signature", "another issuer", "expired a day ago", "kid 'theirs'", "an empty key")
    before = [await house.rows(name) for name in house.databases]
    for operation in await house.operations():
        for door in doors(operation) if operation.wants_token else ():
            reached = house.reached.total()
            async with await Client.connect(house.ports[door]) as client:
                for sent in ([], *([f"Authorization: Bearer {all_forged[kind]}"] for kind in kinds)):
                    answer = await client.get(operation.target(door), *sent, method=operation.method)
                    assert is_refused(answer, operation.method), f"{operation} at {door} with {sent}: {answer}"
            assert door != GATEWAY or house.reached.total() == reached, operation
    assert [await house.rows(name) for name in house.databases] == before


# 34: nobody is who he says he is

SPELLINGS = (
    "X-User-ID",
    "x-user-id",
    "X_User_Id",
    "X_USER_ID",
    "X.User.Id",
    "X-User_Id",
    "X~User~Id",
    "HTTP_X_USER_ID",
)
PROXIES = ("X-Forwarded-For", "X_Forwarded_For", "X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")


def pretending(hers: Hers, number: int = 0) -> list[list[str]]:
    """Header fields by which somebody says that he is Alice, or comes from elsewhere."""
    alice, address = hers.alice, f"203.0.113.{number}"
    mail = [f"X-User-Email: {alice.email}", f"X_User_Email: {alice.email}", "X-User-Role: administrator"]
    named = "Connection: X-User-ID, X-User-Email, X-Forwarded-For, Authorization, close"
    each = [[f"{spelling}: {alice.id}", *mail] for spelling in SPELLINGS]
    each += [[f"{name}: {address}"] for name in PROXIES]
    return [
        *each,
        [f"X-User-ID: {alice.id}", f"X-User-ID: {alice.id}", *mail],
        [named, f"X-User-ID: {alice.id}", *mail],
        [f"Forwarded: for={address};host=evil.example;proto=https", "X-Forwarded-Host: evil.example"],
        [f"X-Forwarded-User: {alice.id}", f"X-Remote-User: {alice.id}", f"X-Auth-Request-User: {alice.id}"],
        [f"X-Original-User: {alice.id}", f"X-Original-URL: /api/urls/{hers.code}", "X-HTTP-Method-Override: DELETE"],
    ]


async def test_the_identity_seen_inside_is_that_of_the_token(house: House) -> None:
    hers, bob = await settle(house)
    signed = house.token(bob.id, bob.email)
    himself = {"user_id": bob.id, "email": bob.email}
    before = {name: await belonging_to(house, hers, name) for name in house.databases}
    for door, prefix in ((GATEWAY, "/api"), ("identity", ""), ("links", "")):
        for fields in pretending(hers):
            if door != "links":
                answer = await house.call(door, "GET", f"{prefix}/me", None, *fields, token=signed)
                assert answer.json == himself, f"{fields} at {door}"
                stranger = await house.call(door, "GET", f"{prefix}/me", None, *fields)
                assert is_refused(stranger), f"{fields} at {door}"
            if door != "identity":
                target = f"{prefix}/urls/{hers.code}"
                assert (await house.call(door, "GET", target, None, *fields, token=signed)).status == 403, fields
                body = {"url": "https://example.com/his", "force_new": True}
                made = await house.call(door, "POST", f"{prefix}/shorten", body, *fields, token=signed)
                assert made.status == 201, fields
                own = await house.call(
                    door, "GET", f"{prefix}/urls/{made.json['short_code']}", token=house.token(bob.id, bob.email)
                )
                assert own.status == 200, f"{fields} at {door}: whose is it?"
    assert {name: await belonging_to(house, hers, name) for name in house.databases} == before


async def test_the_address_seen_inside_is_that_of_the_connection(house: House) -> None:
    hers, bob = await settle(house)
    hers = replace(hers, alice=replace(hers.alice, id="u-0"))

    async def guess(number: int, fields: list[str], password: str = "wrong") -> int:
        body = {"email": bob.email if password != "wrong" else f"user-{number}@example.com", "password": password}
        return (await house.call(GATEWAY, "POST", "/api/auth/login", body, *fields)).status

    # Fifty failures from one address are enough, by whatever other addresses they are said to come.
    statuses: list[int] = []
    while 429 not in statuses:
        for fields in pretending(hers, len(statuses) % 250):
            statuses.append(await guess(len(statuses), fields))
            assert len(statuses) < 80, "an address was believed"
    assert set(statuses) == {401, 429}
    for fields in pretending(hers, 7):
        assert await guess(0, fields, BOBS_PASSWORD) == 429, fields
