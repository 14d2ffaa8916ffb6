"""What every state store promises, on both twins, and the transitions of a job's progress."""

import asyncio
import random
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.state_store import DistributedStateStore
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.ports import StateStore
from refract.runtime.transitions import CLOSE_TOTAL, COUNT_ITEM, Fields, Transition
from tests.support.clocks import ManualClock
from tests.support.redis_twins import connected
from tests.support.waiting import eventually

WEEK = 7 * 24 * 3600.0
STATE_DATABASE = 1


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[StateStore]:
    store = await EmbeddedStateStore.open(tmp_path / "state.sqlite3")
    yield store
    await store.close()


@pytest.fixture
async def distributed(redis_address: str) -> AsyncIterator[StateStore]:
    async with connected(redis_address, database=STATE_DATABASE) as redis:
        yield DistributedStateStore(redis)


@pytest.fixture(params=["embedded", "distributed"])
def store(request: pytest.FixtureRequest) -> StateStore:
    found: StateStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def key(redis_namespace: str) -> str:
    return f"{redis_namespace}smap:proj:1"


def _take(fields: Fields, arguments: Sequence[str]) -> str:
    return fields.pop(arguments[0], "nothing")


TAKE = Transition(
    "take",
    lua="""
        local value = redis.call('HGET', KEYS[1], ARGV[1])
        redis.call('HDEL', KEYS[1], ARGV[1])
        return value or 'nothing'
    """,
    python=_take,
)


def _add(fields: Fields, arguments: Sequence[str]) -> str:
    fields["sum"] = str(int(fields.get("sum", "0")) + int(arguments[0]))
    return fields["sum"]


ADD = Transition("add", lua="return tostring(redis.call('HINCRBY', KEYS[1], 'sum', ARGV[1]))", python=_add)


async def test_an_absent_hash_has_no_fields(store: StateStore, key: str) -> None:
    assert await store.read(key) == {}
    await store.delete(key)


async def test_fields_are_texts_and_numbers_become_their_digits(store: StateStore, key: str) -> None:
    await store.write(
        key, {"status": "CRAWLING", "total": 10**17, "delta": -5, "näme": "Ünï\ncode \x00 ☃", "": ""}, WEEK
    )
    assert await store.read(key) == {
        "status": "CRAWLING",
        "total": "100000000000000000",
        "delta": "-5",
        "näme": "Ünï\ncode \x00 ☃",
        "": "",
    }


async def test_a_write_keeps_the_other_fields(store: StateStore, key: str) -> None:
    await store.write(key, {"a": 1, "b": 1}, WEEK)
    await store.write(key, {"b": 2, "c": 2}, WEEK)
    assert await store.read(key) == {"a": "1", "b": "2", "c": "2"}


async def test_a_write_of_many_fields(store: StateStore, key: str) -> None:
    fields = {f"item:{number}": number for number in range(5_000)}
    await store.write(key, fields, WEEK)
    assert await store.read(key) == {field: str(value) for field, value in fields.items()}


async def test_a_write_of_no_fields_makes_no_hash_and_prolongs_one(store: StateStore, key: str) -> None:
    await store.write(key, {}, WEEK)
    assert await store.read(key) == {}

    async def prolonged() -> bool:
        await store.write(key, {"a": 1}, 0.3)
        await store.write(key, {}, WEEK)
        return await store.read(key) == {"a": "1"}

    await eventually(prolonged)  # again where it was over before, because this process stood still
    await asyncio.sleep(0.5)  # nothing happens, which no condition can show
    assert await store.read(key) == {"a": "1"}


async def test_the_whole_hash_is_over_at_its_time(store: StateStore, key: str) -> None:
    await store.write(key, {"old": 1}, WEEK)
    await store.write(key, {"new": 1}, 0.2)
    await eventually(lambda: _absent(store, key))
    await store.write(key, {"next": 1}, WEEK)
    assert await store.read(key) == {"next": "1"}


@pytest.mark.parametrize("ttl", [0.0, -1.0])
async def test_a_hash_without_time_to_live_is_gone(store: StateStore, key: str, ttl: float) -> None:
    await store.write(key, {"a": 1}, WEEK)
    await store.write(key, {"b": 1}, ttl)
    assert await store.read(key) == {}


async def _absent(store: StateStore, key: str) -> bool:
    return await store.read(key) == {}


async def test_a_deleted_hash_is_gone(store: StateStore, key: str) -> None:
    await store.write(key, {"a": 1}, WEEK)
    await store.delete(key)
    assert await store.read(key) == {}


async def test_a_transition_may_take_away_the_last_field_and_with_it_the_time_to_live(
    store: StateStore, key: str
) -> None:
    async def taken() -> bool:
        await store.write(key, {"a": 1}, 0.3)
        return [await store.apply(TAKE, key, "a") for _ in range(2)] == ["1", "nothing"]

    await eventually(taken)  # again where it was over before, because this process stood still
    assert await store.apply(ADD, key, 5) == "5"
    await asyncio.sleep(0.5)  # nothing happens, which no condition can show
    assert await store.read(key) == {"sum": "5"}


async def test_a_transition_does_not_change_the_time_to_live(store: StateStore, key: str) -> None:
    async def changed() -> bool:
        await store.delete(key)
        await store.write(key, {"a": 1}, 0.4)
        await store.apply(ADD, key, 5)
        return await store.read(key) != {"sum": "5"}

    await eventually(changed)  # again where it was over before, because this process stood still
    await eventually(lambda: _absent(store, key))


async def test_transitions_in_parallel_are_one_after_the_other(store: StateStore, key: str) -> None:
    words = await asyncio.gather(*(store.apply(ADD, key, 1) for _ in range(300)))
    assert sorted(map(int, words)) == list(range(1, 301))


async def test_ping_answers(store: StateStore) -> None:
    await store.ping()


names = st.sampled_from(["a", "b", "status", "total", "done"])
numbers = st.integers(0, 4)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.dictionaries(names, numbers), st.sampled_from([WEEK, WEEK, 0.0])),
        st.tuples(st.just("start"), st.integers(0, 4), st.sampled_from(["CRAWLING", "PROCESSING"])),
        st.tuples(st.just("count"), st.integers(0, 5), st.sampled_from(["ok", "error"])),
        st.tuples(st.just("close"), st.integers(0, 4)),
        st.tuples(st.just("take"), names),
        st.tuples(st.just("delete")),
    ),
    max_size=20,
)


async def perform(store: StateStore, key: str, verb: str, *rest: Any) -> str:
    match verb:
        case "write":
            await store.write(key, rest[0], rest[1])
        case "start":
            await store.write(key, {"total": rest[0], "done": 0, "errors": 0, "status": rest[1]}, WEEK)
        case "count":
            return await store.apply(COUNT_ITEM, key, *rest)
        case "close":
            return await store.apply(CLOSE_TOTAL, key, *rest)
        case "take":
            return await store.apply(TAKE, key, *rest)
        case "delete":
            await store.delete(key)
    return "done"


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=operations)
async def test_both_twins_say_and_hold_the_same(
    embedded: StateStore, distributed: StateStore, redis_namespace: str, walk: Sequence[Any]
) -> None:
    key = f"{redis_namespace}{secrets.token_hex(4)}"
    for operation in walk:
        words = [await perform(store, key, *operation) for store in (embedded, distributed)]
        assert words[0] == words[1]
        assert await embedded.read(key) == await distributed.read(key)
    await distributed.delete(key)


def job(total: int, status: str = "PROCESSING_WAIT") -> Mapping[str, str | int]:
    return {"status": status, "total": total, "done": 0, "errors": 0}


async def test_items_are_counted_once_however_often_they_are_delivered(store: StateStore, key: str) -> None:
    await store.write(key, job(3), WEEK)
    deliveries = [("1", "ok"), ("1", "ok"), ("2", "error"), ("2", "ok"), ("1", "error"), ("3", "ok"), ("3", "ok")]
    words = [await store.apply(COUNT_ITEM, key, *delivery) for delivery in deliveries]
    assert words == ["counted", "repeated", "counted", "repeated", "repeated", "finished", "repeated"]
    progress = await store.read(key)
    assert {field: progress[field] for field in ("status", "total", "done", "errors")} == {
        "status": "DONE",
        "total": "3",
        "done": "3",
        "errors": "1",
    }


async def test_an_item_of_an_absent_job_makes_no_job(store: StateStore, key: str) -> None:
    assert await store.apply(COUNT_ITEM, key, "1", "ok") == "absent"
    assert await store.apply(CLOSE_TOTAL, key, 1) == "absent"
    assert await store.read(key) == {}


async def test_a_stranger_after_the_end_changes_nothing(store: StateStore, key: str) -> None:
    await store.write(key, job(1), WEEK)
    await store.apply(COUNT_ITEM, key, "1", "ok")
    before = await store.read(key)
    assert await store.apply(COUNT_ITEM, key, "2", "ok") == "over"
    assert await store.apply(CLOSE_TOTAL, key, 9) == "over"
    assert await store.read(key) == before


async def test_a_job_that_is_still_crawling_is_not_done(store: StateStore, key: str) -> None:
    await store.write(key, job(2, "CRAWLING"), WEEK)
    assert [await store.apply(COUNT_ITEM, key, item, "ok") for item in "12"] == ["counted", "counted"]
    assert await store.apply(CLOSE_TOTAL, key, 3) == "waiting"
    assert await store.apply(COUNT_ITEM, key, "3", "ok") == "finished"


async def test_a_job_whose_items_were_quicker_than_their_discovery_is_done_when_the_total_is_known(
    store: StateStore, key: str
) -> None:
    await store.write(key, job(0, "CRAWLING"), WEEK)
    assert [await store.apply(COUNT_ITEM, key, item, "ok") for item in "12"] == ["counted", "counted"]
    assert await store.apply(CLOSE_TOTAL, key, 2) == "finished"
    assert await store.apply(CLOSE_TOTAL, key, 2) == "over"


async def test_a_job_without_items_is_done_at_once(store: StateStore, key: str) -> None:
    await store.write(key, job(0, "CRAWLING"), WEEK)
    assert await store.apply(CLOSE_TOTAL, key, 0) == "finished"


async def test_twelve_workers_and_redelivery_finish_every_job_once_and_never_early(
    store: StateStore, redis_address: str, redis_namespace: str
) -> None:
    chance = random.Random(20)
    jobs, items = 60, 8
    keys = [f"{redis_namespace}{number}" for number in range(jobs)]
    deliveries = [(key, str(item)) for key in keys for item in range(items)]
    deliveries += chance.sample(deliveries, len(deliveries) // 5)
    chance.shuffle(deliveries)
    for key in keys:
        await store.write(key, job(items), WEEK)
    begun: dict[str, set[str]] = {key: set() for key in keys}
    finished: Counter[str] = Counter()

    async def work(own: StateStore) -> None:
        while deliveries:
            key, item = deliveries.pop()
            begun[key].add(item)
            if await own.apply(COUNT_ITEM, key, item, "ok") == "finished":
                finished[key] += 1
                assert len(begun[key]) == items, "finished early"

    async with AsyncExitStack() as stack:
        workers = [store] * 12
        if isinstance(store, DistributedStateStore):
            own = [connected(redis_address, database=STATE_DATABASE) for _ in range(12)]
            workers = [DistributedStateStore(await stack.enter_async_context(one)) for one in own]
        await asyncio.gather(*(work(one) for one in workers))
    assert finished == Counter(keys)
    for key in keys:
        progress = await store.read(key)
        assert (progress["done"], progress["status"]) == (str(items), "DONE")
        await store.delete(key)


async def test_the_embedded_twin_outlives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await EmbeddedStateStore.open(tmp_path / "state.sqlite3", clock)
    await store.write("kept", job(2), 100)
    await store.write("over", job(2), 10)
    await store.apply(COUNT_ITEM, "kept", "1", "ok")
    await store.close()
    clock.advance(10)
    store = await EmbeddedStateStore.open(tmp_path / "state.sqlite3", clock)
    assert await store.apply(COUNT_ITEM, "kept", "1", "ok") == "repeated"
    assert await store.apply(COUNT_ITEM, "over", "1", "ok") == "absent"
    clock.advance(90)
    assert await store.read("kept") == {}
    await store.close()


async def test_an_embedded_transition_that_raises_changes_nothing(embedded: StateStore) -> None:
    def fail(fields: Fields, arguments: Sequence[str]) -> str:
        fields["a"] = "changed"
        raise ZeroDivisionError

    await embedded.write("key", {"a": 1}, WEEK)
    with pytest.raises(ZeroDivisionError):
        await embedded.apply(Transition("fail", "", fail), "key")
    assert await embedded.read("key") == {"a": "1"}


async def test_embedded_transitions_never_run_on_the_event_loop(embedded: StateStore) -> None:
    def thread(fields: Fields, arguments: Sequence[str]) -> str:
        return threading.current_thread().name

    assert await embedded.apply(Transition("thread", "", thread), "key") != threading.current_thread().name


async def test_two_processes_on_one_embedded_file_do_not_lose_a_change(tmp_path: Path) -> None:
    stores = [await EmbeddedStateStore.open(tmp_path / "state.sqlite3") for _ in range(3)]
    await asyncio.gather(*(stores[number % 3].apply(ADD, "key", 1) for number in range(150)))
    assert await stores[0].read("key") == {"sum": "150"}
    for store in stores:
        await store.close()


async def test_an_embedded_file_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    store = await EmbeddedStateStore.open(tmp_path / "state.sqlite3")
    connection = sqlite3.connect(tmp_path / "state.sqlite3")
    connection.execute("DROP TABLE hashes")
    connection.close()
    with pytest.raises(Unavailable):
        await store.ping()
    await store.close()
