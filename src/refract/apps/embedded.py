"""Embedded mode: all services in one process, over SQLite files and memory."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from refract.apps.builders import NAMES, Extras, build
from refract.apps.data_directory import DataDirectory
from refract.apps.listening import GATEWAY_LIMITS, listen
from refract.apps.own_settings import Defaults, Settings, read_settings
from refract.kernel.clock import SystemClock
from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Application
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.embedded.record_log import EmbeddedRecordLog
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.readiness import Check
from refract.runtime.rush import Rush
from refract.runtime.service import Foundation
from refract.runtime.settings import ProcessSettings
from refract.runtime.supervisor import Supervisor
from refract.runtime.telemetry import configure_logging
from refract.runtime.tokens import TokenVerifier
from refract.services.analytics.api import NAME as ANALYTICS
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.api import PORT, WIRE_NAME
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.domain.revocations import Revocations
from refract.services.gateway.http import Limits
from refract.services.gateway.reactions import RevocationWatch
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import LimitSettings
from refract.services.links.api import NAME as LINKS
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.settings import LinksSettings
from refract.services.sms.api import NAME as SMS

SECONDS_BETWEEN_LOOKS = 0.5


async def serve(environment: Environment, data_dir: Path) -> None:
    """Run everything until a signal comes."""
    directory = DataDirectory(data_dir)
    directory.prepare()
    directory.lock()
    try:
        settings = ProcessSettings.from_environment(
            environment, host="127.0.0.1", port=PORT, jwt_secret=directory.secrets()["JWT_SECRET"]
        )
        configure_logging(WIRE_NAME, settings.log_level, sys.stdout)
        await _run(directory, settings, environment)
    finally:
        directory.unlock()


async def _run(directory: DataDirectory, settings: ProcessSettings, environment: Environment) -> None:
    metrics, clock = Metrics(), SystemClock()
    rush = Rush(clock, lambda: metrics.answered)
    salt = environment.text("CLICK_SALT", directory.secrets()["CLICK_SALT"])
    defaults = Defaults(_address(settings), salt, directory.spool, click_readers=1)
    own_settings = {name: read_settings(name, environment, defaults) for name in NAMES}
    limits, links = _limits(environment, salt), own_settings[LINKS]
    assert isinstance(links, LinksSettings), "links have settings of their own"
    cache = EmbeddedCache(capacity=0, misses_nothing=True)
    # Both make their files when they are first needed, which for most instances is never.
    state, records = EmbeddedStateStore(directory.state, clock), EmbeddedRecordLog(directory.records, clock, metrics)
    extras = Extras(cache, limits.limiter, settings.jwt_secrets[0], state)
    tokens, revocations, known_keys = TokenVerifier(settings.jwt_secrets, clock), Revocations(), KnownKeys(clock)
    async with Supervisor() as supervisor:
        bus = await supervisor.open("bus", EmbeddedBus.open(directory.bus))
        await supervisor.start("state", _nothing_to_start, lambda _: state.close())
        await supervisor.start("records", _nothing_to_start, lambda _: records.close())
        foundation = partial(
            Foundation,
            bus=bus,
            clock=clock,
            metrics=metrics,
            tokens=tokens,
            outbox_retention=settings.outbox_retention,
            trusted_proxies=settings.trusted_proxies,
            one_at_a_time=asyncio.Lock(),
            rush=rush,
        )
        inside = await _start_services(supervisor, directory, foundation, own_settings, extras, cache, records, rush)
        services = InProcess(inside.applications)
        gateway = build_gateway(
            services,
            tokens=tokens,
            revocations=revocations,
            known_keys=known_keys,
            limits=limits,
            base_url=environment.text("BASE_URL", defaults.base_url),
            redirects=inside.redirects and inside.redirects.at_gateway(limits.admission()),
            ready={"bus": bus.ping, "records": records.ping, **inside.checks},
            metrics=metrics,
            show_metrics=False,
            trusted_proxies=settings.trusted_proxies,
            redirect_log_sample=links.redirect_log_sample,
        )
        await supervisor.start("gateway", _nothing_to_start, gateway.stop)
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
            chosen_by="--host and --port, or HOST and PORT",
        )
        _greet(settings, directory)
        await supervisor.wait()


def _limits(environment: Environment, salt: str) -> Limits:
    routes = RouteLimits(LimitSettings.from_environment(environment).per_minute, hashes_with(salt))
    return Limits(EmbeddedRateLimiter(), routes)


@dataclass(slots=True)
class _Inside:
    """What is behind the door."""

    applications: dict[str, Application] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    redirects: FastRedirect | None = None


async def _start_services(
    supervisor: Supervisor,
    directory: DataDirectory,
    foundation: Callable[..., Foundation],
    own_settings: Mapping[str, Settings | None],
    extras: Extras,
    cache: EmbeddedCache,
    records: EmbeddedRecordLog,
    rush: Rush,
) -> _Inside:
    """Each on a database of its own, one after the other."""
    inside = _Inside()
    for name in NAMES:
        await supervisor.unless_stopping(migrate(name, directory.database(name)))
        # Clicks that are counted a moment later harm nobody; a redirect that is late does.
        opening = EmbeddedDatabase.open(directory.database(name), rush=rush if name == ANALYTICS else None)
        database = await supervisor.open(name, opening)
        if name == LINKS:
            supervisor.watch("watch for other writers", partial(_watch, database, cache))
        on = foundation(database=database, records=records if name == SMS else None)
        service = await build(on, name, own_settings[name], extras)
        if isinstance(service.fast_path, FastRedirect):
            inside.redirects = service.fast_path
        await service.join(supervisor)
        inside.applications[name] = service.application
        inside.checks[f"database of {name}"] = database.ping
    return inside


async def _watch(database: EmbeddedDatabase, cache: EmbeddedCache) -> None:
    """What this process changes it also drops. What another one changes is noticed here, and all is asked anew."""
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        if await database.changed_elsewhere():
            cache.tell_gap()


async def _nothing_to_start() -> None:
    """It is there as soon as it is built; only its end is something to do."""


def _address(settings: ProcessSettings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


def _greet(settings: ProcessSettings, directory: DataDirectory) -> None:
    """Tell a person where things are; on standard error, because standard output carries the log."""
    lines = (f"Refract listens on {_address(settings)}", f"Its data is in {directory.path}", "Ctrl-C stops it")
    with suppress(OSError):  # whoever was to read it may have gone
        print(*lines, sep="\n", file=sys.stderr, flush=True)
