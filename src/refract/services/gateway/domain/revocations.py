"""Which tokens are dead before their time: a bounded memory, which forgets what no living token can be."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from refract.runtime.tokens import Claims

MAX_KNOWN = 100_000
"""About 50 MB when it is full."""

_MINUTE = 60
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Revocation:
    """One token by its id, or without one every token of a user below a generation; none of them outlives `until`."""

    user_id: str
    until: datetime
    token_id: str = ""
    generation: int = 0


class Revocations:
    """What was taken back. It only grows until its time is over, so that order and repetition do not matter.

    When there is no room, those whose time is over first give way, and in their place every token that ends by then
    counts as dead: somebody signs in again a little early, and nothing that was taken back comes to life.
    """

    def __init__(self, limit: int = MAX_KNOWN) -> None:
        self._limit = limit
        self._known: dict[tuple[str, str], Revocation] = {}
        self._ending: dict[int, set[tuple[str, str]]] = {}
        """Their keys, by the minute in which they are over."""
        self.all_dead_until = _NEVER
        """Tokens that end by then are dead, whosever they are."""

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    def apply(self, revocation: Revocation) -> bool:
        """Learn of one, for the first time or again: whether that is news."""
        key = revocation.user_id, revocation.token_id
        known = self._known.get(key)
        if known is not None:
            revocation = Revocation(
                revocation.user_id,
                max(known.until, revocation.until),
                revocation.token_id,
                max(known.generation, revocation.generation),
            )
            self._ending[_minute(known.until)].discard(key)
        self._known[key] = revocation
        self._ending.setdefault(_minute(revocation.until), set()).add(key)
        while len(self._known) > self._limit:
            self._give_way()
        return known is None or known.generation < revocation.generation

    def forget(self, now: datetime) -> None:
        """Let go of those whose time is over."""
        for minute in [minute for minute in self._ending if minute * _MINUTE <= now.timestamp()]:
            self._drop(minute)

    def is_revoked(self, claims: Claims) -> bool:
        """Whether a token, good by its signature and its times, was taken back."""
        if claims.expires_at <= self.all_dead_until:
            return True
        if claims.token_id and (claims.subject, claims.token_id) in self._known:
            return True
        of_user = self._known.get((claims.subject, ""))
        return of_user is not None and claims.generation < of_user.generation

    def _give_way(self) -> None:
        minute = min(self._ending)
        self._drop(minute)
        end = datetime.fromtimestamp(minute * _MINUTE, UTC)
        self.all_dead_until = max(self.all_dead_until, end)

    def _drop(self, minute: int) -> None:
        for key in self._ending.pop(minute):
            del self._known[key]


def _minute(until: datetime) -> int:
    """The minute by whose beginning it is over."""
    return math.ceil(until.timestamp() / _MINUTE)
