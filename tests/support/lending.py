"""PostgreSQL databases of a service, lent to one test after another: each finds what migrations leave, and no more.

To make a database and to drop it costs more than what most tests do with it. So one is migrated for each service, and
emptied after each test. Whatever else a test changed, such as a column or an index, is noticed, and then it is dropped.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from refract.runtime.migrations import head_revision, migrate
from tests.support.waiting import eventually

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_OURS = "(SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')"
TABLES = f"""
    SELECT oid, oid::regclass::text AS name, pg_relation_size(oid) > 0 AS written, reltuples >= 0 AS analyzed
    FROM pg_class WHERE relnamespace IN {_OURS} AND relkind IN ('r', 'p')"""
SEQUENCES = "SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences WHERE last_value IS NOT NULL"
ROWS = "SELECT json_agg(whole_row)::text FROM {table} AS whole_row"
RESTORE = "INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, $1::text::json)"
CUT_OFF = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'
"""
# By their numbers: what was dropped and made again is not the same. What is known of sizes belongs to it, because
# queries are planned by that.
STATE = f"""
    WITH ours AS (SELECT * FROM pg_class WHERE relnamespace IN {_OURS}),
    facts (fact) AS (
        SELECT (oid, relname, relnamespace, relkind, relpersistence, relowner, relacl, reloptions, relrowsecurity,
                relispartition, pg_get_expr(relpartbound, oid), reltuples, relpages)::text FROM ours
        UNION ALL SELECT (oid, pg_relation_size(oid))::text FROM ours WHERE relkind = 'r'
        UNION ALL SELECT (attrelid, attnum, attname, atttypid, atttypmod, attnotnull, attstattarget, attstorage,
                attoptions, attidentity, attgenerated, attisdropped)::text
            FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours)
        UNION ALL SELECT (adrelid, adnum, pg_get_expr(adbin, adrelid))::text FROM pg_attrdef
        UNION ALL SELECT (indexrelid, indisunique, indisvalid, indisready, indislive, indisclustered)::text
            FROM pg_index WHERE indrelid IN (SELECT oid FROM ours)
        UNION ALL SELECT (inhrelid, inhparent, inhdetachpending)::text FROM pg_inherits
        UNION ALL SELECT (oid, conname, convalidated, condeferrable, condeferred)::text
            FROM pg_constraint WHERE connamespace IN {_OURS}
        UNION ALL SELECT (oid, tgname, tgenabled, tgqual)::text FROM pg_trigger
        UNION ALL SELECT (oid, rulename, ev_enabled, ev_action)::text
            FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM ours)
        UNION ALL SELECT (oid, proname, prosrc, proconfig, proacl)::text FROM pg_proc WHERE pronamespace IN {_OURS}
        UNION ALL SELECT (oid, typname, typdefault, typacl)::text FROM pg_type WHERE typnamespace IN {_OURS}
        UNION ALL SELECT (enumtypid, enumsortorder, enumlabel)::text FROM pg_enum
        UNION ALL SELECT (oid, nspname, nspacl)::text FROM pg_namespace WHERE oid IN {_OURS}
        UNION ALL SELECT (oid, extname, extversion)::text FROM pg_extension
        UNION ALL SELECT (oid, polname)::text FROM pg_policy
        UNION ALL SELECT (oid, pubname)::text FROM pg_publication
        UNION ALL SELECT (oid, evtname, evtenabled)::text FROM pg_event_trigger
        UNION ALL SELECT (oid, stxname)::text FROM pg_statistic_ext
        UNION ALL SELECT (oid, lomacl)::text FROM pg_largeobject_metadata
        UNION ALL SELECT (seqrelid, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)::text FROM pg_sequence
        UNION ALL SELECT (schemaname, sequencename, last_value)::text FROM pg_sequences
        UNION ALL SELECT (setrole, setconfig)::text FROM pg_db_role_setting
            WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
        UNION ALL SELECT (datallowconn, datconnlimit, datistemplate, datacl, datdba)::text
            FROM pg_database WHERE datname = current_database()
        UNION ALL SELECT ('deadlocks', deadlocks)::text FROM pg_stat_database WHERE datname = current_database()
        UNION ALL SELECT ('prepared', gid)::text FROM pg_prepared_xacts WHERE database = current_database()
    )
    SELECT md5(string_agg(fact, ' ' ORDER BY fact)) FROM facts"""


class _Analyzed(Exception):
    """The planner was told of rows, and emptying does not make it forget."""


@dataclass(frozen=True)
class Lent:
    """A database, and what it was like when it was new."""

    service: str
    revision: str
    tables: frozenset[int]
    seeds: dict[str, str]
    """Rows that migrations put there, as JSON by table."""
    state: str


_idle: defaultdict[tuple[str, str, str], list[tuple[str, Lent]]] = defaultdict(list)
"""Names of databases that nobody has, by server, service and revision. A name is told to nobody, so nobody comes in."""
_lent: dict[str, Lent] = {}
"""What tests have now, by DSN."""


async def lend(service: str, server: str, dsn: str) -> None:
    """Let a database of the service stand at the DSN, as if it had just been migrated there."""
    key = server, service, head_revision(service)
    name, lent = _idle[key].pop() if _idle[key] else await _make(service, server)
    async with _connected(server) as connection:
        await _rename(connection, name, name_in(dsn))
    _lent[dsn] = lent


def is_lent(dsn: str) -> bool:
    """Whether a lent database stands at the DSN."""
    return dsn in _lent


async def give_back(server: str, dsn: str) -> bool:
    """Empty a database for the next one, or drop it if more was changed than its rows, which is False."""
    lent, name, idle = _lent.pop(dsn), name_in(dsn), f"idle_{token_hex(8)}"
    async with _connected(server) as connection:
        # A renamed database is not found by who still looks for it: a process, say, that outlived its test.
        await _rename(connection, name, idle)
        if not await _emptied(on(server, idle), lent):
            await patiently(connection, f"DROP DATABASE {idle} WITH (FORCE)")
            return False
    _idle[server, lent.service, lent.revision].append((idle, lent))
    return True


async def drop_idle(server: str) -> None:
    """Drop what nobody has."""
    async with _connected(server) as connection:
        for key in [key for key in _idle if key[0] == server]:
            for name, _ in _idle.pop(key):
                await patiently(connection, f"DROP DATABASE {name} WITH (FORCE)")


async def patiently(connection: "Connection", statement: str) -> None:
    """Run a statement for which others have to leave a database.

    Whoever is cut off from a database that is dropped has a few seconds to go, and may need more of them for his disk.
    """
    for patience in (True, True, True, False):
        try:
            await connection.execute(statement)
        except asyncpg.ObjectInUseError:
            if not patience:
                raise
        else:
            return


def on(server: str, name: str) -> str:
    """The DSN of a database on a server."""
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def name_in(dsn: str) -> str:
    """The name of the database at a DSN."""
    return urlsplit(dsn).path.removeprefix("/")


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator["Connection"]:
    connection: Connection = await asyncpg.connect(dsn, server_settings={"synchronous_commit": "off"})
    try:
        yield connection
    finally:
        await connection.close()


async def _rename(connection: "Connection", name: str, new: str) -> None:
    """Give a database another name, while nobody is in it; the server alone would look only ten times a second."""

    async def deserted() -> bool:
        return not await connection.fetchval(CUT_OFF, name)

    # Whoever comes back at once, as the connections of a pool do, would be there again each time we look.
    await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await eventually(deserted, interval=0.005)
    await patiently(connection, f"ALTER DATABASE {name} RENAME TO {new}")
    await connection.execute(f"ALTER DATABASE {new} ALLOW_CONNECTIONS true")


async def _make(service: str, server: str) -> tuple[str, Lent]:
    name = f"idle_{token_hex(8)}"
    async with _connected(server) as connection:
        # From template0, to which nobody can be connected: a visitor in template1 would refuse us the copy.
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    await migrate(service, on(server, name))
    async with _connected(on(server, name)) as connection:
        tables = await connection.fetch(TABLES)
        seeds = {row["name"]: await _rows(connection, row["name"]) for row in tables if row["written"]}
        # The first test finds what the later ones find, down to what the planner knows of an index.
        await _write_anew(connection, [row["name"] for row in tables], seeds)
        state = await connection.fetchval(STATE)
    return name, Lent(service, head_revision(service), frozenset(row["oid"] for row in tables), seeds, state)


async def _write_anew(connection: "Connection", tables: Sequence[str], seeds: Mapping[str, str]) -> None:
    if tables:
        await connection.execute(f"TRUNCATE {', '.join(tables)} CASCADE")
    for table in set(tables) & set(seeds):
        await connection.execute(RESTORE.format(table=table), seeds[table])


async def _rows(connection: "Connection", table: str) -> str:
    return str(await connection.fetchval(ROWS.format(table=table)))


async def _emptied(dsn: str, lent: Lent) -> bool:
    """Whether everything is as it was again."""
    try:
        async with _connected(dsn) as connection:
            async with connection.transaction():
                await _empty(connection, lent)
            seeds = {table: await _rows(connection, table) for table in lent.seeds}
            return seeds == lent.seeds and await connection.fetchval(STATE) == lent.state
    except (asyncpg.PostgresError, _Analyzed):  # such as of a table that is not there any more
        return False


async def _empty(connection: "Connection", lent: Lent) -> None:
    await connection.execute("SET LOCAL lock_timeout = '5s'")  # a prepared transaction has no end
    tables = await connection.fetch(TABLES)
    known = [row for row in tables if row["oid"] in lent.tables]
    if any(row["analyzed"] for row in known):
        raise _Analyzed
    if new := [row["name"] for row in tables if row not in known]:
        await connection.execute(f"DROP TABLE {', '.join(new)} CASCADE")
    written = [row["name"] for row in known if row["written"] and row["name"] not in lent.seeds]
    changed = [table for table, rows in lent.seeds.items() if await _rows(connection, table) != rows]
    await _write_anew(connection, [*written, *changed], lent.seeds)
    for [sequence] in await connection.fetch(SEQUENCES):
        await connection.execute(f"ALTER SEQUENCE {sequence} RESTART")
