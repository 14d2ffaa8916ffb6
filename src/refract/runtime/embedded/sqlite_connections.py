"""SQLite connections in threads of their own, so that neither the disk nor a lock ever holds up the event loop."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.background import step_back
from refract.runtime.embedded.sqlite_log import LARGEST_LOG
from refract.runtime.embedded.sqlite_values import register_types, to_sqlite, translated
from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.runtime.transactions import COMMAND_TIMEOUT

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_MILLISECONDS = 5_000
STEPS_BETWEEN_CHECKS = 20_000
"""How many of SQLite's own instructions pass before a running statement looks at the time: about a millisecond."""

_Request = tuple[str, Work[Any], "asyncio.Future[Any] | None", float | None]


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """Open the file for one thread; a connection that only reads cannot write by mistake."""
    register_types()
    connection = sqlite3.connect(
        path,
        timeout=BUSY_MILLISECONDS / 1000,
        isolation_level=None,
        detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES,
        check_same_thread=False,
    )
    try:
        if writes:
            _switch_to_wal(connection)
            connection.execute(f"PRAGMA journal_size_limit = {LARGEST_LOG}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """The file keeps its mode, so this is done once in its life; SQLite does not wait for its turn here by itself."""
    deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


class ConnectionThreads:
    """One or more threads, each with its connection, that take work from one queue in its order."""

    def __init__(
        self,
        name: str,
        connections: Iterable[sqlite3.Connection],
        *,
        afterwards: Work[None] | None = None,
        can_wait: bool = False,
    ) -> None:
        """What is to be done `afterwards` is done whenever somebody has got an answer; it may not raise."""
        self._afterwards = afterwards
        self._can_wait = can_wait
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._serve, args=(connection,), name=f"{name}-{number}", daemon=True)
            for number, connection in enumerate(connections)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, name: str, work: Work[T], *, longest: float | None = None) -> T:
        """Do some work on a connection, for so many seconds at most; `name` is the statement's, for errors."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._requests.put((name, work, future, longest))
        return await future

    def run_unattended(self, name: str, work: Work[object]) -> None:
        """The same without waiting: it comes after all that was asked before, and before all that is asked later."""
        self._requests.put((name, work, None, None))

    async def stop(self) -> None:
        """Finish what was asked, then close the connections."""
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self, connection: sqlite3.Connection) -> None:
        if self._can_wait:
            step_back()
        deadline, future = 0.0, None

        def unwanted() -> bool:
            return time.monotonic() > deadline or (future is not None and future.cancelled())

        connection.set_progress_handler(unwanted, STEPS_BETWEEN_CHECKS)
        while (request := self._requests.get()) is not None:
            name, work, future, longest = request
            if future is not None and future.cancelled():
                continue
            deadline = time.monotonic() + (COMMAND_TIMEOUT if longest is None else longest)
            outcome, trouble = _attempt(name, work, connection)
            if future is not None:
                self._answer(future, outcome, trouble)
            if self._afterwards is not None:
                self._afterwards(connection)
        connection.close()

    def _answer(self, future: "asyncio.Future[Any]", outcome: object, trouble: Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, future, outcome, trouble)
        except RuntimeError:
            return  # the loop is closed, and with it everyone who waited


def _attempt(name: str, work: Work[T], connection: sqlite3.Connection) -> tuple[T | None, Exception | None]:
    """What came of it. Nothing may escape: the thread has others to serve."""
    try:
        return work(connection), None
    except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
        try:
            return None, translated(error, name, connection)
        except sqlite3.Error as second:
            return None, Unavailable("database", f"{second}, after: {error}")


def _resolve(future: "asyncio.Future[Any]", outcome: object, trouble: Exception | None) -> None:
    if future.done():
        return
    if trouble is None:
        future.set_result(outcome)
    else:
        future.set_exception(trouble)


def fetch(connection: sqlite3.Connection, statement: Statement, parameters: Mapping[str, Any]) -> list[Row]:
    """All rows."""
    # Closed in any case: the traceback of an error would keep the cursor, and with it what it saw of the file.
    with closing(connection.execute(statement.for_sqlite(), _bound(parameters))) as cursor:
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def fetch_one(connection: sqlite3.Connection, statement: Statement, parameters: Mapping[str, Any]) -> Row | None:
    """The first row; a statement that changes rows is run to its end all the same."""
    rows = fetch(connection, statement, parameters)
    return rows[0] if rows else None


def execute(connection: sqlite3.Connection, statement: Statement, parameters: Mapping[str, Any]) -> int:
    """How many rows it touched."""
    before = connection.total_changes
    cursor = connection.execute(statement.for_sqlite(), _bound(parameters))
    cursor.fetchall()  # what it returns nobody wants, but only at its end has it changed every row
    # For what begins with WITH, Python does not count.
    return cursor.rowcount if cursor.rowcount >= 0 else connection.total_changes - before


def execute_many(connection: sqlite3.Connection, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
    """Run it for each set of parameters."""
    connection.executemany(statement.for_sqlite(), map(_bound, rows))


def insert_many(
    connection: sqlite3.Connection, table: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]
) -> None:
    """Write rows with one prepared statement."""
    names = [f'"{column}"' for column in columns]
    sql = f'INSERT INTO "{table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))})'  # noqa: S608  # names, not values
    connection.executemany(sql, ([to_sqlite(value) for value in row] for row in rows))


def _bound(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_sqlite(value) for name, value in parameters.items()}
