"""The state store in a small SQLite file: one thread, one connection, one transaction at a time."""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.errors import Unavailable
from refract.runtime.transitions import Transition

T = TypeVar("T")

_SECONDS_TO_WAIT_FOR_THE_FILE = 5.0

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


class EmbeddedStateStore:
    """Hashes that outlive a restart, as they would in a Redis with an append-only file."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, clock: Clock) -> None:
        self._connection = connection
        self._thread = thread
        self._clock = clock

    @classmethod
    async def open(cls, path: Path, clock: Clock | None = None) -> Self:
        """Open the file, or make it."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(connection, thread, clock or SystemClock())

    async def read(self, key: str) -> dict[str, str]:
        """All fields, or nothing when the key is absent or over."""
        sql = "SELECT field, value FROM fields WHERE key = ?"
        return dict(await self._run(lambda: self._connection.execute(sql, (key,)).fetchall()))

    async def write(self, key: str, fields: Mapping[str, str | int], ttl: float) -> None:
        """Set fields, keeping the others, and let the whole hash live `ttl` seconds from now."""
        over_at = self._clock.milliseconds() + math.ceil(ttl * 1000)

        def change() -> None:
            _Hash(self._connection, key).update({field: str(value) for field, value in fields.items()})
            self._connection.execute("UPDATE hashes SET over_at = ? WHERE key = ?", (over_at, key))

        await self._run(change)

    async def apply(self, transition: Transition, key: str, *arguments: str | int) -> str:
        """Run a transition alone with the hash; returns its word for what happened."""
        texts = [str(argument) for argument in arguments]
        return await self._run(lambda: transition.python(_Hash(self._connection, key), texts))

    async def delete(self, key: str) -> None:
        """Forget a hash."""
        await self._run(lambda: self._connection.execute("DELETE FROM hashes WHERE key = ?", (key,)))

    async def ping(self) -> None:
        """Return if the file can be read; raise Unavailable if not."""
        await self._run(lambda: self._connection.execute("SELECT count(*) FROM hashes").fetchone())

    async def close(self) -> None:
        """Finish what runs, and close the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def _transact(self, work: Callable[[], T]) -> T:
        try:
            with _transaction(self._connection):
                over = "DELETE FROM hashes WHERE over_at <= ?"
                self._connection.execute(over, (self._clock.milliseconds(),))
                return work()
        except sqlite3.Error as error:
            raise Unavailable("state store", str(error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_SECONDS_TO_WAIT_FOR_THE_FILE, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    with _transaction(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


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
