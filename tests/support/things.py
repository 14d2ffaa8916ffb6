"""A table of things to play with, and statements about it, for tests of the Database port."""

import pytest

from refract.runtime.ports import Database
from refract.runtime.statements import Statement

CREATE = (
    Statement("create_things", "Makes a table.", "CREATE TABLE things (name TEXT PRIMARY KEY, size INTEGER NOT NULL)"),
    Statement("create_index", "Makes an index.", "CREATE UNIQUE INDEX things_large ON things (size) WHERE size > 1000"),
    Statement(
        "create_keys",
        "Makes a table with keys of every kind.",
        """
        CREATE TABLE keys (
            id BIGINT PRIMARY KEY, plain TEXT UNIQUE, a TEXT, b TEXT, folded TEXT, CONSTRAINT keys_pair UNIQUE (a, b)
        )
        """,
        sqlite="""
        CREATE TABLE keys (
            id INTEGER PRIMARY KEY, plain TEXT UNIQUE, a TEXT, b TEXT, folded TEXT, CONSTRAINT keys_pair UNIQUE (a, b)
        )
        """,
    ),
    Statement("create_folded", "Makes an index.", "CREATE UNIQUE INDEX keys_folded ON keys (lower(folded))"),
)
ADD = Statement("add", "Adds a thing.", "INSERT INTO things (name, size) VALUES (:name, :size)")
ADD_UNLESS_THERE = Statement(
    "add_unless_there", "Adds a thing once.", "INSERT INTO things VALUES (:name, :size) ON CONFLICT DO NOTHING"
)
ADD_KEY = Statement(
    "add_key",
    "Adds a row with keys.",
    "INSERT INTO keys (id, plain, a, b, folded) VALUES (:id, :plain, :a, :b, :folded)",
)
GROW = Statement("grow", "Makes things larger.", "UPDATE things SET size = size + :by WHERE size >= :least")
COPY_ALL = Statement(
    "copy_all",
    "Adds a copy of everything.",
    "WITH found AS (SELECT name, size FROM things) INSERT INTO things SELECT name || '-copy', size FROM found",
)
REMOVE = Statement("remove", "Removes a thing.", "DELETE FROM things WHERE name = :name RETURNING size")
NAMES = Statement("names", "Lists the names.", "SELECT name FROM things ORDER BY name")
FIND = Statement("find", "Finds a thing.", "SELECT name, size FROM things WHERE name = :name")
FIND_ALL = Statement(
    "find_all",
    "Finds things by their names.",
    "SELECT name FROM things WHERE name = ANY(:names) ORDER BY name",
    sqlite="SELECT name FROM things WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name",
)
LARGEST = Statement("largest", "Finds the largest thing.", "SELECT max(size) AS size, count(*) AS number FROM things")
MARK = Statement("mark", "Marks an event.", "INSERT INTO inbox (reader, event_id) VALUES (:reader, :event_id)")
SLOW = Statement(
    "slow",
    "Takes for ever.",
    "SELECT pg_sleep(60)::text AS answer",
    sqlite="""
    WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter) SELECT max(n) AS answer FROM counter
    """,
)


@pytest.fixture
async def things(database: Database) -> Database:
    """A database with two tables to play with."""
    async with database.transaction() as tx:
        for statement in CREATE:
            await tx.execute(statement)
    return database


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.fetch(NAMES)]


async def add(database: Database, name: str, size: int = 1) -> None:
    async with database.transaction() as tx:
        await tx.execute(ADD, name=name, size=size)
