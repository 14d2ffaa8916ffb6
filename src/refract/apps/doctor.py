"""`refract doctor`: what is reachable, which versions run, and what is misconfigured, in words."""

import asyncio
import platform
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from refract import __version__
from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES, ServiceEntry, find_service
from refract.kernel.errors import Misconfigured, RefractError, Unavailable
from refract.runtime.environment import Environment, without_credentials
from refract.runtime.migrations import current_revision, head_revision
from refract.runtime.settings import EngineSettings, ProcessSettings, RedisSettings, check_service_name
from refract.runtime.statements import Statement
from refract.services.gateway.api import PORT
from refract.services.gateway.settings import GatewaySettings

SCARCE_BYTES = 1024**3

SERVER_VERSION = Statement("server_version", "Which PostgreSQL answers.", "SHOW server_version")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    ok: bool
    subject: str
    words: str


async def examine(environment: Environment, service: str | None, data_dir: Path) -> list[Finding]:
    """Look at one service of the distributed mode, or at the embedded instance when none is named."""
    findings = [Finding(ok=True, subject="refract", words=f"{__version__} on Python {platform.python_version()}")]
    if service is None and environment.has("SERVICE_NAME"):
        found = find_service(environment.text("SERVICE_NAME"))
        if found is None:
            names = ", ".join(entry.wire_name for entry in SERVICES.values())
            return [
                *findings,
                Finding(ok=False, subject="SERVICE_NAME", words=f"no such service; expected one of {names}"),
            ]
        service = found.name
    look = (
        _examine_embedded(environment, data_dir)
        if service is None
        else _examine_service(environment, SERVICES[service])
    )
    return findings + [finding async for finding in look]


async def _examine_embedded(environment: Environment, data_dir: Path) -> AsyncIterator[Finding]:
    yield Finding(ok=True, subject="mode", words="embedded")
    yield Finding(ok=True, subject="sqlite", words=sqlite3.sqlite_version)
    directory = DataDirectory(data_dir)
    if not directory.path.exists():
        yield Finding(ok=True, subject="data", words=f"{directory.path} does not exist yet; refract serve makes it")
        return
    yield await _checked("data", lambda: _data(directory))
    try:
        settings = ProcessSettings.from_environment(
            environment, host="127.0.0.1", port=PORT, jwt_secret=directory.secrets()["JWT_SECRET"]
        )
    except Misconfigured as error:
        yield _wrong("settings", error)
        return
    yield Finding(ok=True, subject="settings", words="complete")
    for name, entry in SERVICES.items():
        if entry.has_database:
            yield await _checked(f"database of {name}", lambda name=name: _revision(name, directory.database(name)))  # type: ignore[misc]
    yield await _running(directory, f"http://{settings.host}:{settings.port}")


async def _running(directory: DataDirectory, url: str) -> Finding:
    """An instance holds its directory's lock while it runs; if it runs, it should answer."""
    try:
        directory.lock()
    except Misconfigured:
        return await _checked("instance", lambda: _health(url))
    directory.unlock()
    return Finding(ok=True, subject="instance", words="not running")


async def _examine_service(environment: Environment, entry: ServiceEntry) -> AsyncIterator[Finding]:
    yield Finding(ok=True, subject="mode", words=f"distributed, as {entry.wire_name}")
    try:
        check_service_name(environment, entry.wire_name)
        ProcessSettings.from_environment(environment)
        engines = EngineSettings.from_environment(environment, entry.needs)
        targets = GatewaySettings.from_environment(environment).urls if entry.name == "gateway" else {}
    except Misconfigured as error:
        yield _wrong("settings", error)
        return
    yield Finding(ok=True, subject="settings", words="complete")
    dsn, url, redis = engines.database_dsn, engines.rabbitmq_url, engines.redis
    if dsn is not None:
        yield await _checked("database", lambda: _postgresql(dsn))
        yield await _checked("schema", lambda: _revision(entry.name, dsn))
    if redis is not None:
        yield await _checked("redis", lambda: _redis(redis))
    if url is not None:
        yield await _checked("rabbitmq", lambda: _rabbitmq(url))
    for name, target in targets.items():
        yield await _checked(SERVICES[name].wire_name, lambda target=target: _health(target))  # type: ignore[misc]


async def _checked(subject: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(ok=True, subject=subject, words=await look())
    except RefractError as error:
        return _wrong(subject, error)


def _wrong(subject: str, error: RefractError) -> Finding:
    return Finding(ok=False, subject=subject, words=str(error).removeprefix("FATAL: "))


async def _data(directory: DataDirectory) -> str:
    directory.prepare()
    directory.secrets()
    free = shutil.disk_usage(directory.path).free
    if free < SCARCE_BYTES:
        raise Misconfigured(f"{directory.path} has only {free // 1024**2} MiB left")
    return f"{directory.path}, {free // 1024**3} GiB free"


async def _revision(name: str, location: str | Path) -> str:
    current, head = await current_revision(location), head_revision(name)
    if current == head:
        return f"up to date at {head}"
    if current is None:
        return f"empty; the next start brings it to {head}"
    return f"at {current}; the next start brings it to {head}"


async def _postgresql(dsn: str) -> str:
    from refract.runtime.distributed.database import PostgresDatabase  # noqa: PLC0415

    database = await PostgresDatabase.open(dsn, service="doctor", pauses=(0.0,))
    try:
        row = await database.fetch_one(SERVER_VERSION)
    finally:
        await database.close()
    version = str(row["server_version"]) if row else "unknown"
    if int(version.split(".")[0]) < 15:
        raise Misconfigured(f"PostgreSQL {version} at {without_credentials(dsn)}; 15 or newer is needed")
    return f"PostgreSQL {version} at {without_credentials(dsn)}"


async def _redis(settings: RedisSettings) -> str:
    from refract.runtime.distributed.redis_connection import RedisConnection  # noqa: PLC0415

    connection = RedisConnection(f"{settings.host}:{settings.port}", password=settings.password, deadline=3.0)
    await connection.start()
    try:
        information = bytes(await connection.command("INFO", "server")).decode()
    finally:
        await connection.close()
    version = next(line for line in information.splitlines() if line.startswith("redis_version:")).partition(":")[2]
    return f"Redis {version} at {settings.host}:{settings.port}"


async def _rabbitmq(url: str) -> str:
    import aiormq  # noqa: PLC0415
    from aiormq.exceptions import AMQPError  # noqa: PLC0415

    try:
        async with asyncio.timeout(5):
            connection = await aiormq.connect(url)
    except (OSError, AMQPError, TimeoutError) as error:
        # The client's own words may quote the URL with its password.
        raise Unavailable("rabbitmq", f"{type(error).__name__} at {without_credentials(url)}") from None
    version = str(connection.server_properties["version"])
    await connection.close()
    return f"RabbitMQ {version} at {without_credentials(url)}"


async def _health(url: str) -> str:
    try:
        timeout = aiohttp.ClientTimeout(total=3)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/health") as answer,
        ):
            body = await answer.text()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(url, type(error).__name__) from None
    if answer.status != 200:
        raise Unavailable(url, f"/health answers {answer.status}")
    return f"{url} answers {body}"
