"""Databases for tests, both twins: where they are, opened, and with tables to play with."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database

Location = str | Path
"""A DSN, or the file of a SQLite database."""


async def open_database(location: Location) -> Database:
    """The twin that belongs to the location; a server that was late is asked again."""
    if isinstance(location, Path):
        return await EmbeddedDatabase.open(location)
    return await PostgresDatabase.open(location, service="test", pauses=(0.0, 0.5, 1.0, 2.0))


async def administer(dsn: str, *statements: str) -> None:
    """Run statements on a server, such as those that make and drop a database.

    Whoever is cut off from a database that is dropped has a few seconds to go, and may need more of them for his disk.
    """
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            for patience in (True, True, True, False):
                try:
                    await connection.execute(statement)
                    break
                except asyncpg.ObjectInUseError:
                    if not patience:
                        raise
    finally:
        await connection.close()


@pytest.fixture(params=["embedded", "distributed"])
def empty_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for a database of this test alone, without tables."""
    if request.param == "embedded":
        return tmp_path / "test.db"
    dsn: str = request.getfixturevalue("fresh_database")
    return dsn


@pytest.fixture
async def database_location(empty_location: Location) -> Location:
    """A database with the tables that every service has."""
    await migrate("links", empty_location)
    return empty_location


@pytest.fixture
async def database(database_location: Location) -> AsyncIterator[Database]:
    """The same, opened."""
    opened = await open_database(database_location)
    yield opened
    await opened.close()
