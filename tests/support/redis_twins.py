"""Opens what talks to Redis for a test, and closes it after."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import redis.asyncio

from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.redis_connection import RedisConnection
from tests.support.waiting import eventually, listens

PATIENT = 10.0
"""A deadline for tests of what is counted, not of how soon: a busy machine does not make Redis away."""


@asynccontextmanager
async def connected(
    address: str, *, password: str | None = None, database: int = 0, deadline: float = PATIENT
) -> AsyncIterator[RedisConnection]:
    """A started connection. A Redis that was late to let us in is waited for, and one that is away is not."""
    connection = RedisConnection(address, password=password, database=database, deadline=deadline)
    await connection.start()
    if deadline >= PATIENT and await listens(address):
        await eventually(lambda: connection.away is None)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def impatient(connection: RedisConnection, deadline: float = 0.2) -> Iterator[None]:
    """Little patience for the time of a block, in which Redis says nothing by construction."""
    patient, connection._deadline = connection._deadline, deadline
    try:
        yield
    finally:
        connection._deadline = patient


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
    serving: set[asyncio.Task[None]] = set()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float) -> None:
        while chunk := await source.read(65_536):
            await asyncio.sleep(delay)
            target.write(chunk)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        callers.append(writer)
        redis_reader, redis_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(carry(reader, redis_writer, 0), carry(redis_reader, writer, delay))
        except (OSError, asyncio.CancelledError):  # a server complains of those that end otherwise
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
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
