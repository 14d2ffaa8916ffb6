"""Clicks while databases go away, processes are killed and disks fail: no answered one is lost, or it is said."""

import asyncio
import errno
import fcntl
import os
import signal
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.distributed import pool
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.services.links.redirect import clicks, shelter, spool
from refract.services.links.redirect.spool import Segment, Spool
from tests.support.clicks import LIMIT, Writing, click, numbers
from tests.support.databases import open_database
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import PostgreSQL
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
AWAY = Unavailable("database", "it is to be away")

CLICKER = """
import asyncio, sys
from pathlib import Path
from refract.services.links.redirect import clicks
from tests.support.clicks import Writing
from tests.support.databases import open_database
from tests.support.waiting import eventually

clicks.FLUSH_TIMEOUT = clicks.LOOK_SECONDS = 0.1

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


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again and again is done more often, and nobody waits long."""
    monkeypatch.setattr(clicks, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 0.5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the spool is; nobody has made it yet."""
    return tmp_path / "data" / "spool"


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    """A database of this test alone."""
    await migrate("links", tmp_path / "test.db")
    database = await EmbeddedDatabase.open(tmp_path / "test.db")
    yield database
    await database.close()


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


async def test_a_silent_postgresql_costs_no_click(
    fresh_database: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TIDY_TIMEOUT", 10.0)
    await migrate("links", fresh_database)
    parts = urlsplit(fresh_database)
    assert parts.hostname is not None
    assert parts.port is not None
    async with FaultProxy.to(parts.hostname, parts.port) as proxy:
        behind = parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}").geturl()
        database = await PostgresDatabase.open(behind, service="test", pauses=(0.0,))
        writing = Writing(database, directory)
        async with writing.running():
            await writing.follow(*range(10))
            proxy.swallow()
            writing.record(10)
            began = asyncio.get_running_loop().time()
            await writing.answered(10, timeout=15)
            # The pool takes its time to part from a connection that says nothing; nobody is to wait for that.
            assert asyncio.get_running_loop().time() - began < 5
            await writing.follow(*range(11, 20))
            proxy.heal()
            proxy.cut()
            await _came_back(writing, 20)
        await database.close()


async def test_a_locked_sqlite_file_costs_no_click(sqlite: Database, tmp_path: Path, directory: Path) -> None:
    holder = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    writing = Writing(sqlite, directory)
    async with writing.running():
        await writing.follow(*range(10))
        holder.execute("BEGIN IMMEDIATE")
        await writing.follow(*range(10, 20))
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
    monkeypatch.setattr(clicks, "ROW_CLICKS", 1)
    writing = Writing(sqlite, directory)
    writing.spool.append([click(number) for number in range(4)])
    post, posts = writing.guarded.post, iter(range(100))

    async def fail_at_the_third(*messages: Message) -> None:
        writing.guarded.trouble = AWAY if next(posts) == 2 else None
        await post(*messages)

    monkeypatch.setattr(writing.guarded, "post", fail_at_the_third)
    async with writing.running():
        await eventually(lambda: writing.guarded.trouble)
        assert await numbers(sqlite) == [0, 1]
        assert len(writing.files) == 1
        await eventually(lambda: not writing.files)
    assert await numbers(sqlite) == [0, 1, 2, 3], "what was committed before the trouble is sent again"


# Files that are damaged


@pytest.mark.parametrize(
    ("cut", "left"), [(1, 4), (2, 3), (len(click(0)), 3), (len(click(0)) + 9, 3), (len(click(0)) + 11, 3)]
)
def test_a_torn_tail_costs_the_torn_click_only(directory: Path, cut: int, left: int) -> None:
    torn = Spool(directory, LIMIT)
    torn.append([click(number) for number in range(4)])
    torn.close()
    [path] = directory.iterdir()
    os.truncate(path, path.stat().st_size - cut)
    segment = Segment.adopted(path)
    assert segment is not None
    assert segment.clicks() == [click(number) for number in range(4)][:left]
    segment.close()


@pytest.mark.parametrize("position", [0, 8, 9, 30, len(click(0)) + 9])
def test_a_spoilt_byte_costs_no_more_than_its_neighbours(
    directory: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt = Spool(directory, LIMIT)
    spoilt.append([click(number) for number in range(4)])
    spoilt.close()
    [path] = directory.iterdir()
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
    segment = Segment.adopted(path)
    assert segment is not None
    found = segment.clicks()
    assert set(found) < {click(number) for number in range(4)}
    assert found[-2:] == [click(2), click(3)]
    assert "torn" in caplog.text
    segment.close()


def test_a_click_of_several_lines_is_one_click(directory: Path) -> None:
    several = Spool(directory, LIMIT)
    several.append([b'{\n"event_id": "1"\n}', click(2)])
    segment = several.next_segment()
    assert segment is not None
    assert segment.clicks() == [b'{ "event_id": "1" }', click(2)]
    several.close()


async def test_a_file_that_cannot_be_read_holds_up_no_other(
    sqlite: Database, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = Spool(directory, LIMIT)
    left.append([click(1)])
    left.close()
    (directory / "0.spool").mkdir()  # the first in the order of names
    (directory / "1.spool").symlink_to(directory / "elsewhere")
    writing = Writing(sqlite, directory)
    async with writing.running():
        await eventually(lambda: writing.counted("clicks_recorded_total") == 1)
    assert await numbers(sqlite) == [1]
    assert caplog.text.count("cannot be read") == 2


async def test_a_file_whose_disk_fails_comes_later(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clicks, "ADOPT_SECONDS", 1.0)
    for number in range(2):
        left = Spool(directory, LIMIT)
        left.append([click(number)])
        left.close()
    pread, calls = os.pread, iter(range(100))

    def fail_once(*arguments: int) -> bytes:
        if next(calls) == 0:
            raise OSError(errno.EIO, "the disk is broken")
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", fail_once)
    writing = Writing(sqlite, directory)
    async with writing.running():
        await eventually(lambda: len(writing.files) == 1)
        assert writing.counted("clicks_recorded_total") == 1
        await eventually(lambda: not writing.files)
    assert await numbers(sqlite) == [0, 1]
    assert caplog.text.count("cannot be read") == 1


# Two that reach for one file


def test_a_file_that_was_removed_before_we_had_its_lock_is_not_adopted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Spool(directory, LIMIT)
    left.append([click(1)])
    left.close()
    [path] = directory.iterdir()
    flock = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert Segment.adopted(path) is None


def test_a_new_file_that_another_takes_for_a_dead_one_is_left_to_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(parents=True)
    flock = fcntl.flock
    taken: list[int] = []

    def adopt_first(descriptor: int, operation: int) -> None:
        if not taken:
            [path] = directory.iterdir()
            taken.append(os.open(path, os.O_RDWR))
            flock(taken[0], operation)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", adopt_first)
    segment = Segment.made(directory)
    assert os.fstat(taken[0]).st_ino != segment.path.stat().st_ino
    os.close(taken[0])
    segment.close()


# Bounds, and disks that fail


def test_the_bound_is_for_all_files_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 100)
    line = len(click(1)) + 10
    first, second = (Spool(directory, 4 * line) for _ in range(2))
    assert first.append([click(1)]) == 1
    assert first.append([click(2)]) == 1
    assert second.append([click(3), click(4), click(5)]) == 2
    assert first.append([click(6)]) == second.append([click(7)]) == 0
    assert len(list(directory.iterdir())) == 3
    segment = first.next_segment()
    assert segment is not None
    assert segment.clicks() == [click(1)]
    first.remove(segment)
    assert second.append([click(8)]) == 1
    first.close()
    second.close()


def test_nobody_else_can_read_it_and_nothing_is_made_before_it_is_needed(directory: Path) -> None:
    kept = Spool(directory, LIMIT)
    kept.check()
    assert kept.adopt() == 0
    assert kept.next_segment() is None
    assert not directory.exists()
    kept.append([click(1)])
    [path] = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept.close()


async def test_a_directory_that_cannot_be_used_is_said_at_the_start_and_redirects_go_on(
    sqlite: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").write_text("in the way")
    writing = Writing(sqlite, tmp_path / "data" / "spool")
    async with writing.running():
        await eventually(lambda: "the click spool cannot be used" in caplog.text)
        writing.guarded.trouble = AWAY
        await writing.follow(*range(5))
        assert writing.counted("clicks_shed_total") == 5
        writing.guarded.trouble = None
        await eventually(lambda: not writing.writer._away)
        await writing.follow(*range(5, 10))
    await writing.writer.drain()
    assert await numbers(sqlite) == list(range(5, 10))
    assert [vars(record)["clicks"] for record in caplog.records if record.message == "clicks were shed"] == [5]


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync"])
async def test_a_disk_that_fails_sheds_and_leaves_nothing_half_done(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    writing = Writing(sqlite, directory)
    writing.guarded.trouble = AWAY
    async with writing.running():
        await writing.follow(*range(2 if call != "fsync" else 0))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            await writing.follow(*range(2, 4))
        assert writing.counted("clicks_shed_total") == 2
        await writing.follow(*range(4, 6))
        writing.guarded.trouble = None
        await eventually(lambda: not writing.files)
    assert await numbers(sqlite) == ([0, 1, 4, 5] if call != "fsync" else [4, 5])


async def test_a_disk_that_hangs_holds_up_no_redirect(
    sqlite: Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 0.2)
    mended = threading.Event()
    fdatasync = os.fdatasync

    def hang(descriptor: int) -> None:
        mended.wait(30)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", hang)
    writing = Writing(sqlite, directory)
    writing.guarded.trouble = AWAY
    async with writing.running():
        await writing.follow(*range(1))
        async with asyncio.timeout(2):  # the others do not even try
            await writing.follow(*range(1, 50))
        assert writing.counted("clicks_shed_total") == 50
        mended.set()
        await eventually(lambda: not writing.writer._shelter.hangs)
        await writing.follow(*range(50, 51))
        assert writing.counted("clicks_spooled_total") == 1
    await writing.writer.drain()
