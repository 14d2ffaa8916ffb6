"""Rows to users and back."""

import uuid
from typing import Any

from refract.kernel.errors import NotFound
from refract.runtime.ports import Reads, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.identity.domain.accounts import EmailTaken, User

COLUMNS = (
    "id",
    "email",
    "password_hash",
    "oidc_issuer",
    "oidc_subject",
    "role",
    "status",
    "email_verified_at",
    "token_generation",
    "created_at",
    "updated_at",
)

_LIST = ", ".join(COLUMNS)
_PARAMETERS = ", ".join(f":{column}" for column in COLUMNS)

INSERT_USER = Statement(
    "insert_user",
    "Keeps a new local account unless its address has one.",
    # An error would cost a rollback and a line in PostgreSQL's log, for what people do every day.
    f"""
    INSERT INTO users ({_LIST}) VALUES ({_PARAMETERS})
    ON CONFLICT (email) WHERE oidc_issuer IS NULL DO NOTHING
    """,  # noqa: S608  # names, not values
)

FIND_BY_EMAIL = Statement(
    "find_by_email",
    "Reads the local account with an address, without a lock.",
    f"SELECT {_LIST} FROM users WHERE email = :email AND oidc_issuer IS NULL",  # noqa: S608
)

LOCK_BY_EMAIL = Statement(
    "lock_by_email",
    "Reads the local account with an address and locks it until the transaction ends.",
    f"SELECT {_LIST} FROM users WHERE email = :email AND oidc_issuer IS NULL FOR UPDATE",  # noqa: S608
    sqlite=f"SELECT {_LIST} FROM users WHERE email = :email AND oidc_issuer IS NULL",  # noqa: S608
)

LOCK_USER = Statement(
    "lock_user",
    "Reads a user and locks them until the transaction ends.",
    f"SELECT {_LIST} FROM users WHERE id = :id FOR UPDATE",  # noqa: S608
    sqlite=f"SELECT {_LIST} FROM users WHERE id = :id",  # noqa: S608
)

SAVE_USER = Statement(
    "save_user",
    "Writes what can change of a user but the generation of the tokens, which only ever rises, where it is raised.",
    """
    UPDATE users SET password_hash = :password_hash, role = :role, status = :status,
        email_verified_at = :email_verified_at, updated_at = :updated_at
    WHERE id = :id
    """,
)


class Users:
    """The users of this database, inside the caller's transaction."""

    async def add(self, tx: Transaction, user: User) -> None:
        """Keep a new local account; raises EmailTaken."""
        if await tx.execute(INSERT_USER, **parameters_of(user)) == 0:
            raise EmailTaken

    async def get(self, tx: Transaction, user_id: str) -> User:
        """The user with this id, locked, or NotFound."""
        row = await tx.fetch_one(LOCK_USER, id=user_id) if is_user_id(user_id) else None
        if row is None:
            raise NotFound
        return user_of(row)

    async def find_locked(self, tx: Transaction, email: str) -> User | None:
        """The local account with a normalized address, locked."""
        row = await tx.fetch_one(LOCK_BY_EMAIL, email=email)
        return None if row is None else user_of(row)

    async def save(self, tx: Transaction, user: User) -> None:
        """Write a user that has changed; the generation of the tokens is left as it is in the row."""
        parameters = parameters_of(user)
        names = SAVE_USER.for_postgresql()[1]
        await tx.execute(SAVE_USER, **{name: parameters[name] for name in names})


async def find_by_email(reads: Reads, email: str) -> User | None:
    """The local account with a normalized address, as it is now."""
    row = await reads.fetch_one(FIND_BY_EMAIL, email=email)
    return None if row is None else user_of(row)


def parameters_of(user: User) -> dict[str, Any]:
    """A user as the parameters of a statement that names COLUMNS."""
    return {column: getattr(user, column) for column in COLUMNS}


def user_of(row: Row) -> User:
    """The user of a row with COLUMNS."""
    return User(**{column: row[column] for column in COLUMNS})


def is_user_id(text: str) -> bool:
    """Whether a text can be one: PostgreSQL takes nothing else, and a token of another instance may say anything."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
