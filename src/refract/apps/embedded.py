"""Embedded mode: all services in one process, over SQLite files and memory."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from refract.apps.builders import NAMES, Defaults, build, read_settings
from refract.apps.data_directory import DataDirectory
from refract.apps.listening import GATEWAY_LIMITS, listen
from refract.kernel.clock import SystemClock
from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Application
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.readiness import Check
from refract.runtime.service import Foundation
from refract.runtime.settings import ProcessSettings
from refract.runtime.supervisor import Supervisor
from refract.runtime.telemetry import configure_logging
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.api import PORT, WIRE_NAME
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http import Limits
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import LimitSettings
from refract.services.links.redirect.fast import FastRedirect

COPIES = 10_000
"""Of links, in the cache: the redirect has its own memory in the same process, and needs few."""


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
    metrics = Metrics()
    salt = environment.text("CLICK_SALT", directory.secrets()["CLICK_SALT"])
    defaults = Defaults(_address(settings), salt, directory.spool)
    own_settings = {name: read_settings(name, environment, defaults) for name in NAMES}
    clock, cache = SystemClock(), EmbeddedCache(capacity=COPIES)
    tokens = TokenVerifier(settings.jwt_secrets, clock)
    limits = Limits(
        EmbeddedRateLimiter(), RouteLimits(LimitSettings.from_environment(environment).per_minute, hashes_with(salt))
    )
    async with Supervisor() as supervisor:
        bus = await supervisor.open("bus", EmbeddedBus.open(directory.bus))
        applications: dict[str, Application] = {}
        checks: dict[str, Check] = {"bus": bus.ping}
        one_at_a_time = asyncio.Lock()
        fast_path: FastRedirect | None = None
        for name in NAMES:
            await supervisor.unless_stopping(migrate(name, directory.database(name)))
            database = await supervisor.open(name, EmbeddedDatabase.open(directory.database(name)))
            checks[f"database of {name}"] = database.ping
            foundation = Foundation(
                database=database,
                bus=bus,
                clock=clock,
                metrics=metrics,
                tokens=tokens,
                outbox_retention=settings.outbox_retention,
                trusted_proxies=settings.trusted_proxies,
                one_at_a_time=one_at_a_time,
            )
            service = await build(foundation, name, own_settings[name], cache, limits.limiter)
            if isinstance(service.fast_path, FastRedirect):
                fast_path = service.fast_path.at_gateway(limits.admission())
            await service.join(supervisor)
            applications[name] = service.application
        gateway = build_gateway(
            InProcess(applications),
            ready=checks,
            metrics=metrics,
            show_metrics=False,
            trusted_proxies=settings.trusted_proxies,
            limits=limits,
        )
        await listen(
            supervisor,
            WIRE_NAME,
            gateway.application,
            settings,
            metrics,
            GATEWAY_LIMITS,
            fast_path=fast_path,
            chosen_by="--host and --port, or HOST and PORT",
        )
        _greet(settings, directory)
        await supervisor.wait()


def _address(settings: ProcessSettings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


def _greet(settings: ProcessSettings, directory: DataDirectory) -> None:
    """Tell a person where things are; on standard error, because standard output carries the log."""
    lines = (f"Refract listens on {_address(settings)}", f"Its data is in {directory.path}", "Ctrl-C stops it")
    with suppress(OSError):  # whoever was to read it may have gone
        print(*lines, sep="\n", file=sys.stderr, flush=True)
