"""Failed sign-ins, counted by account and by address: over the limit no password is looked at (decision 14)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from refract.kernel.errors import Limited
from refract.runtime.client_address import address_hash, client_of
from refract.runtime.ports import RateLimiter
from refract.runtime.windows import Policy

WINDOW = 15 * 60.0

# While Redis is away each process goes on counting by itself: whoever stops Redis must not be let in for it.
BY_ACCOUNT = Policy("login-account", 10, WINDOW, when_away="local")
BY_ADDRESS = Policy("login-address", 50, WINDOW, when_away="local")

MOST_WAITING = 200
"""Attempts that wait for others of the same account or address; more are refused, to be tried again soon."""

SOON = 1.0


class Attempt:
    """One try to sign in. It counts against nobody unless it is said to have failed."""

    def __init__(self) -> None:
        self.has_failed = False

    def failed(self) -> None:
        """The password was wrong, or there is no such account."""
        self.has_failed = True


@dataclass(slots=True)
class _Gate:
    """Those of one account or address whose password is being looked at, and those who wait for them."""

    in_flight: int = 0
    waiting: int = 0
    finished: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self) -> None:
        """Give a place back, and let all who wait look again."""
        self.in_flight -= 1
        self.finished += 1
        self.changed.set()
        self.changed = asyncio.Event()


class Throttle:
    """Lets so many attempts at a time be looked at as there may still be failures.

    An attempt in flight holds a place until its outcome is known, so that a burst cannot try more passwords than one
    after the other could. Those that find no place wait: whoever knows the password is let in, however many come at
    once. Places are held in this process: of several processes each may begin up to the limit before the first
    failure of another is counted, and what is counted is shared.
    """

    def __init__(self, limiter: RateLimiter, salt: str) -> None:
        self._limiter = limiter
        self._salt = salt
        self._gates: dict[str, _Gate] = {}

    @asynccontextmanager
    async def attempt(self, account: str, address: str) -> AsyncIterator[Attempt]:
        """Wait for a turn; raises Limited where there were too many failures. An error of ours is no failure.

        The address comes first: whoever is refused there leaves no trace at accounts that they merely name, of which
        they could name so many that a counter in memory would forget the oldest.
        """
        attempt = Attempt()
        async with AsyncExitStack() as stack:
            client = address_hash(client_of(address), self._salt)
            await stack.enter_async_context(self._place(BY_ADDRESS, client, attempt))
            await stack.enter_async_context(self._place(BY_ACCOUNT, address_hash(account, self._salt), attempt))
            yield attempt

    @asynccontextmanager
    async def _place(self, policy: Policy, who: str, attempt: Attempt) -> AsyncIterator[None]:
        key = policy.key(who)
        gate = self._gates.setdefault(key, _Gate())
        try:
            await self._enter(gate, policy, who)
            try:
                yield
            finally:
                try:
                    if attempt.has_failed:
                        await self._limiter.hit(who, policy)
                finally:
                    gate.leave()  # after it was counted: until then it still holds its place
        finally:
            if not gate.in_flight and not gate.waiting and self._gates.get(key) is gate:
                del self._gates[key]

    async def _enter(self, gate: _Gate, policy: Policy, who: str) -> None:
        if gate.waiting >= MOST_WAITING:
            raise Limited(SOON)
        gate.waiting += 1
        try:
            while True:
                finished, changed = gate.finished, gate.changed
                left = await self._left(policy, who)
                if finished != gate.finished:
                    continue  # the answer may be of before that one was counted
                if left > gate.in_flight:
                    gate.in_flight += 1
                    return
                await changed.wait()
        finally:
            gate.waiting -= 1

    async def _left(self, policy: Policy, who: str) -> int:
        """How many more failures fit; raises Limited when it is none."""
        verdict = await self._limiter.hit(who, policy, 0)
        if verdict.remaining > 0:
            return verdict.remaining
        # Only a hit that does not fit is told how long to wait. One that fits after all, because the oldest failure
        # has just left the window, is counted; that costs a single attempt.
        verdict = await self._limiter.hit(who, policy)
        if verdict.allowed:
            return verdict.remaining + 1
        raise Limited(verdict.retry_after)
