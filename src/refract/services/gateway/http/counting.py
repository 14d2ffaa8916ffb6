"""How often somebody came: the row's limit is counted, and whoever is over it is not counted again until it is time."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from refract.runtime.ports import RateLimiter
from refract.runtime.windows import Policy, Verdict, limit_fields
from refract.services.gateway.api import REDIRECT, REFUSED_KEY, Route
from refract.services.gateway.domain.callers import NOBODY, Caller
from refract.services.gateway.domain.headers import Header
from refract.services.gateway.domain.limits import Admission, RouteLimits
from refract.services.gateway.http.refusing import TooMany

MAX_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """Who counts, and what is allowed."""

    limiter: RateLimiter
    routes: RouteLimits

    def admission(self) -> Admission | None:
        """The redirect's limit for the hot path; None where it is off."""
        policy = self.routes.policy(REDIRECT)
        return None if policy is None else Admission(policy, self.limiter.hit_soon)


class Counting:
    """Counts requests against the limits of their rows.

    A counter that has to be asked over the network says of a refusal how long it stands: hits leave a window by time
    alone, and refused ones never enter it. So the answer is known here until then, and a flood costs no round trips.
    """

    def __init__(self, limits: Limits | None, now: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._now = now
        self._refused_until: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def count(self, route: Route, caller: Caller, address: str) -> list[Header]:
        """The fields that say how many more are allowed; raises TooMany."""
        limits, policy = self._limits, self.policy(route, caller)
        if limits is None or policy is None:
            return []
        who = limits.routes.who(route.limit, caller, address)
        verdict = limits.limiter.hit_soon(who, policy)
        if verdict is None:
            verdict = self._remembered(policy, who) or await self._ask(limits.limiter, policy, who)
        fields = limit_fields(policy, verdict)
        if not verdict.allowed:
            raise TooMany(fields)
        return fields

    def policy(self, route: Route, caller: Caller = NOBODY) -> Policy | None:
        """What a request is counted against; None where it is not counted."""
        return None if self._limits is None else self._limits.routes.policy(route.limit, caller)

    def refusal(self, route: Route, address: str) -> TooMany | None:
        """What somebody without a token will be told for sure; None where the request has to be counted first."""
        limits, policy = self._limits, self.policy(route)
        if limits is None or policy is None or not self._refused_until:
            return None
        verdict = self._remembered(policy, limits.routes.who(route.limit, NOBODY, address))
        return None if verdict is None else TooMany(limit_fields(policy, verdict))

    async def check_guesses(self, address: str) -> None:
        """Raise TooMany where so many unknown API keys came from an address that no other one is looked at."""
        limits, policy = self._limits, self._guessing
        if limits is None or policy is None:
            return
        limiter, who = limits.limiter, limits.routes.who_is(address)
        verdict = self._remembered(policy, who) or await limiter.hit(who, policy, 0)
        if verdict.allowed and verdict.remaining <= 0:
            # Only a hit that does not fit is told how long to wait. One that fits after all costs a single guess.
            verdict = limiter.hit_soon(who, policy) or await self._ask(limiter, policy, who)
        if not verdict.allowed:
            raise TooMany(limit_fields(policy, verdict))

    async def count_guess(self, address: str) -> None:
        """Count an API key that identity does not know."""
        if self._limits is not None and self._guessing is not None:
            await self._limits.limiter.hit(self._limits.routes.who_is(address), self._guessing)

    @property
    def _guessing(self) -> Policy | None:
        return None if self._limits is None else self._limits.routes.policy(REFUSED_KEY)

    async def _ask(self, limiter: RateLimiter, policy: Policy, who: str) -> Verdict:
        verdict = await limiter.hit(who, policy)
        if not verdict.allowed:
            if len(self._refused_until) >= MAX_REMEMBERED:
                self._refused_until.popitem(last=False)
            self._refused_until[policy.route, who] = self._now() + verdict.retry_after
        return verdict

    def _remembered(self, policy: Policy, who: str) -> Verdict | None:
        until = self._refused_until.get((policy.route, who))
        if until is None:
            return None
        wait = until - self._now()
        if wait <= 0:
            del self._refused_until[policy.route, who]
            return None
        return Verdict(allowed=False, limit=policy.limit, remaining=0, retry_after=wait)
