"""One SQLite connection in a thread of its own: what is asked of it while it is busy is committed together."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.sqlite_connections import connect

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
"""Work on the connection inside a transaction. It may be run again after a roll back, so it changes nothing else."""

JOBS_IN_ONE_COMMIT = 256


@dataclass(slots=True)
class _Request:
    job: Job[Any]
    safe: bool
    answer: asyncio.Future[Any]
    outcome: Any = None
    trouble: Exception | None = None

    def resolve(self) -> None:
        if self.answer.done():  # its caller stopped waiting
            return
        if self.trouble is not None:
            self.answer.set_exception(self.trouble)
        else:
            self.answer.set_result(self.outcome)


class SqliteThread:
    """Runs jobs in their order. A `safe` job is on the disk when it returns; others may be lost with the power."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=f"sqlite {path.name}", daemon=True)
        self._closed = False
        self._synchronous = "FULL"

    async def start(self) -> None:
        """Open the file and make its tables exist."""
        self._thread.start()
        await self.run(lambda _: None)

    async def run(self, job: Job[T], *, safe: bool = False) -> T:
        """Run a job in a transaction and return what it returns; trouble with the file is Unavailable."""
        if self._closed:
            raise Unavailable("sqlite", "it is closed")
        request = _Request(job, safe, self._loop.create_future())
        self._requests.put(request)
        result: T = await request.answer
        return result

    async def close(self) -> None:
        """Finish what was asked, then close the file."""
        if self._closed:
            return
        self._closed = True
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while (first := self._requests.get()) is not None:
                requests, last = self._waiting_with(first)
                try:
                    connection = connection or self._open()
                except sqlite3.Error as error:
                    self._answer(requests, error)
                else:
                    self._commit(connection, requests)
                if last:
                    return
        finally:
            if connection is not None:
                connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._path, writes=True)
        try:
            connection.executescript(self._schema)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _waiting_with(self, first: _Request) -> tuple[list[_Request], bool]:
        """Everything that waits by now, and whether the thread is to end after it."""
        requests = [first]
        while len(requests) < JOBS_IN_ONE_COMMIT:
            try:
                request = self._requests.get_nowait()
            except Empty:
                break
            if request is None:
                return requests, True
            requests.append(request)
        return requests, False

    def _commit(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> None:
        """All in one transaction; if one fails, each in its own, so that it fails alone."""
        try:
            self._transact(connection, requests)
        except Exception as error:  # noqa: BLE001  # whatever a job raises belongs to its caller
            if len(requests) == 1:
                self._answer(requests, error)
                return
            for request in requests:
                self._commit(connection, [request])
            return
        self._answer(requests, None)

    def _transact(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> None:
        synchronous = "FULL" if any(request.safe for request in requests) else "NORMAL"
        if synchronous != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        connection.execute("BEGIN IMMEDIATE")
        try:
            for request in requests:
                request.outcome = request.job(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _answer(self, requests: Sequence[_Request], trouble: Exception | None) -> None:
        if isinstance(trouble, sqlite3.Error):
            trouble = Unavailable("sqlite", f"{self._path.name}: {trouble}")
        for request in requests:
            request.trouble = trouble
        try:
            self._loop.call_soon_threadsafe(_resolve, requests)
        except RuntimeError:  # the event loop is gone, and everyone who waited with it
            return


def _resolve(requests: Sequence[_Request]) -> None:
    for request in requests:
        request.resolve()
