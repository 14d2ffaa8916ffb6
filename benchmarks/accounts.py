"""Accounts that may sign in, put straight into the tables: to register them would cost a bcrypt for each."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import bcrypt

from refract.runtime.embedded.sqlite_values import to_sqlite
from refract.services.identity.adapters.hashing import COST
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import COLUMNS

PASSWORD = "a long and quiet sentence"
BUSY_SECONDS = 30.0


def new_accounts(count: int) -> list[User]:
    """So many users with the same password; one hash serves them all."""
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(COST, b"2a")).decode()
    now = datetime.now(UTC)
    return [User.local(f"user{number}@example.com", hashed, now) for number in range(count)]


def add_to_sqlite(file: Path, users: Sequence[User]) -> None:
    """Put them into the database of an embedded instance, which may run."""
    places = ", ".join("?" * len(COLUMNS))
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS)
    try:
        with connection:
            connection.executemany(
                f"INSERT INTO users ({', '.join(COLUMNS)}) VALUES ({places})",
                [[to_sqlite(getattr(user, column)) for column in COLUMNS] for user in users],
            )
    finally:
        connection.close()


async def add_to_postgresql(dsn: str, users: Sequence[User]) -> None:
    """Put them into a database that has its tables."""
    connection = await asyncpg.connect(dsn)
    try:
        records = [tuple(getattr(user, column) for column in COLUMNS) for user in users]
        await connection.copy_records_to_table("users", records=records, columns=COLUMNS)
    finally:
        await connection.close()
