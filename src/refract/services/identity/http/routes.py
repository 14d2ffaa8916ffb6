"""All routes of identity."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Router

from refract.runtime.callers import caller_from
from refract.runtime.tokens import TokenVerifier
from refract.runtime.web import WANTS_TOKEN
from refract.services.identity.domain.keys import NotForKeys

FOR_KEYS = {"for_keys": True}
"""Options for a route: it may also be asked with a token that an API key stands behind. By default none may."""


def identity_routes(tokens: TokenVerifier, *, public: Sequence[Any], for_users: Sequence[Any]) -> list[Any]:
    """The handlers that anybody may call, and those that want a token."""
    return [
        *public,
        Router("/", route_handlers=for_users, before_request=_token_first(tokens), security=WANTS_TOKEN),
    ]


def _token_first(tokens: TokenVerifier) -> Callable[[Any], Awaitable[None]]:
    """Refuses strangers before their body is read, which is what happens before the handler's `caller` is found.

    And API keys, which speak for an owner who is not there: an account is not theirs to change.
    """
    find_caller = caller_from(tokens).dependency

    async def check(request: Any) -> None:
        claims = find_caller(request)
        if claims.api_key is not None and not FOR_KEYS.items() <= request.route_handler.opt.items():
            raise NotForKeys

    return check
