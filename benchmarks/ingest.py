"""How many clicks a second one core enriches, rolls up and commits, packed as they come and one by one."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

import asyncpg
import uvloop

from benchmarks.cores import on_load_core, server_core
from benchmarks.events import in_batches
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import cpu_seconds
from benchmarks.links import seed_links
from benchmarks.services import new_database, service
from benchmarks.visits import Visits, packed
from benchmarks.workshop import Ready, Workshop
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.messages import Message
from refract.services.analytics.reactions import CLICKS
from tests.support.servers import RabbitMQ

LINKS = 5_000
IN_A_MESSAGE = 200
PACKED, SINGLE, POISONED = "packed", "single", "poisoned"
COUNTS = {PACKED: 300_000, SINGLE: 60_000, POISONED: 60_000}
TARGETS = {PACKED: (15_000, 40_000), SINGLE: (3_000, 3_000)}
POISON = b'{"event_type": "url.clicked", "occurred_at": "never"}'
POISON_EVERY = 10_000
MOST_LOST = 0.05
"""Of the rate, to poison (ACCEPTANCE 18)."""
PUBLISHED_AT_ONCE = 200
POLL_SECONDS = 0.02
SECONDS_AT_MOST = 300.0

COUNTED = "SELECT coalesce(sum(clicks), 0)::bigint FROM totals"


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = min(3, workshop.options.rounds)
    print(
        f"ingest: refract run analytics on one core, PostgreSQL and RabbitMQ on the other, {workshop.storage}; "
        f"the queue is full before the clock runs; {rounds} rounds"
    )
    rates: dict[str, list[float]] = {name: [] for name in COUNTS}
    costs: dict[str, list[float]] = {name: [] for name in COUNTS}
    for _ in range(rounds):
        for name, count in COUNTS.items():
            rate, cost = _measure(workshop, _messages(name, count), count)
            rates[name].append(rate)
            costs[name].append(cost)
    reached = {name: Rounds.of(values) for name, values in rates.items()}
    cpu = {name: Rounds.of(values) for name, values in costs.items()}
    rows = [
        (f"{COUNTS[name]:,} clicks, {name}", reached[name].shown(",.0f"), cpu[name].shown(",.1f")) for name in COUNTS
    ]
    print(table(("", "clicks a second", "CPU µs each"), rows))
    for name, (least, aim) in TARGETS.items():
        print(verdict(f"{name}: at least {least:,} a second", met=reached[name].median >= least))
        if aim > least:
            print(verdict(f"{name}: aim of {aim:,} a second", met=reached[name].median >= aim))
    lost = Rounds.of(1 - ours / clean for ours, clean in zip(rates[POISONED], rates[SINGLE], strict=True))
    print(verdict(f"poison takes less than {MOST_LOST:.0%} ({lost.shown()})", met=lost.median < MOST_LOST))
    figures = {name: {"clicks_a_second": reached[name].as_json(), "cpu_us": cpu[name].as_json()} for name in COUNTS}
    print(json_line("ingest", {**figures, "lost_to_poison": lost.as_json()}))


def _messages(name: str, count: int) -> list[Message]:
    visits = Visits([link.short_code for link in seed_links(LINKS)])
    events = visits.events(count, datetime.now(UTC))
    if name == PACKED:
        return [packed(batch) for batch in iter(lambda: list(islice(events, IN_A_MESSAGE)), [])]
    messages = list(map(Message.of, events))
    if name == POISONED:
        for place in range(POISON_EVERY // 2, count, POISON_EVERY):
            messages.insert(place, replace(messages[place], body=POISON, message_id=f"poison {place}"))
    return messages


def _measure(workshop: Workshop, messages: Sequence[Message], count: int) -> tuple[float, float]:
    """Clicks a second, and microseconds of the processor for each."""
    workshop.empty_queues()  # what redirects of a measurement before have left there
    with new_database(workshop.servers, "analytics") as dsn:
        with on_load_core():
            uvloop.run(_publish(workshop.servers[RabbitMQ.variable], messages))
        with service(workshop, workshop.servers, "analytics", dsn, core=server_core()) as ready, on_load_core():
            return asyncio.run(_watch(ready, count))


async def _publish(url: str, messages: Sequence[Message]) -> None:
    bus = RabbitBus(url)
    await bus.start()
    try:
        await bus.declare(CLICKS)
        for batch in in_batches(messages, PUBLISHED_AT_ONCE):
            if any(await bus.publish_all(batch)):
                raise RuntimeError("a message was not published")
    finally:
        await bus.close()


async def _watch(ready: Ready, count: int) -> tuple[float, float]:
    """From the first look at which some are counted to the one at which all are."""
    connection = await asyncpg.connect(str(ready.database))
    try:
        async with asyncio.timeout(SECONDS_AT_MOST):
            begun: tuple[int, float, float] | None = None
            while True:
                seen = await connection.fetchval(COUNTED), time.monotonic(), cpu_seconds(ready.pid)
                if seen[0] and begun is None:
                    begun = seen
                if begun is not None and seen[0] >= count:
                    break
                await asyncio.sleep(POLL_SECONDS)
    finally:
        await connection.close()
    if seen[0] != count:
        raise RuntimeError(f"{seen[0]:,} clicks are counted of {count:,}")
    clicks, seconds, cpu = (late - early for late, early in zip(seen, begun, strict=True))
    if not clicks:
        raise RuntimeError("all clicks were counted before anybody looked")
    return clicks / seconds, cpu / clicks * 1e6
