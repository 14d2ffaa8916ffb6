"""During a rush the log of a file that can wait is not moved, and afterwards it is."""

from pathlib import Path

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
