"""Lets users in: the right password for a token, and the same answer to every wrong one."""

import logging

from refract.runtime.client_address import client_of
from refract.runtime.fairness import Turns
from refract.runtime.ports import Database
from refract.runtime.tokens import Signed, TokenSigner
from refract.services.identity.adapters.hashing import AT_A_TIME, Hasher
from refract.services.identity.commands.throttling import Throttle
from refract.services.identity.domain.accounts import EmailNotVerified, InvalidCredentials, User, normalized_email
from refract.services.identity.store import find_by_email

log = logging.getLogger(__name__)


class SigningIn:
    """Checks passwords."""

    def __init__(
        self,
        database: Database,
        hasher: Hasher,
        throttle: Throttle,
        signer: TokenSigner,
        *,
        turns: Turns | None = None,
        require_verified_email: bool = False,
    ) -> None:
        self._database = database
        self._hasher = hasher
        self._throttle = throttle
        self._signer = signer
        self._turns = turns or Turns(AT_A_TIME)
        self._require_verified_email = require_verified_email

    async def sign_in(self, email: str, password: str, address: str) -> Signed:
        """A token; raises InvalidCredentials, EmailNotVerified, or Limited after too many failures.

        An account that there is not, that has no password or is suspended costs what a wrong password costs: one
        query and one bcrypt (M2 §6.2). No connection is held meanwhile.
        """
        email = normalized_email(email)
        # The turn first: who waits for it must not hold the places of an account, which may be somebody else's.
        async with self._turns.turn(client_of(address)), self._throttle.attempt(email, address) as attempt:
            user = await find_by_email(self._database, email)
            if not await self._is_right(user, password) or user is None or not user.is_active:
                attempt.failed()
                raise InvalidCredentials
        if self._require_verified_email and user.email_verified_at is None:
            raise EmailNotVerified
        log.info("user signed in", extra={"user_id": user.id})
        return self._signer.sign(user.id, user.email, role=user.role, generation=user.token_generation)

    async def _is_right(self, user: User | None, password: str) -> bool:
        if user is None or user.password_hash is None:
            return await self._hasher.compare_nothing(password)
        return await self._hasher.compare(password, user.password_hash)
