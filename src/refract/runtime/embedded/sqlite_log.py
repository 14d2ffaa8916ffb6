"""The write-ahead log of a SQLite file: moved into the file beside the writer's work, and kept small."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from refract.runtime.embedded.background import step_back
from refract.runtime.rush import Rush

LARGEST_LOG = 64 * 1024 * 1024
"""Bytes of the log over which the writer empties it, which SQLite alone does only when nobody reads."""

BUSY_MILLISECONDS = 5_000
CHECKPOINT_MILLISECONDS = 250
"""How long the writer waits for readers to finish, so that it can; no longer where the log is many times too large: it
holds up everybody who writes, and clicks whose flush takes 2 s go to the spool."""

CHECKPOINT_SHARE = 8
"""After an attempt the next one waits so many times as long as it took: those that write lose a ninth of their time at
most. What can be moved without them is moved meanwhile, or the log would grow until there is a gigabyte to empty."""

LOGS_IN_A_RUSH = 4
"""So many times as large a log may get in a rush, where it is to be minded: to empty it keeps the disk for a while."""

LOOK_SECONDS = 0.05
"""Between two looks at the log: it grows by a few megabytes in that time."""

WORTH_MOVING = 64
"""Pieces of work after which the log is moved. SQLite's own rule makes whoever commits the thousandth page do it."""

LONG_LOG = 4096
"""Frames over which the log begins anew, once nearly all of it was moved: what is left costs the writer little."""


class LogKeeper:
    """Keeps a log small without holding up its writer, also under constant reading, when it is never unused.

    Moving a log's pages takes milliseconds of processor and disk. A thread of its own does it, at a low priority,
    while the writer goes on; then only the last few are left to the writer, who alone can let the log begin anew.
    During a rush, if it is to mind them, the log stays as it is: to sync what was moved keeps clicks from the disk.
    """

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection], rush: Rush | None = None) -> None:
        self._path = path
        self._connect = connect
        self._rush = rush or Rush.never()
        self._log = Path(f"{path}-wal")
        self._next_look = self._next_emptying = 0.0
        self._works = 0
        self._due: SimpleQueue[float | None] = SimpleQueue()
        self._nearly_moved = False
        self._thread = Thread(target=self._keep, name=f"{path.stem}-log", daemon=True)

    def take_over(self, writer: sqlite3.Connection) -> None:
        """From now on the log is moved by this keeper, and no longer by whoever commits."""
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        self._thread.start()

    def look(self, connection: sqlite3.Connection) -> None:
        """Have the log moved if it is worth it; to be called by the writer after its work."""
        self._works += 1
        now = time.monotonic()
        if now < self._next_look or connection.in_transaction:
            return
        self._next_look = now + LOOK_SECONDS
        has_rush = self._rush.was_on
        with suppress(OSError, sqlite3.Error):  # the next attempt may do better
            excess = self._log.stat().st_size // LARGEST_LOG
            if now >= self._next_emptying and excess >= (LOGS_IN_A_RUSH if has_rush else 1):
                self._empty(connection)
            elif self._nearly_moved and not has_rush:
                self._nearly_moved = False
                _move(connection)
        if self._works >= WORTH_MOVING and not has_rush and self._due.empty():  # one that is late is asked once
            self._works = 0
            self._due.put(now)

    def stop(self) -> None:
        """End the thread; to be called before the writer closes its connection, which moves the rest."""
        self._due.put(None)
        self._thread.join()

    def _keep(self) -> None:
        step_back()
        connection: sqlite3.Connection | None = None
        while self._due.get() is not None:
            with suppress(sqlite3.Error):  # the writer is the net: it empties what has grown too large
                connection = connection or self._connect(self._path)
                self._nearly_moved = _move(connection) > LONG_LOG
        if connection is not None:
            connection.close()

    def _empty(self, connection: sqlite3.Connection) -> None:
        """Let the log begin anew, and wait a little for readers."""
        began = time.monotonic()
        connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_MILLISECONDS}")
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            ended = time.monotonic()
            self._next_emptying = ended + CHECKPOINT_SHARE * (ended - began)


def _move(connection: sqlite3.Connection) -> int:
    """Move what can be moved without waiting for anybody; returns how many frames the log has."""
    [(_, frames, _moved)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return int(frames)
