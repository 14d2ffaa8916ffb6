"""Opens what talks to Redis for a test, and closes it after."""

import asyncio
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


@asynccontextmanager
async def slow_line(address: str, delay: float) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A line to Redis on which every answer takes a while: its address, and who has called so far."""
    host, _, port = address.rpartition(":")
    callers: list[asyncio.StreamWriter] = []

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float) -> None:
        while chunk := await source.read(65_536):
            await asyncio.sleep(delay)
            target.write(chunk)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection(host, int(port))
        callers.append(writer)
        try:
            await asyncio.gather(carry(reader, redis_writer, 0), carry(redis_reader, writer, delay))
        except OSError:
            pass
        finally:
            redis_writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname()), callers
    finally:
        server.close()
        for caller in callers:
            caller.transport.abort()
        await server.wait_closed()
