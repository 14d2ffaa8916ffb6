"""Limits of routes as values: which policy a row has, and the fields by which a client learns of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.windows import Policy, Verdict
from refract.services.gateway.domain.limits import WINDOW, Admission, RouteLimits, limit_fields

REDIRECT = Policy("redirect", 300, WINDOW)


def joined(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def test_a_limit_of_zero_is_off() -> None:
    limits = RouteLimits({"redirect": 0, "shorten": 10}, str.upper)
    assert limits.policy("redirect") is None
    assert limits.policy("shorten") == Policy("shorten", 10, 60.0)
    assert limits.policy("bulk") is None
    assert limits.policy(None) is None
    assert limits.who_is("a") == "A"


def test_an_admitted_request_is_told_what_is_left() -> None:
    assert limit_fields(REDIRECT, Verdict(allowed=True, limit=300, remaining=7)) == [
        (b"x-ratelimit-limit", b"300"),
        (b"x-ratelimit-remaining", b"7"),
        (b"ratelimit-policy", b'"redirect";q=300;w=60'),
        (b"ratelimit", b'"redirect";r=7;t=60'),
    ]


@pytest.mark.parametrize(("wait", "seconds"), [(0.001, b"1"), (1.0, b"1"), (12.1, b"13"), (63.0, b"63")])
def test_a_refused_one_is_told_when_to_come_again(wait: float, seconds: bytes) -> None:
    verdict = Verdict(allowed=False, limit=300, remaining=0, retry_after=wait)
    assert limit_fields(REDIRECT, verdict) == [
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
    asked: list[tuple[str, Policy]] = []

    def hit(who: str, policy: Policy) -> Verdict:
        asked.append((who, policy))
        return verdict

    assert Admission(policy, hit)("somebody") == (wait is None, joined(limit_fields(policy, verdict)))
    assert asked == [("somebody", policy)]


def test_a_counter_that_has_to_be_awaited_lets_through() -> None:
    assert Admission(REDIRECT, lambda _who, _policy: None)("somebody") == (True, b"")
