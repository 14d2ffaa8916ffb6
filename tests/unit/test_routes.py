"""The public route table: each row finds its service, nothing leads out of it, and its words are reserved."""

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.gateway.api import (
    BULK,
    OWN_PATHS,
    REDIRECT,
    ROUTES,
    SHORTEN,
    TARGETS,
    Limit,
    Match,
    Route,
    WrongMethod,
    reserved_words,
    resolve,
)

SPECIFIED = [
    # M5 §5.3 and §8
    ("POST", "/api/auth/register", "identity", "/register", "none", None),
    ("POST", "/api/auth/login", "identity", "/login", "none", None),
    ("GET", "/r/aB3xY9z", "links", "/aB3xY9z", "none", REDIRECT),
    ("POST", "/api/shorten", "links", "/shorten", "required", SHORTEN),
    ("GET", "/api/urls", "links", "/urls", "required", None),
    ("DELETE", "/api/urls/aB3xY9z", "links", "/urls/aB3xY9z", "required", None),
    ("GET", "/api/stats/aB3xY9z", "analytics", "/stats/aB3xY9z", "optional", None),
    ("GET", "/api/stats/aB3xY9z/timeline", "analytics", "/stats/aB3xY9z/timeline", "optional", None),
    ("GET", "/api/me", "identity", "/me", "required", None),
    ("GET", "/api/notifications", "notifications", "/notifications", "required", None),
    # What Refract adds to them
    ("GET", "/aB3xY9z", "links", "/aB3xY9z", "none", REDIRECT),
    ("HEAD", "/aB3xY9z", "links", "/aB3xY9z", "none", REDIRECT),
    ("POST", "/api/shorten/bulk", "links", "/shorten/bulk", "required", BULK),
    ("GET", "/api/urls/my-link/qr.svg", "links", "/urls/my-link/qr.svg", "required", None),
    ("PATCH", "/api/urls/my-link", "links", "/urls/my-link", "required", None),
    ("GET", "/api/stats/summary", "analytics", "/stats/summary", "required", None),
    ("GET", "/api/stats/abc/live", "analytics", "/stats/abc/live", "required", None),
    ("POST", "/api/auth/reset/confirm", "identity", "/reset/confirm", "none", None),
    ("GET", "/api/auth/oidc/callback", "identity", "/oidc/callback", "none", None),
    ("DELETE", "/api/auth/me", "identity", "/me", "required", None),
    ("DELETE", "/api/keys/7", "identity", "/keys/7", "required", None),
    ("PATCH", "/api/subscriptions/current", "identity", "/subscriptions/current", "required", None),
    ("POST", "/api/notifications/7/read", "notifications", "/notifications/7/read", "required", None),
    ("PUT", "/api/preferences", "notifications", "/preferences", "required", None),
    ("POST", "/api/projects/7/retry", "projects", "/projects/7/retry", "required", None),
    ("POST", "/api/sms/config", "sms", "/api/config", "administrator", None),
    ("POST", "/api/sms/send", "sms", "/api/send", "administrator", None),
    ("GET", "/api/sms/audit", "sms", "/api/audit", "administrator", None),
    ("GET", "/api/sms/audit/summary", "sms", "/api/audit/summary", "administrator", None),
]


@pytest.mark.parametrize(("method", "path", "target", "forwarded", "token", "limit"), SPECIFIED)
def test_a_row_names_its_service_and_the_path_there(
    method: str, path: str, target: str, forwarded: str, token: str, limit: Limit | None
) -> None:
    match = resolve(method, path)
    assert isinstance(match, Match)
    route = match.route
    assert (route.target, match.path, route.token, route.limit) == (target, forwarded, token, limit)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_row_is_found_by_each_of_its_methods(route: Route) -> None:
    path = re.sub(r"\{\w+\}", "aB3xY9z", route.path)
    for method in route.methods:
        match = resolve(method, path)
        assert isinstance(match, Match)
        assert match.route is route


def test_head_is_served_wherever_get_is() -> None:
    assert all(("HEAD" in route.methods) == ("GET" in route.methods) for route in ROUTES)


def test_every_row_is_behind_a_service_that_exists() -> None:
    assert set(TARGETS) == {"links", "analytics", "identity", "notifications", "projects", "sms"}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/shorten", {"POST"}),
        ("POST", "/abc", {"GET", "HEAD"}),
        ("PUT", "/api/urls/abc", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("DELETE", "/api/stats/summary", {"GET", "HEAD"}),
        ("OPTIONS", "/api/keys", {"GET", "HEAD", "POST"}),
        ("get", "/api/me", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allow: set[str]) -> None:
    found = resolve(method, path)
    assert isinstance(found, WrongMethod)
    assert set(found.allow) == allow


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "*",
            "/",
            "//",
            "abc",
            "api/me",
            "/api",
            "/api/",
            "/api/me/",
            "/api//me",
            "/r",
            "/r/",
            "/r//abc",
            "/abc/def",
        ),
        *(
            "/api/unknown",
            "/api/auth",
            "/api/auth/",
            "/api/auth/you",
            "/api/sms",
            "/api/stats",
            "/API/me",
            "/api/stats//timeline",
        ),
        # out of the template
        *("/..", "/.", "/r/..", "/r/.", "/r/%2e%2e", "/r/%2E", "/r/.%2e", "/r/a%2Fb", "/r/a%2fb", "/r/..%2Fmetrics"),
        *("/r/a%5Cb", "/r/a\\b", "/r/%252e%252e", "/r/a%252Fb", "/api/urls/../me", "/api/urls/%2e%2e/qr.svg"),
        *("/r/a%00", "/r/a%0d%0aHost:b", "/r/a\r\nb", "/r/%7F", "/r/%C2%85", "/r/a b", "/r/a?b", "/r/a#b", "/r/\u00e9"),
        *(
            "/r/%",
            "/r/%2",
            "/r/%zz",
            "/r/%ff",
            "/r/%C0%AF",
            "/r/%ED%A0%80",
            "/r/{code}",
            "/r/%EF%BB%BFa",
            "/r/%E2%80%AEa",
        ),
        # onto a route of the service that the table does not open, or opens only with a token
        *("/urls", "/shorten", "/metrics", "/ready", "/stats", "/me", "/r/urls", "/r/metrics", "/r/health", "/r/docs"),
        *(
            "/%75rls",
            "/r/%6Detrics",
            "/r/%68ealth",
            "/api/stats/%73ummary",
            "/api/urls/metrics",
            "/api/%6de",
            "/%61pi/me",
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_is_not_in_the_table_is_not_found(method: str, path: str) -> None:
    assert resolve(method, path) is None


@pytest.mark.parametrize(
    "code", ["a.b", "my-link", "a%2Db", "%C3%A9t%C3%A9", "a:b@c", "..a", "...", "a" * 4000, "Urls"]
)
def test_a_code_is_forwarded_as_sent(code: str) -> None:
    match = resolve("GET", f"/r/{code}")
    assert isinstance(match, Match)
    assert match.path == f"/{code}"


@given(st.text(min_size=1), st.sampled_from(["/{}", "/r/{}", "/api/urls/{}", "/api/stats/{}/timeline", "/api/keys/{}"]))
def test_no_value_changes_the_shape_of_the_path(value: str, template: str) -> None:
    for segment in (value, quote(value, safe="", errors="replace"), quote(value, errors="replace")):
        match = resolve("DELETE" if "keys" in template else "GET", template.format(segment))
        if not isinstance(match, Match):
            continue
        decoded = unquote(match.path).split("/")[1:]
        shape = match.route.forward.split("/")[1:]
        assert len(decoded) == len(shape)
        for part, expected in zip(decoded, shape, strict=True):
            assert part == expected or expected.startswith("{")
            assert part not in {"", ".", ".."}
            assert "\\" not in part
            assert part.isprintable()
            assert part == expected or part not in reserved_words()


@given(st.from_regex(r"[A-Za-z0-9-]{3,50}", fullmatch=True).filter(lambda code: code not in reserved_words()))
def test_every_code_that_may_exist_is_served_at_both_of_its_addresses(code: str) -> None:
    for path in (f"/{code}", f"/r/{code}"):
        match = resolve("GET", path)
        assert isinstance(match, Match)
        assert (match.route.target, match.path) == ("links", f"/{code}")


def test_reserved_words_are_those_that_stand_where_a_code_could() -> None:
    words = reserved_words()
    named_by_decision_4 = {"urls", "shorten", "metrics", "ready", "summary", "docs"}
    assert named_by_decision_4 | {"r", "api", "health", "stats", "me", "login", "register", "keys", "projects"} <= words
    # These come after a code, or where an id stands, and are free.
    assert words.isdisjoint({"timeline", "live", "qr.svg", "current", "bulk", "confirm", "{code}", "{id}", ""})
    assert {path.removeprefix("/") for path in OWN_PATHS} <= words


def test_reserved_words_take_a_service_s_own_routes_along() -> None:
    assert reserved_words(["/internal/resolve", "/urls/export", "/urls/{code}/history"]) - reserved_words() == {
        "internal",
        "export",
    }
