"""Databases that die, lock, refuse or vanish: nothing acknowledged is lost, and nothing of ours has to be restarted."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import asyncpg
import pytest

from refract.kernel.errors import Misconfigured, RefractError, Unavailable
from refract.runtime.distributed import pool
from refract.runtime.distributed.database import PAUSES, PostgresDatabase
from refract.runtime.distributed.pool import ConnectionPool
from refract.runtime.distributed.postgresql import connect
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from tests.support.servers import PostgreSQL
from tests.support.servers.places import free_port
from tests.support.waiting import eventually

CREATE = Statement("create", "Makes a table.", "CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
ADD = Statement("add", "Adds a number.", "INSERT INTO numbers (number) VALUES (:number)")
ALL = Statement("all", "Reads the numbers.", "SELECT number FROM numbers")
LOCK = Statement("lock", "Locks a number.", "SELECT number FROM numbers WHERE number = :number FOR UPDATE")
BACKENDS = Statement(
    "backends",
    "Lists the connections of this test's service.",
    "SELECT pid, query FROM pg_stat_activity WHERE application_name = 'refract-test' AND datname = current_database()",
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """A PostgreSQL that these tests may kill."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
async def postgres(server: PostgreSQL) -> AsyncIterator[PostgresDatabase]:
    """The service's database on it, with an empty table."""
    await asyncio.to_thread(server.start)
    await migrate("links", server.address)
    database = await PostgresDatabase.open(server.address, service="test")
    async with database.transaction() as tx:
        await tx.execute(Statement("drop", "Removes the last test's table.", "DROP TABLE IF EXISTS numbers"))
        await tx.execute(CREATE)
    yield database
    await database.close()


@dataclass
class Ledger:
    """What a writer tried, what was acknowledged, and how often it was told that the database is away."""

    attempted: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    refusals: int = 0

    async def write(self, database: Database, numbers: Iterator[int]) -> None:
        """Write until cancelled, each number once."""
        for number in numbers:
            self.attempted.add(number)
            try:
                async with database.transaction() as tx:
                    await tx.execute(ADD, number=number)
            except Unavailable:
                self.refusals += 1
                await asyncio.sleep(0.01)
            else:
                self.acknowledged.add(number)


async def numbers(database: Database) -> set[int]:
    return {row["number"] for row in await database.fetch(ALL)}


async def test_killed_and_back_during_writes(server: PostgreSQL, postgres: PostgresDatabase) -> None:
    ledger = Ledger()
    source = iter(range(10**9))
    writers = [asyncio.create_task(ledger.write(postgres, source)) for _ in range(8)]
    for _ in range(3):
        acknowledged, refusals = len(ledger.acknowledged), ledger.refusals
        await eventually(lambda before=acknowledged: len(ledger.acknowledged) > before + 20)  # type: ignore[misc]
        await asyncio.to_thread(server.kill)
        await eventually(lambda before=refusals: ledger.refusals > before)  # type: ignore[misc]
        await asyncio.to_thread(server.start)
    acknowledged = len(ledger.acknowledged)
    await eventually(lambda: len(ledger.acknowledged) > acknowledged + 20, timeout=20)
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    found = await numbers(postgres)
    assert ledger.acknowledged - found == set()
    assert found - ledger.attempted == set()


async def test_away_means_unavailable_and_back_means_back(server: PostgreSQL, postgres: PostgresDatabase) -> None:
    await asyncio.to_thread(server.stop)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await postgres.ping()
        with pytest.raises(Unavailable):
            async with postgres.transaction() as tx:
                await tx.execute(ADD, number=1)
    await postgres.announced(0.1)
    await asyncio.to_thread(server.start)
    await eventually(lambda: _answers(postgres))
    async with postgres.transaction() as tx:
        await tx.execute(ADD, number=2)
    assert await numbers(postgres) == {2}


async def _answers(database: Database) -> bool:
    await database.ping()
    return True


async def test_announcements_are_heard_again_after_the_listener_was_cut(
    server: PostgreSQL, postgres: PostgresDatabase
) -> None:
    await postgres.announced(10)
    [listener] = [row["pid"] for row in await postgres.fetch(BACKENDS) if "LISTEN" in row["query"]]
    await _administer(server, f"SELECT pg_terminate_backend({listener})")

    async def listens_anew() -> bool:
        rows = await postgres.fetch(BACKENDS)
        return any("LISTEN" in row["query"] and row["pid"] != listener for row in rows)

    await eventually(listens_anew)
    while await _woken(postgres, 0.5):
        pass
    async with postgres.transaction() as tx:
        await tx.post(Message("exchange", "key", b"{}", "id"))
    assert await _woken(postgres, 20)


async def _woken(database: Database, timeout: float) -> bool:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await database.announced(timeout)
    return loop.time() - began < 0.9 * timeout  # a timer may end a little before its time


async def test_a_deadlock_is_transient_for_one_and_nothing_for_the_other(postgres: PostgresDatabase) -> None:
    async with postgres.transaction() as tx:
        await tx.execute_many(ADD, [{"number": 1}, {"number": 2}])
    both = asyncio.Barrier(2)

    async def lock(first: int, second: int) -> None:
        async with postgres.transaction() as tx:
            await tx.fetch(LOCK, number=first)
            await both.wait()
            await tx.fetch(LOCK, number=second)

    outcomes = await asyncio.gather(lock(1, 2), lock(2, 1), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [Unavailable]


async def test_cancelled_transactions_give_their_connections_back(postgres: PostgresDatabase) -> None:
    async def hold() -> None:
        async with postgres.transaction() as tx:
            await tx.execute(ADD, number=1)
            await asyncio.Event().wait()

    for _ in range(25):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await hold()
    async with asyncio.timeout(60):
        await asyncio.gather(*(postgres.ping() for _ in range(20)))
    assert await numbers(postgres) == set()


# The pool


async def test_the_pool_keeps_two_and_opens_ten(postgres: PostgresDatabase) -> None:
    await eventually(lambda: _connections(postgres, 2))  # those of the test before may be on their way out
    everyone = asyncio.Barrier(10)

    async def hold() -> None:
        async with postgres.transaction():
            await everyone.wait()

    await asyncio.gather(*(hold() for _ in range(30)))
    assert await _connections(postgres, 10)
    assert (pool.MAX_CONNECTIONS, pool.KEPT_CONNECTIONS) == (10, 2)
    assert (pool.MAX_LIFETIME, pool.MAX_IDLE) == (30 * 60, 5 * 60)


async def _connections(postgres: PostgresDatabase, number: int) -> bool:
    return len(await postgres.fetch(BACKENDS)) == number


class Watch:
    """A stop watch that the test turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
async def watched(postgres: PostgresDatabase, server: PostgreSQL) -> AsyncIterator[tuple[ConnectionPool, Watch]]:
    """A pool whose time the test decides."""
    watch = Watch()
    connections = ConnectionPool(lambda: connect(server.address, service="watched"), watch)
    await connections.check()
    yield connections, watch
    await connections.close()


async def _use_at_once(connections: ConnectionPool, number: int) -> set[int]:
    everyone = asyncio.Barrier(number)

    async def use() -> int:
        async with connections.connection() as connection:
            await everyone.wait()
            return connection.get_server_pid()

    return set(await asyncio.gather(*(use() for _ in range(number))))


async def test_who_finds_no_connection_in_time_is_told(
    watched: tuple[ConnectionPool, Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, _ = watched
    async with AsyncExitStack() as stack:
        for _ in range(pool.MAX_CONNECTIONS):
            await stack.enter_async_context(connections.connection())
        with monkeypatch.context() as patch:
            patch.setattr(pool, "ACQUIRE_TIMEOUT", 0.05)
            for _ in range(2):
                with pytest.raises(Unavailable, match=r"no connection was free within 0\.05 s"):
                    await asyncio.wait_for(stack.enter_async_context(connections.connection()), 60)
    assert len(await _use_at_once(connections, pool.MAX_CONNECTIONS)) == pool.MAX_CONNECTIONS
    assert connections.size == pool.MAX_CONNECTIONS


async def test_connections_that_idle_are_closed_but_two(watched: tuple[ConnectionPool, Watch]) -> None:
    connections, watch = watched
    used = await _use_at_once(connections, 6)
    watch.seconds += pool.MAX_IDLE - 1
    await connections.check()
    assert connections.size == 6
    watch.seconds += 2
    await connections.check()
    assert connections.size == 2
    assert await _use_at_once(connections, 2) < used


async def test_a_connection_lives_for_half_an_hour(watched: tuple[ConnectionPool, Watch]) -> None:
    connections, watch = watched
    first = await _use_at_once(connections, 2)
    watch.seconds += pool.MAX_LIFETIME - 1
    await connections.check()
    assert await _use_at_once(connections, 2) == first
    watch.seconds += 2
    await connections.check()
    assert connections.size == 2
    assert not await _use_at_once(connections, 2) & first


async def test_a_connection_in_use_is_replaced_after_its_use(watched: tuple[ConnectionPool, Watch]) -> None:
    connections, watch = watched
    async with connections.connection() as connection:
        old = connection.get_server_pid()
        watch.seconds += pool.MAX_LIFETIME + 1
        assert await connection.fetchval("SELECT 1") == 1
    assert old not in await _use_at_once(connections, 10)


# The start, and what must never be told


async def test_gives_up_after_five_attempts(caplog: pytest.LogCaptureFixture) -> None:
    assert PAUSES == (0.0, 0.5, 1.0, 2.0, 4.0)
    dsn = f"postgres://someone:hunter2@127.0.0.1:{free_port()}/links?sslmode=disable"
    with caplog.at_level(logging.DEBUG), pytest.raises(Unavailable, match="failed after 5 attempts") as caught:
        await PostgresDatabase.open(dsn, service="links", pauses=(0, 0, 0, 0, 0))
    attempts = [vars(record) for record in caplog.records if record.name == "refract.database"]
    assert [attempt["attempt"] for attempt in attempts] == [1, 2, 3, 4, 5]
    assert_hidden("hunter2", caught.value, caplog)
    assert_hidden("someone", caught.value, caplog)


async def test_one_that_accepts_and_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refract.runtime.distributed.postgresql.CONNECT_TIMEOUT", 0.1)
    callers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: callers.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="in time"):
            await PostgresDatabase.open(f"postgres://a:b@127.0.0.1:{port}/c", service="silent", pauses=(0.0, 0.0))
        attempts = [vars(record) for record in caplog.records if record.name == "refract.database"]
        assert [attempt["attempt"] for attempt in attempts] == [1, 2]
        for writer in callers:
            writer.close()


async def test_one_that_comes_up_late_is_found(postgres: PostgresDatabase, server: PostgreSQL) -> None:
    await asyncio.to_thread(server.stop)
    opening = asyncio.create_task(
        PostgresDatabase.open(server.address, service="late", pauses=(0.0,) * 3 + (0.2,) * 500)
    )
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)
    late = await opening
    await late.ping()
    await late.close()


async def test_a_connection_is_logged_without_its_credentials(
    postgres: PostgresDatabase, server: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        database = await PostgresDatabase.open(server.address, service="logged")
    [line] = [record for record in caplog.records if record.message == "connected to DB"]
    assert vars(line)["dsn_host"] == f"127.0.0.1:{server.port}"
    password = server.address.split(":")[2].split("@")[0]
    assert_hidden(password, Unavailable("", repr(vars(database))), caplog)
    await database.close()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("postgres://someone:hunter2@127.0.0.1:{port}/postgres", Unavailable),
        ("postgres://refract:{password}@127.0.0.1:{port}/hunter2", Unavailable),
        ("mysql://someone:hunter2@127.0.0.1/links", Misconfigured),
        ("postgres://someone:hunter2@127.0.0.1:port/links", Misconfigured),
        ("postgres://someone:hunter2@[::1/links", Misconfigured),
        ("postgres://someone:hunter2@127.0.0.1/links?sslmode=hunter2", Misconfigured),
        ("postgres://someone:hunter2@no-such-host.invalid/links", Unavailable),
    ],
    ids=["password", "database", "scheme", "port", "brackets", "sslmode", "host"],
)
async def test_a_wrong_dsn_is_not_quoted(
    postgres: PostgresDatabase,
    server: PostgreSQL,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    error: type[RefractError],
) -> None:
    password = server.address.split(":")[2].split("@")[0]
    dsn = wrong.format(port=server.port, password=password)
    with caplog.at_level(logging.DEBUG), pytest.raises(error) as caught:
        await PostgresDatabase.open(dsn, service="wrong", pauses=(0.0,))
    assert_hidden("hunter2", caught.value, caplog)
    assert_hidden(password, caught.value, caplog)
    if error is Unavailable:
        with caplog.at_level(logging.DEBUG), pytest.raises(error) as caught:
            await migrate("links", dsn)
        assert_hidden("hunter2", caught.value, caplog)


def assert_hidden(secret: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """The secret is in no log line with its fields, and in no traceback down to the first cause."""
    told = [repr(vars(record)) for record in caplog.records] + traceback.format_exception(error)
    assert [line for line in told if secret in line] == []


async def _administer(server: PostgreSQL, statement: str) -> None:
    connection = await asyncpg.connect(server.address)
    await connection.execute(statement)
    await connection.close()
