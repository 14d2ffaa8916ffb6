"""The files of the spool: damaged, reached for by two, full, or on a disk that fails."""

import asyncio
import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.services.links.redirect import clicks, shelter, spool
from refract.services.links.redirect.spool import Segment, Spool
from tests.support.clicks import LIMIT, Writing, click, numbers
from tests.support.spools import directory, restless, sqlite
from tests.support.waiting import eventually

__all__ = ["directory", "restless", "sqlite"]

AWAY = Unavailable("database", "it is to be away")

pytestmark = pytest.mark.usefixtures("restless")


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
    monkeypatch.setattr(clicks, "ADOPT_SECONDS", 0.1)
    for number in range(2):
        left = Spool(directory, LIMIT)
        left.append([click(number)])
        left.close()
    pread, broken = os.pread, set[int]()

    def fail(descriptor: int, *arguments: int) -> bytes:
        """One file cannot be read, whoever tries it, until the disk is mended."""
        file = os.fstat(descriptor).st_ino
        if not mended and (not broken or file in broken):
            broken.add(file)
            raise OSError(errno.EIO, "the disk is broken")
        return pread(descriptor, *arguments)

    mended = False
    monkeypatch.setattr(os, "pread", fail)
    writing = Writing(sqlite, directory)
    async with writing.running():
        await eventually(lambda: len(writing.files) == 1)
        assert writing.counted("clicks_recorded_total") == 1
        mended = True
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
    monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 1.0)
    mended = threading.Event()
    fdatasync = os.fdatasync

    def hang(descriptor: int) -> None:
        mended.wait(120)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", hang)
    writing = Writing(sqlite, directory)
    writing.guarded.trouble = AWAY
    async with writing.running():
        await writing.follow(*range(1))
        try:
            async with asyncio.timeout(30):  # the others do not even try: that would take a second each
                await writing.follow(*range(1, 50))
            assert writing.counted("clicks_shed_total") == 50
            monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 60.0)
        finally:
            mended.set()
        await eventually(lambda: not writing.writer._shelter.hangs)
        await writing.follow(*range(50, 51))
        assert writing.counted("clicks_spooled_total") == 1
    await writing.writer.drain()
