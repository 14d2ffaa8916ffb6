"""PostgreSQL that is there and yet of no use: silent, read-only after a failover, closed for maintenance, too slow."""

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import asyncpg
import pytest

from refract.kernel.errors import TimedOut, Unavailable
from refract.runtime.distributed import pool, postgresql
from refract.runtime.distributed.database import STEADY_CONNECTIONS, PostgresDatabase
from refract.runtime.distributed.postgresql import connect
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.statements import Statement
from refract.runtime.transactions import StatementFailed
from tests.support.fault_proxy import FaultProxy, proxy_before
from tests.support.servers import PostgreSQL
from tests.support.waiting import eventually

READ = Statement("read", "Reads how many events there are.", "SELECT count(*) AS events FROM outbox")
PAUSE = Statement("pause", "Takes its time.", "SELECT pg_sleep(:seconds) IS NULL AS slept")
LOCK = Statement("lock", "Lets nobody else write.", "LOCK TABLE outbox IN SHARE MODE")
MESSAGE = Message("exchange", "key", b"{}", "id")


@asynccontextmanager
async def _opened(location: str) -> AsyncIterator[PostgresDatabase]:
    database = await PostgresDatabase.open(location, service="test", pauses=(0.0, 0.5, 1.0, 2.0))
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def location(fresh_database: str) -> str:
    """A migrated database of this test alone."""
    await migrate("links", fresh_database)
    return fresh_database


@pytest.fixture
async def database(location: str) -> AsyncIterator[PostgresDatabase]:
    """The same, opened."""
    async with _opened(location) as opened:
        yield opened


@pytest.fixture
async def proxied(location: str) -> AsyncIterator[tuple[PostgresDatabase, FaultProxy]]:
    """The same behind a proxy that can fall silent."""
    async with proxy_before(location) as (behind, proxy), _opened(behind) as opened:
        yield opened, proxy


async def _write(database: PostgresDatabase) -> None:
    async with database.transaction() as tx:
        await tx.post(MESSAGE)


# Statements with one plan, and with many


PLANS = Statement(
    "plans",
    "Tells how often statements of this connection had a plan of their own, and the one for all.",
    "SELECT sum(custom_plans) AS made_for_each, sum(generic_plans) AS made_for_all "
    "FROM pg_prepared_statements WHERE statement LIKE 'SELECT count%'",
)


async def test_a_steady_statement_is_planned_once(database: PostgresDatabase) -> None:
    sql = "SELECT current_setting('plan_cache_mode') AS plans, :value::int AS value"
    steady, other = (Statement("plans", "Tells how it is planned.", sql, steady=steady) for steady in (True, False))
    for value in range(8):
        assert await database.fetch(steady, value=value) == [{"plans": "force_generic_plan", "value": value}]
        assert await database.fetch(other, value=value) == [{"plans": "auto", "value": value}]


async def test_a_varied_statement_is_planned_for_each_call(database: PostgresDatabase) -> None:
    sql = "SELECT count(*) AS events FROM outbox WHERE attempts > :least"
    varied, other = (Statement("count", "Counts events.", sql, varied=varied) for varied in (True, False))
    for statement in (varied, other):
        for _ in range(20):
            await database.fetch(statement, least=0)
        [plans] = await database.fetch(replace(PLANS, varied=statement.varied))
        assert plans["made_for_each"] >= 5
        assert (plans["made_for_all"] > 0) is (statement is other)


async def test_a_steady_statement_may_not_write(database: PostgresDatabase) -> None:
    delete = Statement("delete", "Deletes events.", "DELETE FROM outbox RETURNING id", steady=True)
    await _write(database)
    with pytest.raises(StatementFailed, match="read-only"):
        await database.fetch(delete)
    assert await database.fetch(READ) == [{"events": 1}]


async def test_steady_statements_go_on_after_their_connections_were_cut(
    location: str, database: PostgresDatabase, postgres_dsn: str
) -> None:
    steady = replace(READ, steady=True)
    await asyncio.gather(*(database.fetch(replace(PAUSE, steady=True), seconds=0.2) for _ in range(20)))
    assert database._steady.size == STEADY_CONNECTIONS
    name = urlsplit(location).path[1:]
    await _administer(postgres_dsn, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    await eventually(lambda: _reads(database, steady))
    await database.close()
    assert database._steady.size == 0


async def _reads(database: PostgresDatabase, statement: Statement) -> bool:
    try:
        return await database.fetch(statement) == [{"events": 0}]
    except Unavailable:
        return False


# A server that falls silent


@pytest.fixture
def long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are opened from now on would wait for an answer longer than any test."""
    monkeypatch.setattr(postgresql, "SILENCE_TIMEOUT", 300.0)


@pytest.mark.usefixtures("long_patience")
async def test_whoever_stops_does_not_wait_for_a_silent_server(proxied: tuple[PostgresDatabase, FaultProxy]) -> None:
    database, proxy = proxied
    proxy.swallow()
    tasks = [asyncio.create_task(work) for work in (database.fetch(READ), _write(database))]
    await eventually(lambda: len(database._pool._in_use) == 2)
    async with asyncio.timeout(60):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await database.close()
    assert all(task.cancelled() for task in tasks)
    assert database._pool.size == 0
    assert pool.TIDY_TIMEOUT <= 1


@pytest.mark.usefixtures("long_patience")
@pytest.mark.parametrize("steady", [False, True])
async def test_closing_hangs_up_on_a_silent_server(
    proxied: tuple[PostgresDatabase, FaultProxy], *, steady: bool
) -> None:
    database, proxy = proxied
    connections = database._steady if steady else database._pool
    read = replace(READ, steady=steady)
    await database.fetch(read)
    proxy.swallow()
    reading = asyncio.create_task(database.fetch(read))
    await eventually(lambda: connections._in_use)
    async with asyncio.timeout(60):
        await database.close()
        with pytest.raises(Unavailable):
            await reading
    assert connections.size == 0


async def test_closing_waits_for_a_server_that_answers(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers() -> None:
        raise Unavailable("database", "too many connections")  # a word is a word, and this one is never late

    monkeypatch.setattr(database._pool, "_connect", answers)
    reading = asyncio.create_task(database.fetch(PAUSE, seconds=2 * pool.TIDY_TIMEOUT))
    await eventually(lambda: database._pool._in_use)
    await database.close()
    assert await reading == [{"slept": False}]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are opened from now on do not wait long for an answer."""
    monkeypatch.setattr(postgresql, "SILENCE_TIMEOUT", 0.5)


@pytest.mark.usefixtures("impatient")
async def test_silence_is_no_slow_statement(proxied: tuple[PostgresDatabase, FaultProxy]) -> None:
    database, proxy = proxied
    proxy.swallow()
    with pytest.raises(Unavailable, match="in time") as caught:
        await database.fetch(READ)
    assert not isinstance(caught.value, TimedOut)


# A server that answers, slowly


async def test_many_that_take_too_long_together_are_a_slow_statement(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "SILENCE_TIMEOUT", 2.0)
    async with _opened(location) as database:
        with pytest.raises(TimedOut, match="pause"):
            async with database.transaction() as tx:
                await tx.execute_many(PAUSE, [{"seconds": 0.2}] * 100)


async def test_a_row_that_another_holds_is_no_slow_statement(
    location: str, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "ACQUIRE_TIMEOUT", 0.2)
    async with _opened(location) as waiting:
        async with database.transaction() as tx:
            await tx.execute(LOCK)
            with pytest.raises(Unavailable) as caught:
                await _write(waiting)
        assert not isinstance(caught.value, TimedOut)
        await _write(waiting)


# A server that takes no writes any more


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A PostgreSQL of this test alone."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
async def own(server: PostgreSQL) -> AsyncIterator[PostgresDatabase]:
    """The database on it."""
    await migrate("links", server.address)
    async with _opened(server.address) as opened:
        yield opened


async def test_a_failover_to_a_standby_is_waited_out(
    server: PostgreSQL, own: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refract.runtime.distributed.listening.RECONNECT_PAUSE", 0.05)
    database = own
    await database.announced(10)
    await _write(database)
    await _become_standby(server)
    await eventually(lambda: _answers(database), timeout=30)
    for _ in range(2):
        assert await database.fetch(replace(READ, steady=True)) == [{"events": 1}]
        with pytest.raises(Unavailable, match="takes no writes"):
            await _write(database)
        assert database._pool.size == 0, "a connection to the old primary is kept"
        assert database._steady.size == 0, "a connection to the old primary is kept"
    assert await database.fetch(READ) == [{"events": 1}]

    def refused_listener() -> bool:
        return any("listen failed" in vars(record).get("reason", "") for record in caplog.records)

    await eventually(refused_listener)
    await _administer(server.address, "SELECT pg_promote()")
    await _write(database)
    assert await database.fetch(READ) == [{"events": 2}]
    assert database._listener._task is not None
    assert not database._listener._task.done()


async def test_a_statement_refused_as_read_only_in_a_transaction_is_transient(database: PostgresDatabase) -> None:
    async def write_after_the_server_turned() -> None:  # as some managed servers do under a transaction that has begun
        async with database.transaction() as tx:
            await tx.execute(Statement("turn", "Makes the transaction read-only.", "SET TRANSACTION READ ONLY"))
            await tx.post(MESSAGE)

    with pytest.raises(Unavailable, match="takes no writes"):
        await write_after_the_server_turned()
    await _write(database)


async def _become_standby(server: PostgreSQL) -> None:
    await asyncio.to_thread(server.stop)
    signal = server.folder / "data" / "standby.signal"
    signal.touch()
    shutil.copymode(server.folder / "data" / "PG_VERSION", signal)
    owner = (server.folder / "data" / "PG_VERSION").stat()
    shutil.chown(signal, owner.st_uid, owner.st_gid)
    await asyncio.to_thread(server.start)


async def _administer(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _answers(database: PostgresDatabase) -> bool:
    await database.ping()
    return True


# A server that lets nobody in for a while


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again and again is done more often."""
    monkeypatch.setattr("refract.runtime.distributed.listening.RECONNECT_PAUSE", 0.05)
    monkeypatch.setattr(pool, "CHECK_INTERVAL", 0.05)


@pytest.mark.usefixtures("restless")
async def test_maintenance_ends_neither_the_listener_nor_the_upkeep(
    location: str, database: PostgresDatabase, postgres_dsn: str
) -> None:
    await database.announced(10)
    name = urlsplit(location).path[1:]
    await _administer(postgres_dsn, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await _administer(postgres_dsn, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    await eventually(lambda: database._pool.size == 0)
    with pytest.raises(Unavailable, match="55000"):
        await database.ping()
    await _administer(postgres_dsn, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    await eventually(lambda: database._pool.size == pool.KEPT_CONNECTIONS)
    while await _woken(database, 0.5):
        pass
    async with _opened(location) as elsewhere:
        await _write(elsewhere)
        assert await _woken(database, 20)


async def _woken(database: PostgresDatabase, timeout: float) -> bool:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await database.announced(timeout)
    return loop.time() - began < 0.9 * timeout  # a timer may end a little before its time


# What a cancelled caller leaves behind


def test_a_cancelled_connect_leaves_nothing_to_complain_about(postgres_dsn: str) -> None:
    complaints: list[str] = []

    async def cancel_everywhere() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        for steps in range(30):
            connecting = asyncio.create_task(connect(postgres_dsn, service="test"))
            for _ in range(steps):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                connecting.result().terminate()
        await eventually(lambda: len(asyncio.all_tasks()) == 1)
        for _ in range(5):  # what was cut off is closed by the loop's next rounds
            await asyncio.sleep(0)
        gc.collect()

    # The plain loop: on uvloop it does not happen.
    asyncio.run(cancel_everywhere())
    assert complaints == []
