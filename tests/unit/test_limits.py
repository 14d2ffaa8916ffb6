"""Limits of routes as values: which policy a row has, and the fields by which a client learns of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.windows import Policy, Verdict, limit_fields
from refract.services.gateway.api import BULK, REDIRECT, SHORTEN
from refract.services.gateway.domain.callers import NOBODY, Caller
from refract.services.gateway.domain.limits import WINDOW, Admission, RouteLimits

REDIRECTS = Policy("redirect", 300, WINDOW)


def joined(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def test_a_limit_of_zero_is_off() -> None:
    limits = RouteLimits({"redirect": 0, "shorten": 10}, str.upper)
    assert limits.policy(REDIRECT) is None
    assert limits.policy(SHORTEN) == Policy("shorten", 10, 60.0)
    assert limits.policy(BULK) is None
    assert limits.policy(None) is None
    assert limits.who_is("a") == "A"


def test_each_limit_counts_by_what_the_table_says() -> None:
    limits = RouteLimits({"shorten": 10, "bulk": 10, "api_key": 1000}, str.upper)
    somebody, program = Caller("u-1", "u@example.com"), Caller("u-1", "u@example.com", key_id="k-1")
    assert limits.who(SHORTEN, somebody, "a") == "A"
    assert limits.who(BULK, somebody, "a") == "u-1"
    assert limits.who(BULK, NOBODY, "a") == "A"
    for limit in (SHORTEN, BULK, None):
        assert limits.who(limit, program, "a") == "k-1"
        assert limits.policy(limit, program) == Policy("api_key", 1000, 3600.0)
    assert limits.policy(None, somebody) is None
    assert RouteLimits({"shorten": 10, "api_key": 0}, str.upper).policy(SHORTEN, program) is None


def test_an_admitted_request_is_told_what_is_left() -> None:
    assert limit_fields(REDIRECTS, Verdict(allowed=True, limit=300, remaining=7)) == [
        (b"x-ratelimit-limit", b"300"),
        (b"x-ratelimit-remaining", b"7"),
        (b"ratelimit-policy", b'"redirect";q=300;w=60'),
        (b"ratelimit", b'"redirect";r=7;t=60'),
    ]


@pytest.mark.parametrize(("wait", "seconds"), [(0.001, b"1"), (1.0, b"1"), (12.1, b"13"), (63.0, b"63")])
def test_a_refused_one_is_told_when_to_come_again(wait: float, seconds: bytes) -> None:
    verdict = Verdict(allowed=False, limit=300, remaining=0, retry_after=wait)
    assert limit_fields(REDIRECTS, verdict) == [
        (b"retry-after", seconds),
        (b"x-ratelimit-limit", b"300"),
        (b"x-ratelimit-remaining", b"0"),
        (b"ratelimit-policy", b'"redirect";q=300;w=60'),
        (b"ratelimit", b'"redirect";r=0;t=' + seconds),
    ]


@given(
    limit=st.integers(1, 10**9),
    rest=st.integers(0, 10**9),
    wait=st.one_of(st.none(), st.floats(0, 100)),
    route=st.sampled_from(["redirect", "shorten", "bulk"]),
)
def test_the_hot_path_says_the_same(limit: int, rest: int, wait: float | None, route: str) -> None:
    policy = Policy(route, limit, WINDOW)
    verdict = Verdict(allowed=wait is None, limit=limit, remaining=min(limit, rest), retry_after=wait or 0.0)
    asked: list[tuple[str, Policy, int]] = []

    def hit(who: str, policy: Policy, cost: int) -> Verdict:
        asked.append((who, policy, cost))
        return verdict

    admission, fields = Admission(policy, hit), joined(limit_fields(policy, verdict))
    assert admission("somebody") == (wait is None, fields)
    left = admission.all_of("somebody", 3)
    assert left == (verdict.remaining if wait is None else None)
    assert left is None or admission.fields(left) == fields
    assert asked == [("somebody", policy, 1), ("somebody", policy, 3)]


def test_a_counter_that_has_to_be_awaited_lets_through() -> None:
    admission = Admission(REDIRECTS, lambda _who, _policy, _cost: None)
    assert admission("somebody") == (True, b"")
    assert admission.all_of("somebody", 2) is None
