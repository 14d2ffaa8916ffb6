"""How a process listens: its public port, and its metrics where METRICS_ADDR says so."""

import gc

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
    supervisor: Supervisor, application: Application, settings: ProcessSettings, metrics: Metrics, limits: ServerLimits
) -> None:
    """Accept requests from now on, until the supervisor stops."""
    if settings.metrics is not None:
        host, port = settings.metrics
        inside = HttpServer(metrics_app(metrics), host=host, port=port)
        await supervisor.start("metrics", inside.start, inside.stop)
    server = HttpServer(application, host=settings.host, port=settings.port, limits=limits)
    await supervisor.start("http", server.start, server.stop)
    # What is there now stays until the end. Without this every full collection visits all of it, which stops the
    # event loop, and so every request, for some 50 ms.
    gc.freeze()
