"""`refract doctor`: what is reachable, which versions run, and what is misconfigured, in words. It changes nothing."""

import asyncio
import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from refract import __version__
from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES, ServiceEntry, find_service
from refract.apps.own_settings import Defaults, read_settings
from refract.kernel.errors import Misconfigured, RefractError, Unavailable
from refract.runtime.environment import Environment, on_one_line, without_credentials
from refract.runtime.migrations import current_revision, head_revision, is_current
from refract.runtime.settings import (
    SECRET_BYTES,
    EngineSettings,
    KafkaSettings,
    ProcessSettings,
    RedisSettings,
    check_service_name,
)
from refract.runtime.statements import Statement
from refract.services.gateway.api import PORT, WIRE_NAME
from refract.services.gateway.settings import GatewaySettings, LimitSettings
from refract.services.identity.api import NAME as IDENTITY
from refract.services.links.api import NAME as LINKS
from refract.services.links.redirect.spool import Spool

SCARCE_BYTES = 1024**3
HEALTH_BYTES = 4096

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
            return [*findings, _wrong("settings", environment.wrong("SERVICE_NAME", f"one of {names}"))]
        service = found.name
    look = (
        _examine_embedded(environment, DataDirectory(data_dir))
        if service is None
        else _examine_service(environment, SERVICES[service])
    )
    return findings + [finding async for finding in look]


async def _examine_embedded(environment: Environment, directory: DataDirectory) -> AsyncIterator[Finding]:
    yield Finding(ok=True, subject="mode", words="embedded")
    yield Finding(ok=True, subject="sqlite", words=sqlite3.sqlite_version)
    yield await _checked("data", partial(_data, directory))
    yield await _checked("secrets", partial(_secrets, directory))
    yield await _checked("settings", partial(_embedded_settings, environment))
    yield await _checked("click spool", partial(_click_spool, environment, directory.spool))
    for name, entry in SERVICES.items():
        if entry.has_database:
            yield await _checked(f"database of {name}", partial(_sqlite_database, name, directory.database(name)))
    for file in (directory.bus, directory.records, directory.state):
        if _exists(file):
            yield await _checked(file.stem, partial(_sqlite_file, file))
    yield await _checked("instance", partial(_instance, directory, environment))


async def _examine_service(environment: Environment, entry: ServiceEntry) -> AsyncIterator[Finding]:
    yield Finding(ok=True, subject="mode", words=f"distributed, as {entry.wire_name}")
    try:
        check_service_name(environment, entry.wire_name)
        process = ProcessSettings.from_environment(environment)
        engines = EngineSettings.from_environment(environment, entry.needs)
        read_settings(entry.name, environment, Defaults())
        targets = _targets(environment) if entry.name == "gateway" else {}
    except Misconfigured as error:
        yield _wrong("settings", error)
        return
    yield Finding(ok=True, subject="settings", words="complete")
    if entry.name == IDENTITY and not process.trusted_proxies:
        words = "TRUSTED_PROXIES is not set: everybody's failed logins count as the gateway's, which is then shut out"
        yield Finding(ok=False, subject="proxies", words=words)
    if entry.name == LINKS:
        yield await _checked("click spool", partial(_click_spool, environment, Path("spool")))
    if engines.database_dsn is not None:
        yield await _checked("database", partial(_postgresql, engines.database_dsn))
        yield await _checked("schema", partial(_postgresql_revision, entry.name, engines.database_dsn))
    if engines.redis is not None:
        yield await _checked("redis", partial(_redis, engines.redis))
    if engines.rabbitmq_url is not None:
        yield await _checked("rabbitmq", partial(_rabbitmq, engines.rabbitmq_url))
    if engines.kafka is not None:
        yield await _checked("kafka", partial(_kafka, engines.kafka))
    for name, target in targets.items():
        other = SERVICES[name]
        yield await _checked(other.wire_name, partial(_health, target, other.wire_name, other.url_variable))


def _targets(environment: Environment) -> Mapping[str, str]:
    LimitSettings.from_environment(environment)
    return GatewaySettings.from_environment(environment).urls


async def _click_spool(environment: Environment, default: Path) -> str:
    """Where clicks wait while the database is away. The service starts without it, and says so once in its log."""
    place = Path(environment.text("CLICK_SPOOL_DIR", str(default)))
    return await asyncio.to_thread(_look_at_spool, place)


def _look_at_spool(place: Path) -> str:
    path = place.absolute()
    try:
        Spool(path, limit_bytes=0).check()
    except OSError as error:
        words = f"{error}; no click is kept while the database is away; check CLICK_SPOOL_DIR"
        raise Misconfigured(f'click spool "{path}" cannot be used: {words}') from None
    return str(path) if _exists(path) else f"{path} does not exist yet; it is made for the first click that waits"


async def _checked(subject: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(ok=True, subject=subject, words=await look())
    except RefractError as error:
        return _wrong(subject, error)
    except OSError as error:
        return Finding(ok=False, subject=subject, words=error.strerror or type(error).__name__)
    except Exception as error:  # noqa: BLE001  # whatever a check runs into is what the doctor was asked to find
        # Its own words may quote a connection string.
        return Finding(ok=False, subject=subject, words=f"the check itself failed: {type(error).__name__}")


def _wrong(subject: str, error: RefractError) -> Finding:
    return Finding(ok=False, subject=subject, words=str(error).removeprefix("FATAL: "))


# --- the embedded instance ---


async def _embedded_settings(environment: Environment) -> str:
    url = _url(environment)
    for name in SERVICES:
        read_settings(name, environment, Defaults(base_url=url, click_salt="-" * SECRET_BYTES))
    LimitSettings.from_environment(environment)
    return f"complete; refract serve listens on {url}"


def _url(environment: Environment) -> str:
    """Where `refract serve` listens, by the settings that it would read; the secret it keeps is looked at elsewhere."""
    unused = "-" * SECRET_BYTES
    settings = ProcessSettings.from_environment(environment, host="127.0.0.1", port=PORT, jwt_secret=unused)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


async def _data(directory: DataDirectory) -> str:
    path = directory.path
    place = next(each for each in (path, *path.parents) if _exists(each))
    if not place.is_dir():
        raise Misconfigured(f'data directory "{path}" cannot be used: "{place}" is not a directory')
    if not os.access(place, os.W_OK | os.X_OK):
        raise Misconfigured(f'data directory "{path}" cannot be used: "{place}" may not be written to')
    free = shutil.disk_usage(place).free
    if free < SCARCE_BYTES:
        raise Misconfigured(f"{place} has only {free // 1024**2} MiB left")
    room = f"{free // 1024**3} GiB free"
    return f"{path}, {room}" if place == path else f"{path} does not exist yet; refract serve makes it; {room}"


async def _secrets(directory: DataDirectory) -> str:
    kept = directory.kept_secrets()
    return f"kept in {directory.path}" if kept else "none yet; refract serve makes them"


async def _sqlite_database(name: str, file: Path) -> str:
    if not _exists(file):
        return _revision_words(name, None)
    return _revision_words(name, await asyncio.to_thread(_look_into, file, _read_revision))


async def _sqlite_file(file: Path) -> str:
    await asyncio.to_thread(_look_into, file, lambda _: None)
    return "sound"


def _look_into(file: Path, read: Callable[[sqlite3.Connection], str | None]) -> str | None:
    """What is read from a file that is found sound; no other file is made beside it, as SQLite otherwise would."""
    waiting = file.with_name(f"{file.name}-wal")
    index = file.with_name(f"{file.name}-shm")
    if _exists(waiting) and not _exists(index):
        raise Unavailable(file.name, f"nothing can be said before refract serve has taken in {waiting.name}")
    # Without such a file nobody has it open, and it is complete in itself.
    how = "mode=ro&readonly_shm=1" if _exists(waiting) else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?{how}", uri=True)) as connection:
            [verdict] = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise Misconfigured(f"{file.name} is damaged: {on_one_line(verdict)}; restore it from a backup")
            return read(connection)
    except sqlite3.DatabaseError as error:
        raise Unavailable(file.name, str(error)) from None


def _read_revision(connection: sqlite3.Connection) -> str | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


async def _instance(directory: DataDirectory, environment: Environment) -> str:
    """An instance holds its directory's lock while it runs; if it runs, it should answer."""
    if not directory.is_locked():
        return "not running"
    return await _health(_url(environment), WIRE_NAME, "--host and --port, or HOST and PORT")


def _exists(path: Path) -> bool:
    """Whether something is there, as far as we may look."""
    return os.path.lexists(path)


# --- what a service of the distributed mode needs ---


async def _postgresql_revision(name: str, dsn: str) -> str:
    return _revision_words(name, await current_revision(dsn))


def _revision_words(name: str, current: str | None) -> str:
    head = head_revision(name)
    if is_current(name, current):
        return f"up to date at {head}"
    if current is None:
        return f"empty; the next start brings it to {head}"
    return f"at {current}; the next start brings it to {head}"


async def _postgresql(dsn: str) -> str:
    from refract.runtime.distributed.database import PostgresDatabase  # noqa: PLC0415  # drivers: only where needed

    database = await PostgresDatabase.open(dsn, service="doctor", pauses=(0.0,))
    try:
        row = await database.fetch_one(SERVER_VERSION)
    finally:
        await database.close()
    version = str(row["server_version"]) if row else ""
    number = re.match(r"[0-9]+", version)
    if number is None or int(number[0]) < 15:
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
    version = re.search(r"(?m)^redis_version:(\S+)", information)
    return f"Redis {version[1] if version else 'of unknown version'} at {settings.host}:{settings.port}"


async def _rabbitmq(url: str) -> str:
    import aiormq  # noqa: PLC0415
    from aiormq.exceptions import AMQPError  # noqa: PLC0415

    try:
        async with asyncio.timeout(5):
            connection = await aiormq.connect(url)
    except (OSError, AMQPError, TimeoutError) as error:
        # The client's own words may quote the URL with its password.
        raise Unavailable("rabbitmq", f"{type(error).__name__} at {without_credentials(url)}") from None
    version = str(connection.server_properties.get("version", "of unknown version"))
    await connection.close()
    return f"RabbitMQ {version} at {without_credentials(url)}"


async def _kafka(settings: KafkaSettings) -> str:
    from refract.runtime.distributed.record_log import look_at  # noqa: PLC0415

    brokers = await look_at(settings.bootstrap)
    if brokers < settings.replication:
        words = f"KAFKA_REPLICATION asks for {settings.replication} brokers; {brokers} at {settings.bootstrap}"
        raise Misconfigured(f"{words}: no topic can be created")
    return f"Kafka of {brokers} broker{'s' if brokers > 1 else ''} at {settings.bootstrap}"


async def _health(url: str, expected: str, chosen_by: str) -> str:
    """Ask at a URL for the service that should be there: two swapped URLs both answer, and both with another name."""
    place = on_one_line(without_credentials(url))
    try:
        timeout = aiohttp.ClientTimeout(total=3)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/health", allow_redirects=False) as answer,
        ):
            body = await _beginning(answer.content)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(place, type(error).__name__) from None
    if answer.status != 200:
        raise Unavailable(place, f"/health answers {answer.status}")
    named = _service_named_in(body)
    if named is None:
        raise Misconfigured(f"{place} is not {expected}: its /health answers something else; check {chosen_by}")
    if named != expected:
        raise Misconfigured(f'{place} is not {expected}: it answers as "{on_one_line(named)}"; check {chosen_by}')
    return f"{place} answers as {named}"


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    try:
        return await content.readexactly(HEALTH_BYTES)
    except asyncio.IncompleteReadError as error:
        return error.partial


def _service_named_in(body: bytes) -> str | None:
    try:
        named = json.loads(body)["service"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return named if isinstance(named, str) else None
