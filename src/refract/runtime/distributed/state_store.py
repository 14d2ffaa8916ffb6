"""The state store in Redis: hashes, and transitions as scripts."""

import math
from collections.abc import Mapping
from functools import lru_cache

from refract.runtime.distributed.redis_connection import Part, RedisConnection, Script
from refract.runtime.transitions import Transition

# ARGV: milliseconds to live, then fields and values in turn.
_WRITE = Script("""
for index = 2, #ARGV, 2 do
    redis.call('HSET', KEYS[1], ARGV[index], ARGV[index + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
""")


class DistributedStateStore:
    """Hashes in a Redis database of their own, where nothing is evicted; every call may raise Unavailable."""

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis

    async def read(self, key: str) -> dict[str, str]:
        """All fields, or nothing when the key is absent or over."""
        flat = [text.decode() for text in await self._redis.command("HGETALL", key)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def write(self, key: str, fields: Mapping[str, str | int], ttl: float) -> None:
        """Set fields, keeping the others, and let the whole hash live `ttl` seconds from now."""
        arguments: list[Part] = [math.ceil(ttl * 1000)]
        for field, value in fields.items():
            arguments += (field, value)
        await self._redis.run(_WRITE, [key], arguments)

    async def apply(self, transition: Transition, key: str, *arguments: str | int) -> str:
        """Run a transition alone with the hash; returns its word for what happened."""
        word: bytes = await self._redis.run(_script(transition.lua), [key], arguments)
        return word.decode()

    async def delete(self, key: str) -> None:
        """Forget a hash."""
        await self._redis.command("UNLINK", key)

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""
        await self._redis.ping()

    async def close(self) -> None:
        """Nothing to give back: the connection belongs to whoever made it."""


@lru_cache
def _script(lua: str) -> Script:
    return Script(lua)
