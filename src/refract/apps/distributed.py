"""Distributed mode: one named service in one process, over PostgreSQL, Redis and RabbitMQ."""

import sys
from typing import Any

from refract.apps.builders import BUILDERS
from refract.apps.directory import SERVICES, ServiceEntry
from refract.apps.listening import GATEWAY_LIMITS, SERVICE_LIMITS, listen
from refract.kernel.clock import SystemClock
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.readiness import Check
from refract.runtime.service import Foundation
from refract.runtime.settings import EngineSettings, ProcessSettings, RedisSettings, check_service_name
from refract.runtime.supervisor import Supervisor
from refract.runtime.telemetry import configure_logging
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import WIRE_NAME
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import GatewaySettings


async def run(name: str, environment: Environment) -> None:
    """Run one service until a signal comes. Every variable is read before anything is connected."""
    entry = SERVICES[name]
    check_service_name(environment, entry.wire_name)
    settings = ProcessSettings.from_environment(environment)
    engines = EngineSettings.from_environment(environment, entry.needs)
    if entry.has_database:
        configure_logging(entry.wire_name, settings.log_level, sys.stdout)
        await _run_service(entry, settings, engines)
    else:
        targets = GatewaySettings.from_environment(environment)
        configure_logging(entry.wire_name, settings.log_level, sys.stdout)
        await _run_gateway(settings, engines, targets)


async def _run_service(entry: ServiceEntry, settings: ProcessSettings, engines: EngineSettings) -> None:
    assert engines.database_dsn is not None, "every service with a database has read where it is"
    assert engines.rabbitmq_url is not None, "and where the bus is"
    metrics = Metrics()
    async with Supervisor() as supervisor:
        database = await supervisor.open(
            "database", PostgresDatabase.open(engines.database_dsn, service=entry.wire_name)
        )
        await supervisor.unless_stopping(migrate(entry.name, engines.database_dsn))
        checks = await _open_redis(supervisor, engines.redis)
        bus = await supervisor.open("bus", _connected(RabbitBus(engines.rabbitmq_url)))
        foundation = Foundation(
            database=database,
            bus=bus,
            clock=SystemClock(),
            metrics=metrics,
            tokens=TokenVerifier(settings.jwt_secrets, SystemClock()),
            outbox_retention=settings.outbox_retention,
            trusted_proxies=settings.trusted_proxies,
            checks=checks,
        )
        service = BUILDERS[entry.name](foundation)
        await service.join(supervisor)
        await listen(supervisor, entry.wire_name, service.application, settings, metrics, SERVICE_LIMITS)
        await supervisor.wait()


async def _run_gateway(settings: ProcessSettings, engines: EngineSettings, targets: GatewaySettings) -> None:
    metrics = Metrics()
    async with Supervisor() as supervisor:
        checks = await _open_redis(supervisor, engines.redis)
        gateway = build_gateway(
            Proxy(targets.urls),
            ready=checks,
            metrics=metrics,
            show_metrics=False,
            trusted_proxies=settings.trusted_proxies,
        )
        await supervisor.start("proxy", _nothing_to_start, gateway.stop)
        await listen(supervisor, WIRE_NAME, gateway.application, settings, metrics, GATEWAY_LIMITS)
        # After the port is open: services that wait for the gateway must not wait for one another.
        await supervisor.unless_stopping(gateway.check_services())
        await supervisor.wait()


async def _open_redis(supervisor: Supervisor, redis: RedisSettings | None) -> dict[str, Check]:
    """Redis may be away at the start: it is waited for in the background."""
    if redis is None:
        return {}
    connection = RedisConnection(f"{redis.host}:{redis.port}", password=redis.password)
    await supervisor.open("redis", _connected(connection))
    return {"redis": connection.ping}


async def _nothing_to_start() -> None:
    """The proxy connects when a request comes."""


async def _connected(engine: Any) -> Any:
    await engine.start()
    return engine
