"""The database port over one SQLite file: one thread writes, a few read."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from refract.kernel.errors import Unavailable
from refract.runtime.embedded import sqlite_connections as sqlite
from refract.runtime.embedded.packing import WORTH_PACKING, packed
from refract.runtime.embedded.sqlite_connections import ConnectionThreads, Work
from refract.runtime.embedded.sqlite_log import LogKeeper
from refract.runtime.embedded.sqlite_values import to_sqlite
from refract.runtime.messages import Message
from refract.runtime.ports import Row, Transaction
from refract.runtime.rush import Rush
from refract.runtime.statements import Statement
from refract.runtime.transactions import ACQUIRE_TIMEOUT, OUTBOX_COLUMNS, Bell, Outgoing, outbox_rows

T = TypeVar("T")

READERS = 2
_PAYLOAD = OUTBOX_COLUMNS.index("payload")
WATCH_INTERVAL = 0.5
"""Seconds between two looks for commits of other processes, while somebody waits for announcements."""


class EmbeddedDatabase:
    """A service's SQLite file. Its transactions run one after the other; reads see what is committed."""

    dialect: Literal["sqlite"] = "sqlite"
    reads_at_once: int = READERS

    def __init__(
        self,
        writer: ConnectionThreads,
        readers: ConnectionThreads,
        urgent_reader: ConnectionThreads,
        keeper: LogKeeper,
        version: int,
    ) -> None:
        self._writer = writer
        self._keeper = keeper
        self._readers = readers
        self._urgent_reader = urgent_reader
        self._turn = asyncio.Lock()
        self._bell = Bell()
        self._foreign_version = self._watched_version = version
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, rush: Rush | None = None) -> Self:
        """Open the file, which is made if it does not exist; if it minds a `rush`, writing gives way to all else."""
        writer, urgent_reader, *readers = await asyncio.to_thread(_connections, path)
        version = _data_version(writer)
        keeper = LogKeeper(path, partial(sqlite.connect, writes=True), rush)
        keeper.take_over(writer)
        return cls(
            ConnectionThreads(f"{path.stem}-writer", [writer], afterwards=keeper.look, can_wait=rush is not None),
            ConnectionThreads(f"{path.stem}-reader", readers),
            ConnectionThreads(f"{path.stem}-urgent", [urgent_reader]),
            keeper,
            version,
        )

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        """All rows."""
        return await self._read(statement, partial(sqlite.fetch, statement=statement, parameters=parameters))

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        """The first row, if there is one."""
        return await self._read(statement, partial(sqlite.fetch_one, statement=statement, parameters=parameters))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Begin; commit at the end of the block, roll back when it raises."""
        self._check_open()
        await self._wait_for_turn()
        transaction = EmbeddedTransaction(self._writer)
        try:
            yield transaction
            await transaction.commit()
        except BaseException:
            # Not awaited: whoever comes next is behind it in the writer's queue.
            self._writer.run_unattended("rollback", _roll_back)
            raise
        finally:
            transaction.end("it has ended")
            self._turn.release()
        if transaction.announced:
            self._bell.ring()

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """Save messages in a transaction of their own; returns the ids of their rows."""
        self._check_open()
        await self._wait_for_turn()
        try:
            ids = await self._writer.run("post", partial(_post, messages, held))
        except BaseException:
            self._writer.run_unattended("rollback", _roll_back)
            raise
        finally:
            self._turn.release()
        if not held:
            self._bell.ring()
        return ids

    async def announced(self, timeout: float) -> None:
        """Return when something was announced here, when another process committed, or after `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            if await self._bell.heard(min(left, WATCH_INTERVAL)):
                return
            self._check_open()
            version = await self._writer.run("data_version", _data_version)
            if version != self._foreign_version:
                self._foreign_version = version
                return

    async def changed_elsewhere(self) -> bool:
        """Whether another process has committed since this was last asked."""
        self._check_open()
        before, self._watched_version = self._watched_version, await self._writer.run("data_version", _data_version)
        return before != self._watched_version

    async def ping(self) -> None:
        """Return if the file can be read; raise Unavailable if not."""
        self._check_open()
        await self._readers.run("ping", _ping)

    async def close(self) -> None:
        """Give everything back. What runs is finished first."""
        if self._closed:
            return
        self._closed = True
        async with self._turn:
            await self._readers.stop()
            await self._urgent_reader.stop()
            await asyncio.to_thread(self._keeper.stop)
            await self._writer.stop()  # last, because the last one out tidies the file

    async def _read(self, statement: Statement, work: Work[T]) -> T:
        self._check_open()
        readers = self._urgent_reader if statement.urgent else self._readers
        return await readers.run(statement.name, work, longest=statement.longest)

    async def _wait_for_turn(self) -> None:
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT):
                await self._turn.acquire()
        except TimeoutError:
            raise Unavailable("database", f"no turn to write within {ACQUIRE_TIMEOUT:g} s") from None

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("database", "it is closed")


class EmbeddedTransaction(Outgoing):
    """One turn of the writer. It begins with its first statement, so that a short one is a single hop to the thread."""

    def __init__(self, writer: ConnectionThreads) -> None:
        super().__init__()
        self._writer = writer
        self._begun = False

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        """All rows."""
        return await self._run(statement.name, partial(sqlite.fetch, statement=statement, parameters=parameters))

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        """The first row, if there is one."""
        return await self._run(statement.name, partial(sqlite.fetch_one, statement=statement, parameters=parameters))

    async def execute(self, statement: Statement, **parameters: Any) -> int:
        """Run a statement; returns how many rows it touched."""
        return await self._run(statement.name, partial(sqlite.execute, statement=statement, parameters=parameters))

    async def execute_many(self, statement: Statement, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run one statement for each set of parameters."""
        await self._run(statement.name, partial(sqlite.execute_many, statement=statement, rows=parameters))

    async def insert_many(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows with one prepared statement."""
        # A generator of the caller's must not run in our thread.
        written = list(rows)
        await self._run(f"insert_many {table}", partial(sqlite.insert_many, table=table, columns=columns, rows=written))

    async def commit(self) -> None:
        """Keep everything; whatever is still to be written goes with it."""
        self.check_usable()
        messages = self.take_waiting()
        if self._begun or messages:
            await self._writer.run("commit", partial(_commit, messages))

    async def _run(self, name: str, work: Work[T]) -> T:
        self.check_usable()
        self._begun = True
        try:
            return await self._writer.run(name, partial(_step, self.take_waiting(), work))
        except BaseException:
            self.end("a statement of it failed")
            raise


def _connections(path: Path) -> list[sqlite3.Connection]:
    """One that writes, one for urgent questions, and those for all others."""
    try:
        return [sqlite.connect(path, writes=number == 0) for number in range(2 + READERS)]
    except sqlite3.Error as error:
        raise Unavailable("database", f"{path.name} cannot be opened: {error}") from error


def _step(messages: Sequence[Message], work: Work[T], connection: sqlite3.Connection) -> T:
    if not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")
    if messages:
        _save(messages, connection)
    return work(connection)


def _commit(messages: Sequence[Message], connection: sqlite3.Connection) -> None:
    _step(messages, lambda connection: connection.execute("COMMIT"), connection)


def _post(messages: Sequence[Message], held: float, connection: sqlite3.Connection) -> list[str]:
    if not messages:
        return []
    if len(messages) == 1:  # outside of a transaction a statement is one itself
        return _save(messages, connection, held)
    connection.execute("BEGIN IMMEDIATE")
    ids = _save(messages, connection, held)
    connection.execute("COMMIT")
    return ids


def _save(messages: Sequence[Message], connection: sqlite3.Connection, held: float = 0.0) -> list[str]:
    """Write messages to the outbox: short ones as the texts they are, long ones packed; returns their ids."""
    rows = [list(row) for row in outbox_rows(messages, held)]
    for row in rows:
        if len(row[_PAYLOAD]) >= WORTH_PACKING:
            row[_PAYLOAD] = packed(to_sqlite(row[_PAYLOAD]).encode())
    sqlite.insert_many(connection, "outbox", OUTBOX_COLUMNS, rows)
    return [row[0] for row in rows]


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _ping(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # to its end, or it would go on reading


def _data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection than this one has committed."""
    [version] = connection.execute("PRAGMA data_version").fetchone()
    return int(version)
