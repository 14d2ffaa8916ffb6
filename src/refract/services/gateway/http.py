"""The door: finds the row of a request, and hands the request over with headers that say only what we know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from refract.kernel.errors import BodyTooLarge, Kind, Limited, NotFound, RefractError
from refract.runtime.client_address import ClientAddresses, Network
from refract.runtime.edge import Application, Edge, Receive, Scope, Send
from refract.runtime.exchange import error_body
from refract.runtime.metrics import Metrics
from refract.runtime.ports import RateLimiter
from refract.runtime.readiness import Check
from refract.runtime.web import STATUSES, build_app
from refract.services.gateway.api import OWN_PATHS, WIRE_NAME, Match, WrongMethod, resolve
from refract.services.gateway.domain.headers import Header, forwarded_headers
from refract.services.gateway.domain.limits import Admission, RouteLimits, limit_fields
from refract.services.gateway.ports import Services

_OWN = frozenset(path.split("/")[1] for path in OWN_PATHS)


@dataclass(frozen=True, slots=True)
class Limits:
    """Who counts, and what is allowed."""

    limiter: RateLimiter
    routes: RouteLimits

    def admission(self) -> Admission | None:
        """The redirect's limit for the hot path; None where it is off."""
        policy = self.routes.policy("redirect")
        return None if policy is None else Admission(policy, self.limiter.hit_soon)


def build_http(
    services: Services,
    *,
    limits: Limits | None = None,
    ready: Mapping[str, Check],
    metrics: Metrics | None = None,
    show_metrics: bool = True,
    trusted_proxies: Sequence[Network] = (),
) -> Application:
    """The gateway's application: its own few routes as every service has them, and the table for everything else.

    Both stand behind the same outer layer. The table does not go through the framework that serves the routes: it
    would parse and route every request once more, on the way to a service that does the same.
    """
    own = build_app(
        WIRE_NAME, [], ready=ready, metrics=metrics, show_metrics=show_metrics, trusted_proxies=trusted_proxies
    )
    table = Edge(Dispatch(services, limits), WIRE_NAME, metrics=metrics, addresses=ClientAddresses(trusted_proxies))

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        first = scope["path"].split("/", 2)[1:2]
        await (own if first and first[0] in _OWN else table)(scope, receive, send)

    return application


class Dispatch:
    """Answers a request by the row it has in the table, or says that it has none."""

    def __init__(self, services: Services, limits: Limits | None = None) -> None:
        self._services = services
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        found = resolve(scope["method"], scope["raw_path"].decode("latin-1"))
        if found is None:
            await _refuse(send, Kind.NOT_FOUND, NotFound.message)
            return
        if isinstance(found, WrongMethod):
            await _refuse(send, Kind.NOT_ALLOWED, "method not allowed", (b"allow", ", ".join(found.allow).encode()))
            return
        scope["path_template"] = found.route.path
        fields = await self._count(scope, found)
        if isinstance(fields, Refused):
            await _refuse(send, Kind.LIMITED, Limited.message, *fields)
            return
        try:
            await self._services.forward(found.route.target, _inner_scope(scope, found), receive, _adding(fields, send))
        except BodyTooLarge as error:
            await _refuse(send, Kind.INVALID, error.message)  # every row of the table is documented (decision 23)
        except RefractError as error:
            await _refuse(send, error.kind, error.message)

    async def _count(self, scope: Scope, match: Match) -> list[Header]:
        """Count the request against its row's limit; the header fields that say how it went."""
        policy = None if self._limits is None else self._limits.routes.policy(match.route.limit)
        if policy is None or self._limits is None:
            return []
        who = self._limits.routes.who_is(scope["state"]["client_address"])
        verdict = await self._limits.limiter.hit(who, policy)
        fields = limit_fields(policy, verdict)
        return fields if verdict.allowed else Refused(fields)


class Refused(list[Header]):
    """The fields of an answer to somebody who came too often."""


def _adding(fields: Sequence[Header], send: Send) -> Send:
    """Send answers with these fields in addition."""
    if not fields:
        return send

    async def send_more(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *fields]
        await send(message)

    return send_more


def _inner_scope(scope: Scope, match: Match) -> Scope:
    """The request as the service sees it: nothing of what our own layers noted in the scope goes along."""
    state, headers = scope["state"], list(scope["headers"])
    address = state["client_address"]
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": scope["method"],
        "scheme": scope["scheme"],
        "path": unquote(match.path),
        "raw_path": match.path.encode(),
        "query_string": scope["query_string"],
        "root_path": "",
        "headers": forwarded_headers(
            headers,
            correlation_id=state["correlation_id"],
            client=address,
            scheme=scope["scheme"],
            host=next((value for name, value in headers if name == b"host"), b""),
        ),
        "client": (address, 0) if address else None,
        "server": scope.get("server"),
        "state": {},
        "extensions": scope.get("extensions", {}),
    }


async def _refuse(send: Send, kind: Kind, message: str, *headers: Header) -> None:
    body = error_body(message)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": STATUSES[kind], "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})
