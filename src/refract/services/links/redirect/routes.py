"""The slow twin of the fast path: the same redirect as a route of the application."""

from typing import Any

from litestar import Request, route
from litestar.params import FromPath
from litestar.types import ASGIApp

from refract.services.links.redirect.engine import Redirects


def redirect_route(redirects: Redirects) -> Any:
    """GET and HEAD of a short code."""

    @route(
        "/{code:str}",
        http_method=["GET", "HEAD"],
        status_code=301,
        summary="Follow a short link",
        tags=["redirect"],
        response_description="Where the link leads",
    )
    async def follow(request: Request[Any, Any, Any], code: FromPath[str]) -> ASGIApp:
        scope = request.scope
        return await redirects.answer(
            scope["method"].encode(),
            code,
            dict(scope["headers"]),
            scope["query_string"],
            client=scope["state"]["client_address"],
            correlation_id=scope["state"]["correlation_id"],
        )

    return follow
