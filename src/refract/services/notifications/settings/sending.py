"""How notifications leave the house: the mail server, whom mails are from, and where webhooks may be."""

import re
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.utils import formataddr, parseaddr
from typing import Literal, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from refract.runtime.environment import Environment

Tls = Literal["implicit", "required", "offered", "never"]

_STARTTLS: dict[str, Tls] = {"": "offered", "required": "required", "never": "never"}
_WANTED_URL = (
    '"smtp://user:password@host:587", with "?starttls=required" or "?starttls=never" behind it if need be, '
    'or "smtps://user:password@host:465"'
)
_WANTED_SENDER = 'one address, such as "no-reply@sho.rt" or "Refract <no-reply@sho.rt>"'
_SENDER = re.compile(r"[\x21-\x7e]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class MailSettings:
    """A mail server and how to speak to it. `offered` takes STARTTLS where the server has it; a password needs it."""

    host: str
    port: int
    tls: Tls
    user: str
    password: str = field(repr=False)
    sender: str
    """As it stands in the header From; may have a name."""
    sender_address: str

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """SMTP_URL and MAIL_FROM, both of which are there."""
        parts = urlsplit(environment.url("SMTP_URL", ("smtp", "smtps")))
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        starttls = query.pop("starttls", "")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        implicit = parts.scheme == "smtps"
        if (
            query
            or starttls not in _STARTTLS
            or (implicit and starttls)
            or parts.path not in {"", "/"}
            or parts.fragment
            or bool(user) != bool(password)
            or not (user + password).isprintable()
        ):
            raise environment.wrong("SMTP_URL", _WANTED_URL)
        sender, address = _sender(environment)
        return cls(
            host=cast(str, parts.hostname),
            port=parts.port or (465 if implicit else 587),
            tls="implicit" if implicit else _STARTTLS[starttls],
            user=user,
            password=password,
            sender=sender,
            sender_address=address,
        )


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """What is set; without a mail server mails are logged in place of being sent."""

    mail: MailSettings | None = None
    allow_private: bool = False
    """Whether webhooks may be at private and local addresses."""

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """Read what is set."""
        return cls(
            mail=MailSettings.from_environment(environment) if environment.has("SMTP_URL") else None,
            allow_private=environment.flag("WEBHOOK_ALLOW_PRIVATE", default=False),
        )


def _sender(environment: Environment) -> tuple[str, str]:
    """The header and the address of MAIL_FROM."""
    text = environment.text("MAIL_FROM")
    name, address = parseaddr(text)
    if not text.isprintable() or _SENDER.fullmatch(address) is None or address not in text:
        raise environment.wrong("MAIL_FROM", _WANTED_SENDER)
    try:
        Address(addr_spec=address)
    except (HeaderParseError, ValueError, IndexError):
        raise environment.wrong("MAIL_FROM", _WANTED_SENDER) from None
    if re.sub(r'[\s"<>]', "", text) != re.sub(r'[\s"<>]', "", name + address):
        raise environment.wrong("MAIL_FROM", _WANTED_SENDER)  # more than a name and an address
    return formataddr((name, address)) if name else address, address
