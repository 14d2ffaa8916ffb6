"""The mails of identity: what each says, and the form in which the legacy reader takes it."""

from html import escape

import msgspec

from refract.services.identity.api import EmailPasswordResetRequested, EmailVerificationRequested, Mail
from refract.services.identity.domain.accounts import mailed_address
from refract.services.identity.domain.one_time import OneTimeToken, Purpose

MailEvent = EmailVerificationRequested | EmailPasswordResetRequested

_SUBJECTS = {Purpose.VERIFY: "Confirm your email address", Purpose.RESET: "Choose a new password"}
_TEMPLATES = {Purpose.VERIFY: "email_verification", Purpose.RESET: "password_reset"}
_PATHS = {Purpose.VERIFY: "/verify", Purpose.RESET: "/reset"}
_EVENTS: dict[Purpose, type[MailEvent]] = {
    Purpose.VERIFY: EmailVerificationRequested,
    Purpose.RESET: EmailPasswordResetRequested,
}


def mail_event(token: OneTimeToken, email: str, base_url: str, correlation_id: str) -> MailEvent:
    """The event that asks for the mail which carries a token."""
    mail = Mail(
        recipient=mailed_address(email),
        subject=_SUBJECTS[token.purpose],
        template=_TEMPLATES[token.purpose],
        # Behind the hash sign: a browser keeps that to itself, so that no log and no Referer ever holds the token.
        link=f"{base_url.rstrip('/')}{_PATHS[token.purpose]}#token={token.text}",
        expires_at=token.expires_at,
    )
    return _EVENTS[token.purpose](
        occurred_at=token.created_at, correlation_id=correlation_id, user_id=token.user_id, data=mail
    )


def legacy_body(event: MailEvent) -> bytes:
    """The bare mail, ready to be sent, which readers of the legacy exchange know; the id tells a second copy apart."""
    mail = event.data
    link, until = escape(mail.link), f"{mail.expires_at:%Y-%m-%d %H:%M} UTC"
    body = f'<p>{escape(mail.subject)}:</p><p><a href="{link}">{link}</a></p><p>The link works once, until {until}.</p>'
    return msgspec.json.encode(
        {"event_id": event.event_id, "recipient": mail.recipient, "subject": mail.subject, "body": body}
    )
