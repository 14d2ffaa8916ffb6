"""What it costs to mark a row of the outbox in SQLite: never another copy of its payload."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.outbox import CLAIM_FRESH, MARK

PAYLOAD = b"[" + b'{"a":1},' * 50_000 + b"{}]"


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def test_to_mark_a_large_row_writes_little(tmp_path: Path) -> None:
    path = tmp_path / "links.sqlite3"
    await migrate("links", path)
    database = await EmbeddedDatabase.open(path)
    try:
        await database.post(Message("url-shortener", "url.clicked", PAYLOAD, "m-1"))
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        now = datetime.now(UTC)
        [row] = await database.fetch(CLAIM_FRESH, batch=10, now=now, never=now)
        async with database.transaction() as tx:
            assert await tx.execute(MARK, now=now, ids=[row["id"]]) == 1
        assert 0 < log_size(path) < len(PAYLOAD) / 10
        assert await database.fetch(CLAIM_FRESH, batch=10, now=now, never=now) == []
    finally:
        await database.close()
