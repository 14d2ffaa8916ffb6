"""How the gateway says no: a status, a reason, and what the client may do about it."""

import math
from collections.abc import Iterable

from refract.kernel.errors import BodyTooLarge, Kind, RefractError
from refract.runtime.edge import Send
from refract.runtime.exchange import error_body
from refract.runtime.web import STATUSES
from refract.services.gateway.api import SESSION_COOKIE
from refract.services.gateway.domain.breaker import CircuitOpen
from refract.services.gateway.domain.callers import Asked, SessionOver
from refract.services.gateway.domain.headers import Header, Overstretched
from refract.services.gateway.domain.keys import Unresolved

BUSY_SECONDS = 1
"""When to come again if there was no room."""


class Busy(RefractError):
    """So many requests are with the target that one more would only make all of them slower."""

    kind = Kind.UNAVAILABLE
    message = "service unavailable"


class TooMany(RefractError):
    """Somebody came too often; the fields say how often he may, and when."""

    kind = Kind.LIMITED
    message = "rate limit exceeded"

    def __init__(self, fields: list[Header]) -> None:
        super().__init__()
        self.fields = fields


def status_of(error: RefractError) -> int:
    """The status of a refusal; a body over the limit is a 400, because every row is documented (decision 23)."""
    return 400 if isinstance(error, BodyTooLarge) else STATUSES[error.kind]


def fields_of(error: RefractError, asked: Asked | None = None) -> list[Header]:
    """What a refusal says beside its reason."""
    match error:
        case TooMany():
            return error.fields
        case Busy() | Overstretched() | Unresolved():
            return [(b"retry-after", b"%d" % BUSY_SECONDS)]
        case CircuitOpen():
            return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after)))]
        case SessionOver():
            secure = b"; Secure" if asked is not None and asked.scheme == "https" else b""
            forget = b"%b=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0%b" % (SESSION_COOKIE.encode(), secure)
            return [(b"set-cookie", forget)]
    return []


async def refuse(send: Send, status: int, message: str, more: Iterable[Header] = ()) -> None:
    """Send the whole answer."""
    body = error_body(message)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
