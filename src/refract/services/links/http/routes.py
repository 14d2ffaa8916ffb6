"""All routes of links but the redirect."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Router

from refract.kernel.clock import Clock
from refract.runtime.callers import caller_from
from refract.runtime.tokens import TokenVerifier
from refract.runtime.web import WANTS_TOKEN
from refract.services.links.commands.bulk import BulkShortening
from refract.services.links.commands.managing import Managing
from refract.services.links.commands.shortening import Shortening
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.http.managing import changing_routes, picture_routes, reading_routes
from refract.services.links.http.shortening import shortening_routes
from refract.services.links.queries.links import LinkQueries
from refract.services.links.queries.views import LinkViews


def link_routes(
    *,
    shortening: Shortening,
    bulk: BulkShortening,
    managing: Managing,
    queries: LinkQueries,
    views: LinkViews,
    own: OwnDomains,
    clock: Clock,
    tokens: TokenVerifier,
) -> list[Any]:
    """The handlers on the commands and queries that they are given; all of them want a token."""
    handlers = [
        *shortening_routes(shortening, bulk),
        *reading_routes(queries),
        *changing_routes(managing, views, own, clock),
        *picture_routes(queries),
    ]
    return [Router("/", route_handlers=handlers, before_request=_token_first(tokens), security=WANTS_TOKEN)]


def _token_first(tokens: TokenVerifier) -> Callable[[Any], Awaitable[None]]:
    """Refuses strangers before their body is read, which is what happens before the handler's `caller` is found."""
    find_caller = caller_from(tokens).dependency

    async def check(request: Any) -> None:
        find_caller(request)

    return check
