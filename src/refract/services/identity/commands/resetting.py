"""Reset of a forgotten password: somebody asks, the mail goes out, and the token that comes back sets a new one."""

import logging
from datetime import datetime

from refract.kernel.clock import Clock
from refract.kernel.errors import Limited
from refract.runtime.fairness import Turns
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.mailing import MailLimits, Mails
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.accounts import checked_email
from refract.services.identity.domain.one_time import LIFETIMES, InvalidToken, Purpose, ResetAsked, token_hash
from refract.services.identity.domain.passwords import check_password
from refract.services.identity.settings import Policy
from refract.services.identity.store import Users

log = logging.getLogger(__name__)

FIND_RESET = Statement(
    "find_reset",
    "Finds whose password a token may reset now.",
    """
    SELECT user_id FROM one_time_tokens
    WHERE token_hash = :token_hash AND purpose = 'reset' AND used_at IS NULL AND expires_at > :now
    """,
)
USE_RESET = Statement(
    "use_reset",
    "Marks a reset token as used, if it was not.",
    """
    UPDATE one_time_tokens SET used_at = :now
    WHERE token_hash = :token_hash AND purpose = 'reset' AND used_at IS NULL AND expires_at > :now
    """,
)
END_RESETS = Statement(
    "end_resets",
    "Marks the reset tokens of a user as used, whatever became of them.",
    "UPDATE one_time_tokens SET used_at = :now WHERE user_id = :user_id AND purpose = 'reset' AND used_at IS NULL",
)


class AskingForReset:
    """Takes the wish for a new password from anybody, and does the same whether the address has an account or not."""

    def __init__(self, database: Database, clock: Clock, limits: MailLimits, mails: Mails) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._mails = mails

    async def ask(self, email: str, address: str) -> None:
        """Note the wish; raises Invalid for what is no address of a mailbox, and Limited for a client that floods.

        A mailbox that gets no more mails for now is not spoken of: others may have asked for it.
        """
        recipient = checked_email(email)
        verdict = await self._limits.of_address(address)
        if not verdict.allowed:
            raise Limited(verdict.retry_after)
        if not (await self._limits.of_account(recipient)).allowed:
            log.warning("no mail sent: too many lately")
            return
        async with self._database.transaction() as tx:
            await tx.announce(ResetAsked(occurred_at=self._clock.now(), email=recipient))

    async def answer(self, tx: Transaction, asked: ResetAsked) -> None:
        """Ask for the mail if there is such an account; a wish so old that its link would be over is forgotten."""
        if asked.occurred_at + LIFETIMES[Purpose.RESET] <= self._clock.now():
            return
        # Locked: whoever deletes the account meanwhile must not find that a mail leaves after all.
        user = await Users().find_locked(tx, asked.email)
        if user is None or not user.is_active:
            return
        await self._mails.send(
            tx, Purpose.RESET, user_id=user.id, email=user.email, correlation_id=asked.correlation_id
        )


class Resetting:
    """Sets a new password for whoever brings a reset token back."""

    def __init__(self, database: Database, clock: Clock, hasher: Hasher, policy: Policy) -> None:
        self._database = database
        self._clock = clock
        self._hasher = hasher
        self._policy = policy
        self._turns = Turns(1)  # of a token: sent many times at once, it would be hashed for as often
        self._users = Users()

    async def confirm(self, token: str, password: str) -> None:
        """Set the password and end all that the old one gave; raises Invalid for the password, or InvalidToken."""
        check_password(password, self._policy)
        key = token_hash(token)
        async with self._turns.turn(key):
            await self._confirm(key, password)

    async def _confirm(self, key: str, password: str) -> None:
        row = await self._database.fetch_one(FIND_RESET, token_hash=key, now=self._clock.now())
        if row is None:
            raise InvalidToken  # before the costly part, which strangers could ask for all day
        password_hash = await self._hasher.hash(password, of_user=True)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # The user first: of two tokens that come at once, the second waits here, and is over when it goes on.
            user = await self._users.get(tx, row["user_id"])
            if not user.is_active or not await tx.execute(USE_RESET, token_hash=key, now=now):
                raise InvalidToken
            # Whoever has the token has the mail of this address.
            await self._users.save(tx, user.with_password(password_hash, now).verified(now))
            await end_resets(tx, user.id, now)
            await revoke_all(tx, user.id, now)


async def end_resets(tx: Transaction, user_id: str, now: datetime) -> None:
    """Make every reset token of a user useless: their password has just been chosen."""
    await tx.execute(END_RESETS, user_id=user_id, now=now)
