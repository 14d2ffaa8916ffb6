"""Asks for mails with one-time tokens: the token's hash and the events are one transaction; and how many may be."""

import logging
from dataclasses import dataclass, field

from refract.kernel.clock import Clock
from refract.kernel.events import LEGACY_MAIL_EXCHANGE
from refract.runtime.client_address import address_hash, client_of
from refract.runtime.correlation import current_correlation_id
from refract.runtime.messages import Message
from refract.runtime.ports import RateLimiter, Transaction
from refract.runtime.statements import Statement
from refract.runtime.windows import Policy, Verdict
from refract.services.identity.domain.mails import MailEvent, legacy_body, mail_event
from refract.services.identity.domain.one_time import OneTimeToken, Purpose, token_hash

log = logging.getLogger(__name__)

HOUR = 3600.0

# Counted here while the shared counter is away: a mailbox is never left without a bound.
PER_ACCOUNT = Policy("mail-account", 3, HOUR, when_away="local")
PER_ADDRESS = Policy("mail-address", 20, HOUR, when_away="local")

KEEP_TOKEN = Statement(
    "keep_one_time_token",
    "Keeps the hash of a token that is on its way.",
    """
    INSERT INTO one_time_tokens (token_hash, user_id, purpose, expires_at, created_at)
    VALUES (:token_hash, :user_id, :purpose, :expires_at, :created_at)
    """,
)


class Mails:
    """Puts mails on their way, inside the transaction of their cause.

    While dual publishing is on, the legacy exchange gets each mail as well (002): both are saved here and at once, so
    that no crash sends one without the other. Nobody has to be bound there any more, so that copy is not mandatory.
    """

    def __init__(self, clock: Clock, base_url: str, *, dual_publish: bool) -> None:
        self._clock = clock
        self._base_url = base_url
        self._dual_publish = dual_publish
        if dual_publish:
            log.info("ENABLE_DUAL_PUBLISH is on: mails also go to the deprecated exchange %s", LEGACY_MAIL_EXCHANGE)

    async def send(
        self, tx: Transaction, purpose: Purpose, *, user_id: str, email: str, correlation_id: str | None = None
    ) -> None:
        """Issue a token and ask for the mail that carries it; the cause may have another correlation id than now."""
        token = OneTimeToken.issue(purpose, user_id, self._clock.now())
        await tx.execute(
            KEEP_TOKEN,
            token_hash=token_hash(token.text),
            user_id=user_id,
            purpose=purpose.value,
            expires_at=token.expires_at,
            created_at=token.created_at,
        )
        correlation_id = current_correlation_id() if correlation_id is None else correlation_id
        event = mail_event(token, email, self._base_url, correlation_id).stamped(correlation_id)
        await tx.post(*self._messages(event))

    def _messages(self, event: MailEvent) -> list[Message]:
        message = Message.of(event)
        if not self._dual_publish:
            return [message]
        legacy = Message(
            exchange=LEGACY_MAIL_EXCHANGE,
            routing_key=message.routing_key,
            body=legacy_body(event),
            message_id=message.message_id,
            correlation_id=message.correlation_id,
            mandatory=False,
        )
        return [message, legacy]


@dataclass(frozen=True, slots=True)
class MailLimits:
    """How many mails a mailbox may get and a client may cause, so that nobody is flooded.

    Both are counted by their salted hashes; a mailbox also where it is nobody's, because what only counted accounts
    would tell who has one.
    """

    limiter: RateLimiter
    salt: str = field(repr=False)

    async def of_account(self, email: str) -> Verdict:
        """Count a mail to a mailbox, if it fits."""
        return await self.limiter.hit(address_hash(email, self.salt), PER_ACCOUNT)

    async def of_address(self, address: str) -> Verdict:
        """Count a mail that a client causes, if it fits."""
        return await self.limiter.hit(address_hash(client_of(address), self.salt), PER_ADDRESS)

    async def admits_registration_from(self, address: str) -> bool:
        """Whether the mail of a registration may be sent; nobody is refused an account for it.

        The mailbox is not counted: it has at most one account, and so gets one such mail. Counted, whoever registers
        it again and again would be refused each time, and leave its owner without mails that reset the password.
        """
        if (await self.of_address(address)).allowed:
            return True
        log.warning("no mail sent: too many lately")
        return False
