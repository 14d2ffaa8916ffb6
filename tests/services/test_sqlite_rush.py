"""During a rush the log of a file that can wait is neither moved nor emptied, and afterwards it is."""

from pathlib import Path

import pytest

from refract.runtime.embedded import sqlite_log
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.statements import Statement
from tests.support.rushes import ToldRush
from tests.support.waiting import eventually

CREATE = Statement("create", "Makes a table.", "CREATE TABLE words (word TEXT NOT NULL)")
ADD = Statement("add", "Writes a long word.", "INSERT INTO words (word) VALUES (:word)")
LONG = "x" * 2_000


async def test_the_log_is_moved_after_a_rush_and_not_in_it(tmp_path: Path) -> None:
    path = tmp_path / "words.sqlite3"
    told = ToldRush()
    told.was_on = True
    database = await EmbeddedDatabase.open(path, rush=told)
    try:
        async with database.transaction() as tx:
            await tx.execute(CREATE)
        before = path.stat().st_size

        async def written() -> None:
            for _ in range(2 * sqlite_log.WORTH_MOVING):
                async with database.transaction() as tx:
                    await tx.execute(ADD, word=LONG)

        async def moved() -> bool:
            await written()
            return path.stat().st_size > before + 100 * len(LONG)

        await written()
        await written()
        assert path.stat().st_size == before
        told.was_on = False
        await eventually(moved)
    finally:
        await database.close()


async def test_the_log_is_emptied_in_a_rush_only_where_it_is_much_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "LARGEST_LOG", 100_000)
    monkeypatch.setattr(sqlite_log, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_SHARE", 0)  # on a slow disk the log grows while the next attempt waits
    path, told = tmp_path / "words.sqlite3", ToldRush()
    told.was_on = True
    database = await EmbeddedDatabase.open(path, rush=told)
    log, sizes = path.with_name("words.sqlite3-wal"), [0]

    async def emptied() -> bool:
        async with database.transaction() as tx:
            await tx.execute(ADD, word=LONG)
        await database.ping()
        sizes.append(log.stat().st_size)
        return sizes[-1] < sizes[-2]

    async def largest() -> int:
        sizes.append(0)
        await eventually(emptied, timeout=20, interval=0)
        return sizes[-2]

    try:
        async with database.transaction() as tx:
            await tx.execute(CREATE)
        assert await largest() > 3 * sqlite_log.LARGEST_LOG
        told.was_on = False
        assert await largest() < 2 * sqlite_log.LARGEST_LOG
    finally:
        await database.close()
