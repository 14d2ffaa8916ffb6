"""API keys at the gateway: what they open and what they do not, and what services get to see in their place."""

import logging
import re
from collections.abc import Sequence

import pytest

from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.services.gateway.api import ROUTES, Route
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http import Limits
from tests.support.both_paths import both_paths
from tests.support.clocks import ManualClock
from tests.support.fronts import Front, authorization, front, in_process, said, signed, tokens
from tests.support.http import Answer, Client, fetch
from tests.support.keys import ALL_SCOPES, LACKING, REFUSED, Desk, new_key

__all__ = ["front", "in_process"]

NOT_FOR_KEYS = (403, {"error": "api keys may not do this"})
TWO_PROOFS = (400, {"error": "more than one credential"})


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


def own_field(key: str) -> str:
    return f"X-API-Key: {key}"


def examples() -> list[tuple[Route, str, str]]:
    """Each row with each of its methods; to HEAD nothing is said."""
    return [
        (route, method, re.sub(r"\{\w+\}", "aB3xY9z", route.path))
        for route in ROUTES
        for method in route.methods
        if method != "HEAD"
    ]


def seen_by_service(answer: Answer, *beginnings: str) -> list[list[str]]:
    return [field for field in answer.json["headers"] if field[0].startswith(beginnings)]


@both_paths
@pytest.mark.parametrize("shown", [bearer, own_field])
async def test_every_row_opens_to_the_scope_that_it_names_and_to_no_other(
    front: Front, fast: bool, shown: type[str]
) -> None:
    desk = Desk()
    port = await front(desk, fast=fast)
    only = {scope: desk.issue(scope, sms_user_id=7) for scope in ALL_SCOPES}
    others = {
        scope: desk.issue(*(other for other in ALL_SCOPES if other != scope), sms_user_id=7) for scope in ALL_SCOPES
    }
    everything = desk.issue(*ALL_SCOPES, sms_user_id=7)
    async with await Client.connect(port) as client:
        for route, method, path in examples():
            desk.reached.clear()
            if route.token == "none":
                asked = len(desk.questions)
                assert (await client.get(path, shown(new_key()), method=method)).status == 200, route
                assert len(desk.questions) == asked, "nobody looks at a key there"
            elif route.scope is None:
                assert said(await client.get(path, shown(everything), method=method)) == NOT_FOR_KEYS, route
                assert desk.reached == []
            else:
                assert (await client.get(path, shown(only[route.scope]), method=method)).status == 200, route
                desk.reached.clear()
                other = await client.get(path, shown(others[route.scope]), method=method)
                if route.token == "optional":
                    assert (other.status, seen_by_service(other, "x-user", "authorization")) == (200, []), route
                else:
                    assert (said(other), desk.reached) == (LACKING, []), route
    assert {route.scope for route in ROUTES} == {None, *ALL_SCOPES}


def test_the_rows_that_change_something_want_another_scope_than_those_that_read() -> None:
    for route in ROUTES:
        changes = not {"GET", "HEAD"} >= set(route.methods)
        assert route.scope is None or changes == route.scope.endswith((":write", ":send")), route
    by_scope = {scope: {route.path for route in ROUTES if route.scope == scope} for scope in ALL_SCOPES}
    assert by_scope["sms:send"] == {"/api/sms/send"}
    assert by_scope["notifications:read"] == {"/api/notifications"}
    account = [route for route in ROUTES if route.target == "identity"]
    assert [route for route in account if route.scope is not None] == [], "a key can make no other"
    assert [route for route in ROUTES if "resolve" in route.forward or "uses" in route.forward] == []


@pytest.mark.parametrize("shown", [bearer, own_field, lambda key: f"{bearer(key)}\r\n{own_field(key)}"])
async def test_services_get_the_owners_token_and_never_the_key(front: Front, shown: type[str]) -> None:
    desk = Desk()
    port = await front(desk)
    key = desk.issue("links:read", user="u-7")
    spelled = ("X_API_Key: {}", "x-api.key: {}", "X-USER-ID: u-9", "X_SMS_User_Id: 9", "X-SMS-User-ID: 9")
    for path in ("/api/urls", "/api/urls/abc"):
        answer = await fetch(port, path, shown(key), *(field.format(key) for field in spelled))
        assert answer.status == 200, answer.body
        assert key not in answer.text
        [[_, value]] = seen_by_service(answer, "authorization")
        claims = tokens().verify(value.removeprefix("Bearer "))
        assert (claims.subject, claims.role, claims.api_key) == ("u-7", "user", 1)
        assert seen_by_service(answer, "x-user", "x_user", "x-sms", "x_sms", "x-api", "x_api") == [
            ["x-user-id", "u-7"],
            ["x-user-email", "u-7@example.com"],
        ]


@both_paths
async def test_on_public_rows_a_key_goes_no_further(front: Front, fast: bool) -> None:
    key = new_key()
    port = await front(Desk(), fast=fast)
    fields = (bearer(key), own_field(key), f"X_Api_Key: {key}")
    async with await Client.connect(port) as client:
        for _ in range(3):  # parsed, and then known by its head
            answer = await client.get("/r/abc", *fields)
            assert (answer.status, key in answer.text) == (200, False)
    lower = await fetch(port, "/r/abc", f"Authorization: bearer {key}")
    assert key not in lower.text
    assert seen_by_service(await fetch(port, "/r/abc", authorization()), "authorization") != []


BAD_KEYS = [
    "refract_",
    "refract_" + "a" * 39,
    "refract_" + "a" * 41,
    "refract_" + "a" * 39 + "-",
    "refract_" + "a" * 39 + "é",
    "refract_" + "a" * 20 + " " + "a" * 19,
    "refract_" + "a" * 5000,
    "refract_" + "a" * 40 + ", refract_" + "a" * 40,
    "refract_session",
]


@both_paths
@pytest.mark.parametrize("key", BAD_KEYS)
async def test_what_can_be_no_key_is_refused_without_a_question(in_process: Front, key: str, fast: bool) -> None:
    desk = Desk()
    port = await in_process(desk, fast=fast)
    for field in (bearer(key), own_field(key)):
        for path in ("/api/urls", "/api/stats/abc"):
            assert said(await fetch(port, path, field)) == REFUSED
    assert (desk.questions, desk.reached) == ([], [])


@both_paths
async def test_whoever_shows_two_proofs_has_to_say_which_is_meant(in_process: Front, fast: bool) -> None:
    desk = Desk()
    port = await in_process(desk, fast=fast)
    key, other = desk.issue(), desk.issue()
    for fields in (
        (bearer(key), own_field(other)),
        (own_field(key), own_field(other)),
        (bearer(key), own_field(key), own_field(other)),
        (authorization(), own_field(key)),
        ("Authorization: Basic dTpw", own_field(key)),
        ("Authorization: ", own_field(key)),
    ):
        for path in ("/api/urls", "/api/me", "/api/stats/abc"):
            assert said(await fetch(port, path, *fields)) == TWO_PROOFS, fields
    assert (desk.questions, desk.reached) == ([], [])
    assert (await fetch(port, "/api/urls", bearer(key), own_field(key), own_field(key))).status == 200
    twice = await fetch(port, "/api/urls", bearer(key), bearer(key))
    assert said(twice) == (401, {"error": "unauthorized"}), "as with tokens"


@both_paths
async def test_a_field_with_something_else_in_it_is_not_for_us(in_process: Front, fast: bool) -> None:
    port = await in_process(Desk(), fast=fast)
    foreign = "X-API-Key: of-somebody-else"
    assert said(await fetch(port, "/api/me", foreign)) == (401, {"error": "unauthorized"})
    assert (await fetch(port, "/api/me", foreign, authorization())).status == 200
    assert seen_by_service(await fetch(port, "/api/stats/abc", foreign), "x-api") == []


async def test_a_key_counts_more_than_a_session_and_needs_no_origin(in_process: Front) -> None:
    desk = Desk()
    port = await in_process(desk)
    key = desk.issue("links:write", user="u-7")
    answer = await fetch(
        port, "/api/urls/abc", own_field(key), f"Cookie: refract_session={signed('u-1')}", method="DELETE"
    )
    assert seen_by_service(answer, "x-user-id") == [["x-user-id", "u-7"]]


async def test_the_token_that_services_get_opens_nothing_from_outside(in_process: Front) -> None:
    desk = Desk()
    port = await in_process(desk)
    token = desk.token("u-1", 1)
    for field in (authorization(token), f"Cookie: refract_session={token}"):
        for path in ("/api/me", "/api/urls", "/api/stats/abc"):
            assert said(await fetch(port, path, field)) == (401, {"error": "unauthorized"})
    assert desk.reached == []


# How often


@both_paths
async def test_every_key_has_a_limit_of_its_own_whatever_the_row_says(in_process: Front, fast: bool) -> None:
    desk = Desk()
    limits = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"shorten": 1, "api_key": 3}, str.upper))
    port = await in_process(desk, fast=fast, counted=limits)
    first, second = desk.issue(), desk.issue()

    async def ask(key: str, path: str = "/api/urls", method: str = "GET") -> Answer:
        return await fetch(port, path, bearer(key), method=method)

    answers = [await ask(first), await ask(first, "/api/shorten", "POST"), await ask(first), await ask(first)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"api_key";q=3;w=3600'}
    assert int(answers[-1].headers["retry-after"]) >= 3600
    assert answers[-1].json == {"error": "rate limit exceeded"}
    assert (await ask(second)).status == 200
    assert len(desk.reached) == 4
    assert (await fetch(port, "/api/urls", authorization())).status == 200, "its owner is not limited by it"


async def test_without_a_limit_for_keys_they_have_none(in_process: Front) -> None:
    desk = Desk()
    limits = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"shorten": 1, "api_key": 0}, str.upper))
    port = await in_process(desk, counted=limits)
    key = desk.issue()
    answers = [await fetch(port, "/api/shorten", bearer(key), method="POST") for _ in range(5)]
    assert {answer.status for answer in answers} == {200}
    assert [name for name in answers[0].headers if "ratelimit" in name] == []


# Messages (decision 17)


async def test_a_key_sends_for_the_user_that_it_is_bound_to_and_an_administrator_for_all(front: Front) -> None:
    desk = Desk()
    port = await front(desk)
    key, nobodys = desk.issue("sms:send", sms_user_id=101), desk.issue("sms:send", "links:read")
    zero = desk.issue("sms:send", sms_user_id=0)
    pretending = ("X-SMS-User-ID: 9", "X_SMS_USER_ID: 9", "x-sms-user.id: 9", "Connection: X-SMS-User-ID, keep-alive")

    async def bound(*fields: str) -> Sequence[Sequence[str]]:
        answer = await fetch(port, "/api/sms/send", *fields, *pretending, method="POST")
        assert answer.status == 200, answer.body
        return seen_by_service(answer, "x-sms", "x_sms")

    assert await bound(bearer(key)) == [["x-sms-user-id", "101"]]
    assert await bound(bearer(zero)) == [["x-sms-user-id", "0"]]
    assert await bound(authorization(signed(role="administrator"))) == []
    desk.reached.clear()
    for field, told in ((bearer(nobodys), LACKING), (authorization(), (403, {"error": "forbidden"}))):
        assert said(await fetch(port, "/api/sms/send", field, *pretending, method="POST")) == told
    for path, method in (("config", "POST"), ("audit", "GET"), ("audit/summary", "GET")):
        assert said(await fetch(port, f"/api/sms/{path}", bearer(key), method=method)) == NOT_FOR_KEYS
    assert desk.reached == []


# What is written down


@both_paths
async def test_no_key_is_logged_or_remembered_as_it_is(
    in_process: Front, fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    desk, known = Desk(), KnownKeys(ManualClock())
    desk.clock = known._clock
    port = await in_process(desk, fast=fast, known_keys=known, tokens=tokens(known._clock))
    keys = good, _, unknown, _ = desk.issue("links:read"), desk.issue("stats:read"), new_key(), "refract_short"
    for key in keys:
        await fetch(port, "/api/urls", bearer(key), "X-Correlation-ID: of-the-client")
    desk.instead = 500, b"{}"
    await fetch(port, "/api/urls", bearer(later := desk.issue()))
    assert len(known) == 2
    told = " ".join(str(vars(record)) for record in caplog.records) + str(vars(known))
    assert [key for key in (*keys, later) if key.removeprefix("refract_") in told] == []
    assert known._known.keys() == {desk.issued[key]["key_hash"] for key in keys if key in desk.issued}
    assert desk.correlation_ids[:3] == ["of-the-client"] * 3
    assert len(known._refused) == 1
    assert good != unknown
