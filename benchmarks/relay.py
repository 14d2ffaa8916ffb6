"""How many events a second the relay moves from an outbox to the bus, beside publishing without an outbox."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aio_pika
import asyncpg
import uvloop

from benchmarks.events import BATCH, EXCHANGE, QUEUE, in_batches, new_messages
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import databases
from refract.kernel.clock import SystemClock
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.outbox import Relay, pending_in_outbox
from refract.runtime.ports import Database, EventBus
from tests.support.servers import PostgreSQL, RabbitMQ

EVENTS = 30_000
ROUNDS = 3
AT_ONCE = 4
PREFILL_BATCH = 5_000
SECONDS_AT_MOST = 600.0
TARGET = 3_000
AIM = 7_000
RELAY = "relay"

Publish = Callable[[Sequence[Message]], Awaitable[tuple[float, float]]]
"""Sends messages; the seconds it took, and the CPU seconds of this process in them."""


def measure(servers: Mapping[str, str]) -> None:
    """Print the figures."""
    size = len(new_messages(1)[0].body)
    print(f"relay: {EVENTS:,} single events of {size} bytes, a durable queue, confirms on; {ROUNDS} rounds")
    with databases(servers[PostgreSQL.variable]) as dsns:
        seen = uvloop.run(_measure(dsns["links"], servers[RabbitMQ.variable]))
    rates = {name: Rounds.of(EVENTS / seconds for seconds, _ in rounds) for name, rounds in seen.items()}
    busy = {name: Rounds.of(100 * cpu / seconds for seconds, cpu in rounds) for name, rounds in seen.items()}
    rows = [
        (name, rate.shown(",.0f"), f"{rate.median / rates[RELAY].median:.2f}", f"{busy[name].median:.0f} %")
        for name, rate in rates.items()
    ]
    print(table(("", "events a second", "to the relay", "our CPU"), rows))
    reached = rates[RELAY].median
    print(verdict(f"at least {TARGET:,} a second through the relay to RabbitMQ", met=reached >= TARGET))
    print(verdict(f"aim of {AIM:,} a second", met=reached >= AIM))
    print(json_line("relay", {"events_a_second": {name: rate.as_json() for name, rate in rates.items()}}))


async def _measure(dsn: str, url: str) -> dict[str, list[tuple[float, float]]]:
    async with asyncio.timeout(SECONDS_AT_MOST), AsyncExitStack() as stack:
        await migrate("links", dsn)
        database = await PostgresDatabase.open(dsn, service="bench")
        stack.push_async_callback(database.close)
        bus = RabbitBus(url)
        stack.push_async_callback(bus.close)
        await bus.start()
        connection = await stack.enter_async_context(await aio_pika.connect(url))
        channel = await connection.channel()
        stack.push_async_callback(_remove, channel)
        await bus.declare(QUEUE)
        ways: dict[str, Publish] = {
            RELAY: lambda messages: _relay_from_postgresql(dsn, database, bus, messages),
            "publish_all, one batch at a time": lambda messages: _timed(_publish(bus, messages)),
            f"publish_all, {AT_ONCE} batches at once": lambda messages: _timed(_publish_together(bus, messages)),
            "aio-pika, one batch at a time": lambda messages: _timed(_publish_with_aio_pika(channel, messages)),
        }
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ways, "embedded relay")}
        for _ in range(ROUNDS):
            for name, publish in ways.items():
                seen[name].append(await publish(new_messages(EVENTS)))
                await _empty(channel)
            seen["embedded relay"].append(await _relay_embedded(new_messages(EVENTS)))
        return seen


async def _relay_from_postgresql(
    dsn: str, database: Database, bus: EventBus, messages: Sequence[Message]
) -> tuple[float, float]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("TRUNCATE outbox")
    finally:
        await connection.close()
    return await _relay(database, bus, messages)


async def _relay_embedded(messages: Sequence[Message]) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refract-bench-")))
        await migrate("links", folder / "links.sqlite3")
        database = await EmbeddedDatabase.open(folder / "links.sqlite3")
        stack.push_async_callback(database.close)
        bus = await EmbeddedBus.open(folder / "bus.sqlite3")
        stack.push_async_callback(bus.close)
        await bus.declare(QUEUE)
        return await _relay(database, bus, messages)


async def _relay(database: Database, bus: EventBus, messages: Sequence[Message]) -> tuple[float, float]:
    """The outbox is full before the clock runs: one relay with nothing to wait for."""
    for some in in_batches(messages, PREFILL_BATCH):
        async with database.transaction() as tx:
            await tx.post(*some)
    relay = Relay("bench", database=database, bus=bus, clock=SystemClock(), metrics=Metrics())
    took = await _timed(relay.drain())
    if left := await pending_in_outbox(database):
        raise RuntimeError(f"the relay has left {left} events")
    return took


async def _publish(bus: EventBus, messages: Sequence[Message]) -> None:
    for batch in in_batches(messages, BATCH):
        if any(await bus.publish_all(batch)):
            raise RuntimeError("a message was not published")


async def _publish_together(bus: EventBus, messages: Sequence[Message]) -> None:
    """No pause between batches: what the publisher could give to a relay that never waited for its database."""
    await asyncio.gather(*(_publish(bus, some) for some in in_batches(messages, -(-len(messages) // AT_ONCE))))


async def _publish_with_aio_pika(channel: aio_pika.abc.AbstractChannel, messages: Sequence[Message]) -> None:
    exchange = await channel.get_exchange(EXCHANGE)
    for batch in in_batches(messages, BATCH):
        await asyncio.gather(*(exchange.publish(_for_aio_pika(message), message.routing_key) for message in batch))


def _for_aio_pika(message: Message) -> aio_pika.Message:
    return aio_pika.Message(
        message.body,
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
    )


async def _timed(work: Awaitable[None]) -> tuple[float, float]:
    begun, used = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - begun, time.process_time() - used


async def _empty(channel: aio_pika.abc.AbstractChannel) -> None:
    """Make room for the next, and see that nothing was lost on the way."""
    queue = await channel.get_queue(QUEUE.name)
    purged = await queue.purge()
    if purged.message_count != EVENTS:
        raise RuntimeError(f"the queue has {purged.message_count} messages of {EVENTS}")


async def _remove(channel: aio_pika.abc.AbstractChannel) -> None:
    for name in (QUEUE.name, QUEUE.dead):
        await channel.queue_delete(name)
    await channel.exchange_delete(EXCHANGE)
