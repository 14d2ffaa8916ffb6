"""Memory as a server has it that has been up for a while: what is asked for was read before."""

import asyncpg


async def read_once(connection: asyncpg.Connection, *tables: str) -> None:
    """Read tables and their indexes into PostgreSQL's memory, as far as they fit there.

    After millions of rows were written only those that came last are in memory: the first answers would tell how
    quickly the disk is read.
    """
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
    await connection.execute(
        """
        WITH wanted AS (
            SELECT oid, reltoastrelid FROM pg_class WHERE oid = ANY($1::text[]::regclass[])
        ), relations AS (
            SELECT oid FROM wanted UNION SELECT reltoastrelid FROM wanted WHERE reltoastrelid <> 0
        )
        SELECT pg_prewarm(oid) FROM relations
        UNION ALL
        SELECT pg_prewarm(indexrelid) FROM pg_index WHERE indrelid IN (SELECT oid FROM relations)
        """,
        list(tables),
    )
