"""Mails as people see them, and nothing that breaks out of its place."""

from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.identity.api import Mail
from refract.services.notifications.domain.letters import (
    LONGEST_SUBJECT,
    Letter,
    check_address,
    letter_of_lines,
    letter_of_mail,
    message_id_of,
    subject_of,
    written,
)
from refract.services.notifications.domain.sending import Refused

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
LINK = "https://sho.rt/reset#token=abc&x=1"


def mail(**changes: str) -> Mail:
    given = {"recipient": "a@b.example", "subject": "Choose a new password", "template": "password_reset", "link": LINK}
    return Mail(**(given | changes), expires_at=MOMENT)


def travelled(
    letter: Letter, recipient: str = "a@b.example", sender: str = "Refract <no-reply@sho.rt>"
) -> EmailMessage:
    """The mail as its reader's program sees it."""
    body = written(letter, sender=sender, recipient=recipient, message_id="<1@sho.rt>", at=MOMENT)
    return message_from_bytes(body, policy=default)


def parts(message: EmailMessage) -> list[str]:
    return [part.get_content().replace("\r\n", "\n") for part in message.iter_parts()]


def test_a_mail_of_identity_in_text_and_html() -> None:
    letter = letter_of_mail(mail())
    assert letter.subject == "Choose a new password"
    assert LINK in letter.text
    assert "until 2026-03-01 12:00 UTC" in letter.text
    assert '<a href="https://sho.rt/reset#token=abc&amp;x=1">' in letter.html
    assert parts(travelled(letter)) == [letter.text, letter.html]


def test_each_mail_says_what_it_is_about() -> None:
    verification, reset = (letter_of_mail(mail(template=one)).text for one in ("email_verification", "password_reset"))
    assert "made an account" in verification
    assert "new password" in reset
    assert letter_of_mail(mail(template="something new", subject="What is new")).text.startswith("What is new:")


@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,x", "JAVASCRIPT:x", " https://x", ""])
def test_only_links_can_be_followed(link: str) -> None:
    assert "href" not in letter_of_mail(mail(link=link)).html
    assert "href" not in letter_of_lines("x", ["y"], link=link).html


def test_nothing_of_what_users_wrote_is_html() -> None:
    evil = '"><script>alert(1)</script>'
    for letter in (
        letter_of_lines(evil, [evil], link=f"https://x/{evil}"),
        letter_of_mail(mail(subject=evil, link=evil)),
    ):
        assert "<script" not in letter.html
        assert '">&' not in letter.html.replace('lang="en">', "").replace("utf-8", "")
        assert evil in letter.text or evil in letter.subject


def test_lines_are_paragraphs() -> None:
    letter = letter_of_lines("Ten clicks", ["One.", "Two."], link="https://sho.rt/a")
    assert letter.text == "One.\n\nTwo.\n\nhttps://sho.rt/a\n"
    assert "<p>One.</p>\n<p>Two.</p>\n" in letter.html


def test_a_footer_stands_below() -> None:
    letter = letter_of_lines("Ten clicks", ["One."], link="https://sho.rt/a", footer="Enough? <Stop> them.")
    assert letter.text == "One.\n\nhttps://sho.rt/a\n\nEnough? <Stop> them.\n"
    assert letter.html.index("sho.rt/a") < letter.html.index("Enough? &lt;Stop&gt; them.</p>")


def test_the_headers() -> None:
    message = travelled(Letter("Grüße", "x\n", "<p>x</p>"))
    assert message["Subject"] == "Grüße"
    assert message["Date"].datetime == MOMENT
    assert (message["Auto-Submitted"], message["MIME-Version"]) == ("auto-generated", "1.0")
    assert message["Message-ID"] == "<1@sho.rt>"


def test_a_mail_travels_as_ascii_in_short_lines() -> None:
    letter = Letter("ü" * 400, "ä" * 5000 + "\n.\n.\r\nFrom x\n", "<p>" + "😀" * 1000 + "</p>")
    body = written(letter, sender="a@b.example", recipient="a@b.example", message_id="<1@b.example>", at=MOMENT)
    assert body.isascii()
    assert max(map(len, body.split(b"\r\n"))) <= 998
    assert b"\n" not in body.replace(b"\r\n", b"")


def test_without_html_it_is_plain() -> None:
    message = travelled(Letter("x", "y\n", ""))
    assert message.get_content_type() == "text/plain"


BREAKERS = ["\r", "\n", "\r\n", "\x00", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\ud800"]


@pytest.mark.parametrize("breaker", BREAKERS)
def test_what_would_end_a_header_is_refused(breaker: str) -> None:
    evil = f"Hello{breaker}Bcc: eve@evil.example"
    with pytest.raises(Refused):
        subject_of(evil)
    with pytest.raises(Refused):
        travelled(Letter(evil, "x", ""))
    with pytest.raises(Refused):
        travelled(Letter("x", "x", ""), recipient=f"a@b.example{breaker}Bcc: eve@evil.example")
    with pytest.raises(Refused):
        letter_of_mail(mail(subject=evil))


@given(st.text(max_size=50))
def test_no_subject_adds_a_header_or_a_body(text: str) -> None:
    try:
        message = travelled(Letter(text, "body\n", "<p>body</p>"))
    except Refused:
        return
    assert message.keys() == [
        "From",
        "To",
        "Subject",
        "Date",
        "Message-ID",
        "Auto-Submitted",
        "MIME-Version",
        "Content-Type",
    ]
    assert [part.rstrip("\n") for part in parts(message)] == ["body", "<p>body</p>"]


@given(st.text(max_size=50) | st.from_regex(r"[^@]{1,20}@[^@]{1,20}"))
def test_no_recipient_becomes_two(text: str) -> None:
    try:
        message = travelled(Letter("x", "body\n", ""), recipient=text)
    except Refused:
        return
    assert len(message["To"].addresses) == 1
    assert "Bcc" not in message
    assert "Cc" not in message


@pytest.mark.parametrize(
    "address", ["alice@example.com", "a.b+c@example.co.uk", "o'hara@example.com", "jörg@example.com", "x@localhost"]
)
def test_addresses(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("domain", "asked_for"),
    [
        ("bücher.example", "xn--bcher-kva.example"),
        # IDNA of 2003 took these for `fass.example`, `xn--nxasmq6b` and other domains of other people.
        ("faß.example", "xn--fa-hia.example"),
        ("FAẞ.example", "xn--fa-hia.example"),
        ("βόλος.example", "xn--nxasmm1c.example"),
        ("\uff46ass\u3002example", "fass.example"),
        ("नमस्ते.भारत", "xn--h2bhs4b8d8a.xn--h2brj9c"),
        ("xn--fa-hia.example", "xn--fa-hia.example"),
    ],
)
def test_a_mail_goes_to_the_domain_that_was_named_and_to_no_other(domain: str, asked_for: str) -> None:
    assert check_address(f"info@{domain}") == f"info@{asked_for}"


@pytest.mark.parametrize(
    "domain",
    ["☃.example", "ß_x.example", "-ß.example", "a..ß", "ß/evil.example", "ß%2eevil.example", "x…ß.example",
     "xn--ß.example", "\u0338ß.example", "ö" * 60 + ".example", "0\u05e9\u05dc\u05dd.example"],
)  # fmt: skip
def test_a_domain_that_has_no_form_in_ascii_gets_no_mail(domain: str) -> None:
    with pytest.raises(Refused, match=r"^the domain of the recipient is none in IDNA 2008$"):
        check_address(f"info@{domain}")


@pytest.mark.parametrize(
    "address",
    ["", "alice", "@example.com", "alice@", "a@b@c", "a b@example.com", "Alice <a@b.example>",
     "a@b.example,c@d.example",     "a@b.example;c@d.example", "<a@b.example>", '"a b"@c.example', "a@[127.0.0.1]",
     "a@b.example ",
     "a(comment)@b.example", "a" * 65 + "@b.example", "a@" + "b" * 300, "a@b\\c", "a@b.example\u202e",
     "a@\u00ad.example", "a:b@c.example"],
)  # fmt: skip
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(Refused, match="not a mail address"):
        check_address(address)


def test_a_long_subject_is_cut() -> None:
    assert len(subject_of("x" * 10_000)) == LONGEST_SUBJECT


def test_the_message_id_is_the_deliverys() -> None:
    assert message_id_of("0190", "no-reply@sho.rt") == "<0190@sho.rt>"
