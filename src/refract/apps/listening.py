"""How a process listens: its public port, and its metrics where METRICS_ADDR says so."""

import gc
from collections.abc import Mapping

from refract.apps.workers import Place
from refract.kernel.errors import Misconfigured
from refract.runtime.edge import Application
from refract.runtime.fast_path import FastPath
from refract.runtime.metrics import Metrics
from refract.runtime.request_log import flush_request_logs
from refract.runtime.server import HttpServer, ServerLimits
from refract.runtime.settings import ProcessSettings
from refract.runtime.supervisor import Supervisor
from refract.runtime.web import metrics_app

SERVICE_LIMITS = ServerLimits()
LINKS_LIMITS = ServerLimits(body=4 * 1024 * 1024)
"""A thousand URLs in one request may need as much."""

IDENTITY_LIMITS = ServerLimits(send=30.0)
"""Who signs in waits for a turn to have the password hashed, when many do: as long as the gateway waits for us."""

GATEWAY_LIMITS = ServerLimits(send=35.0, body=8 * 1024 * 1024)
"""A request through the gateway may take as long as the service behind it, and a little more; it passes on bodies that
only the service behind it can judge."""


LIMITS: Mapping[str, ServerLimits] = {"links": LINKS_LIMITS, "identity": IDENTITY_LIMITS}
"""Of the services that differ from SERVICE_LIMITS, by name."""


async def listen(  # noqa: PLR0913  # all that a listener is made of
    supervisor: Supervisor,
    service: str,
    application: Application,
    settings: ProcessSettings,
    metrics: Metrics,
    limits: ServerLimits,
    *,
    fast_path: FastPath | None = None,
    place: Place | None = None,
    chosen_by: str = "HOST and PORT",
) -> None:
    """Accept requests from now on, until the supervisor stops. An address that cannot be had is Misconfigured, and the
    line says what it was `chosen_by`. A worker listens at its `place`."""
    address = settings.metrics if place is None else place.metrics(settings)
    if address is not None:
        host, port = address
        inside = HttpServer(metrics_app(metrics), host=host, port=port)
        await supervisor.start("metrics", lambda: _start(inside, "METRICS_ADDR"), inside.stop)
    server = HttpServer(
        application,
        host=settings.host,
        port=settings.port,
        sockets=None if place is None else place.sockets,
        limits=limits,
        fast_path=fast_path,
        on_refusal=lambda status: metrics.request(service, "", "refused", status, 0.0),
    )
    if place is not None:
        await supervisor.unless_stopping(place.permission())

    async def stop(seconds: float) -> None:
        await server.stop(seconds)
        flush_request_logs()

    await supervisor.start("http", lambda: _start(server, chosen_by), stop)
    if place is not None:
        place.ready()
    # What is there now stays until the end. Without this every full collection visits all of it, which stops the
    # event loop, and so every request, for some 50 ms.
    gc.freeze()
    # What is made for a request is gone with it, without the collector: it need not look every 700 objects.
    gc.set_threshold(20_000, 20, 50)


async def _start(server: HttpServer, chosen_by: str) -> None:
    try:
        await server.start()
    except Misconfigured as error:
        raise Misconfigured(f"{error}; check {chosen_by}") from error
