"""Who is let in at the gateway: tokens as each row demands them, and nobody by his own word."""

import base64
import hmac
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.tokens import ISSUER
from refract.services.gateway.api import ROUTES, Route
from refract.services.gateway.domain.callers import Caller
from refract.services.gateway.domain.headers import forwarded_headers
from refract.services.gateway.domain.revocations import Revocation, Revocations
from tests.support.both_paths import both_paths
from tests.support.clocks import START, ManualClock
from tests.support.fronts import SECRET, Front, Service, authorization, mirror, said, signed, tokens
from tests.support.http import Answer, Client, fetch

UNAUTHORIZED = (401, {"error": "unauthorized"})


def example(route: Route) -> tuple[str, str]:
    return route.methods[0], re.sub(r"\{\w+\}", "aB3xY9z", route.path)


def user_seen(answer: Answer) -> list[list[str]]:
    return [field for field in answer.json["headers"] if field[0].replace("_", "-").startswith("x-user")]


@both_paths
async def test_every_row_asks_for_the_token_that_it_says(front: Front, fast: bool) -> None:
    service = Service()
    port = await front(service, fast=fast)
    somebody, administrator = authorization(), authorization(signed(role="administrator"))
    refused = {"required": (401, 200, 200), "administrator": (401, 403, 200)}
    async with await Client.connect(port) as client:
        for route in ROUTES:
            method, path = example(route)
            answers = [await client.get(path, *sent, method=method) for sent in ((), (somebody,), (administrator,))]
            expected = refused.get(route.token, (200, 200, 200))
            assert tuple(answer.status for answer in answers) == expected, route
            told = {answer.status: answer.json for answer in answers if answer.status != 200}
            assert told.get(401, {"error": "unauthorized"}) == {"error": "unauthorized"}
            assert told.get(403, {"error": "forbidden"}) == {"error": "forbidden"}
            assert len(service.reached) == expected.count(200), route
            service.reached.clear()


async def test_a_stranger_with_a_body_is_refused_before_it_is_read(front: Front) -> None:
    service = Service()
    port = await front(service)
    async with await Client.connect(port) as client:
        assert said(await client.post("/api/shorten", b'{"url":"https://example.com"}')) == UNAUTHORIZED
    assert service.reached == []


async def test_an_optional_token_is_looked_at_when_sent(front: Front) -> None:
    port = await front(mirror)
    assert user_seen(await fetch(port, "/api/stats/abc")) == []
    seen = user_seen(await fetch(port, "/api/stats/abc", authorization(signed("u-7", "a@example.com"))))
    assert seen == [["x-user-id", "u-7"], ["x-user-email", "a@example.com"]]
    for bad in ("Bearer nonsense", "Basic dTpw", "", "Bearer "):
        assert said(await fetch(port, "/api/stats/abc", f"Authorization: {bad}")) == UNAUTHORIZED


async def test_the_service_is_told_who_calls_and_can_check_it(front: Front) -> None:
    token = signed("u-7", "zoë@example.com")
    seen = (await fetch(await front(mirror), "/api/me", authorization(token))).json["headers"]
    assert ["authorization", f"Bearer {token}"] in seen
    assert [field for field in seen if field[0].startswith("x-user")] == [
        ["x-user-id", "u-7"],
        ["x-user-email", "zoë@example.com"],
    ]


# Forged tokens (ACCEPTANCE 31)


def encoded(part: object) -> bytes:
    return base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=")


def forged(secret: bytes = SECRET.encode(), header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token by hand, good unless told otherwise; None leaves a claim out."""
    now = int(START.timestamp())
    payload = {"sub": "u-1", "email": "u@example.com", "iss": ISSUER, "iat": now, "exp": now + 60, "jti": "t", **claims}
    text = encoded(header or {"alg": "HS256", "typ": "JWT"}) + b"."
    text += encoded({name: value for name, value in payload.items() if value is not None})
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
    return f"{text.decode()}.{signature.decode()}"


def forgeries() -> Iterator[tuple[str, str]]:
    good = forged()
    top, body, signature = good.split(".")
    none = encoded({"alg": "none", "typ": "JWT"}).decode()
    yield "none, without a signature", f"{none}.{body}."
    yield "none, with a signature", f"{none}.{body}.{signature}"
    yield "none in capitals", f"{encoded({'alg': 'None'}).decode()}.{body}."
    yield "another algorithm", forged(header={"alg": "HS512", "typ": "JWT"})
    yield "the secret taken for a public key", forged(header={"alg": "RS256", "typ": "JWT"})
    yield "a public key taken for the secret", forged(b"-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n")
    yield "an empty key", forged(b"")
    yield "another key", forged(b"another secret that is long enough, too")
    yield "a foreign kid", forged(header={"alg": "HS256", "kid": "theirs"})
    yield "a kid that is a path", forged(header={"alg": "HS256", "kid": "../../dev/null"})
    yield "a key in the header", forged(bytes(36), header={"alg": "HS256", "jwk": {"kty": "oct", "k": "A" * 48}})
    yield "another issuer", forged(iss="somebody-else")
    yield "no issuer", forged(iss=None)
    yield "expired", forged(exp=int(START.timestamp()))
    yield "without an end", forged(exp=None)
    yield "of the future", forged(iat=int(START.timestamp()) + 3600)
    yield "nobody's", forged(sub=None)
    yield "with an edited payload", f"{top}.{encoded({'sub': 'u-2', 'iss': ISSUER}).decode()}.{signature}"
    yield "with an edited signature", f"{top}.{body}.{signature[:-1]}{'A' if signature[-1] != 'A' else 'B'}"
    yield "cut short", good[:-4]
    yield "with something behind it", f"{good}.x"
    yield "with a role of its own making", forged(role="owner")
    yield "with a generation that is no number", forged(gen="9")
    yield "in a list", f"{good}, {good}"
    yield "too long", f"{top}.{'A' * 9000}.{signature}"


@pytest.mark.parametrize("token", [pytest.param(token, id=name) for name, token in forgeries()])
async def test_no_forged_token_gets_in(front: Front, token: str) -> None:
    service = Service()
    port = await front(service, tokens=tokens(ManualClock()))
    for path in ("/api/me", "/api/stats/abc"):
        assert said(await fetch(port, path, f"Authorization: Bearer {token}")) == UNAUTHORIZED
        assert said(await fetch(port, path, f"Cookie: refract_session={token}")) == UNAUTHORIZED
    assert service.reached == []


async def test_the_token_that_forgeries_are_made_of_is_good(front: Front) -> None:
    port = await front(mirror, tokens=tokens(ManualClock()))
    assert (await fetch(port, "/api/me", authorization(forged()))).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        ["Authorization: bearer {}"],
        ["Authorization: {}"],
        ["Authorization: Basic {}"],
        ["Authorization: Bearer  {}"],
        ["Authorization: Bearer {}", "Authorization: Bearer {}"],
        ["Authorization: Basic dTpw", "Authorization: Bearer {}"],
        ["X-Authorization: Bearer {}"],
        ["Proxy-Authorization: Bearer {}"],
    ],
)
async def test_a_good_token_counts_only_where_it_belongs(front: Front, fields: list[str]) -> None:
    service = Service()
    sent = [field.format(signed()) for field in fields]
    assert said(await fetch(await front(service), "/api/me", *sent)) == UNAUTHORIZED
    assert service.reached == []


async def test_a_token_dies_on_time_although_it_is_remembered(front: Front) -> None:
    clock = ManualClock()
    port = await front(mirror, tokens=tokens(clock))
    token = authorization(signed(clock=clock))
    for passed, status in ((0, 200), (86_399, 200), (1, 401)):
        clock.advance(passed)
        assert (await fetch(port, "/api/me", token)).status == status


async def test_what_is_odd_about_a_token_is_logged_and_an_old_one_is_not(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "refract")
    clock = ManualClock()
    port = await front(mirror, tokens=tokens(clock))
    old, edited = signed(clock=clock), f"{forged()[:-4]}AAAA"
    clock.advance(90_000)
    for sent in ([], [authorization(old)], [authorization(edited)]):
        assert (await fetch(port, "/api/me", *sent, "X-Correlation-ID: odd")).status == 401
    (line,) = [one for one in caplog.records if one.name.startswith("refract")]
    assert line.getMessage().startswith("token refused: not signed by us")
    assert edited not in str(vars(line))


# Revocation


@pytest.mark.parametrize("session", [False, True])
async def test_what_was_taken_back_is_refused_at_once(front: Front, session: bool) -> None:
    revocations = Revocations()
    port = await front(mirror, revocations=revocations)
    claims = tokens().verify(ended := signed("u-1"))
    old, new, other = signed("u-2", generation=1), signed("u-2", generation=2), signed("u-3")

    async def statuses() -> list[int]:
        fields = [f"Cookie: refract_session={token}" if session else authorization(token) for token in all_of_them]
        return [(await fetch(port, "/api/me", field)).status for field in fields]

    all_of_them = (ended, old, new, other)
    assert await statuses() == [200] * 4  # and from now on they are remembered
    until = claims.expires_at + timedelta(minutes=1)
    revocations.apply(Revocation("u-1", until, token_id=claims.token_id))
    assert await statuses() == [401, 200, 200, 200]
    revocations.apply(Revocation("u-2", until, generation=2))
    assert await statuses() == [401, 401, 200, 200]
    for path in ("/api/stats/abc", "/api/auth/logout"):
        method = "GET" if "stats" in path else "POST"
        assert said(await fetch(port, path, authorization(ended), method=method)) == UNAUTHORIZED


# Nobody says who he is (ACCEPTANCE 34)

PRETENDING = (
    *("X-User-ID: admin", "X_User_Id: admin", "x-user_email: admin@example.com", "X.User.ID: admin", "X-User-Role: a"),
    *("X-Forwarded-For: 203.0.113.9", "X_Forwarded_For: 203.0.113.9", "Forwarded: for=203.0.113.9"),
    *("X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https", "X-Real-IP: 203.0.113.9"),
    "Connection: X-User-ID, X-User-Email, X-Forwarded-For, X-Forwarded-Host, Authorization, keep-alive",
)


async def test_whatever_a_client_says_the_token_says_who_it_is(front: Front) -> None:
    port = await front(mirror)
    token = signed("u-7", "seven@example.com")
    for sent in (PRETENDING, PRETENDING[:-1]):  # with and without the one that takes others away
        answer = await fetch(port, "/api/me", *sent, authorization(token))
        seen = {(name.replace("_", "-").replace(".", "-"), value) for name, value in answer.json["headers"]}
        assert {
            ("x-user-id", "u-7"),
            ("x-user-email", "seven@example.com"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "test"),
            ("x-forwarded-proto", "http"),
            ("authorization", f"Bearer {token}"),
        } == {field for field in seen if field[0] not in {"host", "x-correlation-id"}}
    stranger = await fetch(port, "/api/stats/abc", *PRETENDING)
    assert user_seen(stranger) == []
    assert said(await fetch(port, "/api/me", *PRETENDING)) == UNAUTHORIZED


@given(st.lists(st.sampled_from(PRETENDING)), st.text(), st.text())
def test_a_caller_is_named_once_or_not_at_all(sent: list[str], user_id: str, email: str) -> None:
    headers = [(name.lower().encode(), value.strip().encode()) for name, _, value in (f.partition(":") for f in sent)]
    passed = forwarded_headers(
        headers, correlation_id="id", client="192.0.2.1", scheme="http", host=b"h", caller=Caller(user_id, email)
    )
    for name, value in ((b"x-user-id", user_id), (b"x-user-email", email)):
        assert [given for given in passed if given[0] == name] == (
            [(name, value.encode())] if value and value.isprintable() else []
        )
