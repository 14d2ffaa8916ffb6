"""Distributed mode: one named service in one process, over PostgreSQL, Redis, RabbitMQ and Kafka."""

import sys
from typing import Any

from refract.apps.builders import Extras, build
from refract.apps.directory import SERVICES, ServiceEntry
from refract.apps.listening import GATEWAY_LIMITS, LIMITS, SERVICE_LIMITS, listen
from refract.apps.own_settings import Defaults, Settings, read_settings
from refract.apps.workers import Place, run_workers
from refract.kernel.clock import SystemClock
from refract.runtime.client_address import hashes_with
from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.distributed.state_store import DistributedStateStore
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.ports import RecordLog
from refract.runtime.service import Foundation
from refract.runtime.settings import (
    EngineSettings,
    KafkaSettings,
    ProcessSettings,
    RedisSettings,
    check_service_name,
    derived_secret,
)
from refract.runtime.supervisor import Supervisor
from refract.runtime.telemetry import configure_logging
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import TARGETS, WIRE_NAME
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.domain.revocations import Revocations
from refract.services.gateway.http import Limits
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.reactions import RevocationWatch
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import GatewaySettings, LimitSettings


async def run(name: str, environment: Environment) -> None:
    """Run one service until a signal comes. Every variable is read before anything is connected."""
    entry = SERVICES[name]
    check_service_name(environment, entry.wire_name)
    settings = ProcessSettings.from_environment(environment)
    engines = EngineSettings.from_environment(environment, entry.needs)
    own_settings = read_settings(name, environment, Defaults()) if entry.has_database else None
    targets = None if entry.has_database else GatewaySettings.from_environment(environment)
    limits = LimitSettings.from_environment(environment)
    salt = environment.text("CLICK_SALT", derived_secret(settings.jwt_secrets[0], "CLICK_SALT"))
    place = Place.taken()
    configure_logging(entry.wire_name, settings.log_level, sys.stdout)
    if place is None and settings.workers > 1:
        await run_workers(name, settings)
    elif targets is None:
        await _run_service(entry, settings, engines, own_settings, place)
    else:
        await _run_gateway(settings, engines, targets, RouteLimits(limits.per_minute, hashes_with(salt)), place)


async def _run_service(
    entry: ServiceEntry,
    settings: ProcessSettings,
    engines: EngineSettings,
    own_settings: Settings | None,
    place: Place | None,
) -> None:
    assert engines.database_dsn is not None, "every service with a database has read where it is"
    assert engines.rabbitmq_url is not None, "and where the bus is"
    metrics = Metrics()
    async with Supervisor() as supervisor:
        database = await supervisor.open(
            "database", PostgresDatabase.open(engines.database_dsn, service=entry.wire_name)
        )
        await supervisor.unless_stopping(migrate(entry.name, engines.database_dsn))
        redis = await _open_redis(supervisor, engines.redis)
        cache = None if redis is None else await supervisor.open("cache", _connected(DistributedCache(redis)))
        limiter = None if redis is None else DistributedRateLimiter(redis)
        bus = await supervisor.open("bus", _connected(RabbitBus(engines.rabbitmq_url)))
        records = await _open_records(supervisor, engines.kafka, metrics)
        foundation = Foundation(
            database=database,
            bus=bus,
            clock=SystemClock(),
            metrics=metrics,
            tokens=TokenVerifier(settings.jwt_secrets, SystemClock()),
            outbox_retention=settings.outbox_retention,
            trusted_proxies=settings.trusted_proxies,
            checks={} if redis is None else {"redis": redis.ping},
            records=records,
            hands_over=True,
        )
        state = None if redis is None else DistributedStateStore(redis)
        extras = Extras(cache, limiter, settings.jwt_secrets[0], state)
        service = await supervisor.unless_stopping(build(foundation, entry.name, own_settings, extras))
        await service.join(supervisor)
        await listen(
            supervisor,
            entry.wire_name,
            service.application,
            settings,
            metrics,
            LIMITS.get(entry.name, SERVICE_LIMITS),
            fast_path=service.fast_path,
            place=place,
        )
        await supervisor.wait()


async def _run_gateway(
    settings: ProcessSettings,
    engines: EngineSettings,
    targets: GatewaySettings,
    limits: RouteLimits,
    place: Place | None,
) -> None:
    metrics, clock = Metrics(), SystemClock()
    services, revocations, known_keys = Proxy(targets.urls), Revocations(), KnownKeys(clock)
    async with Supervisor() as supervisor:
        redis = await _open_redis(supervisor, engines.redis)
        bus = await _open_bus(supervisor, engines.rabbitmq_url)
        gateway = build_gateway(
            services,
            tokens=TokenVerifier(settings.jwt_secrets, clock),
            revocations=revocations,
            known_keys=known_keys,
            breakers=Breakers(TARGETS, clock, metrics),
            limits=None if redis is None else Limits(DistributedRateLimiter(redis), limits),
            base_url=targets.base_url,
            redirect_log_sample=targets.redirect_log_sample,
            # The bus is not among them: without it revocations are heard of later, and everything else goes on.
            ready={} if redis is None else {"redis": redis.ping},
            metrics=metrics,
            show_metrics=False,
            trusted_proxies=settings.trusted_proxies,
        )
        await supervisor.start("proxy", _nothing_to_start, gateway.stop)
        watch = RevocationWatch(services, bus, revocations, clock, keys=known_keys)
        await supervisor.unless_stopping(watch.begin())
        supervisor.watch(f"{WIRE_NAME} revocations", watch.run)
        supervisor.watch(f"{WIRE_NAME} uses of keys", gateway.keys.run)
        await listen(
            supervisor,
            WIRE_NAME,
            gateway.application,
            settings,
            metrics,
            GATEWAY_LIMITS,
            fast_path=gateway.fast_path,
            place=place,
        )
        # After the port is open: services that wait for the gateway must not wait for one another.
        await supervisor.unless_stopping(gateway.check_services())
        await supervisor.wait()


async def _open_redis(supervisor: Supervisor, redis: RedisSettings | None) -> RedisConnection | None:
    """Redis may be away at the start: it is waited for in the background."""
    if redis is None:
        return None
    connection = RedisConnection(f"{redis.host}:{redis.port}", password=redis.password)
    opened: RedisConnection = await supervisor.open("redis", _connected(connection))
    return opened


async def _open_bus(supervisor: Supervisor, url: str | None) -> RabbitBus | None:
    """The gateway may do without a bus, and any bus may be away at the start."""
    if url is None:
        return None
    bus: RabbitBus = await supervisor.open("bus", _connected(RabbitBus(url)))
    return bus


async def _open_records(supervisor: Supervisor, kafka: KafkaSettings | None, metrics: Metrics) -> RecordLog | None:
    """Kafka, too, may be away at the start. Its driver is loaded only where it is needed."""
    if kafka is None:
        return None
    from refract.runtime.distributed.record_log import KafkaLog  # noqa: PLC0415

    log = KafkaLog(kafka.bootstrap, replication=kafka.replication, metrics=metrics)
    opened: KafkaLog = await supervisor.open("kafka", _connected(log))
    return opened


async def _nothing_to_start() -> None:
    """The proxy connects when a request comes."""


async def _connected(engine: Any) -> Any:
    await engine.start()
    return engine
