"""SQLite files whose writer is killed, that another process holds, or that are no databases at all."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import msgspec
import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.embedded import sqlite_log
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.redirect.clicks import FLUSH_TIMEOUT
from tests.support.waiting import eventually

CREATE = Statement("create", "Makes a table.", "CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
ADD = Statement("add", "Adds a number.", "INSERT INTO numbers (number) VALUES (:number)")
ALL = Statement("all", "Reads the numbers.", "SELECT number FROM numbers")

ADD_MANY = Statement(
    "add_many",
    "Adds five thousand numbers.",
    """
    INSERT INTO numbers (number)
    WITH RECURSIVE more (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM more LIMIT 5000)
    SELECT number + (SELECT coalesce(max(number) + 1, 0) FROM numbers) FROM more
    """,
)
COUNT_SLOWLY = Statement(
    "count_slowly",
    "Reads for a while.",
    """
    WITH RECURSIVE more (step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM more LIMIT 20000)
    SELECT max(step) AS step, (SELECT count(*) FROM numbers) AS number FROM more
    """,
)

WRITER = """
import asyncio, sys
from pathlib import Path
from refract.runtime.embedded.database import EmbeddedDatabase
from tests.faults.test_sqlite_faults import ADD

async def main():
    database = await EmbeddedDatabase.open(Path(sys.argv[1]))
    for number in range(int(sys.argv[2]), 10**9):
        async with database.transaction() as tx:
            await tx.execute(ADD, number=number)
        print(number, flush=True)

asyncio.run(main())
"""


async def numbers(database: Database) -> set[int]:
    return {row["number"] for row in await database.fetch(ALL)}


@pytest.fixture
async def sqlite_file(tmp_path: Path) -> Path:
    """A SQLite file with an empty table."""
    path = tmp_path / "test.db"
    database = await EmbeddedDatabase.open(path)
    async with database.transaction() as tx:
        await tx.execute(CREATE)
    await database.close()
    return path


async def test_a_killed_writer_loses_nothing_it_acknowledged(sqlite_file: Path) -> None:
    acknowledged: set[int] = set()
    for first in (0, 1_000_000, 2_000_000):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(sqlite_file), str(first), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(50):
            acknowledged.add(int(await process.stdout.readline()))
        process.kill()
        rest = await process.stdout.read()
        acknowledged.update(int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n"))
        await process.wait()
    database = await EmbeddedDatabase.open(sqlite_file)
    found = await numbers(database)
    assert acknowledged - found == set()
    assert len(found) <= len(acknowledged) + 3
    await database.close()


async def test_a_file_that_another_process_holds_is_unavailable_until_it_lets_go(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.runtime.embedded.sqlite_connections.BUSY_MILLISECONDS", 100)
    database = await EmbeddedDatabase.open(sqlite_file)
    holder = sqlite3.connect(sqlite_file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        async with database.transaction() as tx:
            await tx.execute(ADD, number=1)
    assert await numbers(database) == set()
    holder.execute("ROLLBACK")
    holder.close()
    async with database.transaction() as tx:
        await tx.execute(ADD, number=2)
    assert await numbers(database) == {2}
    await database.close()


async def test_the_loop_goes_on_while_a_transaction_waits_for_the_file(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.runtime.embedded.sqlite_connections.BUSY_MILLISECONDS", 100_000)
    database = await EmbeddedDatabase.open(sqlite_file)
    holder = sqlite3.connect(sqlite_file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def write() -> None:
        async with database.transaction() as tx:
            await tx.execute(ADD, number=1)

    writing = asyncio.create_task(write())
    for _ in range(100):
        assert await numbers(database) == set()
    assert not writing.done()
    holder.execute("COMMIT")
    holder.close()
    await writing
    await database.close()


async def test_commits_reach_the_disk(sqlite_file: Path) -> None:
    database = await EmbeddedDatabase.open(sqlite_file)
    async with database.transaction() as tx:
        assert await tx.fetch(Statement("s", "Asks.", "PRAGMA synchronous")) == [{"synchronous": 2}]
        assert await tx.fetch(Statement("j", "Asks.", "PRAGMA journal_mode")) == [{"journal_mode": "wal"}]
        assert await tx.fetch(Statement("f", "Asks.", "PRAGMA foreign_keys")) == [{"foreign_keys": 1}]
    await database.close()


async def test_the_log_stays_small_though_somebody_always_reads(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 1_000_000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_MILLISECONDS", 1000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_SHARE", 0)
    log = sqlite_file.with_name("test.db-wal")
    database = await EmbeddedDatabase.open(sqlite_file)

    async def read() -> None:
        while True:
            await database.fetch(COUNT_SLOWLY)

    async def write() -> bool:
        before = log.stat().st_size
        async with database.transaction() as tx:
            await tx.execute(ADD_MANY)
        return before > 1_000_000 > log.stat().st_size

    reading = [asyncio.create_task(read()) for _ in range(4)]
    assert await eventually(write, timeout=60, interval=0)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await database.close()


async def test_a_log_that_readers_hold_on_to_holds_up_nobody(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 1000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_MILLISECONDS", 10)
    database = await EmbeddedDatabase.open(sqlite_file)
    reader = sqlite3.connect(sqlite_file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute(ALL.sql).fetchall()
    for number in range(50):
        async with database.transaction() as tx:
            await tx.execute(ADD, number=number)
    assert await numbers(database) == set(range(50))
    reader.close()
    async with database.transaction() as tx:
        assert await tx.fetch(Statement("b", "Asks.", "PRAGMA busy_timeout")) == [{"timeout": 5000}]
    await database.close()


def size_of(path: Path) -> int:
    return path.stat().st_size


async def write_often(database: EmbeddedDatabase, times: int) -> None:
    for _ in range(times):
        async with database.transaction() as tx:
            await tx.execute(ADD_MANY)


async def test_the_log_is_moved_into_the_file_and_not_by_whoever_writes(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "WORTH_MOVING", 4)
    database = await EmbeddedDatabase.open(sqlite_file)
    async with database.transaction() as tx:
        assert await tx.fetch(Statement("a", "Asks.", "PRAGMA wal_autocheckpoint")) == [{"wal_autocheckpoint": 0}]

    async def moved() -> bool:
        await write_often(database, 1)
        return size_of(sqlite_file) > 100_000

    assert await eventually(moved, timeout=60, interval=0)
    await database.close()


async def test_a_log_that_was_moved_begins_anew(sqlite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "WORTH_MOVING", 2)
    monkeypatch.setattr(sqlite_log, "LONG_LOG", 200)
    monkeypatch.setattr(sqlite_log, "LOOK_SECONDS", 0)
    database = await EmbeddedDatabase.open(sqlite_file)
    log = sqlite_file.with_name("test.db-wal")
    for _ in range(10):  # the thread that moves it may be late; a log that goes on is as long as ever
        await write_often(database, 300)
        if size_of(log) < size_of(sqlite_file) / 3:
            break
    assert size_of(log) < size_of(sqlite_file) / 3
    await database.close()
    assert size_of(sqlite_file) > 10_000_000


async def test_a_log_that_was_emptied_may_soon_be_emptied_again(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is for those who waited in vain. After milliseconds, one of seconds let the log grow without end."""
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 100_000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_MILLISECONDS", 5_000)
    database = await EmbeddedDatabase.open(sqlite_file)
    log, sizes = sqlite_file.with_name("test.db-wal"), [0]
    for _ in range(5):

        async def emptied() -> bool:
            await write_often(database, 1)
            sizes.append(size_of(log))
            return sizes[-1] < sizes[-2]

        assert await eventually(emptied, timeout=10, interval=0)
    await database.close()


async def test_a_log_that_cannot_be_emptied_is_moved_all_the_same(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 100_000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_MILLISECONDS", 1)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_SHARE", 1_000_000)
    monkeypatch.setattr(sqlite_log, "WORTH_MOVING", 2)
    database = await EmbeddedDatabase.open(sqlite_file)
    reader = sqlite3.connect(sqlite_file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute(ALL.sql).fetchall()
    before, attempts, empty = size_of(sqlite_file), [], sqlite_log.LogKeeper._empty

    def attempt(keeper: sqlite_log.LogKeeper, connection: sqlite3.Connection) -> None:
        attempts.append(connection)
        empty(keeper, connection)

    async def tried() -> bool:
        await write_often(database, 1)
        return bool(attempts)

    async def moved() -> bool:
        await write_often(database, 1)
        return size_of(sqlite_file) > before

    monkeypatch.setattr(sqlite_log.LogKeeper, "_empty", attempt)
    assert await eventually(tried, interval=0)
    reader.close()
    assert await eventually(moved, timeout=20, interval=0)
    assert len(attempts) == 1
    await database.close()


async def test_however_large_a_log_is_a_flush_of_clicks_outlasts_the_wait_for_its_readers(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 1000)
    database = await EmbeddedDatabase.open(sqlite_file)
    said: list[str] = []
    empty = sqlite_log.LogKeeper._empty

    def listen(keeper: sqlite_log.LogKeeper, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(said.append)
        try:
            empty(keeper, connection)
        finally:
            connection.set_trace_callback(None)

    monkeypatch.setattr(sqlite_log.LogKeeper, "_empty", listen)
    async with database.transaction() as tx:
        for _ in range(5):
            await tx.execute(ADD_MANY)
    await eventually(lambda: len(said) == 3)
    await database.close()
    wait, emptying, _ = said
    assert emptying == "PRAGMA wal_checkpoint(TRUNCATE)"
    assert int(wait.removeprefix("PRAGMA busy_timeout = ")) <= FLUSH_TIMEOUT * 1000 / 4


async def test_a_read_that_failed_holds_nothing_open(sqlite_file: Path) -> None:
    outside = sqlite3.connect(sqlite_file, isolation_level=None)
    outside.executescript("CREATE TABLE texts (text JSONTEXT); INSERT INTO texts VALUES ('{'), ('{}')")
    database = await EmbeddedDatabase.open(sqlite_file)
    with pytest.raises(msgspec.DecodeError) as kept:
        await database.fetch(Statement("texts", "Reads what is broken.", "SELECT text FROM texts"))
    async with database.transaction() as tx:
        await tx.execute(ADD, number=1)
    [busy, _, _] = outside.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    assert kept.value.__traceback__ is not None
    outside.close()
    await database.close()


async def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "test.db").write_bytes(b"this is a letter, and no database" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        await EmbeddedDatabase.open(tmp_path / "test.db")
    with pytest.raises(Unavailable, match="cannot be opened"):
        await EmbeddedDatabase.open(tmp_path / "no folder" / "test.db")
