"""A request to send a message: what it may be, under which key it may be repeated, and how it can fail."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from msgspec import Meta, Struct

from refract.kernel.errors import Invalid, Kind, Limited, NotFound, RefractError
from refract.services.sms.domain.limits import LARGEST_NUMBER

LONGEST_MESSAGE = 1_600
"""Characters: ten parts of an SMS, which is what providers take at once."""
LONGEST_KEY = 255

UserId = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]


class SendRequest(Struct, frozen=True, gc=False, rename="camel"):
    """A message for a user."""

    user_id: UserId
    message: Annotated[str, Meta(min_length=1, max_length=LONGEST_MESSAGE)]

    def checked(self) -> Self:
        """Itself, unless there is nothing in the message, or something that no database takes; raises Invalid."""
        if not self.message.strip() or "\0" in self.message:
            raise Invalid
        return self

    def check_sender(self, bound_to: Sequence[str]) -> None:
        """Raise NotBound where the sender may send for somebody else; who is bound to nobody may send for all."""
        if any(user_id != str(self.user_id) for user_id in bound_to):
            raise NotBound

    @property
    def value(self) -> bytes:
        """As it stands in the topic."""
        return f"{self.user_id}: {self.message}".encode()


class SendKey(Struct, frozen=True, gc=False):
    """The key under which a send may be repeated, as it is kept. The fingerprint tells it from another send."""

    key_hash: str
    fingerprint: str
    message_id: str

    @classmethod
    def of(cls, request: SendRequest, key: str) -> Self:
        """The key of a request; raises Invalid.

        The message id follows from user and key, so that even a send of which nothing is kept, because we died between
        the log and the commit, is known when it is repeated.
        """
        if not 0 < len(key) <= LONGEST_KEY:
            raise Invalid
        hashed = _digest(b"key", str(request.user_id).encode(), key.encode())
        return cls(hashed, _digest(b"body", request.value), _as_uuid(_digest(b"message", hashed.encode())))


class UserNotFound(NotFound):
    """Nobody has set a limit for this user."""

    message = "User Not Found"


class LimitExceeded(Limited):
    """The user's limit is used up."""

    message = "Rate Limit Exceeded"


class NotBound(RefractError):
    """Whoever sends may send for one user, and this is another (decision 17)."""

    kind: ClassVar[Kind] = Kind.FORBIDDEN
    message = "Forbidden"


class LogAway(RefractError):
    """The record log did not take the message."""

    kind: ClassVar[Kind] = Kind.UNAVAILABLE
    message = "Kafka Down : Service Unavailable"


class DatabaseAway(RefractError):
    """The database did not answer."""

    kind: ClassVar[Kind] = Kind.UNAVAILABLE
    message = "Postgres Down : Service Unavailable"


class KeyReused(RefractError):
    """The key stands for another message of the same user."""

    kind: ClassVar[Kind] = Kind.UNPROCESSABLE
    message = "Idempotency-Key was used for another request"


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\n".join(parts), digest_size=16).hexdigest()


def _as_uuid(digest: str) -> str:
    return "-".join((digest[:8], digest[8:12], f"8{digest[13:16]}", f"8{digest[17:20]}", digest[20:]))
