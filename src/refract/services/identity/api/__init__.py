"""What others may know of identity: where the service answers, and the events of users and their keys."""

from typing import Annotated, ClassVar

from msgspec import Meta

from refract.kernel.events import Moment, PlatformEvent
from refract.services.identity.api.keys import LARGEST_KEY_ID, ApiKeyCreated, ApiKeyRevoked, KeyHash, KeyId
from refract.services.identity.api.mail import EmailPasswordResetRequested, EmailVerificationRequested, Mail

__all__ = [
    "LARGEST_KEY_ID",
    "NAME",
    "PORT",
    "WIRE_NAME",
    "ApiKeyCreated",
    "ApiKeyRevoked",
    "EmailPasswordResetRequested",
    "EmailVerificationRequested",
    "Generation",
    "KeyHash",
    "KeyId",
    "Mail",
    "UserDeleted",
    "UserRevoked",
]

NAME = "identity"
WIRE_NAME = "user-service"
PORT = 8083

Generation = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Rises whenever all tokens of a user are ended: a token of a generation below it is dead."""


class UserRevoked(PlatformEvent, frozen=True, kw_only=True, tag="user.revoked"):
    """Tokens of a user died before their time: the one that is named, or all below a generation.

    After `until` none of them can be alive any more, and the event may be forgotten.
    """

    needs_reader: ClassVar[bool] = False

    user_id: str
    until: Moment
    token_id: str = ""
    generation: Generation = 0


class UserDeleted(PlatformEvent, frozen=True, kw_only=True, tag="user.deleted"):
    """An account is no more. Whoever knows something of the user forgets it, and whatever of theirs comes later."""

    user_id: str
