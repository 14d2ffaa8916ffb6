"""The door: the gateway's own few routes, the table for everything else, and the refusals that need no application."""

from collections.abc import Mapping, Sequence

from refract.runtime.client_address import ClientAddresses, Network
from refract.runtime.edge import Application, Edge, Receive, Scope, Send
from refract.runtime.metrics import Metrics
from refract.runtime.readiness import Check
from refract.runtime.request_log import EVERY_LINE
from refract.runtime.web import build_app
from refract.services.gateway.api import OWN_PATHS, WIRE_NAME
from refract.services.gateway.http.dispatch import Checks, Dispatch
from refract.services.gateway.http.documents import document_routes

_OWN = frozenset(path.split("/")[1] for path in OWN_PATHS)


def build_http(
    checks: Checks,
    *,
    ready: Mapping[str, Check],
    metrics: Metrics | None = None,
    show_metrics: bool = True,
    trusted_proxies: Sequence[Network] = (),
    log_samples: Mapping[str, float] = EVERY_LINE,
) -> Application:
    """The gateway's application: its own few routes as every service has them, and the table for everything else.

    Both stand behind the same outer layer. The table does not go through the framework that serves the routes: it
    would parse and route every request once more, on the way to a service that does the same.
    """
    own = build_app(
        WIRE_NAME,
        document_routes(),
        ready=ready,
        metrics=metrics,
        show_metrics=show_metrics,
        trusted_proxies=trusted_proxies,
        describes_itself=False,
    )
    addresses = ClientAddresses(trusted_proxies)
    dispatch = Dispatch(checks, addresses)
    table = Edge(dispatch, WIRE_NAME, metrics=metrics, addresses=addresses, answers_callers=False, samples=log_samples)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        first = scope["path"].split("/", 2)[1:2]
        await (own if first and first[0] in _OWN else table)(scope, receive, send)

    return application
