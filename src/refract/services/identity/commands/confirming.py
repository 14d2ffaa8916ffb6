"""Asks whoever holds a token for the password as well: some things are for the owner of an account alone."""

from refract.kernel.errors import Forbidden, NotFound, Unauthenticated
from refract.runtime.ports import Database, Transaction
from refract.runtime.tokens import Claims
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.throttling import Throttle
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import Users


class WrongPassword(Forbidden):
    """The token is good, but it does not make up for the password. Not 401, which says that the token is over."""

    message = "current password is wrong"


class Confirming:
    """Compares passwords of those who are signed in."""

    def __init__(self, database: Database, hasher: Hasher, throttle: Throttle) -> None:
        self._database = database
        self._hasher = hasher
        self._throttle = throttle

    async def confirm(self, claims: Claims, password: str, address: str) -> None:
        """Return if it is the owner's; raises WrongPassword, Limited, Unauthenticated for a token that is dead.

        A wrong password is a failure like one to sign in: who found a token must not find the password with it. It is
        counted apart: strangers fail to sign in, and must not keep the owner of a token from this.
        """
        async with self._database.transaction() as tx:
            user = await owner_of(tx, claims)
        # No normalized address has a zero byte, and so nobody can name this counter.
        async with self._throttle.attempt(f"\0{user.id}", address) as attempt:
            if not await self._is_right(user, password):
                attempt.failed()
                raise WrongPassword

    async def _is_right(self, user: User, password: str) -> bool:
        if user.password_hash is None:
            return await self._hasher.compare_nothing(password)
        return await self._hasher.compare(password, user.password_hash)


async def owner_of(tx: Transaction, claims: Claims) -> User:
    """The user that a token speaks for, locked, if it still may; here it costs nothing to be exact about it."""
    try:
        user = await Users().get(tx, claims.subject)
    except NotFound:
        raise Unauthenticated from None
    if not user.is_active or claims.generation < user.token_generation:
        raise Unauthenticated
    return user
