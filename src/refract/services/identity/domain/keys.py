"""API keys: what one looks like, what it may be for, and what is kept of it."""

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from refract.kernel.errors import Forbidden, Invalid, Unauthenticated
from refract.kernel.ids import ALPHABET
from refract.runtime.tokens import Role

KeyStatus = Literal["active", "revoked"]

MARK = "refract_"
RANDOM_CHARACTERS = 40
"""238 bits, of which the prefix shows 48: nobody guesses the rest, and so a plain hash hides it."""

PREFIX_CHARACTERS = 16
LONGEST_NAME = 100
LARGEST_SMS_USER = (1 << 63) - 1

KEPT_AFTER_END = timedelta(days=90)
"""How long a key that was revoked, or is over, is still listed, and known to the log when somebody tries it."""

SMS_SCOPE = "sms:send"
SCOPES = ("links:read", "links:write", "stats:read", "notifications:read", SMS_SCOPE)

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class InvalidKey(Unauthenticated):
    """Unknown, revoked, over, or of an account that is not active: whoever brings it does not learn which."""

    message = "invalid api key"


class NotForKeys(Forbidden):
    """A token that an API key stands behind: what is asked is for the owner of the account alone."""

    message = "api keys may not manage accounts"


class NotForSms(Forbidden):
    """Only administrators may let a key send messages (decision 17)."""

    message = "only administrators may make keys that send messages"


@dataclass(frozen=True, slots=True)
class KeyWish:
    """What somebody wants a key for, checked."""

    name: str
    scopes: tuple[str, ...]
    expires_at: datetime | None
    sms_user_id: int | None

    @classmethod
    def of(
        cls, name: str, scopes: Sequence[str], expires_at: datetime | None, sms_user_id: int | None, now: datetime
    ) -> Self:
        """Check a wish; Invalid says what is wrong with it."""
        checked = cls(
            name=_checked_name(name),
            scopes=_checked_scopes(scopes),
            expires_at=None if expires_at is None else _checked_expiry(expires_at, now),
            sms_user_id=sms_user_id,
        )
        if (SMS_SCOPE in checked.scopes) != (sms_user_id is not None):
            raise Invalid(f"scope {SMS_SCOPE} and sms_user_id go together")
        if sms_user_id is not None and not 0 <= sms_user_id <= LARGEST_SMS_USER:
            raise Invalid("sms_user_id must be a number from 0 to 2^63 - 1")
        return checked

    def check_allowed_to(self, role: Role) -> None:
        """Raise NotForSms where it asks for more than its owner may give away."""
        if SMS_SCOPE in self.scopes and role != "administrator":
            raise NotForSms


@dataclass(frozen=True, slots=True)
class FreshKey:
    """A key that was just made. Its text is shown to its owner, once; what is kept is the hash."""

    text: str = field(repr=False)

    @classmethod
    def make(cls) -> Self:
        """One that nobody has seen."""
        return cls(MARK + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARACTERS)))

    @property
    def prefix(self) -> str:
        """By what its owner knows it again."""
        return self.text[:PREFIX_CHARACTERS]

    @property
    def hash(self) -> str:
        """What is kept of it."""
        return key_hash(self.text)


def key_hash(text: str) -> str:
    """What stands for a key everywhere but at its owner's; anything that a client may send has one."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=32).hexdigest()


def granted_scopes(scopes: Collection[str], role: Role) -> list[str]:
    """What a key is good for now: who is no administrator any more has given nothing away that is theirs alone."""
    return [scope for scope in SCOPES if scope in scopes and (scope != SMS_SCOPE or role == "administrator")]


def _checked_name(text: str) -> str:
    """One line without space around it."""
    name = text.strip()
    if not name:
        raise Invalid("name is required")
    if len(name) > LONGEST_NAME:
        raise Invalid(f"name must be at most {LONGEST_NAME} characters")
    if _CONTROL.search(name) is not None:
        raise Invalid("name must not contain control characters")
    return name


def _checked_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order in which we list them."""
    if not scopes:
        raise Invalid("scopes are required")
    if not set(scopes) <= set(SCOPES):
        raise Invalid(f"scopes must be out of {', '.join(SCOPES)}")
    if len(set(scopes)) != len(scopes):
        raise Invalid("scopes must not be repeated")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _checked_expiry(moment: datetime, now: datetime) -> datetime:
    try:
        checked = moment.astimezone(UTC)
    except OverflowError:  # the last hours of the year 9999
        raise Invalid("expires_at is too far away") from None
    if checked <= now:
        raise Invalid("expires_at must be in the future")
    return checked
