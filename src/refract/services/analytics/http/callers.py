"""Who reads what is public: anybody at all, or somebody with a token."""

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
