"""All routes of notifications."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Router

from refract.runtime.callers import caller_from
from refract.runtime.tokens import TokenVerifier
from refract.runtime.web import WANTS_TOKEN


def owner_routes(tokens: TokenVerifier, handlers: Sequence[Any]) -> list[Any]:
    """The handlers, all of which want a token."""
    return [Router("/", route_handlers=handlers, before_request=_token_first(tokens), security=WANTS_TOKEN)]


def _token_first(tokens: TokenVerifier) -> Callable[[Any], Awaitable[None]]:
    """Refuses strangers before their body is read, which is what happens before the handler's `caller` is found."""
    find_caller = caller_from(tokens).dependency

    async def check(request: Any) -> None:
        find_caller(request)

    return check
