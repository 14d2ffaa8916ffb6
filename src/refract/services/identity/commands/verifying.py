"""Verification of email addresses: a mail to the address, and the token that comes back."""

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.identity.commands.mailing import Mails
from refract.services.identity.domain.one_time import InvalidToken, Purpose, token_hash
from refract.services.identity.store import Users

FIND_VERIFICATION = Statement(
    "find_verification",
    "Finds whose address a token verifies now, or has.",
    """
    SELECT user_id FROM one_time_tokens
    WHERE token_hash = :token_hash AND purpose = 'verify' AND expires_at > :now
    """,
)
USE_VERIFICATION = Statement(
    "use_verification",
    "Marks a verification token as used, or finds that it was; one that is over or unknown is not found.",
    """
    UPDATE one_time_tokens SET used_at = coalesce(used_at, :now)
    WHERE token_hash = :token_hash AND purpose = 'verify' AND expires_at > :now
    """,
)


async def ask_for_verification(tx: Transaction, mails: Mails, *, user_id: str, email: str) -> None:
    """Ask the owner of an address, in the transaction that registers it, whether it is theirs."""
    await mails.send(tx, Purpose.VERIFY, user_id=user_id, email=email)


class Verifying:
    """Takes verification tokens back."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._users = Users()

    async def verify(self, token: str) -> None:
        """The address is verified from now on; raises InvalidToken.

        A second time is no error while the token lasts: it changes nothing, and whoever holds the token knows already
        what the answer says. People click twice, and some mail programs before them.
        """
        key, now = token_hash(token), self._clock.now()
        async with self._database.transaction() as tx:
            row = await tx.fetch_one(FIND_VERIFICATION, token_hash=key, now=now)
            if row is None:
                raise InvalidToken
            # The user first, as whoever deletes the account locks them; the token may be gone after that.
            user = await self._users.get(tx, row["user_id"])
            if not await tx.execute(USE_VERIFICATION, token_hash=key, now=now):
                raise InvalidToken
            if user.email_verified_at is None:
                await self._users.save(tx, user.verified(now))
