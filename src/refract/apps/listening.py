"""How a process listens: its public port, and its metrics where METRICS_ADDR says so."""

import gc

from refract.kernel.errors import Misconfigured
from refract.runtime.edge import Application
from refract.runtime.metrics import Metrics
from refract.runtime.server import HttpServer, ServerLimits
from refract.runtime.settings import ProcessSettings
from refract.runtime.supervisor import Supervisor
from refract.runtime.web import metrics_app

SERVICE_LIMITS = ServerLimits()
GATEWAY_LIMITS = ServerLimits(send=35.0, body=8 * 1024 * 1024)
"""A request through the gateway may take as long as the service behind it, and a little more; it passes on bodies that
only the service behind it can judge."""


async def listen(
    supervisor: Supervisor,
    service: str,
    application: Application,
    settings: ProcessSettings,
    metrics: Metrics,
    limits: ServerLimits,
    *,
    chosen_by: str = "HOST and PORT",
) -> None:
    """Accept requests from now on, until the supervisor stops. An address that cannot be had is Misconfigured, and the
    line says what it was `chosen_by`."""
    if settings.metrics is not None:
        host, port = settings.metrics
        inside = HttpServer(metrics_app(metrics), host=host, port=port)
        await supervisor.start("metrics", lambda: _start(inside, "METRICS_ADDR"), inside.stop)
    server = HttpServer(
        application,
        host=settings.host,
        port=settings.port,
        limits=limits,
        on_refusal=lambda status: metrics.request(service, "", "refused", status, 0.0),
    )
    await supervisor.start("http", lambda: _start(server, chosen_by), server.stop)
    # What is there now stays until the end. Without this every full collection visits all of it, which stops the
    # event loop, and so every request, for some 50 ms.
    gc.freeze()


async def _start(server: HttpServer, chosen_by: str) -> None:
    try:
        await server.start()
    except Misconfigured as error:
        raise Misconfigured(f"{error}; check {chosen_by}") from error
