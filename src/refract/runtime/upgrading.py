"""Runs the missing revisions of a service with Alembic; importing this is what an up-to-date start is spared."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("refract.migrations")

CONNECT_TIMEOUT = 5.0


def upgrade_sqlite(folder: Path, path: Path) -> None:
    """Bring a SQLite file to the newest revision in the folder, or leave it as it was."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    # Python's sqlite3 would commit before every CREATE; with these two a migration is all or nothing.
    sa.event.listen(engine, "connect", _leave_transactions_to_us)
    sa.event.listen(engine, "begin", _begin)
    with engine.begin() as connection:
        _upgrade(connection, folder)


async def upgrade_postgresql(folder: Path, dsn: str) -> None:
    """Bring a PostgreSQL database to the newest revision in the folder, or leave it as it was."""
    # Here, because they take a third of a second that the first start of the embedded mode can do without.
    import asyncpg  # noqa: PLC0415
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    async def connect() -> "asyncpg.Connection[Any]":
        return await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT)

    # The DSN goes straight to asyncpg, which understands `sslmode`; SQLAlchemy never sees a credential.
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade, folder)


def _leave_transactions_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _upgrade(connection: sa.Connection, folder: Path) -> None:
    """Run what is missing, oldest first, in the transaction of the connection."""
    script = ScriptDirectory(folder, version_locations=[str(folder)])
    context = MigrationContext.configure(connection)
    revisions = script.iterate_revisions("head", context.get_current_revision() or "base")
    with Operations.context(context):
        for revision in reversed(list(revisions)):
            revision.module.upgrade()
            context.stamp(script, revision.revision)
            logger.info("migrated", extra={"database": folder.parent.name, "revision": revision.revision})
