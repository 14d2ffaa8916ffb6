"""What every cache promises, on both twins."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Connection

from refract.runtime.caching import CacheEntry
from refract.runtime.distributed import cache as distributed_cache
from refract.runtime.distributed import redis_subscription
from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.embedded import cache as embedded_cache
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.ports import Cache
from tests.support.clocks import ManualClock
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_twins import administering, connected, shared_cache
from tests.support.waiting import eventually

LONG = 600.0


@pytest.fixture
async def embedded() -> EmbeddedCache:
    return EmbeddedCache()


@pytest.fixture
async def distributed(redis_address: str, redis_namespace: str) -> AsyncIterator[Cache]:
    async with connected(redis_address) as redis, shared_cache(redis, redis_namespace) as cache:
        yield cache


@pytest.fixture(params=["embedded", "distributed"])
def cache(request: pytest.FixtureRequest) -> Cache:
    found: Cache = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def key(redis_namespace: str) -> str:
    return f"{redis_namespace}url:abc"


@pytest.fixture(autouse=True)
def tombstone_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones outlast every test, but for those that wait for their end."""
    for module in (embedded_cache, distributed_cache):
        monkeypatch.setattr(module, "TOMBSTONE_SECONDS", getattr(request, "param", LONG))


async def value_of(cache: Cache, key: str) -> bytes | None:
    return (await cache.get_many([key]))[0]


async def test_values_come_in_the_order_of_the_keys(cache: Cache, key: str) -> None:
    await cache.set_many([CacheEntry(key + "1", 1, b"one", LONG), CacheEntry(key + "2", 1, b"\x00\xff", LONG)])
    assert await cache.get_many([key + "2", key + "absent", key + "1", key + "2"]) == [
        b"\x00\xff",
        None,
        b"one",
        b"\x00\xff",
    ]


async def test_nothing_asked_and_nothing_kept_is_nothing(cache: Cache) -> None:
    assert await cache.get_many([]) == []
    await cache.set_many([])
    await cache.drop({})


async def test_an_empty_value_is_a_value(cache: Cache, key: str) -> None:
    await cache.set_many([CacheEntry(key, 1, b"", LONG)])
    assert await value_of(cache, key) == b""


async def test_many_entries_at_once(cache: Cache, key: str) -> None:
    keys = [f"{key}{number}" for number in range(1_000)]
    await cache.set_many([CacheEntry(one, 1, one.encode(), LONG) for one in keys])
    assert await cache.get_many(keys) == [one.encode() for one in keys]
    await cache.drop(dict.fromkeys(keys, 1))
    assert await cache.get_many(keys) == [None] * len(keys)


@pytest.mark.parametrize("order", [2, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1])
async def test_an_older_entry_never_replaces_a_newer(cache: Cache, key: str, order: int) -> None:
    await cache.set_many([CacheEntry(key, order - 1, b"old", LONG)])
    await cache.set_many([CacheEntry(key, order, b"new", LONG)])
    assert await value_of(cache, key) == b"new"
    await cache.set_many([CacheEntry(key, order - 1, b"old", LONG)])
    assert await value_of(cache, key) == b"new"
    await cache.set_many([CacheEntry(key, order, b"same age", LONG)])
    assert await value_of(cache, key) == b"same age"


@pytest.mark.parametrize("order", [2, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**64 - 2])
async def test_a_dropped_version_cannot_be_put_back_and_a_newer_one_can(cache: Cache, key: str, order: int) -> None:
    await cache.set_many([CacheEntry(key, order, b"dropped", LONG)])
    await cache.drop({key: order})
    assert await value_of(cache, key) is None
    for put_back in (order, order - 1):
        await cache.set_many([CacheEntry(key, put_back, b"put back by a slow reader", LONG)])
        assert await value_of(cache, key) is None
    await cache.set_many([CacheEntry(key, order + 1, b"newer", LONG)])
    assert await value_of(cache, key) == b"newer"


async def test_a_drop_leaves_a_newer_entry_alone(cache: Cache, key: str) -> None:
    await cache.set_many([CacheEntry(key, 7, b"seven", LONG)])
    await cache.drop({key: 6})
    assert await value_of(cache, key) == b"seven"


async def test_a_late_drop_of_an_older_version_does_not_lower_the_tombstone(cache: Cache, key: str) -> None:
    await cache.drop({key: 7})
    await cache.drop({key: 3})
    await cache.set_many([CacheEntry(key, 5, b"five", LONG)])
    assert await value_of(cache, key) is None


async def test_a_tombstone_outlives_a_newer_entry_that_was_short(cache: Cache, key: str) -> None:
    await cache.drop({key: 5})
    await cache.set_many([CacheEntry(key, 6, b"six", 0.05)])
    await eventually(lambda: _absent(cache, key))
    await cache.set_many([CacheEntry(key, 5, b"five", LONG)])
    assert await value_of(cache, key) is None


@pytest.mark.parametrize("tombstone_seconds", [0.2], indirect=True)
async def test_a_tombstone_does_not_last(cache: Cache, key: str) -> None:
    await cache.drop({key: 5})

    async def accepted() -> bool:
        await cache.set_many([CacheEntry(key, 5, b"five", LONG)])
        return await value_of(cache, key) == b"five"

    await eventually(accepted)


async def _absent(cache: Cache, key: str) -> bool:
    return await value_of(cache, key) is None


async def test_an_entry_lives_for_its_time_even_under_a_second(cache: Cache, key: str) -> None:
    await cache.set_many([CacheEntry(key + "2", 1, b"long", LONG)])

    async def seen() -> bool:
        await cache.set_many([CacheEntry(key, 1, b"brief", 0.3)])
        return await value_of(cache, key) == b"brief"

    await eventually(seen)  # again where this process stood still for longer than it lives
    await eventually(lambda: _absent(cache, key))
    assert await value_of(cache, key + "2") == b"long"


@pytest.mark.parametrize("ttl", [0.0, -1.0])
async def test_what_has_no_time_left_is_not_kept(cache: Cache, key: str, ttl: float) -> None:
    await cache.set_many([CacheEntry(key, 1, b"kept", LONG)])
    await cache.set_many(
        [
            CacheEntry(key, 2, b"over", ttl),
            CacheEntry(key + "2", 1, b"over", ttl),
            CacheEntry(key + "3", 1, b"new", LONG),
        ]
    )
    assert await cache.get_many([key, key + "2", key + "3"]) == [b"kept", None, b"new"]


async def test_a_drop_is_told_in_its_own_process_before_it_returns(cache: Cache, key: str) -> None:
    heard: list[str] = []
    gaps: list[str] = []
    cache.on_invalidation(heard.extend, lambda: gaps.append("gap"))
    await cache.drop({key: 1, key + "2": 9})
    assert heard == [key, key + "2"]
    assert gaps == []


async def test_drops_are_heard_from_the_start_and_no_drop_ends_that(cache: Cache, key: str) -> None:
    assert cache.hears
    deaf: list[str] = []
    cache.on_invalidation(lambda _: None, lambda: None, lambda: deaf.append("deaf"))
    await cache.drop({key: 1})
    assert cache.hears
    assert deaf == []


operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("drop"), st.integers(0, 2), st.integers(0, 5)),
    ),
    max_size=25,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=operations)
async def test_both_twins_keep_the_same(
    embedded: Cache, distributed: Cache, redis_namespace: str, walk: Sequence[tuple[str, int, int]]
) -> None:
    namespace = f"{redis_namespace}{secrets.token_hex(4)}"
    keys = [f"{namespace}:{number}" for number in range(3)]
    for number, (verb, which, order) in enumerate(walk):
        for cache in (embedded, distributed):
            if verb == "set":
                await cache.set_many([CacheEntry(keys[which], order, b"%d" % number, LONG)])
            else:
                await cache.drop({keys[which]: order})
        assert await embedded.get_many(keys) == await distributed.get_many(keys)


async def test_parallel_writers_leave_the_newest(cache: Cache, key: str) -> None:
    entries = [CacheEntry(key, order, b"%d" % order, LONG) for order in range(300)]
    await asyncio.gather(*(cache.set_many([entry]) for entry in reversed(entries)))
    assert await value_of(cache, key) == b"299"


async def test_every_process_hears_of_a_drop_and_once(redis_address: str, redis_namespace: str, key: str) -> None:
    async with (
        connected(redis_address) as redis,
        connected(redis_address) as other_redis,
        shared_cache(redis, redis_namespace) as here,
        shared_cache(other_redis, redis_namespace) as there,
    ):
        heard_here: list[str] = []
        heard_there: list[str] = []
        gaps: list[str] = []
        here.on_invalidation(heard_here.extend, lambda: gaps.append("here"))
        there.on_invalidation(heard_there.extend, lambda: gaps.append("there"))
        await here.drop({key + "1": 1})
        await there.drop({key + "2": 1})
        await eventually(lambda: len(heard_here) == 2 and len(heard_there) == 2)
        await here.drop({key + "3": 1})
        await eventually(lambda: key + "3" in heard_there)
        assert heard_here == [key + "1", key + "2", key + "3"]
        assert sorted(heard_there) == [key + "1", key + "2", key + "3"]
        assert gaps == []


async def test_nothing_is_heard_before_the_start_and_after_the_end(redis_address: str, redis_namespace: str) -> None:
    async with connected(redis_address) as redis:
        cache = DistributedCache(redis, channel=redis_namespace)
        assert not cache.hears
        await cache.start()
        assert cache.hears
        await cache.close()
        assert not cache.hears


def counted_dials(redis: RedisConnection, patch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each connection that is tried."""
    tries: list[str] = []
    dial = redis.dial

    async def counted() -> Connection:
        tries.append("dialled")
        return await dial()

    patch.setattr(redis, "dial", counted)
    return tries


@pytest.mark.parametrize("fault", ["cut", "black hole"])
async def test_that_drops_are_no_longer_heard_is_told_once_and_that_they_are_again_is_a_gap(
    redis_address: str, redis_namespace: str, key: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    host, _, port = redis_address.rpartition(":")
    async with (
        FaultProxy.to(host, int(port)) as proxy,
        connected(f"127.0.0.1:{proxy.port}") as redis,
        shared_cache(redis, redis_namespace) as here,
        connected(redis_address) as other_redis,
        shared_cache(other_redis, redis_namespace) as there,
    ):
        told: list[tuple[str, bool]] = []  # what, and whether drops were heard then
        here.on_invalidation(
            lambda keys: told.extend((name, here.hears) for name in keys),
            lambda: told.append(("gap", here.hears)),
            lambda: told.append(("deaf", here.hears)),
        )
        here.on_invalidation(lambda _: None, lambda: None)  # not everybody has to know
        with monkeypatch.context() as patch:
            tries = counted_dials(redis, patch)
            patch.setattr(redis_subscription, "QUIET_SECONDS", 0.5)  # read again after each word
            await there.drop({key + "1": 1})
            await eventually(lambda: told)
            proxy.swallow()
            if fault == "cut":
                proxy.cut()
            await eventually(lambda: len(told) == 2)
            await there.drop({key + "2": 1})
            await eventually(lambda: len(tries) > 2)  # what fails again is not told again
            assert told == [(key + "1", True), ("deaf", False)]
            assert not here.hears
            proxy.heal()
            await eventually(lambda: here.hears)
        await there.drop({key + "3": 1})
        await eventually(lambda: len(told) == 4)
        assert told[2:] == [("gap", True), (key + "3", True)]


@pytest.mark.parametrize("foreign", [b"", b"\xff not json", b'["\xff", []]', b'{"keys": []}', b"[1, 2]"])
async def test_a_message_that_is_not_ours_counts_as_a_gap(
    redis_address: str, redis_namespace: str, foreign: bytes
) -> None:
    async with (
        connected(redis_address) as redis,
        shared_cache(redis, redis_namespace) as cache,
        administering(redis_address) as client,
    ):
        gaps: list[str] = []
        cache.on_invalidation(lambda _: None, lambda: gaps.append("gap"))
        await client.publish(redis_namespace, foreign)
        await eventually(lambda: gaps == ["gap"])


@pytest.mark.parametrize("foreign", [b"", b"x", b"\xc5\x01", b'{"url": "https://example.com"}', b"\x00" * 64])
async def test_foreign_bytes_under_a_key_are_a_miss_and_are_overwritten(
    redis_address: str, distributed: Cache, key: str, foreign: bytes
) -> None:
    async with administering(redis_address) as client:
        await client.set(key, foreign, ex=60)
        assert await value_of(distributed, key) is None
        await distributed.set_many([CacheEntry(key, 0, b"ours", LONG)])
        assert await value_of(distributed, key) == b"ours"


async def test_another_type_under_a_key_is_a_miss_and_is_overwritten(
    redis_address: str, distributed: Cache, key: str
) -> None:
    async with administering(redis_address) as client:
        for name in (key, f"dropped:{key}"):
            await client.hset(name, "field", "value")
        assert await value_of(distributed, key) is None
        await distributed.set_many([CacheEntry(key, 0, b"ours", LONG)])
        assert await value_of(distributed, key) == b"ours"
        await distributed.drop({key: 0})
        assert await value_of(distributed, key) is None


async def test_everything_in_redis_expires(
    redis_address: str, distributed: Cache, redis_namespace: str, key: str
) -> None:
    await distributed.set_many([CacheEntry(key, 1, b"one", LONG)])
    await distributed.drop({key + "2": 1})
    async with administering(redis_address) as client:
        names = [name async for name in client.scan_iter(match=f"*{redis_namespace}*", count=10_000)]
        assert len(names) == 2
        assert all([await client.pttl(name) > 0 for name in names])


async def test_the_embedded_twin_is_bounded_and_keeps_what_is_used() -> None:
    cache = EmbeddedCache(capacity=100)
    await cache.set_many([CacheEntry("used", 1, b"used", LONG)])
    for number in range(1_000):
        await cache.set_many([CacheEntry(f"flood {number}", 1, b"", LONG)])
        assert await value_of(cache, "used") == b"used"
    kept = await cache.get_many([f"flood {number}" for number in range(1_000)])
    assert sum(value is not None for value in kept) == 99


async def test_the_embedded_twin_goes_by_its_clock() -> None:
    clock = ManualClock()
    cache = EmbeddedCache(clock)
    await cache.set_many([CacheEntry("key", 1, b"value", 10)])
    clock.advance(9.999)
    assert await value_of(cache, "key") == b"value"
    clock.advance(0.001)
    assert await value_of(cache, "key") is None
