"""Browser sessions at the gateway: a cookie for a bearer token, and state changes only from our own pages."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.gateway.api import SESSION_COOKIE
from refract.services.gateway.domain.callers import Asked, Origins, without_session
from tests.support.clocks import ManualClock
from tests.support.fronts import Front, Service, authorization, mirror, said, signed, tokens
from tests.support.http import Answer, Client, fetch

REFUSED = (403, {"error": "cross-origin request refused"})
FORGET = "refract_session=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"
OURS = "Origin: http://test"
PROXY = [ip_network("127.0.0.0/8")]


def session(token: str = "") -> str:
    return f"Cookie: {SESSION_COOKIE}={token or signed()}"


def seen(answer: Answer, *names: str) -> list[list[str]]:
    return [field for field in answer.json["headers"] if field[0] in names]


async def test_a_session_is_a_bearer_token_to_the_service(front: Front) -> None:
    token = signed("u-7", "seven@example.com")
    answer = await fetch(await front(mirror), "/api/me", f"Cookie: a=1; refract_session={token}; b=2")
    assert seen(answer, "authorization", "cookie", "x-user-id", "x-user-email") == [
        ["cookie", "a=1; b=2"],
        ["authorization", f"Bearer {token}"],
        ["x-user-id", "u-7"],
        ["x-user-email", "seven@example.com"],
    ]
    alone = await fetch(await front(mirror), "/api/stats/abc", session(token))
    assert seen(alone, "authorization", "cookie") == [["authorization", f"Bearer {token}"]]


async def test_a_bearer_token_goes_before_a_session(front: Front) -> None:
    port = await front(mirror)
    mine, other = signed("u-1"), signed("u-2")
    answer = await fetch(port, "/api/me", session(other), authorization(mine))
    assert seen(answer, "authorization", "cookie", "x-user-id") == [
        ["authorization", f"Bearer {mine}"],
        ["x-user-id", "u-1"],
    ]
    assert (await fetch(port, "/api/me", session(other), "Authorization: Basic dTpw")).status == 401
    changed = await fetch(port, "/api/urls/abc", authorization(mine), session(other), method="DELETE")
    assert changed.status == 200  # no browser adds this header by itself


async def test_nobody_behind_the_gateway_sees_the_cookie(front: Front) -> None:
    port = await front(mirror)
    for path in ("/r/abc", "/abc", "/api/stats/abc"):
        answer = await fetch(port, path, f"{session()}; theme=dark", "Cookie: other=1")
        assert seen(answer, "cookie") == [["cookie", "theme=dark"], ["cookie", "other=1"]]
    for path in ("/r/abc", "/abc"):
        assert seen(await fetch(port, path, session()), "cookie", "authorization", "x-user-id") == []


CHANGES = [("POST", "/api/keys"), ("PATCH", "/api/urls/abc"), ("DELETE", "/api/urls/abc"), ("PUT", "/api/preferences")]


@pytest.mark.parametrize(
    "origin",
    [
        [],
        ["Origin: null"],
        ["Origin:"],
        ["Origin: https://test"],
        ["Origin: http://test:8080"],
        ["Origin: http://evil.example"],
        ["Origin: http://test.evil.example"],
        ["Origin: http://eviltest"],
        ["Origin: http://test@evil.example"],
        ["Origin: http://test/"],
        ["Origin: test"],
        ["Origin: http://test http://evil.example"],
        ["Origin: http://test", "Origin: http://evil.example"],
        ["Origin: http://test", "Origin: http://test"],
        ["Referer: http://test/page"],
        ["Origin: https://evil.example", "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https"],
        ["X_Origin: http://test"],
    ],
    ids=str,
)
async def test_a_change_from_anywhere_else_is_refused(in_process: Front, origin: list[str]) -> None:
    service = Service()
    for fast in (True, False):
        port = await in_process(service, fast=fast, base_url="https://go.example/")
        async with await Client.connect(port) as client:
            for method, path in CHANGES:
                assert said(await client.get(path, session(), *origin, method=method)) == REFUSED
            assert said(await client.post("/api/shorten", b"{}", session(), *origin)) == REFUSED
    assert service.reached == []


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_a_change_from_our_own_page_is_made(front: Front, method: str, path: str) -> None:
    port = await front(mirror, base_url="https://go.example:443/links")
    for origin in (OURS, "Origin: HTTP://TEST", "Origin: https://go.example"):
        answer = await fetch(port, path, session(), origin, method=method)
        assert (answer.status, answer.json["method"]) == (200, method)
        assert seen(answer, "x-user-id") == [["x-user-id", "u-1"]]


async def test_the_address_that_counts_is_the_one_that_the_browser_sees(front: Front) -> None:
    behind = ("X-Forwarded-Proto: https", "X-Forwarded-Host: Go.Example:443")
    port = await front(mirror, trusted=PROXY)
    for origin, status in (("https://go.example", 200), ("http://test", 403), ("http://go.example", 403)):
        answer = await fetch(port, "/api/keys", session(), f"Origin: {origin}", *behind, method="POST")
        assert answer.status == status, origin
    assert (await fetch(port, "/api/keys", session(), OURS, method="POST")).status == 200


async def test_reading_needs_no_origin(front: Front) -> None:
    port = await front(mirror)
    for method in ("GET", "HEAD"):
        for origin in ([], ["Origin: https://evil.example"]):
            assert (await fetch(port, "/api/urls", session(), *origin, method=method)).status == 200


async def test_another_site_cannot_sign_anybody_in(front: Front) -> None:
    service = Service()
    port = await front(service, base_url="https://go.example")
    for origin in ("https://evil.example", "null", "", "https://test"):
        answer = await fetch(port, "/api/auth/login", f"Origin: {origin}", method="POST")
        assert said(answer) == REFUSED
    assert service.reached == []
    for fields in ([], [OURS], ["Origin: https://go.example"], [session()]):
        assert (await fetch(port, "/api/auth/login", *fields, method="POST")).status == 200
    assert service.reached == ["/login"] * 4


async def test_leaving_needs_the_origin_too(front: Front) -> None:
    service = Service()
    port = await front(service)
    assert said(await fetch(port, "/api/auth/logout", session(), method="POST")) == REFUSED
    assert (await fetch(port, "/api/auth/logout", session(), OURS, method="POST")).status == 200
    assert service.reached == ["/logout"]


@pytest.mark.parametrize("fast", [True, False])
async def test_a_session_that_is_over_is_forgotten_by_the_browser(front: Front, fast: bool) -> None:
    clock = ManualClock()
    port = await front(mirror, trusted=PROXY, tokens=tokens(clock), fast=fast)
    good = signed(clock=clock)
    for cookie in (f"{good}x", "nonsense", f"{good}; refract_session={signed('u-2', clock=clock)}"):
        for path in ("/api/me", "/api/stats/abc"):
            answer = await fetch(port, path, f"Cookie: refract_session={cookie}")
            assert (answer.status, answer.headers["set-cookie"]) == (401, FORGET)
    secure = await fetch(port, "/api/me", "Cookie: refract_session=x", "X-Forwarded-Proto: https")
    assert secure.headers["set-cookie"] == f"{FORGET}; Secure"
    clock.advance(90_000)
    assert (await fetch(port, "/api/me", f"Cookie: refract_session={good}")).headers["set-cookie"] == FORGET
    bearer = await fetch(port, "/api/me", authorization(good))
    assert (bearer.status, "set-cookie" in bearer.headers) == (401, False)


async def test_an_empty_session_is_none(front: Front) -> None:
    port = await front(mirror)
    for cookie in ("refract_session=", "refract_session", "Refract_Session=x", "xrefract_session=x"):
        answer = await fetch(port, "/api/me", f"Cookie: {cookie}")
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
        assert (await fetch(port, "/api/stats/abc", f"Cookie: {cookie}")).status == 200


# Pure


NAMES = st.one_of(st.text("abc_", min_size=1, max_size=4), st.just(SESSION_COOKIE), st.just(f"x{SESSION_COOKIE}"))


@given(st.lists(st.tuples(NAMES, st.text("abc=0 ", max_size=4)), max_size=4))
def test_only_the_session_is_taken_out_of_the_cookies(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name, value.strip()) for name, value in pairs]
    others = "; ".join(f"{name}={value}" for name, value in pairs if name != SESSION_COOKIE)
    with_session = "; ".join(f"{name}={value}" for name, value in [*pairs, (SESSION_COOKIE, "x")])
    assert without_session(with_session.encode()).decode().strip("; ") == others.strip("; ")


@pytest.mark.parametrize("host", [b"", b"test"])
def test_without_an_address_of_our_own_no_origin_is_ours(host: bytes) -> None:
    for origin in (b"", b"://", b"http://", b"null"):
        asked = Asked({b"origin": [origin]}, "http", host)
        assert not Origins().sent_by_us(asked)


@pytest.mark.parametrize(
    ("base_url", "origin"),
    [
        ("https://bücher.example", b"https://xn--bcher-kva.example"),
        ("https://Bücher.example:8443/links", b"https://xn--bcher-kva.example:8443"),
        ("https://faß.example", b"https://xn--fa-hia.example"),
        ("https://faß.example:443/links", b"https://xn--fa-hia.example"),
        ("http://[2001:db8::1]:80", b"http://[2001:db8::1]"),
        ("http://[2001:DB8::80]:8080/", b"http://[2001:db8::80]:8080"),
        ("HTTPS://GO.example:443/a?b", b"https://go.example"),
    ],
)
def test_our_public_address_is_known_as_a_browser_writes_it(base_url: str, origin: bytes) -> None:
    assert Origins(base_url).sent_by_us(Asked({b"origin": [origin]}, "http", b"inside:8080"))


def test_another_domain_is_not_ours_because_it_was_spelt_so_in_2003() -> None:
    asked = Asked({b"origin": [b"https://fass.example"]}, "http", b"inside:8080")
    assert not Origins("https://faß.example").sent_by_us(asked)
