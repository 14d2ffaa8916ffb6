"""Signing out: the token that says so is dead from then on."""

import logging

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.tokens import Claims
from refract.services.identity.commands.revoking import revoke_token

log = logging.getLogger(__name__)


class Leaving:
    """What somebody who is signed in may do about it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def leave(self, claims: Claims) -> None:
        """End one token; again is no error."""
        async with self._database.transaction() as tx:
            await revoke_token(tx, claims, self._clock.now())
        log.info("signed out", extra={"user_id": claims.subject})
