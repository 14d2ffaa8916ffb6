"""The copies in Redis: lost, stale, wrong or away, they may refuse too early, and never let one too many through."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.kernel.clock import SystemClock
from refract.runtime.distributed.state_store import DistributedStateStore
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.ports import StateStore
from refract.services.sms.commands.copying import Copies
from refract.services.sms.commands.counting import Claim, Counter
from refract.services.sms.commands.uncounted import Uncounted
from refract.services.sms.domain.copies import TAKE, key_of
from tests.support.databases import Location
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_twins import administering, connected, impatient, slow_line
from tests.support.sms import LIMITED, SENT, SmsWorld, all_at_once, new_user, sms, sms_world
from tests.support.waiting import eventually

__all__ = ["sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")

FOREVER = 10**15
"""Milliseconds that are long after the year in which this is read."""

some_cases = settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


# What takes a slot, written twice.


@pytest.fixture
async def twins(tmp_path: Path, redis_address: str) -> AsyncIterator[tuple[StateStore, StateStore]]:
    """Both state stores."""
    embedded = EmbeddedStateStore(tmp_path / "state.sqlite3", SystemClock())
    async with connected(redis_address) as connection:
        yield embedded, DistributedStateStore(connection)
    await embedded.close()


VALUES = st.one_of(
    st.integers(0, 5).map(str), st.sampled_from(["", "x", "-1", "1.5", " 1", "1 ", "5000", str(FOREVER)])
)


@some_cases
@given(
    fields=st.dictionaries(st.sampled_from(["rateLimit", "currentCount", "resetsAt", "madeAt", "other"]), VALUES),
    moments=st.lists(st.sampled_from([0, 1, 3_999, 4_000, 4_999, 5_000, 5_001, FOREVER]), min_size=1, max_size=4),
)
async def test_both_twins_take_slots_alike(
    twins: tuple[StateStore, StateStore], fields: dict[str, str], moments: list[int]
) -> None:
    key = key_of(new_user())
    seen = []
    for store in twins:
        if fields:
            await store.write(key, fields, 60)
        words = [await store.apply(TAKE, key, moment) for moment in moments]
        seen.append((words, await store.read(key)))
    assert seen[0] == seen[1]


# Lost and stale.


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_copies_that_are_lost_again_and_again_let_nobody_through_too_much(sms: SmsWorld, algorithm: str) -> None:
    user_id = await sms.user(limit=10, algorithm=algorithm)

    async def lose() -> None:
        while True:
            await sms.state.delete(key_of(user_id))
            await asyncio.sleep(0.002)

    losing = asyncio.create_task(lose())
    try:
        answers = await all_at_once(60, lambda number: sms.said(user_id, str(number)))
    finally:
        losing.cancel()
    assert sorted(answers) == [SENT] * 10 + [LIMITED] * 50
    assert len(sms.messages(user_id)) == (await sms.limit(user_id)).current_count == 10


async def test_a_stale_copy_that_knows_of_less_lets_nobody_through_and_is_dropped(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=5, used=5)
    stale = {"rateLimit": 5, "currentCount": 1, "resetsAt": FOREVER, "madeAt": 0}
    await sms.state.write(key_of(user_id), stale, 600)
    assert await sms.said(user_id) == LIMITED
    assert await sms.copy(user_id) == {}
    refused = await sms.send(user_id)
    assert (refused.status, await sms.copy(user_id) != {}) == (429, True)
    assert int(refused.headers["retry-after"]) <= 600


async def test_a_copy_of_a_higher_limit_than_there_is_lets_nobody_through(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=2)
    await sms.state.write(key_of(user_id), {"rateLimit": 50, "currentCount": 0, "resetsAt": FOREVER, "madeAt": 0}, 600)
    assert [await sms.said(user_id) for _ in range(4)] == [SENT, SENT, LIMITED, LIMITED]
    assert len(sms.messages(user_id)) == 2


async def test_a_copy_whose_time_has_come_is_made_anew(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=2)
    over = {"rateLimit": 2, "currentCount": 2, "resetsAt": sms.clock.milliseconds() - 1, "madeAt": 0}
    await sms.state.write(key_of(user_id), over, 600)
    assert await sms.said(user_id) == SENT
    assert (await sms.copy(user_id))["currentCount"] == "1"


async def test_a_copy_of_a_time_to_come_is_made_anew(sms: SmsWorld) -> None:
    """It is from before the clock was set back, and would refuse until the clock is there again."""
    user_id, now = await sms.user(limit=2), sms.clock.milliseconds()
    ahead = {"rateLimit": 2, "currentCount": 2, "resetsAt": now + 4_000_000, "madeAt": now + 3_600_000}
    await sms.state.write(key_of(user_id), ahead, 600)
    assert await sms.said(user_id) == SENT
    assert (await sms.copy(user_id))["currentCount"] == "1"


async def test_a_refusal_of_the_copy_does_not_ask_the_database(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=1)
    assert [await sms.said(user_id) for _ in range(3)] == [SENT, LIMITED, LIMITED]
    await sms.database.close()
    answer = await sms.send(user_id)
    assert (answer.status, answer.text) == LIMITED
    assert 500 <= int(answer.headers["retry-after"]) <= 601


async def test_what_is_in_the_place_of_a_copy_and_is_none_does_no_harm(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=2)
    await sms.state.write(key_of(user_id), {"rateLimit": "many", "currentCount": "", "else": "x"}, 600)
    assert [await sms.said(user_id) for _ in range(3)] == [SENT, SENT, LIMITED]


async def test_a_key_of_another_kind_does_no_harm(fresh_database: str, request: pytest.FixtureRequest) -> None:
    async with sms_world(fresh_database, request) as world:
        user_id = await world.user(limit=2)
        async with administering(request.getfixturevalue("redis_address")) as redis:
            await redis.set(key_of(user_id), "text")
            assert [await world.said(user_id) for _ in range(3)] == [SENT, SENT, LIMITED]
            assert {attempt["path"] for attempt in world.noted(user_id)} == {"row-lock"}
            await redis.delete(key_of(user_id))


# Changes of the limit.


async def test_a_fill_that_meets_a_new_limit_leaves_nothing_of_the_old_one(
    sms: SmsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id = await sms.user(limit=1, used=1)
    copies = Copies(sms.database, sms.state, sms.clock)
    filling, changed = asyncio.Event(), asyncio.Event()
    write = sms.state.write

    async def write_late(key: str, fields: dict[str, str | int], ttl: float) -> None:
        """The old limit is read by now; the new one is set before it is written."""
        filling.set()
        await changed.wait()
        await write(key, fields, ttl)

    monkeypatch.setattr(sms.state, "write", write_late)
    taking = asyncio.create_task(copies.take(user_id))
    await filling.wait()
    await sms.configure(user_id, 7, 10)
    changed.set()
    assert await taking is None
    copy = await sms.copy(user_id)
    assert (copy["rateLimit"], copy["currentCount"]) == ("7", "1")


async def test_a_limit_that_changes_while_redis_is_away_is_known_as_soon_as_it_is_back(
    sms: SmsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    user_id, other = await sms.user(limit=1), await sms.user()
    assert [await sms.said(user_id) for _ in range(3)] == [SENT, LIMITED, LIMITED]
    sms.state.away = True
    await sms.configure(user_id, 3, 10)
    assert "was not dropped" in caplog.text
    sms.state.away = False
    assert (await sms.copy(user_id))["rateLimit"] == "1"
    assert await sms.said(other) == SENT
    await eventually(lambda: _no_copy(sms, user_id))
    assert [await sms.said(user_id) for _ in range(4)] == [SENT, SENT, SENT, LIMITED]


async def _no_copy(world: SmsWorld, user_id: int) -> bool:
    return await world.copy(user_id) == {}


async def test_a_count_that_fails_does_not_cost_the_user_a_slot(sms: SmsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    user_id = await sms.user(limit=2)
    assert await sms.said(user_id) == SENT

    def refuse() -> None:
        raise RuntimeError("no transaction now")

    with monkeypatch.context() as patched:
        patched.setattr(sms.database, "transaction", refuse)
        assert (await sms.send(user_id)).status == 500
    assert [await sms.said(user_id) for _ in range(2)] == [SENT, LIMITED]


async def test_the_database_s_time_is_heard_before_a_commit_that_may_be_slow(
    sms: SmsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learnt later, it would make that clock look slow, and a copy refuse who has waited long enough."""
    user_id = await sms.user()
    real = sms.database.transaction
    told: list[Any] = []

    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        async with real() as tx:
            yield tx
            told.append("commit")

    monkeypatch.setattr(sms.database, "transaction", transaction)
    counter = Counter(sms.database, sms.clock, Uncounted(sms.database, sms.clock), told.append)
    before = sms.clock.now()
    assert (await counter.count(Claim(user_id))).word == "admitted"
    [heard, committed] = told
    assert committed == "commit"
    assert abs(heard - before) < timedelta(seconds=30)


# Redis away, for real.


async def test_an_outage_is_one_warning_and_one_line_and_in_between_the_lock_counts(
    fresh_database: Location, redis_address: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract.redis")
    host, _, port = redis_address.rpartition(":")
    async with (
        FaultProxy.to(host, int(port)) as proxy,
        sms_world(fresh_database, request, redis=f"127.0.0.1:{proxy.port}") as world,
    ):
        user_id = await world.user(limit=6)
        assert await world.said(user_id) == SENT
        state: Any = world.state
        with impatient(state._state._redis):
            proxy.swallow()
            assert await all_at_once(3, lambda number: world.said(user_id, str(number))) == [SENT] * 3
            assert await world.said(user_id) == SENT
            proxy.heal()
        await eventually(world.state.ping_quietly)
        assert [await world.said(user_id) for _ in range(3)] == [SENT, LIMITED, LIMITED]
        assert len(world.messages(user_id)) == (await world.limit(user_id)).current_count == 6
        paths = [attempt["path"] for attempt in world.noted(user_id)]
        assert paths == ["redis"] + ["row-lock"] * 4 + ["redis"] * 3
    told = [record.getMessage() for record in caplog.records if record.name == "refract.redis"]
    assert told == ["redis unavailable; cache disabled", "redis is back"]


async def test_a_redis_that_is_slow_is_not_waited_for(
    fresh_database: Location, redis_address: str, request: pytest.FixtureRequest
) -> None:
    async with (
        slow_line(redis_address, 100.0) as (address, _),
        sms_world(fresh_database, request, redis=address, redis_deadline=0.2) as world,
    ):
        user_id = await world.user(limit=2)
        async with asyncio.timeout(50):
            assert [await world.said(user_id) for _ in range(3)] == [SENT, SENT, LIMITED]
        assert {attempt["path"] for attempt in world.noted(user_id)} == {"row-lock"}
