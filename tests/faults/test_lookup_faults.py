"""Redis or the database killed, slow, refusing or wrong under lookups; drops that were not heard, and old copies."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from refract.kernel.clock import SystemClock
from refract.kernel.errors import Unavailable
from refract.runtime.caching import CacheEntry
from refract.runtime.distributed import cache as cache_module
from refract.runtime.distributed import postgresql, redis_connection
from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.services.links.domain.link import Link
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.lookup import Lookup
from refract.services.links.redirect.memory import Memory
from refract.services.links.redirect.records import encode_copy
from tests.services.test_redirect_lookup import CountingDatabase, add, link, record, save
from tests.services.test_redirect_memory import Entry
from tests.support.databases import database, database_location, empty_location, open_database
from tests.support.fault_proxy import FaultProxy, proxy_before
from tests.support.redis_twins import PATIENT, administering, impatient, slow_line
from tests.support.servers import Redis
from tests.support.waiting import eventually

__all__ = ["database", "database_location", "empty_location"]


@pytest.fixture
def server() -> Iterator[Redis]:
    """A Redis of this test's own, whose data outlives a kill."""
    with Redis(append_only=True) as server:
        yield server


class Process:
    """What one process of links has of Redis."""

    def __init__(self, address: str, deadline: float) -> None:
        self.redis = RedisConnection(address, deadline=deadline)
        self.cache = DistributedCache(self.redis)
        self.dropped: list[str] = []
        self.cache.on_invalidation(self.dropped.extend, lambda: None)
        self.asked = 0
        """How often somebody has waited for Redis."""
        redis: Any = self.redis
        exchange = redis._exchange

        async def counted(commands: Sequence[bytes]) -> list[Any]:
            self.asked += 1
            answers: list[Any] = await exchange(commands)
            return answers

        redis._exchange = counted

    async def copy(self, key: str) -> bytes | None:
        return (await self.cache.get_many([key]))[0]

    async def answers(self) -> bool:
        await self.redis.ping()
        return True

    async def keep(self, key: str, order: int, value: bytes = b"copy") -> None:
        await self.cache.set_many([CacheEntry(key, order, value, 600)])


@asynccontextmanager
async def process(address: str, deadline: float = PATIENT) -> AsyncIterator[Process]:
    one = Process(address, deadline)
    await one.redis.start()
    await one.cache.start()
    try:
        yield one
    finally:
        await one.cache.close()
        await one.redis.close()


async def some_links(database: Database, count: int = 20) -> list[Link]:
    links = [link() for _ in range(count)]
    await add(database, *links)
    return links


async def assert_all_found(lookup: Lookup, links: Sequence[Link]) -> None:
    found = await asyncio.gather(*(lookup.find(one.short_code) for one in links))
    assert found == [record(one) for one in links]


async def test_redis_killed_and_back_in_mid_load(server: Redis, database: Database) -> None:
    links = await some_links(database)
    stop = asyncio.Event()
    async with process(server.address) as one:
        lookup = Lookup(one.cache, database, SystemClock())

        async def follow() -> int:
            rounds = 0
            while not stop.is_set():
                await assert_all_found(lookup, links)
                rounds += 1
            return rounds

        followers = [asyncio.create_task(follow()) for _ in range(4)]
        for _ in range(2):
            await eventually(one.answers)
            await asyncio.to_thread(server.kill)
            await eventually(lambda: one.redis.away)
            await asyncio.to_thread(server.start)
            await eventually(lambda: one.redis.away is None)
        stop.set()
        assert all(await asyncio.gather(*followers))
        await lookup.drain()


async def test_a_slow_redis_is_waited_for_once(server: Redis, database: Database) -> None:
    links = await some_links(database)
    async with process(server.address) as filling:
        await Lookup(filling.cache, database, SystemClock()).find(links[0].short_code)
    async with slow_line(server.address, delay=30) as (address, _):
        one = Process(address, redis_connection.CACHE_DEADLINE)
        one.redis._away = None  # as if it had answered in time until now
        counting = CountingDatabase(database)
        lookup = Lookup(one.cache, counting, SystemClock())
        await assert_all_found(lookup, links)
        assert one.redis.away
        for _ in range(20):
            await assert_all_found(lookup, links[:2])
        assert one.asked == 1, "somebody has waited for Redis again"
        assert len(counting.questions) == 21
        await lookup.drain()
        await one.redis.close()


@pytest.mark.parametrize("wrong", ["another type", "garbage", "another link's", "another mark"])
async def test_a_wrong_value_under_the_key_is_a_miss_and_is_replaced(
    server: Redis, database: Database, wrong: str
) -> None:
    [one, other] = await some_links(database, 2)
    key = f"url:{one.short_code}"
    async with process(server.address) as here, administering(server.address) as client:
        if wrong == "another type":
            await client.hset(key, "field", "value")
        elif wrong == "garbage":
            await client.set(key, b"\xc5\x02" + os.urandom(300))
        elif wrong == "another mark":
            await client.set(key, b"\xc5\x01" + bytes(8) + encode_copy(record(other)))
        else:
            await here.keep(key, 1, encode_copy(record(other)))
        lookup = Lookup(here.cache, database, SystemClock())
        await assert_all_found(lookup, [one])
        await lookup.drain()
        if wrong != "garbage":  # whose order number may be higher than any
            assert await here.copy(key) == encode_copy(record(one))


async def test_a_drop_that_redis_did_not_hear_is_repeated_and_the_key_is_a_miss_until_then(server: Redis) -> None:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy.to("127.0.0.1", server.port))
        cut_off = await stack.enter_async_context(process(f"127.0.0.1:{proxy.port}"))
        other = await stack.enter_async_context(process(server.address))
        await other.keep("url:a", 1)
        await other.keep("url:b", 1)
        proxy.swallow()
        with impatient(cut_off.redis):
            await cut_off.cache.drop({"url:a": 2})
            assert cut_off.dropped == ["url:a"]
            with pytest.raises(Unavailable):
                await cut_off.cache.ping()
        proxy.heal()
        await eventually(lambda: other.dropped == ["url:a"])
        assert await other.copy("url:a") is None
        assert await other.copy("url:b") == b"copy"
        await eventually(lambda: cut_off.cache._paying is None)
        await cut_off.cache.ping()
        await other.keep("url:a", 3)
        assert await cut_off.copy("url:a") == b"copy", "a debt that is paid masks nothing"


async def test_a_redis_that_reads_and_refuses_to_write_serves_nothing_that_was_dropped(
    server: Redis, database: Database
) -> None:
    [before, untouched] = await some_links(database, 2)
    key = f"url:{before.short_code}"
    async with process(server.address) as one, administering(server.address) as client:
        counting = CountingDatabase(database)
        lookup = Lookup(one.cache, counting, SystemClock())
        await assert_all_found(lookup, [before, untouched])
        await lookup.drain()
        await client.config_set("min-replicas-to-write", 1)
        after, _ = before.retired(before.created_at)
        await save(database, before, after)
        await one.cache.drop({key: after.version})
        assert one.redis.away is None
        asked = len(counting.questions)
        await assert_all_found(lookup, [after, untouched])
        assert counting.questions[asked:] == [[after.short_code]], "what was not dropped is still served from L2"
        with pytest.raises(Unavailable):
            await one.cache.ping()
        await client.config_set("min-replicas-to-write", 0)
        await eventually(lambda: not one.cache._owed)
        assert not await client.exists(key)
        await lookup.drain()


async def test_the_drops_that_are_owed_are_bounded(
    server: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_module, "MOST_OWED", 10)
    async with process(server.address) as one, administering(server.address) as client:
        await client.config_set("min-replicas-to-write", 1)
        for number in range(12):
            await one.cache.drop({f"url:{number}": 1})
        assert list(one.cache._owed) == [f"url:{number}" for number in range(2, 12)]
        await one.cache.drop({f"url:many-{number}": 1 for number in range(20)})
        assert len(one.cache._owed) == 20, "of one call all are owed, so that whoever asks knows"
        await one.cache.drop({"url:many-7": 9})
        await one.cache.drop({"url:many-7": 3})
        assert one.cache._owed["url:many-7"] == 9
    assert "too many drops that redis did not take" in caplog.text


@pytest.mark.parametrize("noticed", [True, False])
async def test_what_redis_kept_over_a_restart_is_a_miss_for_everyone(
    server: Redis, database: Database, noticed: bool
) -> None:
    """Somebody changed the link while Redis was away, and is gone: nobody alive owes the drop."""
    [before] = await some_links(database, 1)
    key = f"url:{before.short_code}"
    async with process(server.address) as one, administering(server.address) as client:
        lookup = Lookup(one.cache, database, SystemClock())
        await assert_all_found(lookup, [before])
        await lookup.drain()
        await asyncio.to_thread(server.stop)
        after, _ = before.retired(before.created_at)
        await save(database, before, after)
        if noticed:
            assert await one.copy(key) is None
            assert one.redis.away
        await asyncio.to_thread(server.start)
        await eventually(one.answers)
        assert await client.exists(key), "the copy has outlived the restart"
        await assert_all_found(lookup, [after])
        async with process(server.address) as newcomer:
            assert await newcomer.copy(key) in (None, encode_copy(record(after)))
        await lookup.drain()
        assert await one.copy(key) == encode_copy(record(after))


async def test_a_restart_between_two_commands_is_noticed_without_an_outage(server: Redis) -> None:
    async with process(server.address) as one:
        await one.keep("url:a", 1)
        assert await one.copy("url:a") == b"copy"
        await asyncio.to_thread(server.restart)
        assert one.redis.away is None
        assert await one.copy("url:a") is None
        await one.keep("url:a", 1)
        assert await one.copy("url:a") == b"copy"


async def test_a_frozen_redis_delays_nobody_twice(server: Redis, database: Database) -> None:
    links = await some_links(database)
    async with process(server.address) as one:
        lookup = Lookup(one.cache, database, SystemClock())
        await assert_all_found(lookup, links)
        await lookup.drain()
        asked = one.asked
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with impatient(one.redis):
                for _ in range(100):
                    await assert_all_found(lookup, links)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert one.asked == asked + 1, "somebody has waited for Redis again"
        await lookup.drain()


async def test_a_database_that_fell_silent_is_unavailable_soon_and_then_found_again(
    server: Redis, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "SILENCE_TIMEOUT", 300.0)  # the connection's own patience is longer than ours
    await migrate("links", fresh_database)
    async with proxy_before(fresh_database) as (dsn, proxy), process(server.address) as one:
        database = await open_database(dsn)
        links = await some_links(database, 3)
        lookup = Lookup(one.cache, database, SystemClock())
        memory: Memory[Entry] = Memory(10, time.monotonic, capacity_bytes=1_000)
        memory.listen(one.cache)
        known, dropped, unknown = (found.short_code for found in links)
        for code in (known, dropped):
            memory.keep(code.encode(), Entry(code, 0.0, float("inf")), memory.ticket)
        proxy.swallow()
        await one.cache.drop({f"url:{dropped}": 2})
        with monkeypatch.context() as patch:
            patch.setattr(lookup_module, "DATABASE_DEADLINE", 0.3)
            patch.setattr(postgresql, "CONNECT_TIMEOUT", 0.3)
            for code in (known, dropped, unknown):
                async with asyncio.timeout(60):
                    with pytest.raises(Unavailable):
                        await lookup.find(code)
        assert memory.stale(known.encode()) is not None, "past its freshness, and better than nothing"
        assert memory.stale(dropped.encode()) is None, "a link that was dropped does not come back"
        proxy.heal()

        async def back() -> bool:
            await assert_all_found(lookup, links)
            return True

        await eventually(back)
        await lookup.drain()
        await database.close()
