"""Services in processes of their own over the servers of a workshop, and their databases."""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg

from benchmarks.instances import Instance, answering
from benchmarks.links import token
from benchmarks.workshop import BASE_URL, LIMITS, Ready, Workshop
from refract.apps.directory import SERVICES
from refract.runtime.migrations import migrate
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port

SECRET = secrets.token_urlsafe(48)
"""All services of a run trust the same tokens."""


@contextmanager
def new_database(servers: Mapping[str, str], service: str) -> Iterator[str]:
    """The DSN of an empty database with the tables of a service; gone at the end."""
    name = f"bench_{service}_{secrets.token_hex(4)}"
    server = servers[PostgreSQL.variable]
    asyncio.run(execute(server, f'CREATE DATABASE "{name}" TEMPLATE template0'))
    dsn = urlsplit(server)._replace(path=f"/{name}").geturl()
    try:
        asyncio.run(migrate(service, dsn))
        yield dsn
    finally:
        asyncio.run(execute(server, f'DROP DATABASE "{name}" WITH (FORCE)'))


@contextmanager
def service(
    workshop: Workshop,
    servers: Mapping[str, str],
    name: str,
    dsn: str,
    environment: Mapping[str, str] | None = None,
    *,
    core: int | None = None,
) -> Iterator[Ready]:
    """A `refract run NAME` over that database, on one core or on any."""
    folder = workshop.folder / f"{name}-{secrets.token_hex(4)}"
    folder.mkdir()
    port = free_port()
    values = {
        **LIMITS,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "SERVICE_NAME": SERVICES[name].wire_name,
        "DATABASE_DSN": dsn,
        "REDIS_ADDR": servers[Redis.variable],
        "RABBITMQ_URL": servers[RabbitMQ.variable],
        "JWT_SECRET": SECRET,
        "BASE_URL": BASE_URL,
        "CLICK_SPOOL_DIR": str(folder / "spool"),
    }
    instance = Instance(("run", name), port, folder / "errors.log", {**values, **(environment or {})}, core=core)
    with answering(instance):
        yield Ready(instance, token(SECRET), "", dsn)


async def execute(dsn: str, statement: str) -> None:
    """One statement on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
