"""Embedded mode: all services in one process, over SQLite files and memory."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from refract.apps.builders import BUILDERS
from refract.apps.data_directory import DataDirectory
from refract.apps.listening import GATEWAY_LIMITS, listen
from refract.kernel.clock import SystemClock
from refract.runtime.edge import Application
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
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
from refract.services.gateway.service import build_gateway


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
        await _run(directory, settings)
    finally:
        directory.unlock()


async def _run(directory: DataDirectory, settings: ProcessSettings) -> None:
    metrics = Metrics()
    async with Supervisor() as supervisor:
        bus = await supervisor.open("bus", EmbeddedBus.open(directory.bus))
        applications: dict[str, Application] = {}
        checks: dict[str, Check] = {"bus": bus.ping}
        one_at_a_time = asyncio.Lock()
        for name, build in BUILDERS.items():
            await supervisor.unless_stopping(migrate(name, directory.database(name)))
            database = await supervisor.open(name, EmbeddedDatabase.open(directory.database(name)))
            checks[f"database of {name}"] = database.ping
            service = build(
                Foundation(
                    database=database,
                    bus=bus,
                    clock=SystemClock(),
                    metrics=metrics,
                    tokens=TokenVerifier(settings.jwt_secrets, SystemClock()),
                    outbox_retention=settings.outbox_retention,
                    one_at_a_time=one_at_a_time,
                )
            )
            await service.join(supervisor)
            applications[name] = service.application
        gateway = build_gateway(
            InProcess(applications),
            ready=checks,
            metrics=metrics,
            show_metrics=False,
            trusted_proxies=settings.trusted_proxies,
        )
        await listen(
            supervisor,
            WIRE_NAME,
            gateway.application,
            settings,
            metrics,
            GATEWAY_LIMITS,
            chosen_by="--host and --port, or HOST and PORT",
        )
        _greet(settings, directory)
        await supervisor.wait()


def _greet(settings: ProcessSettings, directory: DataDirectory) -> None:
    """Tell a person where things are; on standard error, because standard output carries the log."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    lines = (f"Refract listens on http://{host}:{settings.port}", f"Its data is in {directory.path}", "Ctrl-C stops it")
    with suppress(OSError):  # whoever was to read it may have gone
        print(*lines, sep="\n", file=sys.stderr, flush=True)
