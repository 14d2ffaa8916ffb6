"""Deletes accounts: what is known of the user is erased here, and whoever else knows something of them is told."""

import logging
from collections.abc import Collection
from datetime import datetime
from typing import ClassVar

from refract.kernel.clock import Clock
from refract.kernel.errors import Kind, RefractError
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.runtime.tokens import Claims
from refract.services.identity.api import UserDeleted
from refract.services.identity.commands.confirming import Confirming, owner_of
from refract.services.identity.commands.keys import forget_keys
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import parameters_of

log = logging.getLogger(__name__)

_ADMINISTRATORS = "SELECT id FROM users WHERE role = 'administrator' AND status = 'active' ORDER BY id"
HOLD_ADMINISTRATORS = Statement(
    "hold_administrators",
    "Reads who may do everything, and keeps them so until the transaction ends.",
    f"{_ADMINISTRATORS} FOR UPDATE",
    sqlite=_ADMINISTRATORS,
)
ERASE_USER = Statement(
    "erase_user",
    "Leaves of an account that there was one.",
    """
    UPDATE users SET email = :email, password_hash = :password_hash, oidc_issuer = :oidc_issuer,
        oidc_subject = :oidc_subject, role = :role, status = :status, email_verified_at = :email_verified_at,
        updated_at = :updated_at
    WHERE id = :id
    """,
)
FORGET_TOKENS = Statement(
    "forget_one_time_tokens",
    "Forgets what was mailed to a user.",
    "DELETE FROM one_time_tokens WHERE user_id = :user_id",
)


class LastAdministrator(RefractError):
    """Nobody would be left who may do everything. Whoever means it takes the role away first (`promote --undo`)."""

    kind: ClassVar[Kind] = Kind.CONFLICT
    message = "the last administrator cannot be deleted: make another one first"


class Deleting:
    """Lets the owner of an account end it."""

    def __init__(self, database: Database, clock: Clock, confirming: Confirming) -> None:
        self._database = database
        self._clock = clock
        self._confirming = confirming

    async def delete(self, claims: Claims, password: str, address: str) -> None:
        """Delete the account; raises WrongPassword, Limited, Unauthenticated, LastAdministrator."""
        await self._confirming.confirm(claims, password, address)
        async with self._database.transaction() as tx:
            administrators = await hold_administrators(tx)
            # Again: of two that come at once, the second finds its token dead.
            await erase(tx, await owner_of(tx, claims), administrators, self._clock.now())
        log.info("account deleted", extra={"user_id": claims.subject})


async def hold_administrators(tx: Transaction) -> Collection[str]:
    """The ids of those who may do everything, for `erase`; before any other user is locked.

    All of them are locked, in one order: of two who leave at once, one waits, and then knows that the other is gone.
    """
    return {str(row["id"]) for row in await tx.fetch(HOLD_ADMINISTRATORS)}


async def erase(tx: Transaction, user: User, administrators: Collection[str], now: datetime) -> User:
    """Erase a locked user and end all their tokens, in one transaction with the event; raises LastAdministrator."""
    if user.role == "administrator" and set(administrators) <= {user.id}:
        raise LastAdministrator
    erased = user.deleted(now)
    parameters = parameters_of(erased)
    await tx.execute(ERASE_USER, **{name: parameters[name] for name in ERASE_USER.for_postgresql()[1]})
    await tx.execute(FORGET_TOKENS, user_id=user.id)
    await forget_keys(tx, user.id)
    await revoke_all(tx, user.id, now)
    await tx.announce(UserDeleted(occurred_at=now, user_id=user.id))
    return erased
