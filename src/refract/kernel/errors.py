"""The error tree: every error of ours says what kind of trouble it is, and the edge picks the status."""

from enum import Enum
from typing import ClassVar


class Kind(Enum):
    """What an error means to the person or program that caused it."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    NOT_ALLOWED = "not allowed"
    CONFLICT = "conflict"
    GONE = "gone"
    TOO_LARGE = "too large"
    UNPROCESSABLE = "unprocessable"
    LIMITED = "limited"
    INTERNAL = "internal"
    UPSTREAM = "upstream"
    UNAVAILABLE = "unavailable"


class RefractError(Exception):
    """The root of the tree. `message` is public; put nothing into it that a stranger may not read."""

    kind: ClassVar[Kind] = Kind.INTERNAL
    message: str = "internal server error"

    def __init__(self, message: str | None = None) -> None:
        if message is not None:
            self.message = message
        super().__init__(self.message)


class Invalid(RefractError):
    """The request itself is wrong, and sending it again will not help."""

    kind = Kind.INVALID
    message = "invalid request"


class Unauthenticated(RefractError):
    """Nobody we know sent this."""

    kind = Kind.UNAUTHENTICATED
    message = "unauthorized"


class Forbidden(RefractError):
    """We know the caller, who may not do this."""

    kind = Kind.FORBIDDEN
    message = "forbidden"


class NotFound(RefractError):
    """There is no such thing."""

    kind = Kind.NOT_FOUND
    message = "not found"


class BodyTooLarge(RefractError):
    """A body over the limit on an endpoint whose specification does not ask for 400 (decision 23)."""

    kind = Kind.TOO_LARGE
    message = "request body too large"


class Limited(RefractError):
    """Too many requests; `retry_after` seconds from now one will be let through."""

    kind = Kind.LIMITED
    message = "rate limit exceeded"

    def __init__(self, retry_after: float, message: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(RefractError):
    """A server we depend on does not answer. Transient by definition: the same call may work later."""

    kind = Kind.UNAVAILABLE
    message = "service unavailable"

    def __init__(self, dependency: str, reason: str) -> None:
        super().__init__()
        self.dependency = dependency
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.dependency} is unavailable: {self.reason}"


class TimedOut(Unavailable):
    """It answers, but one statement took longer than any may: asked the same again, it will probably do so again."""


class UniqueViolation(RefractError):
    """A row with this key exists. `constraint` names the unique index, so that callers can tell which key."""

    kind = Kind.CONFLICT
    message = "already exists"

    def __init__(self, constraint: str) -> None:
        super().__init__()
        self.constraint = constraint

    def __str__(self) -> str:
        return f"unique constraint {self.constraint} violated"


class NotPublished(RefractError):
    """The broker did not take a message; it may be tried again."""

    kind = Kind.UNAVAILABLE
    message = "service unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class BusAway(NotPublished):
    """The bus as a whole did not take it, which is no fault of this message: no other one fares better now."""


class Unroutable(NotPublished):
    """A mandatory message that no queue takes: it stays unpublished until a reader has declared its queue."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(f"no queue takes {routing_key!r} from exchange {exchange!r}")


class PoisonMessage(RefractError):
    """A message that can never be handled, however often it is delivered. The text says what is wrong with it."""

    kind = Kind.INVALID


class Misconfigured(RefractError):
    """A setting is missing or wrong: one line that names the variable, its value and what would be right."""
