"""A service's database for a command of the operator, in either mode, also while the service runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from refract.apps.data_directory import DataDirectory
from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.runtime.ports import Database
from refract.runtime.settings import database_dsn


@asynccontextmanager
async def service_database(environment: Environment, service: str, data_dir: Path) -> AsyncIterator[Database]:
    """The database that the environment names, else that of the service in the directory, which has to exist.

    What is announced here is published by the service that runs: by a notification it hears of it at once, and in
    embedded mode it sees within half a second that the file has changed.
    """
    if environment.has("DATABASE_DSN"):
        from refract.runtime.distributed.database import PostgresDatabase  # noqa: PLC0415

        dsn = database_dsn(environment)
        database: Database = await PostgresDatabase.open(dsn, service=service, pauses=(0.0,))
    else:
        from refract.runtime.embedded.database import EmbeddedDatabase  # noqa: PLC0415

        database = await EmbeddedDatabase.open(existing(DataDirectory(data_dir).database(service)))
    try:
        yield database
    finally:
        await database.close()


def existing(file: Path) -> Path:
    """A file of an instance; Misconfigured where there is none."""
    if not file.exists():
        raise Misconfigured(f'FATAL: there is no instance in "{file.parent}"; name its place with --data-dir')
    return file
