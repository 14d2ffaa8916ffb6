"""A mail server, spoken to by SMTP: one mail on one connection, and a word for whose fault a failure is."""

import asyncio
import ssl
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from refract.services.notifications.domain.letters import check_address
from refract.services.notifications.domain.sending import Away, NotDelivered, Postponed, Refused, reason_of
from refract.services.notifications.settings.sending import MailSettings

if TYPE_CHECKING:
    import aiosmtplib

TIMEOUT = 30.0
"""Seconds that one answer of the server may take."""
LONGEST = 90.0
"""Seconds that one mail may take as a whole, however busy the server keeps us; a lease is longer."""
FAREWELL = 1.0


class MailServer:
    """Hands mails over to the server that is set. What is wrong with it is no fault of any mail."""

    def __init__(
        self,
        settings: MailSettings,
        *,
        timeout: float = TIMEOUT,
        longest: float = LONGEST,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._timeout = timeout
        self._longest = longest
        self._given_tls = tls

    @property
    def sender(self) -> str:
        """Whom mails are from, as it stands in their headers."""
        return self._settings.sender

    @property
    def sender_address(self) -> str:
        """The address alone, as it stands in the envelope."""
        return self._settings.sender_address

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or ssl.create_default_context()

    async def send(self, mail: bytes, recipient: str) -> None:
        """Return once the server has taken the mail; raises Refused, Postponed or Away with the reason."""
        import aiosmtplib  # noqa: PLC0415  # 35 ms that a process without a mail server does not spend

        if check_address(recipient) != recipient:
            raise Refused("the recipient is not a mail address")  # the library would send to what it finds in it
        client = aiosmtplib.SMTP(
            hostname=self._settings.host,
            port=self._settings.port,
            # Without it the library asks the name servers who we are, which takes as long as they like.
            local_hostname=self._domain,
            timeout=self._timeout,
            use_tls=self._settings.tls == "implicit",
            start_tls=False,
            tls_context=self._tls,
        )
        try:
            async with asyncio.timeout(self._longest):
                await self._connect(client)
                await self._hand_over(client, mail, recipient)
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=FAREWELL)  # it is taken: whatever happens now does not matter
        except NotDelivered:
            raise
        except TimeoutError:
            raise Away("the mail server does not answer in time") from None
        except ssl.SSLError as error:
            raise Away(f"no TLS with the mail server: {_tls_reason(error)}") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise Away(f"no TLS with the mail server: {_tls_reason(error.__cause__)}") from None
            raise Away(reason_of(error)) from None
        finally:
            client.close()

    async def _connect(self, client: "aiosmtplib.SMTP") -> None:
        """A connection as the settings want it; each of these failures is the server's, or ours who set it up."""
        import aiosmtplib  # noqa: PLC0415

        settings = self._settings
        try:
            await client.connect()
            await client.ehlo()
            if settings.tls in {"offered", "required"}:
                if client.supports_extension("starttls"):
                    await client.starttls(tls_context=self._tls)
                    await client.ehlo()
                elif settings.tls == "required" or settings.user:
                    raise Away("the mail server offers no STARTTLS")
            if settings.user:
                await client.login(settings.user, settings.password)
        except aiosmtplib.SMTPAuthenticationError as error:
            raise Away(f"the mail server does not accept our user and password: {error.code}") from None
        except aiosmtplib.SMTPResponseException as error:
            raise Away(_said(error)) from None

    async def _hand_over(self, client: "aiosmtplib.SMTP", mail: bytes, recipient: str) -> None:
        import aiosmtplib  # noqa: PLC0415

        options, encoding = [], "ascii"
        if not recipient.isascii():
            if not client.supports_extension("smtputf8"):
                raise Refused("the mail server takes no addresses beyond ASCII")
            options, encoding = ["SMTPUTF8", "BODY=8BITMIME"], "utf-8"
        try:
            await client.mail(self.sender_address, options=options, encoding=encoding)
        except aiosmtplib.SMTPSenderRefused as error:
            # Our own address, for which no mail can do anything.
            raise Away(f"the mail server does not accept MAIL_FROM: {_said(error)}") from None
        try:
            await client.rcpt(recipient, encoding=encoding)
            await client.data(mail)
        except aiosmtplib.SMTPResponseException as error:
            _judge(error)

    @property
    def _domain(self) -> str:
        return self.sender_address.rpartition("@")[2]


def _judge(error: "aiosmtplib.SMTPResponseException") -> NoReturn:
    """A 5xx about the mail or its recipient is for good, a 4xx for now; 421 is the server's farewell to everybody."""
    if error.code == 421:
        raise Away(_said(error)) from None
    if 500 <= error.code < 600:
        raise Refused(_said(error)) from None
    raise Postponed(_said(error)) from None


def _said(error: "aiosmtplib.SMTPResponseException") -> str:
    return reason_of(f"{error.code} {error.message}")


def _tls_reason(error: ssl.SSLError) -> str:
    return reason_of(error.reason or type(error).__name__)
