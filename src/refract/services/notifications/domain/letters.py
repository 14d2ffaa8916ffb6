"""Mails as people see them, in text and in HTML, and in the form in which they travel."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from html import escape

import idna

from refract.services.identity.api import Mail
from refract.services.notifications.domain.sending import Refused

LONGEST_ADDRESS = 254
LONGEST_SUBJECT = 500

# One address and nothing else: no second one, no name, no comment, no route, no line end.
_ADDRESS = re.compile(r"[^\s@<>()\[\]\\,;:\"]{1,64}@[^\s@<>()\[\]\\,;:\"]+")

_OPENINGS = {
    "email_verification": "Somebody, hopefully you, made an account with this address. Open this link to confirm it:",
    "password_reset": "Somebody, hopefully you, wants to choose a new password. Open this link to do so:",
}
_CLOSINGS = {
    "email_verification": "If it was not you, do nothing: without the link the address stays unconfirmed.",
    "password_reset": "If it was not you, do nothing: without the link the password stays as it is.",
}


@dataclass(frozen=True, slots=True)
class Letter:
    """What a mail says."""

    subject: str
    text: str
    html: str


def letter_of_lines(subject: str, lines: Sequence[str], *, link: str = "", footer: str = "") -> Letter:
    """A letter of paragraphs, and of a link and a footer below them; whatever they contain is shown as it is."""
    text = "\n\n".join(part for part in (*lines, link, footer) if part) + "\n"
    paragraphs = [f"<p>{escape(line)}</p>" for line in lines]
    if link:
        paragraphs.append(_linked(link))
    if footer:
        paragraphs.append(f'<p style="font-size: small; color: #666">{escape(footer)}</p>')
    return Letter(subject_of(subject), text, _page(subject, paragraphs))


def letter_of_mail(mail: Mail) -> Letter:
    """A mail of identity; of a template that we do not know its subject stands for what it is about."""
    opening = _OPENINGS.get(mail.template, f"{mail.subject}:")
    closing = _CLOSINGS.get(mail.template, "")
    until = f"The link works once, until {mail.expires_at:%Y-%m-%d %H:%M} UTC."
    lines = [opening, mail.link, until, *([closing] if closing else [])]
    paragraphs = [f"<p>{escape(line)}</p>" for line in lines]
    paragraphs[1] = _linked(mail.link)
    return Letter(subject_of(mail.subject), "\n\n".join(lines) + "\n", _page(mail.subject, paragraphs))


def subject_of(text: str) -> str:
    """A subject that is one line, however it was meant: what would end the header is refused, not repaired."""
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text):
        raise Refused("the subject has a line end or another control character")
    return text if len(text) <= LONGEST_SUBJECT else f"{text[: LONGEST_SUBJECT - 1]}…"


def check_address(text: str) -> str:
    """A single address that can stand in an envelope and in a header; Refused says what is wrong with it."""
    if len(text) > LONGEST_ADDRESS or _ADDRESS.fullmatch(text) is None:
        raise Refused("the recipient is not a mail address")
    if any(unicodedata.category(character) in {"Cc", "Cs", "Cf", "Zl", "Zp"} for character in text):
        raise Refused("the recipient is not a mail address")
    local_part, _, domain = text.rpartition("@")
    if domain.isascii():
        return text
    try:
        # Not Python's codec, which knows IDNA of 2003: it takes `faß` for `fass`, where somebody else reads the mail.
        return f"{local_part}@{idna.encode(domain, uts46=True).decode()}"
    except UnicodeError:
        raise Refused("the domain of the recipient is none in IDNA 2008") from None


def message_id_of(delivery_id: str, sender: str) -> str:
    """The Message-ID: the same for each attempt, so that whoever gets two copies can tell."""
    return f"<{delivery_id}@{sender.rpartition('@')[2].rstrip('>')}>"


def written(letter: Letter, *, sender: str, recipient: str, message_id: str, at: datetime) -> bytes:
    """The mail as it travels: headers, then text and HTML as two forms of one thing; ASCII, unless an address is not.

    `sender` may have a name. Refused when a value would break out of its header.
    """
    address = check_address(recipient)
    message = EmailMessage(policy=SMTP if address.isascii() else SMTPUTF8)
    try:
        message["From"] = sender
        message["To"] = Address(username=address.rpartition("@")[0], domain=address.rpartition("@")[2])
        message["Subject"] = subject_of(letter.subject)
        message["Date"] = at
        message["Message-ID"] = message_id
        # Nobody's holiday notice shall answer a machine (RFC 3834).
        message["Auto-Submitted"] = "auto-generated"
        # Quoted, so that no line is too long for a server and no byte needs an extension.
        message.set_content(letter.text, cte="quoted-printable")
        if letter.html:
            message.add_alternative(letter.html, subtype="html", cte="quoted-printable")
        return message.as_bytes()
    except (ValueError, IndexError, UnicodeError) as error:
        raise Refused("the mail cannot be written: " + type(error).__name__) from None


def _linked(link: str) -> str:
    target = escape(link)
    # A link that runs a program instead of leading somewhere is shown and cannot be followed.
    if not link.lower().startswith(("https://", "http://")):
        return f"<p>{target}</p>"
    return f'<p><a href="{target}">{target}</a></p>'


def _page(title: str, paragraphs: Sequence[str]) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>\n'
        '<body style="font-family: sans-serif; line-height: 1.5">\n' + "\n".join(paragraphs) + "\n</body></html>\n"
    )
