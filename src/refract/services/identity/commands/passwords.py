"""Changes a password: whoever knows the old one chooses a new one, and every token of before is dead."""

import logging

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.tokens import Claims
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.confirming import Confirming, owner_of
from refract.services.identity.commands.resetting import end_resets
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.passwords import check_password
from refract.services.identity.settings import Policy
from refract.services.identity.store import Users

log = logging.getLogger(__name__)


class ChangingPassword:
    """What the owner of an account may do about its password."""

    def __init__(
        self, database: Database, clock: Clock, hasher: Hasher, confirming: Confirming, policy: Policy
    ) -> None:
        self._database = database
        self._clock = clock
        self._hasher = hasher
        self._confirming = confirming
        self._policy = policy
        self._users = Users()

    async def change(self, claims: Claims, current: str, new: str, address: str) -> None:
        """Set the new password. Raises Invalid for it, WrongPassword, Unauthenticated for a token that is dead."""
        check_password(new, self._policy)
        await self._confirming.confirm(claims, current, address)
        password_hash = await self._hasher.hash(new, of_user=True)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # Again: of two changes that come at once, the second finds its token dead.
            user = await owner_of(tx, claims)
            await self._users.save(tx, user.with_password(password_hash, now))
            await end_resets(tx, user.id, now)
            await revoke_all(tx, user.id, now)
        log.info("password changed", extra={"user_id": user.id})
