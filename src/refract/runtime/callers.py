"""Who calls a route: the claims of the bearer token, checked before the handler runs."""

import logging
from typing import Any

from litestar import Request
from litestar.di import Provide

from refract.kernel.errors import Unauthenticated
from refract.runtime.tokens import Claims, TokenRefused, TokenVerifier, bearer_token

log = logging.getLogger(__name__)


def caller_from(tokens: TokenVerifier) -> Provide:
    """A dependency for handlers that ask for `caller: Claims`; without a good token the answer is 401."""

    def find_caller(request: Request[Any, Any, Any]) -> Claims:
        token = bearer_token(request.headers.get("authorization"))
        if token is None:
            raise Unauthenticated
        try:
            return tokens.verify(token)
        except TokenRefused as refused:
            log.warning("token refused: %s", refused, extra={"method": request.method, "path": request.scope["path"]})
            raise

    return Provide(find_caller, sync_to_thread=False)
