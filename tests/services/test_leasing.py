"""Leased snowflake workers: one holder a number, ids only within the lease, and none of them twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from refract.kernel.clock import SystemClock
from refract.kernel.errors import Unavailable
from refract.kernel.ids import MAX_SEQUENCE, MAX_WORKER, snowflake_moment, snowflake_worker
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.links.commands import leasing
from refract.services.links.commands.leasing import LEASE_SECONDS, WorkerLease
from tests.support.clocks import ManualClock
from tests.support.databases import Location, open_database
from tests.support.fault_proxy import FaultProxy
from tests.support.patience import patient
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["patient"]

NUMBERS = Statement("numbers", "Reads all numbers.", "SELECT worker, holder, leased_until FROM snowflake_workers")
SET_ENDS = Statement("set_ends", "Ends every lease at a moment.", "UPDATE snowflake_workers SET leased_until = :moment")
SET_END = Statement(
    "set_end",
    "Ends one lease at a moment.",
    "UPDATE snowflake_workers SET leased_until = :moment WHERE worker = :worker",
)
TAKE_ALL = Statement(
    "take_all",
    "Leaves one number and gives the others away.",
    "UPDATE snowflake_workers SET holder = 'other', leased_until = :moment WHERE worker <> :worker",
)
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)


def lease_on(database: Database, clock: ManualClock | None = None, seconds: float = LEASE_SECONDS) -> WorkerLease:
    return WorkerLease(database, clock or ManualClock(), seconds=seconds)


async def change(database: Database, statement: Statement, **parameters: object) -> None:
    async with database.transaction() as tx:
        await tx.execute(statement, **parameters)


async def numbers(database: Database) -> dict[int, Row]:
    return {row["worker"]: row for row in await database.fetch(NUMBERS)}


async def leave_only(database: Database, worker: int) -> None:
    """All numbers but one are somebody else's for a day."""
    await change(database, TAKE_ALL, worker=worker, moment=datetime.now(UTC) + timedelta(days=1))


def number_of(lease: WorkerLease) -> int:
    assert lease.worker is not None
    return lease.worker


class Pauses:
    """A pause that ends when the test says so, and notes how long it would have been."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._over.wait()
        self._over.clear()

    def end(self) -> None:
        self._over.set()


@asynccontextmanager
async def opened(location: Location, count: int) -> AsyncIterator[Sequence[Database]]:
    async with AsyncExitStack() as stack:
        databases = []
        for _ in range(count):
            databases.append(database := await open_database(location))
            stack.push_async_callback(database.close)
        yield databases


@pytest.mark.usefixtures("patient")
async def test_fifty_at_once_get_fifty_numbers(database_location: Location) -> None:
    """Five processes, as far as the database can tell, on an empty table."""
    async with opened(database_location, 5) as databases:
        leases = [lease_on(databases[number % 5]) for number in range(50)]
        await asyncio.gather(*(lease.acquire() for lease in leases))
        made = [snowflake_worker(lease.next_id()) for lease in leases]
        assert len(set(made)) == 50
        held = {worker for worker, row in (await numbers(databases[0])).items() if row["holder"]}
        assert held == set(made)


@pytest.mark.usefixtures("patient")
async def test_the_last_free_number_has_one_winner(database_location: Location) -> None:
    async with opened(database_location, 4) as databases:
        await lease_on(databases[0]).acquire()
        await leave_only(databases[0], 7)
        await change(databases[0], SET_END, worker=7, moment=LONG_AGO)
        leases = [lease_on(databases[number % 4]) for number in range(12)]
        outcomes = await asyncio.gather(*(lease.acquire() for lease in leases), return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert all(outcome is None or isinstance(outcome, Unavailable) for outcome in outcomes)


async def test_a_lease_is_for_a_minute_of_the_databases_time(database: Database) -> None:
    begun = datetime.now(UTC)
    lease = lease_on(database)  # whose clock stands in March
    await lease.acquire()
    row = (await numbers(database))[number_of(lease)]
    assert (
        begun - timedelta(seconds=1)
        < row["leased_until"] - timedelta(minutes=1)
        < datetime.now(UTC) + timedelta(seconds=1)
    )
    second = timedelta(seconds=1)
    assert begun - second < snowflake_moment(lease.next_id()) < datetime.now(UTC) + second


async def test_when_all_are_taken_it_says_so(database: Database) -> None:
    await lease_on(database).acquire()
    await leave_only(database, -1)
    lease = lease_on(database)
    with pytest.raises(Unavailable, match="all 1024 numbers are leased"):
        await lease.acquire()
    with pytest.raises(Unavailable, match="no number is leased"):
        lease.next_id()


async def test_every_number_can_be_leased(database: Database) -> None:
    # In one transaction, and for an hour: a thousand commits may take minutes, by which the first lease has lapsed.
    async with database.transaction() as tx:

        @asynccontextmanager
        async def same() -> AsyncIterator[Transaction]:
            yield tx

        shared: Any = SimpleNamespace(transaction=same)
        leases = [lease_on(shared, seconds=3600.0) for _ in range(MAX_WORKER + 1)]
        for lease in leases:
            await lease.acquire()
    assert {lease.worker for lease in leases} == set(range(MAX_WORKER + 1))


async def test_numbers_are_used_in_turn(database: Database) -> None:
    """A number that was given back rests for as long as it can."""
    first = lease_on(database)
    await first.acquire()
    freed = number_of(first)
    await first.release()
    second = lease_on(database)
    await second.acquire()
    assert second.worker != freed


async def test_ids_end_with_the_lease_and_go_on_after_the_renewal(database: Database) -> None:
    clock = ManualClock()
    lease = lease_on(database, clock)
    await lease.acquire()
    before = lease.next_id()
    clock.advance(LEASE_SECONDS - 0.001)
    last = lease.next_id()
    clock.advance(0.001)
    with pytest.raises(Unavailable, match="ran out"):
        lease.next_id()
    await lease.renew()
    after = lease.next_id()
    assert before < last < after
    assert len({snowflake_worker(made) for made in (before, last, after)}) == 1


async def test_the_life_counts_from_before_the_renewal_was_sent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer came late: what the database gave is by then shorter."""
    clock = ManualClock()
    lease = lease_on(database, clock)
    await lease.acquire()
    transaction = database.transaction

    @asynccontextmanager
    async def slow() -> AsyncIterator[object]:
        async with transaction() as tx:
            yield tx
            clock.advance(50)

    monkeypatch.setattr(database, "transaction", slow)
    for step in (lease.renew, lease.acquire):
        await step()
        clock.advance(9.9)
        lease.next_id()
        clock.advance(0.1)
        with pytest.raises(Unavailable):
            lease.next_id()


async def test_ids_never_leave_the_lease(database: Database) -> None:
    """In the last millisecond of it, and asked for more ids than that has."""
    clock = ManualClock()
    lease = lease_on(database, clock)
    await lease.acquire()
    end = (await numbers(database))[number_of(lease)]["leased_until"]
    clock.advance(LEASE_SECONDS - 0.001)
    made = [lease.next_id() for _ in range(MAX_SEQUENCE + 1)]
    with pytest.raises(Unavailable, match="used up"):
        lease.next_id()
    assert snowflake_moment(made[-1]) + timedelta(milliseconds=1) <= end


async def test_the_next_holder_makes_none_of_the_same_ids(database: Database) -> None:
    """The first works to the end of its lease by a clock that is fast; the second takes the number once it lapses."""
    clock = ManualClock()
    first = lease_on(database, clock, seconds=0.3)
    await first.acquire()
    worker = number_of(first)
    await leave_only(database, worker)
    clock.advance(0.299)
    made = [first.next_id() for _ in range(MAX_SEQUENCE + 1)]
    second = await eventually(partial(taken, database), interval=0.001)
    assert second.worker == worker
    assert second.next_id() > made[-1]


async def taken(database: Database) -> WorkerLease:
    lease = lease_on(database)
    await lease.acquire()
    return lease


async def test_a_lease_begins_no_earlier_than_the_last_one_ended(database: Database) -> None:
    """A number is given back with ids dated ahead: what comes next is dated after them, whenever it is made."""
    clock = ManualClock()
    first = lease_on(database, clock)
    await first.acquire()
    worker = number_of(first)
    clock.advance(0.3)  # by its own clock; the database's has hardly moved
    made = [first.next_id() for _ in range(3 * MAX_SEQUENCE)]
    await first.release()
    row = (await numbers(database))[worker]
    assert row["holder"] == ""
    assert row["leased_until"] > snowflake_moment(made[-1])
    assert row["leased_until"] < datetime.now(UTC) + timedelta(seconds=5)
    await leave_only(database, worker)
    second = await eventually(partial(taken, database))
    assert second.worker == worker
    assert second.next_id() > made[-1]


async def test_after_the_release_there_are_no_ids(database: Database) -> None:
    lease = lease_on(database)
    await lease.acquire()
    await lease.release()
    with pytest.raises(Unavailable):
        lease.next_id()
    await lease.release()  # again, which changes nothing


async def test_a_lapsed_number_is_taken_over_and_the_old_holder_takes_another(database: Database) -> None:
    old, new = lease_on(database), lease_on(database)
    await old.acquire()
    lost = number_of(old)
    await leave_only(database, lost)
    await change(database, SET_END, worker=lost, moment=LONG_AGO)
    await new.acquire()
    assert new.worker == lost
    await change(database, SET_END, worker=5 if lost != 5 else 6, moment=LONG_AGO)
    await old.renew()
    assert old.worker in {5, 6}
    assert snowflake_worker(old.next_id()) == old.worker
    assert snowflake_worker(new.next_id()) == lost


async def test_a_lost_number_makes_no_ids_while_there_is_no_other(database: Database) -> None:
    lease = lease_on(database)
    await lease.acquire()
    await leave_only(database, -1)
    with pytest.raises(Unavailable, match="all 1024"):
        await lease.renew()
    with pytest.raises(Unavailable):
        lease.next_id()


async def test_a_lapsed_number_that_nobody_took_is_kept(database: Database) -> None:
    clock = ManualClock()
    lease = lease_on(database, clock)
    await lease.acquire()
    worker = lease.worker
    await change(database, SET_ENDS, moment=LONG_AGO)
    clock.advance(3600)
    await lease.renew()
    assert lease.worker == worker
    assert snowflake_worker(lease.next_id()) == worker


async def test_a_clock_of_the_database_that_was_set_back_moves_no_end_back(database: Database) -> None:
    lease = lease_on(database)
    await lease.acquire()
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await change(database, SET_END, worker=number_of(lease), moment=ahead)
    await lease.renew()
    assert (await numbers(database))[number_of(lease)]["leased_until"] == ahead
    assert snowflake_moment(lease.next_id()) < ahead


async def test_the_task_renews_in_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice over a lease's life: at the end of every pause there are ids still."""
    pauses, clock = Pauses(), ManualClock()
    monkeypatch.setattr(leasing, "asyncio", SimpleNamespace(sleep=pauses))
    lease = lease_on(database, clock)
    made = []
    async with running(lease.run):
        for turn in range(1, 8):
            await eventually(lambda: len(pauses.asked) == turn)  # noqa: B023  # it is over when the round is
            made.append(lease.next_id())
            clock.advance(pauses.asked[-1])
            made.append(lease.next_id())
            pauses.end()
        assert clock.monotonic() > 2 * LEASE_SECONDS
        assert {snowflake_worker(one) for one in made} == {lease.worker}
        assert made == sorted(set(made))


async def test_the_task_outlives_trouble(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    await lease_on(database).acquire()
    await leave_only(database, -1)
    lease = WorkerLease(database, SystemClock(), seconds=0.3)
    async with running(lease.run):
        await eventually(lambda: caplog.text.count("not renewed; will retry") >= 2)
        await change(database, SET_END, worker=7, moment=LONG_AGO)
        assert snowflake_worker(await eventually(lease.next_id)) == 7


@asynccontextmanager
async def behind_a_proxy(location: str) -> AsyncIterator[tuple[Database, FaultProxy, Callable[[], Awaitable[None]]]]:
    """A database, what stands before it, and how to take that away for good."""
    await migrate("links", location)
    parts = urlsplit(location)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy.to(str(parts.hostname), parts.port or 0))
        netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"
        async with opened(parts._replace(netloc=netloc).geturl(), 1) as [database]:
            yield database, proxy, stack.aclose


async def test_a_database_that_is_away_stops_ids_in_time_and_brings_them_back(fresh_database: str) -> None:
    async with behind_a_proxy(fresh_database) as (database, proxy, _):
        lease = WorkerLease(database, SystemClock(), seconds=0.6)

        def refused() -> bool:
            with suppress(Unavailable):
                return not lease.next_id()
            return True

        async with running(lease.run):
            await eventually(lease.next_id)
            proxy.pause()
            # By the lease's own end: that the database says nothing is noticed after eleven seconds.
            await eventually(refused, timeout=8)
            proxy.heal()
            await eventually(lease.next_id)


async def test_without_a_database_nothing_is_given_back_and_nothing_fails(
    fresh_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with behind_a_proxy(fresh_database) as (database, _, take_away):
        lease = lease_on(database)
        await lease.acquire()
        await take_away()
        with pytest.raises(Unavailable):
            await lease.renew()
        lease.next_id()  # what was leased is still ours
        await lease.release()
        assert "not given back" in caplog.text
