"""Rate limits of routes: their policies, and the header fields that tell a client about them."""

from collections.abc import Callable, Mapping

from refract.runtime.windows import Policy, Verdict, limit_fields
from refract.services.gateway.api import API_KEY, NEW_KEY, REFUSED_KEY, Limit
from refract.services.gateway.domain.callers import NOBODY, Caller

Header = tuple[bytes, bytes]

WINDOW = 60.0
"""Seconds: limits are per minute, unless another window is given here."""

WINDOWS = {API_KEY.name: 3600.0, NEW_KEY.name: 3600.0, REFUSED_KEY.name: 15 * 60.0}

FIXED = {NEW_KEY.name: 60, REFUSED_KEY.name: 50}
"""Limits that nobody has to set; the second is that of failed sign-ins by address (decision 14)."""

_COUNTED_ALWAYS = frozenset({REFUSED_KEY.name})
"""As with sign-ins: whoever stops Redis must not be free to guess for it."""


class RouteLimits:
    """The policies of the limits that the route table names; those that are off are absent.

    `who_is` gives the salted hash of an address, by which it is counted (decision 11).
    """

    def __init__(self, limits: Mapping[str, int], who_is: Callable[[str], str]) -> None:
        self._policies = {
            name: Policy(
                name, limit, WINDOWS.get(name, WINDOW), when_away="local" if name in _COUNTED_ALWAYS else "open"
            )
            for name, limit in {**FIXED, **limits}.items()
            if limit > 0
        }
        self.who_is = who_is

    def policy(self, limit: Limit | None, caller: Caller = NOBODY) -> Policy | None:
        """The policy for a row's limit and its caller, or None where nothing is limited."""
        if caller.key_id:
            limit = API_KEY
        return None if limit is None else self._policies.get(limit.name)

    def who(self, limit: Limit | None, caller: Caller, address: str) -> str:
        """By what a request is counted; somebody who is not known is counted by the address on any row."""
        if caller.key_id:
            return caller.key_id
        by_user = limit is not None and limit.by == "user" and caller.user_id
        return caller.user_id if by_user else self.who_is(address)


class Admission:
    """The redirect's limit for the hot path, where nothing may be awaited and every field counts."""

    def __init__(self, policy: Policy, hit: Callable[[str, Policy, int], Verdict | None]) -> None:
        self._policy = policy
        self._hit = hit
        # Only the number of hits that are left differs from one answer to the next.
        pattern = limit_fields(policy, Verdict(allowed=True, limit=policy.limit, remaining=policy.limit))
        left = b"%d" % policy.limit
        self._pattern = b"".join(b"%b: %b\r\n" % (name, _with_gap(name, value, left)) for name, value in pattern)

    def __call__(self, who: str) -> tuple[bool, bytes]:
        """Whether a request is admitted, and its fields."""
        verdict = self._hit(who, self._policy, 1)
        if verdict is None:
            return True, b""
        if verdict.allowed:
            return True, self.fields(verdict.remaining)
        return False, b"".join(b"%b: %b\r\n" % field for field in limit_fields(self._policy, verdict))

    def all_of(self, who: str, count: int) -> int | None:
        """Count so many at once if all of them are admitted: how many more would be after them. None counts none."""
        verdict = self._hit(who, self._policy, count)
        return verdict.remaining if verdict is not None and verdict.allowed else None

    def fields(self, remaining: int) -> bytes:
        """What is said to somebody who is admitted and has so many left."""
        return self._pattern % (remaining, remaining)


def _with_gap(name: bytes, value: bytes, left: bytes) -> bytes:
    if name == b"x-ratelimit-remaining":
        return b"%d"
    return value.replace(b";r=" + left, b";r=%d") if name == b"ratelimit" else value
