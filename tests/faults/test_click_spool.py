"""Clicks while databases go away and processes are killed: no answered one is lost."""

import asyncio
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.distributed import pool
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.services.links.redirect import bundles, clicks
from refract.services.links.redirect.spool import Spool
from tests.support.clicks import LIMIT, Writing, click, numbers
from tests.support.databases import open_database
from tests.support.fault_proxy import proxy_before
from tests.support.servers import PostgreSQL
from tests.support.spools import directory, impatient, restless, sqlite
from tests.support.waiting import eventually

__all__ = ["directory", "impatient", "restless", "sqlite"]

ROOT = Path(__file__).parents[2]
AWAY = Unavailable("database", "it is to be away")

CLICKER = """
import asyncio, sys
from pathlib import Path
from refract.services.links.redirect import clicks, shelter
from tests.support.clicks import Writing
from tests.support.databases import open_database
from tests.support.waiting import eventually

clicks.FLUSH_TIMEOUT = clicks.LOOK_SECONDS = 0.1
shelter.SPOOL_TIMEOUT = 60.0

async def main(path, directory):
    writing = Writing(await open_database(Path(path)), Path(directory))
    async with writing.running():
        for number in range(1_000_000):
            writing.record(number)
            await eventually(lambda: len(writing.released) == number + 1, interval=0)
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

HOLDER = """
import sys
from pathlib import Path
from refract.services.links.redirect.spool import Spool
from tests.support.clicks import click

spool = Spool(Path(sys.argv[1]), 1_000_000)
print(spool.append([click(number) for number in range(5)]), flush=True)
sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("restless")


async def _came_back(writing: Writing, number: int, timeout: float = 40) -> None:
    await eventually(lambda: not writing.files, timeout=timeout)
    assert sorted(writing.released) == list(range(number))
    found = await numbers(writing.database)
    assert set(found) == set(range(number))
    assert writing.counted("clicks_shed_total") == 0


# Databases that go away


async def test_a_killed_postgresql_costs_no_click(directory: Path) -> None:
    with PostgreSQL() as server:
        await migrate("links", server.address)
        database = await open_database(server.address)
        writing = Writing(database, directory)
        async with writing.running():
            await writing.follow(*range(10))
            await asyncio.to_thread(server.kill)
            await writing.follow(*range(10, 20))
            assert writing.counted("clicks_spooled_total") == 10
            await asyncio.to_thread(server.start)
            await _came_back(writing, 20)
            await writing.follow(*range(20, 30))
        assert sorted(await numbers(database)) == list(range(30))
        assert writing.counted("clicks_spooled_total") == 10, "clicks go to the spool though the database is back"
        await database.close()


@pytest.mark.usefixtures("impatient")
async def test_a_silent_postgresql_costs_no_click(
    fresh_database: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pool takes its time to part from a connection that says nothing; nobody is to wait for that.
    monkeypatch.setattr(pool, "TIDY_TIMEOUT", 100.0)
    await migrate("links", fresh_database)
    async with proxy_before(fresh_database) as (behind, proxy):
        database = await open_database(behind)
        writing = Writing(database, directory)
        async with writing.running():
            await writing.follow(*range(10))
            proxy.swallow()
            await writing.follow(*range(10, 20))
            monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 60.0)
            proxy.heal()
            proxy.cut()
            await _came_back(writing, 20)
        await database.close()


@pytest.mark.usefixtures("impatient")
async def test_a_locked_sqlite_file_costs_no_click(
    sqlite: Database, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    writing = Writing(sqlite, directory)
    async with writing.running():
        await writing.follow(*range(10))
        holder.execute("BEGIN IMMEDIATE")
        await writing.follow(*range(10, 20))
        monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 60.0)
        holder.execute("ROLLBACK")
        holder.close()
        await _came_back(writing, 20)


# Processes that are killed


async def test_what_a_killed_process_spooled_is_found_by_the_next(
    sqlite: Database, tmp_path: Path, directory: Path
) -> None:
    holder = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLICKER, tmp_path / "test.db", directory, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    answered = {int(await process.stdout.readline()) for _ in range(50)}
    process.kill()
    answered |= {int(line) for line in (await process.stdout.read()).splitlines(keepends=True) if line.endswith(b"\n")}
    assert await process.wait() == -signal.SIGKILL
    holder.close()
    assert await numbers(sqlite) == []
    writing = Writing(sqlite, directory)
    async with writing.running():
        await eventually(lambda: not writing.files)
    found = await numbers(sqlite)
    assert len(answered) >= 50
    assert answered <= set(found)
    assert len(found) == len(set(found)) <= len(answered) + 1


async def test_files_of_the_living_are_left_alone_and_those_of_the_dead_are_taken(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "ADOPT_SECONDS", 0.1)
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, directory, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"5\n"
    writing = Writing(sqlite, directory)
    writing.spool.append([click(5)])
    async with writing.running():
        await eventually(lambda: writing.counted("clicks_recorded_total") == 1)
        await asyncio.sleep(0.3)  # long enough to look for other files three times
        found = await numbers(sqlite)
        other.kill()
        await other.wait()
        await eventually(lambda: not writing.files)
    assert found == [5]
    assert await numbers(sqlite) == list(range(6))


async def test_two_take_the_files_of_a_third_and_none_twice(directory: Path) -> None:
    for number in range(20):
        left = Spool(directory, LIMIT)
        left.append([click(number)])
        left.close()
    heirs = [Spool(directory, LIMIT) for _ in range(4)]
    adopted = await asyncio.gather(*(asyncio.to_thread(heir.adopt) for heir in heirs))
    assert sum(adopted) == 20
    for heir in heirs:
        heir.close()


async def test_a_kill_between_commit_and_removal_makes_copies_with_the_same_ids(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "remove", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        dying = Writing(sqlite, directory)
        dying.spool.append([click(1), click(2)])
        async with dying.running():
            await eventually(lambda: dying.counted("clicks_recorded_total") == 2)
    dying.spool.close()
    assert dying.files
    writing = Writing(sqlite, directory)
    async with writing.running():
        await eventually(lambda: not writing.files)
    assert await numbers(sqlite) == [1, 1, 2, 2]


async def test_a_file_stays_until_all_of_it_is_committed(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "ROW_CLICKS", 1)
    writing = Writing(sqlite, directory)
    writing.spool.append([click(number) for number in range(4)])
    post, posts = writing.guarded.post, iter(range(1_000_000))

    async def fail_from_the_third_on(*messages: Message) -> None:
        if next(posts) == 2:
            writing.guarded.trouble = AWAY
        await post(*messages)

    monkeypatch.setattr(writing.guarded, "post", fail_from_the_third_on)
    async with writing.running():
        await eventually(lambda: writing.guarded.trouble)
        assert await numbers(sqlite) == [0, 1]
        assert len(writing.files) == 1
        writing.guarded.trouble = None
        await eventually(lambda: not writing.files)
    assert await numbers(sqlite) == [0, 1, 2, 3], "what was committed before the trouble is sent again"
