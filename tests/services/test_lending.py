"""Lent databases: the next test finds what migrations leave, and never what the last one left."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from refract.runtime.migrations import current_revision, head_revision, migrate
from tests.support.databases import furnish, make_empty, promised_database
from tests.support.lending import STATE, drop_idle, name_in

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

SERVICES = ("links", "analytics", "identity", "notifications", "sms", "projects")
DESCRIPTION = """
    SELECT (table_name, column_name, ordinal_position, data_type, is_nullable, column_default)::text
        FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT (conrelid::regclass, conname, pg_get_constraintdef(oid))::text
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT (sequencename, last_value)::text FROM pg_sequences
    UNION ALL SELECT query_to_xml('TABLE ' || oid::regclass, true, false, '')::text
        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
    ORDER BY 1
"""
NUMBER = "SELECT oid FROM pg_database WHERE datname = current_database()"


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator["Connection"]:
    """A visitor of a database."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def described(dsn: str) -> list[str]:
    """Every table with its rows, and what belongs to it."""
    async with connected(dsn) as connection:
        return [row[0] for row in await connection.fetch(DESCRIPTION)]


async def number(dsn: str) -> int:
    """What a database keeps when its name changes."""
    async with connected(dsn) as connection:
        return int(await connection.fetchval(NUMBER))


@asynccontextmanager
async def lent(server: str, service: str) -> AsyncIterator[str]:
    """A database of a service for the time of the block."""
    async with promised_database(server) as dsn:
        await furnish(service, dsn)
        yield dsn


async def lent_after(server: str, service: str, *statements: str) -> tuple[bool, str]:
    """Whether the next test gets the database in which these were run, and a description of what it gets."""
    async with lent(server, service) as dsn:
        before = await number(dsn)
        async with connected(dsn) as connection:
            for statement in statements:
                await connection.execute(statement)
    async with lent(server, service) as dsn:
        return await number(dsn) == before, "\n".join(await described(dsn))


@pytest.fixture(scope="module", autouse=True)
def no_others(postgres_dsn: str) -> None:
    """No database that tests before us had: the server may be looking through the many rows of one of them.

    It does so whenever it likes, and what it then knows of the tables makes a database one that is dropped.
    """
    asyncio.run(drop_idle(postgres_dsn))


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    """What databases are like that were migrated and never lent, by service."""
    return {}


async def migrated(known: dict[str, str], server: str, service: str) -> str:
    """One of them."""
    if service not in known:
        async with promised_database(server) as dsn:
            await make_empty(dsn)
            await migrate(service, dsn)
            known[service] = "\n".join(await described(dsn))
    return known[service]


@pytest.mark.parametrize("service", SERVICES)
async def test_it_is_as_a_migration_leaves_it(postgres_dsn: str, known: dict[str, str], service: str) -> None:
    again, found = await lent_after(postgres_dsn, service)
    assert again
    assert found == await migrated(known, postgres_dsn, service)


ADD_USER = """
    INSERT INTO users (id, email, created_at, updated_at, password_hash)
    VALUES ('7e0f4b1c-58a2-4d7e-9a53-0d8c8f2f3b11', 'alice@example.com', now(), now(), 'hash')
"""
ADD_TOKEN = """
    INSERT INTO one_time_tokens (token_hash, user_id, purpose, expires_at, created_at)
    SELECT 'hash', id, 'verify', now(), now() FROM users
"""
ADD_CLICK = """
    INSERT INTO clicks (clicked_at, bot, event_id, short_code, visitor) VALUES ('2026-03-01', false, 'e', 'abc', 'v')
"""
ANALYZED = "INSERT INTO inbox VALUES ('event', 'reader', now()); ANALYZE inbox"
ADD_DAY = "CREATE TABLE clicks_20260301 PARTITION OF clicks FOR VALUES FROM ('2026-03-01') TO ('2026-03-02')"


@pytest.mark.parametrize(
    ("service", "statements"),
    [
        ("identity", [ADD_USER, ADD_TOKEN]),
        ("identity", ["SELECT nextval('api_keys_id_seq')"]),
        ("analytics", [ADD_CLICK]),
        ("analytics", [ADD_DAY, ADD_CLICK]),
        ("analytics", ["UPDATE folding SET turn = 7 WHERE span = 2"]),
        ("analytics", ["DELETE FROM folding"]),
        ("analytics", ["INSERT INTO folding SELECT 9, closed, until, expired FROM folding LIMIT 1"]),
        ("analytics", ["UPDATE alembic_version SET version_num = '9999'"]),
        ("links", ["CREATE TABLE effects (number bigserial PRIMARY KEY)", "INSERT INTO effects VALUES (1)"]),
        ("links", ["CREATE TABLE links_too (id bigint REFERENCES links)", 'CREATE TABLE "An other" (id int)']),
    ],
)
async def test_what_a_test_leaves_is_gone_and_what_it_changed_is_back(
    postgres_dsn: str, known: dict[str, str], service: str, statements: list[str]
) -> None:
    again, found = await lent_after(postgres_dsn, service, *statements)
    assert again, "this should be emptied, and not dropped"
    assert found == await migrated(known, postgres_dsn, service)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE links ADD COLUMN colour text",
        "ALTER TABLE links DROP COLUMN title",
        "ALTER TABLE links RENAME COLUMN title TO name",
        "ALTER TABLE links ALTER COLUMN title SET DEFAULT 'untitled'",
        "ALTER TABLE links ALTER COLUMN short_code DROP NOT NULL",
        "ALTER TABLE links SET (fillfactor = 50)",
        "ALTER TABLE outbox SET UNLOGGED",
        "ALTER TABLE links ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE links DISABLE TRIGGER ALL",
        "ALTER TABLE links RENAME TO old_links",
        "ALTER TABLE outbox ADD CONSTRAINT never CHECK (false)",
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey",
        "DROP TABLE inbox",
        "DROP INDEX outbox_fresh",
        "CREATE INDEX another ON outbox (exchange)",
        "CREATE VIEW seen AS SELECT * FROM outbox",
        "CREATE RULE nothing AS ON DELETE TO outbox DO INSTEAD NOTHING",
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TYPE mood AS ENUM ('calm')",
        "CREATE SEQUENCE numbers",
        "CREATE SCHEMA elsewhere",
        "CREATE STATISTICS pair ON exchange, id FROM outbox",
        "GRANT SELECT ON outbox TO PUBLIC",
        "SELECT lo_create(0)",
        "ALTER DATABASE {database} SET lock_timeout = '1s'",
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
    ],
)
async def test_every_change_is_noticed(postgres_dsn: str, statement: str) -> None:
    async with lent(postgres_dsn, "links") as dsn, connected(dsn) as connection:
        before = await connection.fetchval(STATE)
        change = connection.transaction()
        await change.start()
        await connection.execute(statement.format(database=name_in(dsn)))
        assert await connection.fetchval(STATE) != before
        await change.rollback()
        assert await connection.fetchval(STATE) == before


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE links ADD COLUMN colour text", "DROP TABLE inbox", ANALYZED, "CREATE SCHEMA elsewhere"],
)
async def test_a_database_that_was_changed_is_never_lent_again(
    postgres_dsn: str, known: dict[str, str], statement: str
) -> None:
    again, found = await lent_after(postgres_dsn, "links", statement)
    assert not again
    assert found == await migrated(known, postgres_dsn, "links")


async def test_a_database_that_counted_a_deadlock_is_never_lent_again(postgres_dsn: str) -> None:
    async with lent(postgres_dsn, "analytics") as dsn:
        before = await number(dsn)
        async with connected(dsn) as one, connected(dsn) as two:
            for connection, span in ((one, 1), (two, 2)):
                await connection.execute("SET deadlock_timeout = '20ms'")
                await connection.execute(f"BEGIN; UPDATE folding SET turn = 1 WHERE span = {span}")
            both = (
                one.execute("UPDATE folding SET turn = 2 WHERE span = 2"),
                two.execute("UPDATE folding SET turn = 2"),
            )
            assert any(
                isinstance(outcome, asyncpg.DeadlockDetectedError)
                for outcome in await asyncio.gather(*both, return_exceptions=True)
            )
    async with lent(postgres_dsn, "analytics") as dsn:
        assert await number(dsn) != before


async def test_nobody_shares_one(postgres_dsn: str) -> None:
    async with lent(postgres_dsn, "links") as one, lent(postgres_dsn, "links") as two:
        assert await number(one) != await number(two)


async def test_who_outlives_his_test_is_cut_off_and_does_not_find_the_way_back(postgres_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        async with lent(postgres_dsn, "links") as dsn:
            before = await number(dsn)
            visitor = await stack.enter_async_context(connected(dsn))
            await visitor.execute("SELECT pg_advisory_lock(7); BEGIN; LOCK TABLE links")
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(dsn)
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            await visitor.execute("INSERT INTO links DEFAULT VALUES")
        async with lent(postgres_dsn, "links") as after, connected(after) as connection:
            assert await number(after) == before
            assert await connection.fetchval("SELECT pg_try_advisory_lock(7)")


async def test_what_nobody_furnishes_is_never_made(postgres_dsn: str) -> None:
    async with promised_database(postgres_dsn) as dsn:
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(dsn)


async def test_an_empty_one_is_made_for_who_migrates_it_and_dropped(postgres_dsn: str) -> None:
    async with promised_database(postgres_dsn) as dsn:
        await make_empty(dsn)
        assert await current_revision(dsn) is None
        await furnish("links", dsn)
        assert await current_revision(dsn) == head_revision("links")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(dsn)


def contents(path: Path) -> list[str]:
    """All that is in a file, as statements."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("service", SERVICES)
async def test_a_file_is_a_copy_of_what_was_migrated(tmp_path: Path, service: str) -> None:
    real, first, second = (tmp_path / name for name in ("real.db", "first.db", "second.db"))
    await migrate(service, real)
    await furnish(service, first)
    with closing(sqlite3.connect(first)) as connection:
        connection.execute("CREATE TABLE effects (number INTEGER)")
    await furnish(service, second)
    assert contents(second) == contents(real)
