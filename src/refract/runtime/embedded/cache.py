"""The cache in this process: a bounded dictionary, the least recently used entry goes first."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from refract.kernel.clock import Clock, SystemClock
from refract.runtime.caching import TOMBSTONE_SECONDS, CacheEntry


class _Kept(NamedTuple):
    order: int
    until: float
    value: bytes


class EmbeddedCache:
    """Keeps up to `capacity` entries, and the tombstones of as many drops; with none, it only spreads the word.

    Whoever makes one that `misses_nothing` calls `tell_gap` when another process has written to the database.
    """

    hears = True

    def __init__(self, clock: Clock | None = None, capacity: int = 100_000, *, misses_nothing: bool = False) -> None:
        self._clock = clock or SystemClock()
        self._capacity = capacity
        self.keeps = capacity > 0
        self.misses_nothing = misses_nothing
        self._entries: OrderedDict[str, _Kept] = OrderedDict()
        self._tombstones: OrderedDict[str, _Kept] = OrderedDict()
        self._listeners: list[tuple[Callable[[Sequence[str]], None], Callable[[], None]]] = []

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys; None where there is none."""
        now = self._clock.monotonic()
        found = (self._living(self._entries, key, now) for key in keys)
        return [None if kept is None else kept.value for kept in found]

    async def set_many(self, entries: Sequence[CacheEntry]) -> None:
        """Keep copies, each unless a newer one, or the tombstone of a newer one, is there."""
        now = self._clock.monotonic()
        for entry in entries:
            present = self._living(self._entries, entry.key, now)
            buried = self._living(self._tombstones, entry.key, now)
            if entry.ttl <= 0 or (present and present.order > entry.order) or (buried and buried.order >= entry.order):
                continue
            self._keep(self._entries, entry.key, _Kept(entry.order, now + entry.ttl, entry.value))

    async def drop(self, orders: Mapping[str, int]) -> None:
        """Forget keys up to an order number, leave a short tombstone, and tell every listener."""
        if not orders:
            return
        now = self._clock.monotonic()
        for key, order in orders.items():
            present = self._living(self._entries, key, now)
            if present and present.order <= order:
                del self._entries[key]
            buried = self._living(self._tombstones, key, now)
            highest = max(order, buried.order) if buried else order
            self._keep(self._tombstones, key, _Kept(highest, now + TOMBSTONE_SECONDS, b""))
        for dropped, _ in self._listeners:
            dropped(list(orders))

    def on_invalidation(
        self,
        dropped: Callable[[Sequence[str]], None],
        gap: Callable[[], None],
        deaf: Callable[[], None] | None = None,  # noqa: ARG002  # it never is
    ) -> None:
        """Call `dropped` with the keys that are dropped; inside one process none is ever missed."""
        self._listeners.append((dropped, gap))

    def tell_gap(self) -> None:
        """Something may have changed without a drop: forget everything, and tell every listener."""
        self._entries.clear()
        for _, gap in self._listeners:
            gap()

    async def ping(self) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._tombstones.clear()

    def _living(self, kept: OrderedDict[str, _Kept], key: str, now: float) -> _Kept | None:
        found = kept.get(key)
        if found is None:
            return None
        if found.until <= now:
            del kept[key]
            return None
        kept.move_to_end(key)
        return found

    def _keep(self, kept: OrderedDict[str, _Kept], key: str, what: _Kept) -> None:
        kept[key] = what
        kept.move_to_end(key)
        if len(kept) > self._capacity:
            kept.popitem(last=False)
