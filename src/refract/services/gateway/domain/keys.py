"""API keys that identity has vouched for: what each may do, for how long that is known, and how often it was used."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b

from msgspec import Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import Forbidden, Invalid, Kind, RefractError, Unauthenticated
from refract.services.gateway.domain.callers import KEY_BEGINNING, Caller

LONGEST_KNOWN = 60.0
"""Seconds: whatever identity says, a key is asked for again after a minute."""

REFUSED_SECONDS = 5.0
"""For so long a key that identity does not know is refused without asking: no key of ours becomes good later."""

LATELY = 600.0
"""Seconds: a key that was good in them is thought better of than one that nobody has heard of."""

MAX_KNOWN = 4096
MAX_REFUSED = 4096

Uses = dict[str, tuple[int, int]]
"""What identity has not been told of: the ids of keys and how often they were used, by their hashes."""

_KEY = re.compile(KEY_BEGINNING.decode() + r"[0-9A-Za-z]{40}\Z")


class KeyRefused(Unauthenticated):
    """Not a key, or one that is good for nothing any more: nobody learns which."""

    message = "invalid api key"


class NotForKeys(Forbidden):
    """This takes a person."""

    message = "api keys may not do this"


class ScopeLacking(Forbidden):
    """The key is good, and not for this."""

    message = "api key lacks scope"


class Unresolved(RefractError):
    """Identity does not answer, and so nobody can tell whether a key is good."""

    kind = Kind.UNAVAILABLE
    message = "service unavailable"


class TwoProofs(Invalid):
    """More than one key, or a key and something else: nobody can tell in whose name this is meant."""

    message = "more than one credential"


def key_hash(key: str) -> str:
    """By what a key is known, here and at identity; raises KeyRefused for a text that can be none."""
    if _KEY.match(key) is None:
        raise KeyRefused
    return blake2b(key.encode("ascii"), digest_size=32).hexdigest()


class KnownKey(Struct, frozen=True, gc=False):
    """A key of which identity has said whose it is, and what it is good for."""

    key_hash: str
    key_id: int
    scopes: frozenset[str]
    caller: Caller
    """Its owner, with the token that services get in its place."""


@dataclass(eq=False, slots=True)
class Inquiry:
    """A question to identity that is under way, and what was taken back meanwhile: its answer may be older."""

    key_hash: str
    overtaken: bool = False
    users: set[str] = field(default_factory=set)

    def is_overtaken(self, user_id: str) -> bool:
        """Whether an answer about a key of this user may be wrong by now."""
        return self.overtaken or user_id in self.users


class KnownKeys:
    """A bounded memory of keys by their hashes. Keys themselves are not in it."""

    def __init__(self, clock: Clock, limit: int = MAX_KNOWN) -> None:
        self._clock = clock
        self._limit = limit
        self._known: OrderedDict[str, tuple[KnownKey, float]] = OrderedDict()
        self._lately: OrderedDict[str, float] = OrderedDict()
        self._refused: OrderedDict[str, float] = OrderedDict()
        self._inquiries: set[Inquiry] = set()
        self._uses: Uses = {}

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._known)

    def find(self, hashed: str) -> KnownKey | None:
        """A key that is known; None where identity has to be asked. Raises KeyRefused where it said no lately."""
        now = self._clock.monotonic()
        known = self._known.get(hashed)
        if known is not None:
            if now < known[1]:
                return known[0]
            del self._known[hashed]
        refused_until = self._refused.get(hashed)
        if refused_until is not None and now < refused_until:
            raise KeyRefused
        return None

    def was_good_lately(self, hashed: str) -> bool:
        """Whether identity vouched for a key in the last minutes, also where it has to be asked again."""
        until = self._lately.get(hashed)
        return until is not None and self._clock.monotonic() < until

    def learn(self, key: KnownKey, until: datetime) -> None:
        """Remember a key until then; the one that was learned first gives way to it, if need be."""
        self._known.pop(key.key_hash, None)
        seconds = (until - self._clock.now()).total_seconds()
        if seconds > 0:
            if len(self._known) >= self._limit:
                self._known.popitem(last=False)
            now = self._clock.monotonic()
            self._known[key.key_hash] = key, now + min(seconds, LONGEST_KNOWN)
            self._lately.pop(key.key_hash, None)
            if len(self._lately) >= self._limit:
                self._lately.popitem(last=False)
            self._lately[key.key_hash] = now + LATELY

    def refuse(self, hashed: str) -> bool:
        """Identity knows no such key. Says whether that is news: we may remember that it was refused before."""
        self._known.pop(hashed, None)
        self._lately.pop(hashed, None)
        is_news = self._refused.pop(hashed, None) is None
        if len(self._refused) >= MAX_REFUSED:
            self._refused.popitem(last=False)
        self._refused[hashed] = self._clock.monotonic() + REFUSED_SECONDS
        return is_news

    # What was taken back

    def begin(self, hashed: str) -> Inquiry:
        """A question about a key is asked from now on; whoever asks says when it is answered."""
        inquiry = Inquiry(hashed)
        self._inquiries.add(inquiry)
        return inquiry

    def end(self, inquiry: Inquiry) -> None:
        """It is answered, or never will be."""
        self._inquiries.discard(inquiry)

    def forget(self, hashed: str) -> None:
        """A key was revoked."""
        self._known.pop(hashed, None)
        self._lately.pop(hashed, None)
        for inquiry in self._inquiries:
            inquiry.overtaken |= inquiry.key_hash == hashed

    def forget_user(self, user_id: str) -> None:
        """All tokens of a user were, perhaps with everything else that he has: identity knows."""
        for hashed in [hashed for hashed, (key, _) in self._known.items() if key.caller.user_id == user_id]:
            del self._known[hashed]
        for inquiry in self._inquiries:
            inquiry.users.add(user_id)

    def forget_all(self) -> None:
        """Something may have been taken back, and nobody knows what."""
        self._known.clear()
        for inquiry in self._inquiries:
            inquiry.overtaken = True

    # How often they were used

    def count_use(self, key: KnownKey) -> None:
        """One more request with a key."""
        self._uses[key.key_hash] = key.key_id, self._uses.get(key.key_hash, (0, 0))[1] + 1

    def take_uses(self, hashed: str = "") -> Uses:
        """Those of one key, or of all, for identity to hear of; what it does not take is given back."""
        if hashed:
            uses = self._uses.pop(hashed, None)
            return {} if uses is None else {hashed: uses}
        taken, self._uses = self._uses, {}
        return taken

    def give_back(self, uses: Uses) -> None:
        """Identity could not be told of them."""
        for hashed, (key_id, count) in uses.items():
            self._uses[hashed] = key_id, count + self._uses.get(hashed, (0, 0))[1]
