"""A user, and what an email address must look like to become one."""

import re
import unicodedata
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Literal, Self

import idna

from refract.kernel.errors import Forbidden, Invalid, Kind, RefractError, Unauthenticated
from refract.runtime.tokens import Role

Status = Literal["active", "suspended", "deleted"]

LONGEST_EMAIL = 254
LONGEST_LOCAL_PART = 64

# An address without quotes, comments and display name: what needs those is no address that people sign in with. Beyond
# ASCII, letters with their marks and digits are taken (RFC 6532).
_LOCAL_PART = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*")
_DOMAIN = re.compile(r"(?!-)[\w-]{1,63}(?<!-)(?:\.(?!-)[\w-]{1,63}(?<!-))*")


class EmailTaken(RefractError):
    """A local account has this address."""

    kind = Kind.CONFLICT
    message = "email already registered"


class InvalidCredentials(Unauthenticated):
    """No account with this address and password may sign in; which of them is wrong is nobody's business."""

    message = "invalid credentials"


class EmailNotVerified(Forbidden):
    """The password is right, and the instance wants the address verified first."""

    message = "email address is not verified"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with an account. `password_hash` is None where there is no password to sign in with."""

    id: str
    email: str
    password_hash: str | None = field(repr=False)
    created_at: datetime
    updated_at: datetime
    oidc_issuer: str | None = None
    oidc_subject: str | None = None
    role: Role = "user"
    status: Status = "active"
    email_verified_at: datetime | None = None
    token_generation: int = 0

    @classmethod
    def local(cls, email: str, password_hash: str, now: datetime, *, role: Role = "user") -> Self:
        """A new account with a password; the id is random, so that nobody can count users by it."""
        return cls(str(uuid.uuid4()), email, password_hash, now, now, role=role)

    @property
    def is_active(self) -> bool:
        """Whether the user may sign in."""
        return self.status == "active"

    def with_password(self, password_hash: str, now: datetime) -> Self:
        """The user with another password. The caller ends the tokens of before (commands/revoking)."""
        return replace(self, password_hash=password_hash, updated_at=now)

    def verified(self, now: datetime) -> Self:
        """The user with a verified address; the first verification counts."""
        return self if self.email_verified_at is not None else replace(self, email_verified_at=now, updated_at=now)

    def with_role(self, role: Role, now: datetime) -> Self:
        """The user with a role. The caller ends the tokens of before, which carry the old one."""
        return self if self.role == role else replace(self, role=role, updated_at=now)

    def with_status(self, status: Status, now: datetime) -> Self:
        """The user suspended, or active again. The caller ends the tokens of somebody who is suspended."""
        return self if self.status == status else replace(self, status=status, updated_at=now)

    def deleted(self, now: datetime) -> Self:
        """What is left of the user: an id that nobody else gets, and no way in. The address is free again."""
        return replace(
            self,
            email=f"deleted_{self.id}",  # no address: it has no @
            password_hash=None,
            oidc_issuer=None,
            oidc_subject=None,
            role="user",
            status="deleted",
            email_verified_at=None,
            updated_at=now,
        )


def normalized_email(text: str) -> str:
    """An address as it is stored and looked for: trimmed, in lower case, and each letter and domain in one spelling.

    A zero byte, which a database would refuse with an error, becomes a character that no address has.
    """
    email = unicodedata.normalize("NFC", text.strip().lower()).replace("\0", "\ufffd")
    local_part, at, domain = email.rpartition("@")
    return f"{local_part}@{_as_read(domain)}" if at else email


def checked_email(text: str) -> str:
    """The normalized address; raises Invalid with M2's words."""
    email = normalized_email(text)
    if not email:
        raise Invalid("email is required")
    local_part, _, domain = email.rpartition("@")
    if _LOCAL_PART.fullmatch(_bare(local_part)) is None or _DOMAIN.fullmatch(_bare(domain)) is None:
        raise Invalid("email format is invalid")
    if len(local_part.encode()) > LONGEST_LOCAL_PART or len(email.encode()) > LONGEST_EMAIL:
        raise Invalid("email format is invalid")
    if not domain.isascii() and _as_asked_for(domain) is None:
        raise Invalid("email format is invalid")
    return email


def mailed_address(email: str) -> str:
    """An address as mails are sent to it: its domain in ASCII, so that no reader maps it by rules of its own."""
    local_part, _, domain = email.rpartition("@")
    name = None if domain.isascii() else _as_asked_for(domain)
    return email if name is None else f"{local_part}@{name.decode()}"


def _as_read(domain: str) -> str:
    """A domain as people read it. Browsers turn `faß.example` into `xn--fa-hia.example` in a field for addresses, and
    one mailbox must not have an account for each of them. What has no other spelling is left as it is.
    """
    if domain.isascii() and "xn--" not in domain:
        return domain
    name = _as_asked_for(domain)
    return domain if name is None else idna.decode(name)


def _as_asked_for(domain: str) -> bytes | None:
    """A domain as a name server is asked for it, by IDNA 2008; None where it is none."""
    if len(domain) > LONGEST_EMAIL:
        return None
    try:
        return idna.encode(domain, uts46=True)
    except UnicodeError:
        return None


def _bare(text: str) -> str:
    """A text without the marks on its letters, such as the vowels of Hindi and Thai.

    What composes with a letter of ASCII has done so. A mark that stands behind one still is a trick.
    """
    if text.isascii():
        return text
    return "".join(one for before, one in pairwise(f" {text}") if before.isascii() or not _is_mark(one))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
