"""Messages that left before their commit was lost: they are counted before anything else is admitted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime.records import Record
from refract.runtime.statements import Statement
from refract.services.sms.commands.uncounted import Uncounted
from refract.services.sms.store.limits import Seen
from tests.support.fault_proxy import proxy_before
from tests.support.sms import DATABASE_AWAY, LIMITED, SENT, SmsWorld, all_at_once, locked_sms, new_user, sms, sms_world

__all__ = ["locked_sms", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")


@asynccontextmanager
async def lost_commits(world: SmsWorld, *, kept: bool = False) -> AsyncIterator[None]:
    """Whoever commits something is told that the database went away, which it did before that, or right after."""
    real = world.database.transaction

    @asynccontextmanager
    async def failing() -> AsyncIterator[Any]:
        async with real() as tx:
            yield tx
            if not kept:
                raise Unavailable("database", "it went away with the commit")
        raise Unavailable("database", "it went away with the answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.database, "transaction", failing)
        yield


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_what_left_without_a_count_is_counted_before_more_is_admitted(
    locked_sms: SmsWorld, algorithm: str
) -> None:
    user_id, other = await locked_sms.user(limit=5, algorithm=algorithm), await locked_sms.user(limit=5)
    async with lost_commits(locked_sms):
        answers = await all_at_once(3, lambda number: locked_sms.said(user_id, str(number)))
        assert answers == [DATABASE_AWAY] * 3
        left = len(locked_sms.messages(user_id))
        assert left > 0, "in the log by then"
        assert (await locked_sms.limit(user_id)).current_count == 0
        # What cannot be counted yet lets nobody else through either.
        assert await locked_sms.said(other) == DATABASE_AWAY
        assert locked_sms.messages(other) == []
    assert [await locked_sms.said(user_id) for _ in range(6 - left)] == [SENT] * (5 - left) + [LIMITED]
    assert len(locked_sms.messages(user_id)) == (await locked_sms.limit(user_id)).current_count == 5
    assert await locked_sms.said(other) == SENT
    assert (await locked_sms.limit(other)).current_count == 1


@pytest.mark.parametrize("quick", [False, True])
async def test_whoever_waits_for_the_lock_of_a_send_whose_commit_is_lost_is_not_let_through(
    fresh_database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    """He had looked for what is uncounted before there was anything, and has the lock before anybody knows."""
    async with sms_world(fresh_database, request) as world:
        user_id = await world.user(limit=1)
        published, lost = asyncio.Event(), asyncio.Event()
        real, publish_all = world.database.transaction, world.records.publish_all

        async def publish(records: Sequence[Record]) -> list[NotPublished | None]:
            outcomes = await publish_all(records)
            published.set()
            return outcomes

        @asynccontextmanager
        async def losing() -> AsyncIterator[Any]:
            async with real() as tx:
                yield tx
                await tx.execute(Statement("end", "Ends the transaction and frees its locks.", "ROLLBACK"))
                await lost.wait()
                raise Unavailable("database", "it went away with the commit")

        monkeypatch.setattr(world.records, "publish_all", publish)
        world.state.away = True
        with monkeypatch.context() as patch:
            patch.setattr(world.database, "transaction", losing)
            first = asyncio.create_task(world.said(user_id))
            await published.wait()
        world.state.away = not quick
        second = asyncio.create_task(world.said(user_id))
        done, _ = await asyncio.wait([second], timeout=0.3)
        lost.set()
        assert not done, "it waits for what becomes of the first"
        assert await first == DATABASE_AWAY
        assert await second in {DATABASE_AWAY, LIMITED}, "the latter if it came so late that it was counted"
        assert await world.said(user_id) == LIMITED
        assert len(world.messages(user_id)) == (await world.limit(user_id)).current_count == 1


@pytest.mark.parametrize("kept", [False, True])
async def test_whoever_has_a_key_may_repeat_it_and_is_counted_once(locked_sms: SmsWorld, *, kept: bool) -> None:
    user_id = await locked_sms.user(limit=1)
    async with lost_commits(locked_sms, kept=kept):
        assert await locked_sms.said(user_id, "once", "a key") == DATABASE_AWAY
    assert await locked_sms.said(user_id, "once", "a key") == SENT
    assert len(locked_sms.messages(user_id)) == (await locked_sms.limit(user_id)).current_count == 1
    assert await locked_sms.said(user_id, "another") == LIMITED


async def test_the_quick_way_counts_it_too(sms: SmsWorld) -> None:
    """Redis was away meanwhile, and is back."""
    user_id, other = await sms.user(limit=2), await sms.user()
    sms.state.away = True
    async with lost_commits(sms):
        assert await sms.said(user_id) == DATABASE_AWAY
    sms.state.away = False
    assert len(sms.messages(user_id)) == 1
    assert await sms.said(other) == SENT
    assert (await sms.limit(user_id)).current_count == 1
    assert [await sms.said(user_id) for _ in range(2)] == [SENT, LIMITED]
    assert len(sms.messages(user_id)) == 2


async def test_neither_a_new_limit_nor_a_new_window_has_to_do_with_it(locked_sms: SmsWorld) -> None:
    user_id = await locked_sms.user(limit=2)
    async with lost_commits(locked_sms):
        assert await locked_sms.said(user_id) == DATABASE_AWAY
    await locked_sms.configure(user_id, 2)
    assert await locked_sms.said(user_id) == SENT
    assert (await locked_sms.limit(user_id)).current_count == 1
    limit = await locked_sms.limit(user_id)
    uncounted = Uncounted(locked_sms.database, locked_sms.clock)
    for ago, counted in ((limit.window, 1), (limit.window / 2, 2), (timedelta(), 2)):
        lose(uncounted, user_id, Seen(limit, locked_sms.clock.now() - ago))
        await uncounted.count()
        await uncounted.count()
        assert (await locked_sms.limit(user_id)).current_count == counted, "never over the limit"


def lose(uncounted: Uncounted, user_id: int, seen: Seen) -> None:
    """A message leaves, and its commit is lost."""
    with suppress(Unavailable), uncounted.departing() as departure:
        departure.add({user_id: seen}, {user_id: 1}, [])
        raise Unavailable("database", "it went away with the commit")


async def test_a_user_of_whom_nobody_knows_any_more_is_no_trouble(locked_sms: SmsWorld) -> None:
    limit, nobody = await locked_sms.limit(await locked_sms.user()), new_user()
    uncounted = Uncounted(locked_sms.database, locked_sms.clock)
    lose(uncounted, nobody, Seen(limit, locked_sms.clock.now()))
    await uncounted.count()


async def test_what_was_not_published_is_not_counted_either(locked_sms: SmsWorld) -> None:
    user_id = await locked_sms.user(limit=2)
    locked_sms.records.away = True
    async with lost_commits(locked_sms):
        assert await locked_sms.said(user_id) == DATABASE_AWAY
    locked_sms.records.away = False
    assert [await locked_sms.said(user_id) for _ in range(3)] == [SENT, SENT, LIMITED]


async def test_a_connection_that_is_cut_between_the_log_and_the_commit_costs_no_slot_too_many(
    fresh_database: str, request: pytest.FixtureRequest
) -> None:
    """With a real PostgreSQL behind a proxy: it is reset when the broker has confirmed."""
    async with (
        proxy_before(fresh_database) as (behind, proxy),
        sms_world(behind, request, fast_path=False) as world,
    ):
        user_id = await world.user(limit=20)
        real = world.records.publish_all

        async def publish_and_cut(records: Sequence[Record]) -> list[NotPublished | None]:
            outcomes = await real(records)
            proxy.cut()
            return outcomes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.records, "publish_all", publish_and_cut)
            answers = await all_at_once(8, lambda number: world.said(user_id, str(number)))
        assert set(answers) == {DATABASE_AWAY}
        left = len(world.messages(user_id))
        assert left > 0
        answers = []
        while LIMITED not in answers:
            answers += await all_at_once(10, lambda number: world.said(user_id, str(number)))
        assert answers.count(SENT) == 20 - left
        assert len(world.messages(user_id)) == (await world.limit(user_id)).current_count == 20
