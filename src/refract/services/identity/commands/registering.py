"""Makes accounts."""

import logging

from refract.kernel.clock import Clock
from refract.runtime.client_address import client_of
from refract.runtime.fairness import Turns
from refract.runtime.ports import Database
from refract.services.identity.adapters.hashing import AT_A_TIME, Hasher
from refract.services.identity.commands.mailing import MailLimits, Mails
from refract.services.identity.commands.verifying import ask_for_verification
from refract.services.identity.domain.accounts import EmailTaken, User, checked_email
from refract.services.identity.domain.passwords import check_password
from refract.services.identity.settings import Policy
from refract.services.identity.store import Users, find_by_email

log = logging.getLogger(__name__)


class Registering:
    """Lets anybody become a user."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        hasher: Hasher,
        mails: Mails,
        mail_limits: MailLimits,
        policy: Policy = "length",
        *,
        turns: Turns | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._hasher = hasher
        self._mails = mails
        self._mail_limits = mail_limits
        self._policy = policy
        self._turns = turns or Turns(AT_A_TIME)
        self._users = Users()

    async def register(self, email: str, password: str, address: str) -> User:
        """A new user, and the mail that asks whether the address is theirs; raises Invalid, EmailTaken or Limited.

        Where too many mails were sent lately, there is a user all the same, and no mail.
        """
        checked = checked_email(email)
        check_password(password, self._policy)
        async with self._turns.turn(client_of(address)):
            if await find_by_email(self._database, checked) is not None:
                raise EmailTaken  # early, to spare a bcrypt and a mail; it is the index that decides
            password_hash = await self._hasher.hash(password)  # before the transaction, because it takes long
        user = User.local(checked, password_hash, self._clock.now())
        may_mail = await self._mail_limits.admits_registration_from(address)
        async with self._database.transaction() as tx:
            await self._users.add(tx, user)
            if may_mail:
                await ask_for_verification(tx, self._mails, user_id=user.id, email=user.email)
        log.info("user registered", extra={"user_id": user.id})
        return user
