"""L1: what this process remembers of links. A hit is one look into a dictionary; no slow fill undoes a drop."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

from refract.runtime.ports import Cache
from refract.services.links.redirect.records import KEY_PREFIX

FRESH_SECONDS = 60.0
"""How long an entry is used without asking anybody while a drop could be missed, and one of a link that expires."""

VOUCHED_SECONDS = 600.0
"""The same while drops are heard: L2 has nothing to say that we have not been told. It has an end because a drop that
no Redis ever took is told by nobody: a copy in L2 lives for an hour at most, and this comes on top."""

RENEWAL = (0.4, 0.75)
"""Parts of the time for which an entry is fresh: one that is used when it is so old is asked for anew, while it is
still used, so that nobody has to wait. The moment is another one for each: those that were made together do not all ask
together."""

STALE_SECONDS = 3600.0
"""How long an entry may be used while the database, which would know better, is away."""

ABSENT_SECONDS = 5.0
ABSENT_CODES = 10_000
DROPS_REMEMBERED = 10_000

DOUBTS_AT_ONCE = 500
"""Of a hundred thousand entries, how many are looked at in one turn of the event loop: a millisecond's worth."""

STEPS_A_SECOND = 4
STEPS_REMEMBERED = 8_192
"""Moments are rounded down to steps, so that entries share them: every hit looks at one, and if each entry had its own
they would lie all over the memory. Entries that are fresh for an hour have some 5,000 different ones."""

EVICTIONS = 256
"""A full dictionary gives up this part of itself at once: its first key is slow to find after many deletions."""


class Remembered(Protocol):
    """What an entry says of its own life, in the seconds of the memory's clock, and of its size."""

    @property
    def size(self) -> int:
        """How many bytes of its own it has; of an entry that is remembered it is never another."""

    @property
    def renew_at(self) -> float:
        """From then on whoever uses it asks for it again."""

    @property
    def fresh_until(self) -> float:
        """Until then it is used without asking anybody."""

    @property
    def stale_until(self) -> float:
        """Until then it may be used when nobody can be asked."""

    def renewed(self, lifetimes: tuple[float, float, float]) -> Self:
        """The same, of the same size, with these three moments."""


T = TypeVar("T", bound=Remembered)
V = TypeVar("V")


class Memory(Generic[T]):
    """At most `capacity` entries by code, `capacity_bytes` together, and apart from them the codes that do not exist.

    An entry that is used is put in again whenever its freshness is over, and with that moves to the end; what has not
    been asked for the longest stands at the front and goes first. No hit has to move anything.

    Whoever fills takes the `ticket` before it asks anybody, and hands it in with the answer: if the code was dropped
    meanwhile, the answer may be older than the drop, and is not kept.
    """

    def __init__(
        self, capacity: int, now: Callable[[], float], *, capacity_bytes: int, absent_capacity: int = ABSENT_CODES
    ) -> None:
        self.entries: dict[bytes, T] = {}
        """For the hot path to look into, and for nobody else to change; it stays the same object."""
        self.ticket = 0
        """Rises with every drop."""
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._absent_capacity = absent_capacity
        self._now = now
        self._cache: Cache | None = None
        self._doubting: asyncio.Handle | None = None
        self._absent: dict[bytes, float] = {}
        self._dropped: dict[bytes, int] = {}
        self._oldest_ticket = 0

    def listen(self, cache: Cache) -> None:
        """Drop from now on what any process drops, and trust in what is known for as long as that is heard."""
        self._cache = cache
        cache.on_invalidation(self.hear, self.empty, self.doubt)

    def lifetimes(self, seconds_left: float | None) -> tuple[float, float, float]:
        """When an entry that is made now, of a link that has so long to live, is to be renewed, and until when it is
        fresh and stale."""
        now = self._now()
        # The answer for one that expires says how long it may be kept, and must not be used for long.
        fresh, left = (self._fresh(), math.inf) if seconds_left is None else (FRESH_SECONDS, seconds_left)
        return (
            _moment(now + min(_renewal(fresh), left)),
            _moment(now + min(fresh, left)),
            _moment(now + min(STALE_SECONDS, left)),
        )

    def _fresh(self) -> float:
        if self._cache is None or not self._cache.hears:
            return FRESH_SECONDS
        return STALE_SECONDS if self._cache.misses_nothing else VOUCHED_SECONDS

    def keep(self, code: bytes, entry: T, ticket: int) -> bool:
        """Remember an entry; False if what is known may be newer than it."""
        if self._outdated(code, ticket):
            return False
        self._absent.pop(code, None)
        self.forget(code)
        self.entries[code] = entry
        self._bytes += entry.size
        while len(self.entries) > self._capacity or (self._bytes > self._capacity_bytes and self.entries):
            self._bytes -= sum(gone.size for gone in _evict(self.entries))
        return True

    def keep_absent(self, code: bytes, ticket: int) -> bool:
        """Remember for a short time that there is no such code; False if there may be one since."""
        if self._outdated(code, ticket):
            return False
        self.forget(code)
        self._absent.pop(code, None)
        self._absent[code] = self._now() + ABSENT_SECONDS
        if len(self._absent) > self._absent_capacity:
            _evict(self._absent)
        return True

    def is_absent(self, code: bytes) -> bool:
        """Whether the code was found not to exist a moment ago."""
        until = self._absent.get(code)
        return until is not None and self._now() < until

    def stale(self, code: bytes) -> T | None:
        """The entry, fresh or not, for when nobody can be asked; it has neither been dropped nor expired."""
        entry = self.entries.get(code)
        return entry if entry is not None and self._now() < entry.stale_until else None

    def forget(self, code: bytes) -> None:
        """Remove an entry that a look-up has found out of date, so that it is not used as a stale one either."""
        entry = self.entries.pop(code, None)
        if entry is not None:
            self._bytes -= entry.size

    def drop(self, code: bytes) -> None:
        """Forget a code, and refuse what was asked about it before now."""
        self.ticket += 1
        self.forget(code)
        self._absent.pop(code, None)
        self._dropped.pop(code, None)
        self._dropped[code] = self.ticket
        if len(self._dropped) > DROPS_REMEMBERED:
            # Of those that are forgotten nothing is known any more, so that whatever was asked before them is refused.
            self._oldest_ticket = max(self._oldest_ticket, *_evict(self._dropped))

    def hear(self, keys: Sequence[str]) -> None:
        """Drop the codes of these cache keys; others are not ours."""
        for key in keys:
            if key.startswith(KEY_PREFIX):
                self.drop(key[len(KEY_PREFIX) :].encode())

    def doubt(self) -> None:
        """Drops are no longer heard: what is known now is fresh for a minute more, and renewed before that if it is in
        use. It stays for as long as before for when the database is away, too."""
        self._doubt_some(iter(list(self.entries)), self._now())

    def _doubt_some(self, codes: Iterator[bytes], since: float) -> None:
        """A few at once: others have their turn, and there is time until the first is to be renewed."""
        some, until = list(islice(codes, DOUBTS_AT_ONCE)), _moment(since + FRESH_SECONDS)
        for code in some:
            entry = self.entries.get(code)
            if entry is not None and entry.fresh_until > until:
                renew_at = min(entry.renew_at, _moment(since + _renewal(FRESH_SECONDS)))
                # In its old place: nobody has asked for it. Its size is the same.
                self.entries[code] = entry.renewed((renew_at, until, entry.stale_until))
        self._doubting = None
        if some:
            self._doubting = asyncio.get_running_loop().call_soon(self._doubt_some, codes, since)

    def empty(self) -> None:
        """Forget everything, and refuse all that was asked before now: some drops may not have been heard."""
        if self._doubting is not None:
            self._doubting.cancel()
            self._doubting = None
        self.ticket += 1
        self._oldest_ticket = self.ticket
        self.entries.clear()
        self._bytes = 0
        self._absent.clear()
        self._dropped.clear()

    def _outdated(self, code: bytes, ticket: int) -> bool:
        return ticket < self._oldest_ticket or self._dropped.get(code, 0) > ticket


def _renewal(fresh: float) -> float:
    """After how many seconds an entry that is fresh for so long is to be renewed."""
    earliest, latest = RENEWAL
    return fresh * (earliest + (latest - earliest) * random.random())  # noqa: S311  # no secret


def _moment(seconds: float) -> float:
    return _step(math.floor(seconds * STEPS_A_SECOND))


@lru_cache(maxsize=STEPS_REMEMBERED)
def _step(number: int) -> float:
    return number / STEPS_A_SECOND


def _evict(kept: dict[bytes, V]) -> list[V]:
    """Remove the first of a dictionary; returns what they were."""
    return [kept.pop(code) for code in list(islice(kept, max(1, len(kept) // EVICTIONS)))]
