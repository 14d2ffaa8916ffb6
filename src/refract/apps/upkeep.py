"""What operators do by hand, in both modes: migrate, look at dead letters, send things again."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from refract.apps.builders import QUEUES
from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES
from refract.apps.service_database import existing, service_database
from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.runtime.messages import DeadLetter
from refract.runtime.migrations import current_revision, head_revision
from refract.runtime.migrations import migrate as apply_migrations
from refract.runtime.outbox import replay_outbox
from refract.runtime.ports import EventBus
from refract.runtime.settings import database_dsn, rabbitmq_url


async def migrate(environment: Environment, service: str | None, data_dir: Path) -> list[str]:
    """Bring databases up to date; a line for each."""
    if service is None and environment.has("DATABASE_DSN"):
        raise Misconfigured("FATAL: DATABASE_DSN is set; name the service that it belongs to: refract migrate SERVICE")
    names = [service] if service else [name for name, entry in SERVICES.items() if entry.has_database]
    return [await _migrate_one(environment, name, data_dir) for name in names]


async def _migrate_one(environment: Environment, name: str, data_dir: Path) -> str:
    if not SERVICES[name].has_database:
        return f"{name} has no database"
    if environment.has("DATABASE_DSN"):
        location: str | Path = database_dsn(environment)
    else:
        directory = DataDirectory(data_dir)
        directory.prepare()
        location = directory.database(name)
    before = await current_revision(location)
    await apply_migrations(name, location)
    head = head_revision(name)
    return (
        f"{name} is up to date at {head}" if before == head else f"{name} migrated from {before or 'nothing'} to {head}"
    )


async def dead_letters(environment: Environment, queue: str | None, limit: int, data_dir: Path) -> list[DeadLetter]:
    """What was given up, of one queue or of all."""
    names = [_known_queue(queue)] if queue else [each.name for each in QUEUES]
    async with _bus(environment, data_dir) as bus:
        return [letter for name in names for letter in await bus.dead_letters(name, limit)]


async def replay_dead_letters(
    environment: Environment, queue: str, message_ids: Collection[str] | None, data_dir: Path
) -> int:
    """Put dead letters back into their queue; returns how many."""
    async with _bus(environment, data_dir) as bus:
        return await bus.replay(_known_queue(queue), message_ids)


async def replay_period(
    environment: Environment, service: str, since: datetime, until: datetime, data_dir: Path
) -> int:
    """Have a service publish again what it announced in a period; returns how many rows."""
    if not SERVICES[service].has_database:
        raise Misconfigured(f"FATAL: {service} has no database, so it has no events to publish again")
    async with service_database(environment, service, data_dir) as database:
        return await replay_outbox(database, since, until)


def _known_queue(name: str) -> str:
    if name not in {queue.name for queue in QUEUES}:
        known = ", ".join(queue.name for queue in QUEUES)
        raise Misconfigured(f'FATAL: there is no queue "{name}"; expected one of {known}')
    return name


@asynccontextmanager
async def _bus(environment: Environment, data_dir: Path) -> AsyncIterator[EventBus]:
    """The bus of the distributed mode if the environment names one, else that of the instance in the directory."""
    if environment.has("RABBITMQ_URL"):
        from refract.runtime.distributed.event_bus import RabbitBus  # noqa: PLC0415

        rabbit = RabbitBus(rabbitmq_url(environment))
        await rabbit.start()
        try:
            await rabbit.ping()
            yield rabbit
        finally:
            await rabbit.close()
    else:
        from refract.runtime.embedded.event_bus import EmbeddedBus  # noqa: PLC0415

        embedded = await EmbeddedBus.open(existing(DataDirectory(data_dir).bus))
        try:
            yield embedded
        finally:
            await embedded.close()
