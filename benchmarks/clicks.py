"""Counts the clicks that an instance has stored, so that a rate is never taken of clicks that were lost."""

import asyncio
import sqlite3
from pathlib import Path

import asyncpg

from refract.runtime.embedded.packing import unpacked

# A row carries one click or an array of them (decision 7); in SQLite, long ones are packed.
IN_SQLITE = "SELECT CAST(payload AS BLOB) FROM outbox WHERE event_type = 'url.clicked'"
IN_POSTGRESQL = """
SELECT sum(CASE json_typeof(payload::json) WHEN 'array' THEN json_array_length(payload::json) ELSE 1 END)
FROM outbox WHERE event_type = 'url.clicked'
"""
_CLICK = b'"event_type":"url.clicked"'


def stored_clicks(database: str | Path) -> int:
    """How many clicks are in the outbox of a DSN or a file, sent on or not."""
    if isinstance(database, str):
        return asyncio.run(_in_postgresql(database))
    connection = sqlite3.connect(database)
    try:
        return sum(unpacked(payload).count(_CLICK) for (payload,) in connection.execute(IN_SQLITE))
    finally:
        connection.close()


async def _in_postgresql(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(IN_POSTGRESQL) or 0)
    finally:
        await connection.close()
