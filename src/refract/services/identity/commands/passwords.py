"""Changes a password: whoever knows the old one chooses a new one, and every token of before is dead."""

import logging

from refract.kernel.clock import Clock
from refract.kernel.errors import Forbidden, NotFound, Unauthenticated
from refract.runtime.ports import Database, Transaction
from refract.runtime.tokens import Claims
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.resetting import end_resets
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.commands.throttling import Throttle
from refract.services.identity.domain.accounts import User
from refract.services.identity.domain.passwords import check_password
from refract.services.identity.settings import Policy
from refract.services.identity.store import Users

log = logging.getLogger(__name__)


class WrongPassword(Forbidden):
    """The token is good, but it does not make up for the password. Not 401, which says that the token is over."""

    message = "current password is wrong"


class ChangingPassword:
    """What the owner of an account may do about its password."""

    def __init__(self, database: Database, clock: Clock, hasher: Hasher, throttle: Throttle, policy: Policy) -> None:
        self._database = database
        self._clock = clock
        self._hasher = hasher
        self._throttle = throttle
        self._policy = policy
        self._users = Users()

    async def change(self, claims: Claims, current: str, new: str, address: str) -> None:
        """Set the new password. Raises Invalid for it, WrongPassword, Unauthenticated for a token that is dead.

        A wrong password is a failure like one to sign in: who found a token must not find the password with it. It is
        counted apart: strangers fail to sign in, and must not keep the owner of a token from this.
        """
        check_password(new, self._policy)
        async with self._database.transaction() as tx:
            before = await self._owner(tx, claims)
        # No normalized address has a zero byte, and so nobody can name this counter.
        async with self._throttle.attempt(f"\0{before.id}", address) as attempt:
            if not await self._is_right(before, current):
                attempt.failed()
                raise WrongPassword
        password_hash = await self._hasher.hash(new, of_user=True)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # Again: of two changes that come at once, the second finds its token dead.
            user = await self._owner(tx, claims)
            await self._users.save(tx, user.with_password(password_hash, now))
            await end_resets(tx, user.id, now)
            await revoke_all(tx, user.id, now)
        log.info("password changed", extra={"user_id": user.id})

    async def _owner(self, tx: Transaction, claims: Claims) -> User:
        """The user that a token speaks for, if it still may; here it costs nothing to be exact about it."""
        try:
            user = await self._users.get(tx, claims.subject)
        except NotFound:
            raise Unauthenticated from None
        if not user.is_active or claims.generation < user.token_generation:
            raise Unauthenticated
        return user

    async def _is_right(self, user: User, password: str) -> bool:
        if user.password_hash is None:
            return await self._hasher.compare_nothing(password)
        return await self._hasher.compare(password, user.password_hash)
