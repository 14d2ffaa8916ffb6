"""One-time tokens: whoever brings one back reads the mail of the address that it was sent to."""

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Self

from refract.kernel.errors import Kind, RefractError
from refract.kernel.events import PlatformEvent

TOKEN_BYTES = 32
"""So many that nobody guesses one, and that a plain hash hides it: there is nothing to try them by."""


class Purpose(StrEnum):
    """What a token is good for, and for nothing else."""

    VERIFY = "verify"
    RESET = "reset"


LIFETIMES = {Purpose.VERIFY: timedelta(hours=24), Purpose.RESET: timedelta(hours=1)}


class InvalidToken(RefractError):
    """Unknown, used, over, or meant for something else: whoever brings it does not learn which."""

    kind: ClassVar[Kind] = Kind.INVALID
    message = "invalid or expired token"


class ResetAsked(PlatformEvent, frozen=True, kw_only=True, tag="identity.reset.asked"):
    """Somebody asked for a new password for an address, which may be nobody's.

    Identity tells it to itself. A request ends with this one row, so that it takes as long for an address that has no
    account as for one that has; what has to be looked up is looked up when nobody waits.
    """

    email: str


@dataclass(frozen=True, slots=True)
class OneTimeToken:
    """A token of a user. The text goes into a mail; what is kept is its hash."""

    text: str = field(repr=False)
    purpose: Purpose
    user_id: str
    created_at: datetime
    expires_at: datetime

    @classmethod
    def issue(cls, purpose: Purpose, user_id: str, now: datetime) -> Self:
        """A fresh token."""
        return cls(secrets.token_urlsafe(TOKEN_BYTES), purpose, user_id, now, now + LIFETIMES[purpose])


def token_hash(text: str) -> str:
    """What stands for a token in the database; anything that a client may send has one."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
