"""A cache whose keys are one test's alone, though the server behind it is everybody's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from refract.runtime.caching import CacheEntry
from refract.runtime.ports import Cache


class OwnKeys:
    """The cache inside, under names with a beginning of our own: tests with links of the same codes run at once."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    @property
    def keeps(self) -> bool:
        """As the cache inside."""
        return self._cache.keeps

    @property
    def misses_nothing(self) -> bool:
        """As the cache inside."""
        return self._cache.misses_nothing

    @property
    def hears(self) -> bool:
        """As the cache inside."""
        return self._cache.hears

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read under names of our own."""
        return await self._cache.get_many([self._namespace + key for key in keys])

    async def set_many(self, entries: Sequence[CacheEntry]) -> None:
        """Keep under names of our own."""
        await self._cache.set_many([replace(entry, key=self._namespace + entry.key) for entry in entries])

    async def drop(self, orders: Mapping[str, int]) -> None:
        """Forget under names of our own."""
        await self._cache.drop({self._namespace + key: order for key, order in orders.items()})

    def on_invalidation(
        self,
        dropped: Callable[[Sequence[str]], None],
        gap: Callable[[], None],
        deaf: Callable[[], None] | None = None,
    ) -> None:
        """Hear of keys by the names that the test knows."""
        self._cache.on_invalidation(
            lambda keys: dropped([key.removeprefix(self._namespace) for key in keys]), gap, deaf
        )

    async def ping(self) -> None:
        """As the cache inside."""
        await self._cache.ping()

    async def close(self) -> None:
        """As the cache inside."""
        await self._cache.close()
