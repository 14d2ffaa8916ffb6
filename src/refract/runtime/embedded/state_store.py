"""The state store in a small SQLite file."""

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Self, TypeVar

from refract.kernel.clock import Clock, SystemClock
from refract.runtime.embedded.sqlite_thread import SqliteThread
from refract.runtime.transitions import Transition

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS hashes (key TEXT PRIMARY KEY, over_at INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hashes_over ON hashes (over_at) WHERE over_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS fields (
    key TEXT NOT NULL REFERENCES hashes ON DELETE CASCADE,
    field TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key, field)
) WITHOUT ROWID;
"""

_READ = """
SELECT field, value FROM fields JOIN hashes USING (key) WHERE key = ? AND (over_at IS NULL OR over_at > ?)
"""


class EmbeddedStateStore:
    """Hashes that outlive a restart, as they would in a Redis with an append-only file."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._file = SqliteThread(path, _SCHEMA)
        self._clock = clock or SystemClock()
        self._started = False

    @classmethod
    async def open(cls, path: Path, clock: Clock | None = None) -> Self:
        """Open the file, or make it. Without this it is opened when it is first asked for something."""
        store = cls(path, clock)
        try:
            await store._start()
        except BaseException:
            await store.close()
            raise
        return store

    async def read(self, key: str) -> dict[str, str]:
        """All fields, or nothing when the key is absent or over."""
        await self._start()
        now = self._clock.milliseconds()
        return dict(await self._file.read(lambda connection: connection.execute(_READ, (key, now)).fetchall()))

    async def write(self, key: str, fields: Mapping[str, str | int], ttl: float) -> None:
        """Set fields, keeping the others, and let the whole hash live `ttl` seconds from now."""
        over_at = self._clock.milliseconds() + math.ceil(ttl * 1000)

        def change(connection: sqlite3.Connection) -> None:
            _Hash(connection, key).update({field: str(value) for field, value in fields.items()})
            connection.execute("UPDATE hashes SET over_at = ? WHERE key = ?", (over_at, key))

        await self._run(change)

    async def apply(self, transition: Transition, key: str, *arguments: str | int) -> str:
        """Run a transition alone with the hash; returns its word for what happened."""
        texts = [str(argument) for argument in arguments]
        return await self._run(lambda connection: transition.python(_Hash(connection, key), texts))

    async def delete(self, key: str) -> None:
        """Forget a hash."""
        await self._run(lambda connection: connection.execute("DELETE FROM hashes WHERE key = ?", (key,)).rowcount)

    async def ping(self) -> None:
        """Return if the file can be read; raise Unavailable if not."""
        await self._start()
        await self._file.read(lambda connection: connection.execute("SELECT 1 FROM hashes LIMIT 1").fetchone())

    async def close(self) -> None:
        """Finish what runs, and close the file."""
        if self._started:
            await self._file.close()

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._file.start()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something to the hashes that are not over."""
        await self._start()
        now = self._clock.milliseconds()

        def job(connection: sqlite3.Connection) -> T:
            connection.execute("DELETE FROM hashes WHERE over_at <= ?", (now,))
            return work(connection)

        return await self._file.run(job)


class _Hash(MutableMapping[str, str]):
    """The fields of one hash inside a transaction, read and written one by one: a job may have many thousands."""

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection = connection
        self._key = key

    def __getitem__(self, field: str) -> str:
        sql = "SELECT value FROM fields WHERE key = ? AND field = ?"
        row = self._connection.execute(sql, (self._key, field)).fetchone()
        if row is None:
            raise KeyError(field)
        return str(row[0])

    def __setitem__(self, field: str, value: str) -> None:
        self._connection.execute("INSERT INTO hashes (key) VALUES (?) ON CONFLICT DO NOTHING", (self._key,))
        sql = "INSERT INTO fields (key, field, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        self._connection.execute(sql, (self._key, field, value))

    def __delitem__(self, field: str) -> None:
        sql = "DELETE FROM fields WHERE key = ? AND field = ?"
        if self._connection.execute(sql, (self._key, field)).rowcount == 0:
            raise KeyError(field)
        if not len(self):  # a hash without fields is absent, and so is its time to live
            self._connection.execute("DELETE FROM hashes WHERE key = ?", (self._key,))

    def __iter__(self) -> Iterator[str]:
        sql = "SELECT field FROM fields WHERE key = ? ORDER BY field"
        return iter([row[0] for row in self._connection.execute(sql, (self._key,))])

    def __len__(self) -> int:
        sql = "SELECT count(*) FROM fields WHERE key = ?"
        return int(self._connection.execute(sql, (self._key,)).fetchone()[0])
