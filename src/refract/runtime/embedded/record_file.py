"""The tables of the embedded record log and what is done to them; each function is a job inside a transaction."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from zlib import crc32

from refract.runtime.records import ReceivedRecord, Record, Topic

SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL
);
-- The id is the offset: it is never used again, and rises within each partition.
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topics (id),
    partition INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    headers TEXT NOT NULL,
    written_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS records_in_order ON records (topic, partition, id);
-- Where each group goes on: every record of the partition below it has been handled.
CREATE TABLE IF NOT EXISTS positions (
    topic INTEGER NOT NULL REFERENCES topics (id),
    reader_group TEXT NOT NULL,
    partition INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (topic, reader_group, partition)
) WITHOUT ROWID;
"""

_INSERT = "INSERT INTO records (topic, partition, key, value, headers, written_at) VALUES (?, ?, ?, ?, ?, ?)"
_TAKE = """
SELECT id, key, value, headers, written_at FROM records
WHERE topic = ? AND partition = ? AND id >= ? ORDER BY id LIMIT ?
"""
_COMMIT = """
UPDATE positions SET position = ?4 WHERE topic = ?1 AND reader_group = ?2 AND partition = ?3 AND position < ?4
"""
_TRIM = """
DELETE FROM records WHERE id IN (
    SELECT id FROM records WHERE topic = ?1 AND partition = ?2 AND written_at < ?3
    AND id < coalesce((SELECT min(position) FROM positions WHERE topic = ?1 AND partition = ?2), ?4)
    ORDER BY id LIMIT ?5
)
"""

READ_FOR = timedelta(hours=1)
"""How long a record stays that every group has handled."""
UNREAD_FOR = timedelta(days=7)
"""How long it stays in a topic that no group reads: as long as on a broker that nobody told otherwise."""
TRIMMED_AT_ONCE = 5_000
BATCH_BYTES = 1024 * 1024
"""After so much a batch ends."""
_HIGHEST = 2**63 - 1

Row = tuple[int, int, str, bytes, str, float]


def topics(connection: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """The number and the partitions of every topic, by name."""
    rows = connection.execute("SELECT name, id, partitions FROM topics")
    return {name: (number, partitions) for name, number, partitions in rows}


def declare(connection: sqlite3.Connection, topic: Topic) -> dict[str, tuple[int, int]]:
    """Make a topic exist. One that is there keeps its partitions, as on a broker."""
    connection.execute(
        "INSERT INTO topics (name, partitions) VALUES (?, ?) ON CONFLICT DO NOTHING", (topic.name, topic.partitions)
    )
    return topics(connection)


def row_of(topic: int, partitions: int, record: Record, moment: datetime) -> Row:
    """A record as a row, in the partition of its key."""
    partition = crc32(record.key.encode()) % partitions
    headers = json.dumps(dict(record.headers))
    return topic, partition, record.key, bytes(record.value), headers, moment.timestamp()


def insert(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Write records at the end of their partitions."""
    connection.executemany(_INSERT, rows)


def join(connection: sqlite3.Connection, topic: int, partitions: int, group: str) -> None:
    """Make a group known; a new one begins with the oldest record."""
    connection.executemany(
        "INSERT INTO positions VALUES (?, ?, ?, 0) ON CONFLICT DO NOTHING",
        [(topic, group, partition) for partition in range(partitions)],
    )


def positions(connection: sqlite3.Connection, topic: int, group: str) -> dict[int, int]:
    """Where a group goes on in each partition."""
    rows = connection.execute(
        "SELECT partition, position FROM positions WHERE topic = ? AND reader_group = ?", (topic, group)
    )
    return dict(rows.fetchall())


def take(
    connection: sqlite3.Connection, topic: Topic, number: int, after: Mapping[int, int], limit: int
) -> list[ReceivedRecord]:
    """The next records of some partitions, each from its own position; a share for each, so that none starves."""
    found: list[ReceivedRecord] = []
    size = 0
    for index, (partition, position) in enumerate(after.items()):
        share = max(1, (limit - len(found)) // (len(after) - index))
        for offset, key, value, headers, written_at in connection.execute(_TAKE, (number, partition, position, share)):
            moment = datetime.fromtimestamp(written_at, UTC)
            found.append(ReceivedRecord(topic.name, key, value, json.loads(headers), partition, offset, moment))
            size += len(value)
            if size >= BATCH_BYTES:
                return found
    return found


def commit(connection: sqlite3.Connection, topic: int, group: str, handled: Mapping[int, int]) -> None:
    """Move a group on; never back."""
    connection.executemany(_COMMIT, [(topic, group, partition, offset + 1) for partition, offset in handled.items()])


def trim(connection: sqlite3.Connection, known: Sequence[tuple[int, int]], now: datetime) -> int:
    """Forget some old records that every group has handled, or that no group wants; returns how many."""
    count = 0
    for topic, partitions in known:
        readers = connection.execute("SELECT 1 FROM positions WHERE topic = ? LIMIT 1", (topic,)).fetchone()
        before = (now - (READ_FOR if readers else UNREAD_FOR)).timestamp()
        for partition in range(partitions):
            left = TRIMMED_AT_ONCE - count
            count += connection.execute(_TRIM, (topic, partition, before, _HIGHEST, left)).rowcount
    return count
