"""Opens what talks to Redis for a test, and closes it after."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio

from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.redis_connection import RedisConnection

PATIENT = 10.0
"""A deadline for tests of what is counted, not of how soon: a busy machine does not make Redis away."""


@asynccontextmanager
async def connected(
    address: str, *, password: str | None = None, database: int = 0, deadline: float = PATIENT
) -> AsyncIterator[RedisConnection]:
    """A started connection."""
    connection = RedisConnection(address, password=password, database=database, deadline=deadline)
    await connection.start()
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def shared_cache(connection: RedisConnection, channel: str) -> AsyncIterator[DistributedCache]:
    """A cache that listens to its channel."""
    cache = DistributedCache(connection, channel=channel)
    await cache.start()
    try:
        yield cache
    finally:
        await cache.close()


@asynccontextmanager
async def administering(address: str, database: int = 0) -> AsyncIterator["redis.asyncio.Redis"]:
    """A client of redis-py's own, to look at keys and to make trouble."""
    host, _, port = address.rpartition(":")
    client = redis.asyncio.Redis(host=host, port=int(port), db=database)
    try:
        yield client
    finally:
        await client.aclose()
