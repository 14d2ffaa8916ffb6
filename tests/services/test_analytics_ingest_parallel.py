"""Many readers of clicks at once, in one process and in several: no click twice, none lost, no deadlock."""

import asyncio
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from refract.kernel.clock import SystemClock
from refract.kernel.events import encode_batch
from refract.kernel.ids import new_event_id
from refract.runtime.messages import Message, Queue
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.analytics.domain.milestones import THRESHOLDS
from refract.services.links.api import UrlClicked
from tests.support.buses import RabbitBuses
from tests.support.counting import (
    CLICKS,
    MILESTONES,
    click_inbox,
    clicked,
    clicks_of,
    counted_again,
    hand_over,
    hours_in,
    ingesting,
    letter,
    random_clicks,
    totals_again,
    totals_in,
)
from tests.support.databases import open_database
from tests.support.outboxes import OUTBOX
from tests.support.waiting import eventually

LOCK_TOTAL = Statement("lock_total", "Holds a link.", "SELECT 1 FROM totals WHERE short_code = :short_code FOR UPDATE")
ROOT = Path(__file__).parents[2]
CODES = [f"link-{number}" for number in range(12)]

pytestmark = pytest.mark.usefixtures("patient_bus", "patient_locks")


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    """A database of analytics."""
    await migrate("analytics", fresh_database)
    return fresh_database


@asynccontextmanager
async def opened(dsn: str, count: int) -> AsyncIterator[list[Database]]:
    """As many processes would open it: each with connections of its own."""
    async with AsyncExitStack() as stack:
        databases = [await open_database(dsn) for _ in range(count)]
        for database in databases:
            stack.push_async_callback(database.close)
        yield databases


async def assert_counted(database: Database, events: Sequence[UrlClicked]) -> None:
    """Totals, hours, milestones and their announcements, against a naive count."""
    clicks = clicks_of(events, SystemClock())
    assert await totals_in(database) == totals_again(clicks)
    assert await hours_in(database) == counted_again(clicks)
    assert len(await database.fetch(CLICKS)) == len(clicks)
    expected = {
        (code, threshold): 1
        for code, (total, *_) in totals_again(clicks).items()
        for threshold in THRESHOLDS
        if threshold <= total
    }
    rows = await database.fetch(MILESTONES)
    assert Counter((row["short_code"], row["milestone"]) for row in rows) == expected
    payloads = [json.loads(row["payload"]) for row in await database.fetch(OUTBOX)]
    assert Counter((body["short_code"], body["milestone"]) for body in payloads) == expected


async def deadlocks(dsn: str) -> int:
    """How many this database has had; a backend tells of its own by the time it ends."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    try:
        return int(
            await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        )
    finally:
        await connection.close()


async def test_readers_at_once_count_each_click_once(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each gets a part of the clicks and some of the others' too, in batches of its own, on the same few links."""
    chance, clock = random.Random(11), SystemClock()
    events = random_clicks(chance, 2_400, codes=CODES, days=0.3, until=clock.now())

    async def read(database: Database, seed: int) -> None:
        own = random.Random(seed)
        mine = events[seed::4] + own.sample(events, 300)
        own.shuffle(mine)
        inbox = click_inbox(database, clock, ingesting(clock))
        while mine:
            batch, mine = mine[:60], mine[60:]
            await hand_over(inbox, letter(*batch[:40]), *map(letter, batch[40:]))

    with caplog.at_level(logging.WARNING):
        async with opened(dsn, 4) as databases:
            async with asyncio.TaskGroup() as group:
                for seed, database in enumerate(databases):
                    group.create_task(read(database, seed))
            await assert_counted(databases[0], events)
    said = [record.message for record in caplog.records if record.name.startswith("refract")]
    assert said == [], "nobody had to try again"
    assert await deadlocks(dsn) == 0


async def _waiting_for_locks(dsn: str) -> int:
    """How many transactions of this database wait for another."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    try:
        return int(
            await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
    finally:
        await connection.close()


async def test_readers_of_the_same_links_wait_in_one_order(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody holds up a link in the middle; behind it come two whose clicks came in opposite orders."""
    clock, codes = SystemClock(), ("a", "m", "z")
    before = [clicked(code, clock.now()) for code in codes]
    one, other = [clicked(code, clock.now()) for code in codes], [clicked(code, clock.now()) for code in codes[::-1]]
    async with opened(dsn, 3) as [holder, *readers]:
        inboxes = [click_inbox(database, clock, ingesting(clock)) for database in readers]
        await hand_over(inboxes[0], letter(*before))
        with caplog.at_level(logging.WARNING):
            async with asyncio.TaskGroup() as group, holder.transaction() as tx:
                await tx.fetch(LOCK_TOTAL, short_code="m")
                group.create_task(hand_over(inboxes[0], letter(*one)))
                group.create_task(hand_over(inboxes[1], letter(*other)))
                await eventually(lambda: _two_wait(dsn))
        said = [record.message for record in caplog.records if record.name.startswith("refract")]
        assert said == [], "nobody had to try again"
        await assert_counted(holder, [*before, *one, *other])
    assert await deadlocks(dsn) == 0


async def _two_wait(dsn: str) -> bool:
    return await _waiting_for_locks(dsn) == 2


async def _start(readers: int, dsn: str, buses: RabbitBuses, queue: Queue) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.click_reader", str(readers), stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert process.stdin is not None
    where = [dsn, buses.url, buses.exchange, queue.name, queue.prefetch]
    process.stdin.write(json.dumps(where).encode() + b"\n")
    return process


@pytest.mark.timeout(240)
async def test_processes_share_a_queue_and_one_may_die(dsn: str, rabbitmq_url: str) -> None:
    """Two processes with two readers each; one is killed at work, and what it had not settled comes to the other."""
    chance, buses = random.Random(12), RabbitBuses(rabbitmq_url)
    events = random_clicks(chance, 6_000, codes=CODES, days=0.3, until=SystemClock().now())
    queue = buses.queue("analytics.clicks", UrlClicked.routing_key(), prefetch=20)
    bus = await buses.open()
    await bus.declare(queue)
    packed = [events[first : first + 30] for first in range(0, 5_400, 30)]
    packed += [chance.sample(events[:5_400], 30) for _ in range(30)]
    chance.shuffle(packed)
    bodies = [encode_batch(part) for part in packed] + [event.encode() for event in events[5_400:]]
    messages = [Message(buses.exchange, UrlClicked.routing_key(), body, new_event_id()) for body in bodies]
    first, second = [await _start(2, dsn, buses, queue) for _ in range(2)]
    try:
        async with opened(dsn, 1) as [database]:
            assert await bus.publish_all(messages) == [None] * len(messages)
            await eventually(lambda: _counted_some(database), timeout=60)
            first.kill()
            await first.wait()
            await eventually(lambda: _counted_all(database, len(events)), timeout=120)
            second.kill()
            await second.wait()
            await assert_counted(database, events)
        assert await deadlocks(dsn) == 0
    finally:
        for process in (first, second):
            if process.returncode is None:
                process.kill()
                await process.wait()
        await buses.close()


async def _counted_some(database: Database) -> bool:
    return bool(await totals_in(database))


async def _counted_all(database: Database, count: int) -> bool:
    return sum(total[0] for total in (await totals_in(database)).values()) >= count
