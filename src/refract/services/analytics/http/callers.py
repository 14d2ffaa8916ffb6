"""Who asks: an owner with a token, or anybody at all where statistics are public."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request
from litestar.di import Provide

from refract.runtime.callers import caller_from
from refract.runtime.tokens import Claims, TokenVerifier


def reader_from(tokens: TokenVerifier) -> Provide:
    """A dependency for handlers that ask for `reader: Claims | None`; a token that is sent has to be a good one."""
    find_caller = caller_from(tokens).dependency

    def find_reader(request: Request[Any, Any, Any]) -> Claims | None:
        if request.headers.get("authorization") is None:
            return None
        claims: Claims = find_caller(request)
        return claims

    return Provide(find_reader, sync_to_thread=False)


def token_first(tokens: TokenVerifier) -> Callable[[Any], Awaitable[None]]:
    """Refuses strangers before anything else about their request is looked at."""
    find_caller = caller_from(tokens).dependency

    async def check(request: Any) -> None:
        find_caller(request)

    return check
