"""Brings a service's database to the newest revision; Alembic is only imported when there is something to do.

A location is a DSN (`str`) for PostgreSQL, or a file (`Path`) for SQLite.
"""

import asyncio
import fcntl
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import refract
from refract.kernel.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    import asyncpg

LOCK_TIMEOUT = 60.0
CONNECT_TIMEOUT = 5.0
_ADVISORY_LOCK = 0x72656672616374  # "refract" in ASCII; a lock belongs to one database, so one number serves all
_READ_VERSION = "SELECT version_num FROM alembic_version"


async def migrate(service: str, location: str | Path) -> None:
    """Apply what is missing, one process at a time; a database that is newer than the code raises Misconfigured."""
    if is_current(service, await current_revision(location)):
        return
    if isinstance(location, Path):
        await _migrate_sqlite(service, location)
    else:
        await _migrate_postgresql(service, location)


async def current_revision(location: str | Path) -> str | None:
    """The revision a database is at; None before its first migration."""
    if isinstance(location, Path):
        return await asyncio.to_thread(_sqlite_revision, location)
    async with _postgresql(location) as connection:
        return await _postgresql_revision(connection)


def head_revision(service: str) -> str:
    """The newest revision that this version of the code knows."""
    return _revisions(service)[-1]


def _folder(service: str) -> Path:
    return Path(next(iter(refract.__path__))) / "services" / service / "migrations"


def _revisions(service: str) -> list[str]:
    """All revisions, oldest first, by the names of their files: NNNN_words.py."""
    return sorted(file.name.partition("_")[0] for file in _folder(service).glob("[0-9][0-9][0-9][0-9]_*.py"))


def is_current(service: str, revision: str | None) -> bool:
    """Whether a revision is the newest one; one that this version does not know raises Misconfigured."""
    known = _revisions(service)
    if revision is not None and revision not in known:
        raise Misconfigured(
            f"FATAL: the database of {service} is at revision {revision}, and this version of Refract knows only up to "
            f"{known[-1]}: start the newer version that wrote it, or restore a backup"
        )
    return revision == known[-1]


def _sqlite_revision(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(path)
        try:
            row = connection.execute(_READ_VERSION).fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return None
        raise Unavailable("database", f"{path.name}: {error}") from error
    return str(row[0]) if row else None


async def _migrate_sqlite(service: str, path: Path) -> None:
    # One lock for the directory: it stays behind, and one file is less to wonder about than one for each database.
    async with _file_lock(path.with_name("migrating.lock")):
        work = asyncio.create_task(asyncio.to_thread(_upgrade_sqlite, service, path))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})  # what is begun is finished under the lock
            raise


def _upgrade_sqlite(service: str, path: Path) -> None:
    if not is_current(service, _sqlite_revision(path)):
        from refract.runtime.upgrading import upgrade_sqlite  # noqa: PLC0415  # only when there is something to do

        upgrade_sqlite(_folder(service), path)


@asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    """Hold a lock that goes with the process, wherever it ends; the wait for it can be given up at any moment."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    with path.open("w") as file:
        while not _locked(file):
            if time.monotonic() > deadline:
                raise Unavailable("database", f"another process migrates it for over {LOCK_TIMEOUT:g} s")
            await asyncio.sleep(0.05)
        yield


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _postgresql_revision(connection: "asyncpg.Connection[Any]") -> str | None:
    table = await connection.fetchval("SELECT to_regclass('alembic_version')::text")
    revision = await connection.fetchval(_READ_VERSION) if table else None
    return None if revision is None else str(revision)


async def _migrate_postgresql(service: str, dsn: str) -> None:
    async with _postgresql(dsn) as connection:
        # It ends with this connection, so whoever dies while migrating lets the next one on.
        await connection.execute(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})", timeout=LOCK_TIMEOUT)
        if not is_current(service, await _postgresql_revision(connection)):
            from refract.runtime.upgrading import upgrade_postgresql  # noqa: PLC0415  # only when there is something to do

            await upgrade_postgresql(_folder(service), dsn)


@asynccontextmanager
async def _postgresql(dsn: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A connection; the driver's errors could quote the DSN, so those of connecting are replaced."""
    import asyncpg  # noqa: PLC0415  # the embedded mode does without

    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable("database", f"cannot connect: {type(error).__name__}") from None
    try:
        yield connection
    except (OSError, asyncpg.PostgresConnectionError) as error:
        raise Unavailable("database", f"migration interrupted: {type(error).__name__}") from None
    finally:
        connection.terminate()
