"""One SQLite connection in a thread of its own: what is asked of it while it is busy is committed together."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.background import step_back
from refract.runtime.embedded.sqlite_connections import connect

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
"""Work on the connection inside a transaction. It may be run again after a roll back, so it changes nothing else."""

JOBS_IN_ONE_COMMIT = 256
BUSY_MILLISECONDS = 2_000
"""How long a transaction waits for another process. Two such waits must fit into what a publish may take."""
CLOSE_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    job: Job[Any]
    reads: bool
    safe: bool
    answer: asyncio.Future[Any]
    outcome: Any = None

    @property
    def wanted(self) -> bool:
        """Whether its caller still waits."""
        return not self.answer.done()

    def resolve(self, trouble: Exception | None) -> None:
        if not self.wanted:
            return
        if trouble is not None:
            self.answer.set_exception(trouble)
        else:
            self.answer.set_result(self.outcome)


class SqliteThread:
    """Runs jobs that write in their order. A `safe` one is on the disk when it returns; power may take the others."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=f"sqlite {path.name}", daemon=True)
        self._closed = False
        self._ended = asyncio.Event()
        self._synchronous = "FULL"

    async def start(self) -> None:
        """Open the file and make its tables exist."""
        self._thread.start()
        await self.read(lambda _: None)

    async def run(self, job: Job[T], *, safe: bool = False) -> T:
        """Run a job in a transaction and return what it returns; trouble with the file is Unavailable."""
        result: T = await self._ask(_Request(job, reads=False, safe=safe, answer=self._loop.create_future()))
        return result

    async def read(self, job: Job[T]) -> T:
        """Run a job that writes nothing: it does not wait for another process that does."""
        result: T = await self._ask(_Request(job, reads=True, safe=False, answer=self._loop.create_future()))
        return result

    async def close(self) -> None:
        """Finish what was asked, then close the file; a thread that takes too long is left to end by itself."""
        if self._closed:
            return
        self._closed = True
        self._requests.put(None)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            logger.warning("the file is busy and was not closed", extra={"file": self._path.name})

    async def _ask(self, request: _Request) -> Any:
        if self._closed:
            raise Unavailable("sqlite", "it is closed")
        self._requests.put(request)
        return await request.answer

    def _work(self) -> None:
        step_back()
        connection: sqlite3.Connection | None = None
        try:
            while (first := self._requests.get()) is not None:
                requests, last = self._waiting_with(first)
                try:
                    connection = connection or self._open()
                except sqlite3.Error as error:
                    self._answer(requests, error)
                else:
                    self._serve(connection, requests)
                if last:
                    return
        finally:
            if connection is not None:
                connection.close()
            self._call(self._ended.set)

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._path, writes=True)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
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

    def _serve(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> None:
        """Those that read first, because the others may have to wait for the file."""
        writing = [request for request in requests if not request.reads and request.wanted]
        try:
            self._serve_alone(connection, [request for request in requests if request.reads])
            if writing and not self._transact(connection, writing):
                self._serve_alone(connection, writing)
        except sqlite3.Error as error:  # the file itself: no job is to blame, and none would fare better alone
            self._answer(requests, error)

    def _serve_alone(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> None:
        for request in requests:
            if request.wanted:
                self._transact(connection, [request])

    def _transact(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> bool:
        """Run jobs in one transaction and answer all; False if one of several failed, which had better be alone."""
        self._begin(connection, requests)
        trouble: Exception | None = None
        try:
            for request in requests:
                request.outcome = request.job(connection)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  # whatever a job raises belongs to its caller
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(requests) > 1:
                return False
            trouble = error
        self._answer(requests, trouble)
        return True

    def _begin(self, connection: sqlite3.Connection, requests: Sequence[_Request]) -> None:
        if all(request.reads for request in requests):
            connection.execute("BEGIN")
            return
        synchronous = "FULL" if any(request.safe for request in requests) else "NORMAL"
        if synchronous != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        connection.execute("BEGIN IMMEDIATE")

    def _answer(self, requests: Sequence[_Request], trouble: Exception | None) -> None:
        if isinstance(trouble, sqlite3.Error):
            trouble = Unavailable("sqlite", f"{self._path.name}: {trouble}")
        self._call(_resolve, requests, trouble)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is gone, and everyone who waited with it
            return


def _resolve(requests: Sequence[_Request], trouble: Exception | None) -> None:
    for request in requests:
        request.resolve(trouble)
