"""The links that are asked for: made up from a fixed seed, put straight into the tables, and their owner's token."""

import hashlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from refract.kernel.clock import SystemClock
from refract.kernel.ids import ALPHABET, EPOCH_MILLISECONDS, SEQUENCE_BITS, WORKER_BITS
from refract.runtime.embedded.sqlite_values import to_sqlite
from refract.runtime.tokens import TokenSigner
from refract.services.links.store import COLUMNS

LINKS = 100_000
OWNER = "018f4b7a-4c1e-7b8e-9d57-3f1b6f1c2d3e"
EMAIL = "owner@example.com"
CODE_LENGTH = 7
MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 3


@dataclass(frozen=True, slots=True)
class SeedLink:
    """One row of the table of links, as far as it differs from the others."""

    id: int
    short_code: str
    original_url: str


def seed_links(count: int = LINKS) -> list[SeedLink]:
    """The same links in every run; a smaller number of them is the beginning of a larger."""
    chance = random.Random(SEED)
    codes: dict[str, None] = {}
    while len(codes) < count:
        codes["".join(chance.choices(ALPHABET, k=CODE_LENGTH))] = None
    return [SeedLink(_id(number), code, _url(number)) for number, code in enumerate(codes)]


def shuffled(links: Sequence[SeedLink]) -> list[SeedLink]:
    """The same links in an order that has nothing to do with the one in which they were made."""
    return random.Random(SEED).sample(links, len(links))


def seed_sqlite(file: Path, links: Sequence[SeedLink]) -> None:
    """Put the links into the database of an instance that does not run; the search index is made of all at once."""
    places = ", ".join("?" * len(COLUMNS))
    rows = ([to_sqlite(value) for value in row] for row in _rows(links))
    connection = sqlite3.connect(file)
    try:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        with connection:
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.executemany(f"INSERT INTO links ({', '.join(COLUMNS)}) VALUES ({places})", rows)
            connection.execute(
                "INSERT OR IGNORE INTO searched_workspaces (workspace_id) SELECT DISTINCT workspace_id FROM links"
            )
            connection.execute("INSERT INTO links_search (links_search) VALUES ('rebuild')")
            for _, definition in triggers:
                connection.execute(definition)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("ANALYZE")
    finally:
        connection.close()


async def seed_postgresql(dsn: str, links: Sequence[SeedLink]) -> None:
    """Put the links into a database that has its tables."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.copy_records_to_table("links", records=_rows(links), columns=COLUMNS)
        await connection.execute("VACUUM ANALYZE links")
    finally:
        await connection.close()


def token(secret: str) -> str:
    """What the owner of the links shows."""
    return TokenSigner(secret, SystemClock()).sign(OWNER, EMAIL).token


def _rows(links: Sequence[SeedLink]) -> Iterator[tuple[Any, ...]]:
    shared = {
        "workspace_id": OWNER,
        "created_by": OWNER,
        "owner_email": EMAIL,
        "title": "",
        "notes": "",
        "status": "active",
        "redirect_status": 301,
        "stats_public": True,
        "created_at": MADE_AT,
        "updated_at": MADE_AT,
        "expires_at": None,
        "version": 1,
        "total_clicks": 0,
        "last_clicked_at": None,
    }
    for link in links:
        own = {field.name: getattr(link, field.name) for field in fields(link)}
        own["url_key"] = hashlib.sha256(link.original_url.encode()).digest()
        yield tuple((shared | own)[column] for column in COLUMNS)


def _id(number: int) -> int:
    """A snowflake of the time at which they were made, one in a millisecond."""
    age = int(MADE_AT.timestamp() * 1000) - EPOCH_MILLISECONDS + number
    return age << (WORKER_BITS + SEQUENCE_BITS)


def _url(number: int) -> str:
    return f"https://example.com/articles/{number}?utm_source=newsletter&utm_medium=mail"
