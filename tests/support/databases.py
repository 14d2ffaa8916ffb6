"""Databases for tests, both twins: where they are, opened, and with tables to play with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.migrations import head_revision, migrate
from refract.runtime.ports import Database
from tests.support.lending import give_back, is_lent, lend, name_in, on, patiently

Location = str | Path
"""A DSN, or the file of a SQLite database."""

_files: dict[tuple[str, str], bytes] = {}
"""Migrated SQLite files by service and revision."""
_promised: dict[str, str] = {}
"""The servers of databases that are not made yet, by their DSNs."""


async def open_database(location: Location, name: str = "test") -> Database:
    """The twin that belongs to the location, under a name that the server knows; one that was late is asked again."""
    if isinstance(location, Path):
        return await EmbeddedDatabase.open(location)
    return await PostgresDatabase.open(location, service=name, pauses=(0.0, 0.5, 1.0, 2.0))


async def administer(dsn: str, *statements: str) -> None:
    """Run statements on a server, such as those that make and drop a database."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await patiently(connection, statement)
    finally:
        await connection.close()


@asynccontextmanager
async def promised_database(server: str) -> AsyncIterator[str]:
    """The DSN of a PostgreSQL database that stands once `furnish` or `make_empty` was asked, and is gone at the end."""
    dsn = on(server, f"test_{token_hex(8)}")
    _promised[dsn] = server
    try:
        yield dsn
    finally:
        if dsn in _promised:
            del _promised[dsn]
        elif is_lent(dsn):
            await give_back(server, dsn)
        else:
            await administer(server, f"DROP DATABASE {name_in(dsn)} WITH (FORCE)")


async def make_empty(location: Location, options: str = "") -> None:
    """Make a database that is promised, without tables; a SQLite file comes with its first table."""
    if isinstance(location, str):
        # From template0, to which nobody can be connected: a visitor in template1 would refuse us the copy.
        await administer(_promised[location], f"CREATE DATABASE {name_in(location)} TEMPLATE template0 {options}")
        del _promised[location]


async def furnish(service: str, location: Location) -> None:
    """Give a place the tables of a service, as a migration does.

    Where nothing is yet, what was migrated once in this process is lent or copied. Whatever stands is migrated.
    """
    if isinstance(location, str) and location in _promised:
        await lend(service, _promised[location], location)
        del _promised[location]
    elif isinstance(location, Path) and not location.exists():
        location.write_bytes(await _migrated_file(service))
    else:
        await migrate(service, location)


async def _migrated_file(service: str) -> bytes:
    key = service, head_revision(service)
    if key not in _files:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "migrated.db"
            await migrate(service, path)
            _files[key] = path.read_bytes()
    return _files[key]


@pytest.fixture
async def unmade_database(postgres_dsn: str) -> AsyncIterator[str]:
    """The DSN of a PostgreSQL database that is not there before it is furnished, and is dropped after the test."""
    async with promised_database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture
async def fresh_database(unmade_database: str) -> str:
    """The DSN of an empty PostgreSQL database that is dropped after the test."""
    await make_empty(unmade_database)
    return unmade_database


@pytest.fixture(params=["embedded", "distributed"])
def empty_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for a database of this test alone: nothing is there before it is furnished."""
    if request.param == "embedded":
        return tmp_path / "test.db"
    dsn: str = request.getfixturevalue("unmade_database")
    return dsn


@pytest.fixture
async def empty_database(empty_location: Location) -> Location:
    """The same for tests that migrate it themselves: a database without tables."""
    await make_empty(empty_location)
    return empty_location


@pytest.fixture
async def database_location(empty_location: Location) -> Location:
    """A database with the tables that every service has."""
    await furnish("links", empty_location)
    return empty_location


@pytest.fixture
async def database(database_location: Location) -> AsyncIterator[Database]:
    """The same, opened."""
    opened = await open_database(database_location)
    yield opened
    await opened.close()


class AwayAtFirst:
    """A database that does not answer the first time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._away = True

    def transaction(self) -> Any:
        """Begin one, but not at first."""
        away, self._away = self._away, False
        if away:
            raise Unavailable("database", "nobody answers")
        return self._database.transaction()
