"""During a rush clicks stay where they are safe, other events pass them, and afterwards nothing is missing."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from refract.runtime import outbox
from refract.runtime.distributed import rabbit_reader
from refract.runtime.embedded import bus_file
from refract.runtime.messages import Delivery, Message
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import CLAIM_FRESH, Claims, Relay
from refract.runtime.ports import QueueReader
from refract.runtime.statements import Statement
from refract.runtime.transactions import OUTBOX_COLUMNS
from refract.services.links.api import UrlClicked
from tests.support.buses import bodies, drain
from tests.support.rushes import ToldRush
from tests.support.waiting import eventually
from tests.support.worlds import World, add_effects, noted, running

CLICKS = UrlClicked.routing_key()


@pytest.fixture
async def told() -> ToldRush:
    """A rush that has begun."""
    return ToldRush()


def relay(world: World, rush: ToldRush) -> Relay:
    """A relay that lets clicks wait."""
    return Relay(
        "test",
        database=world.database,
        bus=world.bus,
        clock=world.clock,
        metrics=world.metrics,
        rush=rush,
        can_wait=CLICKS,
    )


def click(world: World, number: int) -> Message:
    """One that can wait; nobody has to take it."""
    return replace(world.message(noted(number), mandatory=False), routing_key=CLICKS)


async def test_other_events_pass_the_clicks_that_wait(world: World, reader: QueueReader, told: ToldRush) -> None:
    others = [world.message(noted(number)) for number in range(3)]
    await world.post(*(click(world, number) for number in range(outbox.BATCH + 100)))
    await world.post(*others)
    assert not await relay(world, told).move(), "nothing more is due"
    assert bodies(await drain(reader, 3)) == [message.body for message in others]
    assert [row["event_type"] for row in await world.outbox() if row["published_at"] is not None] == ["test.noted"] * 3


async def test_clicks_follow_when_it_is_over(
    world: World, reader: QueueReader, told: ToldRush, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "RUSH_PASS_SECONDS", 0.01)
    await world.post(*(click(world, number) for number in range(700)))
    async with running(relay(world, told).run), asyncio.timeout(30):
        await world.announce(noted(1))
        await drain(reader, 1)
        await eventually(lambda: _are_unpublished(world, 700))
        told.end()
        await eventually(lambda: _are_unpublished(world, 0))


async def test_a_process_that_stops_sends_what_waits(world: World, told: ToldRush) -> None:
    await world.post(*(click(world, number) for number in range(3)))
    await relay(world, told).drain()
    assert await world.unpublished() == 0


async def test_when_it_stops_what_cannot_wait_leaves_first_and_clicks_as_long_as_there_is_time(
    world: World, reader: QueueReader, told: ToldRush, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "DRAIN_SECONDS", -1.0)
    await world.post(*(click(world, number) for number in range(100)))
    await world.announce(noted(1))
    await relay(world, told).drain()
    await drain(reader, 1)
    lanes = 1 if world.database.dialect == "sqlite" else outbox.LANES
    assert await world.unpublished() == 100 - lanes * outbox.BATCH_AFTER_RUSH


async def test_after_it_the_first_batch_is_small(world: World, reader: QueueReader, told: ToldRush) -> None:
    """Rows that gathered meanwhile may be a hundred times as long as those before."""
    told.is_told = False
    moving = relay(world, told)
    for _ in range(4):
        await world.announce(*map(noted, range(3)))
        await moving.drain()
    told.is_told = True
    await world.announce(*map(noted, range(3)))
    await moving.move()
    await world.post(*(click(world, number) for number in range(100)))
    told.is_told = False
    await moving.move()
    assert await world.unpublished() == 100 - outbox.BATCH_AFTER_RUSH


async def test_clicks_that_failed_before_wait_too(world: World, told: ToldRush) -> None:
    await world.post(replace(click(world, 1), mandatory=True))
    told.is_told = False
    moving = relay(world, told)
    await moving.move()
    world.turn(3600)
    told.is_told = True
    await moving.move()
    assert [row["attempts"] for row in await world.outbox()] == [1]
    told.is_told = False
    await moving.move()
    assert [row["attempts"] for row in await world.outbox()] == [2]


async def test_a_rush_that_begins_in_the_midst_of_many_clicks_is_heard(
    world: World, told: ToldRush, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "BATCH", 10)
    told.is_told = False
    await world.post(*(click(world, number) for number in range(100)))
    moving = relay(world, told)
    assert await moving.move()
    told.is_told = True
    assert not await moving.move()
    assert await world.unpublished() == 90


async def test_a_reader_that_can_wait_takes_nothing_until_it_is_over(world: World, told: ToldRush) -> None:
    inbox = world.inbox(add_effects)
    await world.bus.declare(world.queue)
    await world.publish(noted(1), noted(2))
    async with running(partial(inbox.run, told)), asyncio.timeout(30):
        await eventually(lambda: _is_waited_for(told))
        assert await world.effects() == []
        told.end()
        await eventually(lambda: _has_effects(world))


async def test_what_goes_first_is_found_among_any_number_of_clicks(world: World) -> None:
    if world.database.dialect != "sqlite":
        return  # clicks wait in embedded mode only
    now = datetime.now(UTC)
    async with world.database.transaction() as tx:
        rows = [list(world.row(now, number)) for number in range(3_000)]
        for row in rows:
            row[OUTBOX_COLUMNS.index("event_type")] = CLICKS
        columns = (*OUTBOX_COLUMNS, "published_at")
        await tx.insert_many("outbox", columns, [(*row, now if n % 3 else None) for n, row in enumerate(rows)])
        await tx.execute(Statement("analyze", "Lets the planner know.", "ANALYZE outbox"))
    plans = {}
    for claim in (CLAIM_FRESH, Claims.but(CLICKS).fresh):
        explain = Statement("explain", "Asks for the plan.", f"EXPLAIN QUERY PLAN {claim.for_sqlite()}")
        plans[claim.name] = str(await world.database.fetch(explain, batch=10, now=now, never=now))
    assert "outbox_first" in plans["outbox_claim_fresh_but"]
    assert "outbox_fresh" in plans["outbox_claim_fresh"]
    assert not any("TEMP B-TREE" in plan for plan in plans.values())


async def _are_unpublished(world: World, number: int) -> bool:
    return await world.unpublished() == number


async def _is_waited_for(told: ToldRush) -> bool:
    return told.waits == 1


async def _has_effects(world: World) -> bool:
    return await world.effects() == [1, 2]


async def test_a_reader_takes_large_messages_a_few_at_a_time(
    world: World, reader: QueueReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbit_reader, "BATCH_BYTES", 2_000)
    monkeypatch.setattr(bus_file, "BATCH_BYTES", 2_000)
    sent = [replace(world.message(noted(number)), body=b'"%b"' % (b"%04d" % number * 250)) for number in range(9)]
    assert await world.bus.publish_all(sent) == [None] * len(sent)
    batches: list[list[Delivery]] = []
    async with asyncio.timeout(30):
        while sum(len(batch) for batch in batches) < len(sent):
            batches.append(await reader.next_batch())
            await reader.acknowledge(batches[-1])
    assert max(len(batch) for batch in batches) <= 2
    assert [delivery.message.body for batch in batches for delivery in batch] == [message.body for message in sent]


def test_refused_requests_make_no_rush() -> None:
    metrics = Metrics()
    for status in (200, 301, 404, 429, 500):
        metrics.request("url-service", "GET", "/{code}", status, 0.001)
        metrics.requests("url-service", "GET", "/{code}", status, [0.001] * 10)
    assert metrics.answered == 22
