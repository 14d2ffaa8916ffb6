"""A copy that outlived a change is dropped through the outbox, on both modes, whoever was killed or away meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from refract.kernel.events import LINK_EXCHANGE, LinkEvent
from refract.runtime.caching import CacheEntry
from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.inbox import Inbox
from refract.runtime.messages import Binding
from refract.runtime.ports import Cache
from refract.services.links.api import UrlDeleted, UrlUpdated
from refract.services.links.reactions import QUEUES, hear_changes, invalidations
from refract.services.links.redirect.memory import Memory
from tests.services.test_redirect_memory import Entry
from tests.support.databases import empty_location
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_twins import connected, shared_cache
from tests.support.waiting import eventually
from tests.support.worlds import World, running, world

__all__ = ["empty_location", "world"]

LONG = 600.0


def updated(code: str, order: int) -> UrlUpdated:
    return UrlUpdated(
        occurred_at=datetime.now(UTC),
        event_id=UrlUpdated.new_id(),
        short_code=code,
        original_url="https://example.com/new",
        user_id="u",
        user_email="e",
        order=order,
    )


def deleted(code: str, order: int) -> UrlDeleted:
    return UrlDeleted(
        occurred_at=datetime.now(UTC),
        event_id=UrlDeleted.new_id(),
        short_code=code,
        user_id="u",
        user_email="e",
        order=order,
    )


def reader(world: World, cache: Cache) -> Inbox:
    """The reaction on a queue of this world's own, bound as the real one is."""
    reaction = invalidations(cache)
    queue = world.buses.queue("invalidations", *(binding.pattern for binding in reaction.queue.bindings))
    return Inbox(
        queue,
        reaction.decoder,
        reaction.handle,
        database=world.database,
        bus=world.bus,
        clock=world.clock,
        metrics=world.metrics,
    )


@pytest.fixture
async def cache(world: World, request: pytest.FixtureRequest, redis_namespace: str) -> AsyncIterator[Cache]:
    if world.database.dialect == "sqlite":
        yield EmbeddedCache()
        return
    async with (
        connected(request.getfixturevalue("redis_address")) as redis,
        shared_cache(redis, redis_namespace) as shared,
    ):
        yield shared


async def keep(cache: Cache, code: str, order: int) -> None:
    await cache.set_many([CacheEntry(f"url:{code}", order, b"a copy", LONG)])


async def has_copy(cache: Cache, code: str) -> bool:
    return (await cache.get_many([f"url:{code}"]))[0] is not None


def test_the_queue_is_bound_to_changes_and_deletions() -> None:
    assert [queue.name for queue in QUEUES] == ["links.invalidations", "links.totals", "links.users"]
    assert set(QUEUES[0].bindings) == {Binding(LINK_EXCHANGE, "url.updated"), Binding(LINK_EXCHANGE, "url.deleted")}
    assert invalidations(EmbeddedCache()).queue is QUEUES[0]


@pytest.mark.parametrize("event", [updated, deleted])
async def test_a_change_whose_drop_was_never_sent_is_dropped_through_the_outbox(
    world: World, cache: Cache, redis_namespace: str, event: Callable[[str, int], LinkEvent]
) -> None:
    code = redis_namespace.replace(":", "-")
    memory: Memory[Entry] = Memory(10, world.clock.monotonic, capacity_bytes=1_000)
    memory.listen(cache)
    await keep(cache, code, 4)
    memory.keep(code.encode(), Entry("old"), memory.ticket)
    before = memory.ticket
    inbox = reader(world, cache)
    await world.bus.declare(inbox._queue)
    async with running(inbox.run, world.relay().run):
        # Committed, and then the process is gone: nobody says drop.
        await world.announce(event(code, 5))
        await eventually(lambda: memory.stale(code.encode()) is None)
        assert not await has_copy(cache, code)
    assert not memory.keep(code.encode(), Entry("old"), before)


async def test_the_highest_of_many_orders_counts_and_a_newer_copy_stays(
    world: World, cache: Cache, redis_namespace: str
) -> None:
    old, new = f"{redis_namespace}old", f"{redis_namespace}new"
    await keep(cache, old, 6)
    await keep(cache, new, 9)
    events = [updated(old, 7), updated(old, 3), deleted(new, 8)]
    handle = invalidations(cache).handle
    async with world.database.transaction() as tx:
        await handle(tx, events)
    assert not await has_copy(cache, old)
    assert await has_copy(cache, new)
    await keep(cache, old, 7)
    assert not await has_copy(cache, old), "the tombstone stands at the highest order"


@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_an_event_waits_until_redis_has_heard_the_drop(
    world: World, redis_address: str, redis_namespace: str
) -> None:
    code = f"{redis_namespace}code"
    port = int(redis_address.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy.to("127.0.0.1", port))
        redis = await stack.enter_async_context(connected(f"127.0.0.1:{proxy.port}", deadline=0.2))
        reacting = await stack.enter_async_context(shared_cache(redis, redis_namespace))
        other_redis = await stack.enter_async_context(connected(redis_address))
        other: DistributedCache = await stack.enter_async_context(shared_cache(other_redis, redis_namespace))
        await keep(other, code, 1)
        inbox = reader(world, reacting)
        async with running(inbox.run):
            await world.bus.declare(inbox._queue)
            proxy.swallow()
            await world.publish(deleted(code, 2))
            await eventually(lambda: redis.away)
            await asyncio.sleep(0.3)
            assert await has_copy(other, code)
            assert await world.marks() == [], "what Redis has not heard is not handled"
            proxy.heal()

            async def handled() -> bool:
                return len(await world.marks()) == 1

            await eventually(handled)
            assert not await has_copy(other, code)


async def test_every_process_hears_of_changes_over_the_bus_too(world: World, redis_namespace: str) -> None:
    """Redis may be away for long; what this process remembers shall not be wrong for as long."""
    heard: dict[str, int] = {}
    gaps: list[str] = []
    bindings = [Binding(world.buses.exchange, binding.pattern) for binding in QUEUES[0].bindings]
    # Embedded mode has one process, and a bus of it hears what it publishes itself.
    bus = world.bus if world.database.dialect == "sqlite" else await world.buses.open()
    await hear_changes(bus, heard.update, lambda: gaps.append("gap"), bindings=bindings)
    await world.bus.publish(world.message(updated("a", 2), mandatory=False))
    await world.bus.publish(world.message(deleted("b", 3), mandatory=False))
    await eventually(lambda: heard == {"url:a": 2, "url:b": 3})
    assert gaps == []
    await world.bus.publish(world.buses.message("url.deleted", b"not an event", mandatory=False))
    await eventually(lambda: gaps == ["gap"])
