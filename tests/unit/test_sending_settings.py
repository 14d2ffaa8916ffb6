"""SMTP_URL, MAIL_FROM and WEBHOOK_ALLOW_PRIVATE."""

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.services.notifications.settings.sending import MailSettings, SendingSettings

FROM = {"MAIL_FROM": "no-reply@sho.rt"}


def read(**variables: str) -> SendingSettings:
    return SendingSettings.from_environment(Environment(variables))


def mail(url: str, **variables: str) -> MailSettings:
    settings = read(SMTP_URL=url, **(FROM | variables)).mail
    assert settings is not None
    return settings


def test_nothing_is_set() -> None:
    assert read() == read(MAIL_FROM="nonsense") == SendingSettings(mail=None, allow_private=False)


@pytest.mark.parametrize(
    ("url", "port", "tls"),
    [
        ("smtp://mail.example", 587, "offered"),
        ("smtp://mail.example/", 587, "offered"),
        ("smtp://mail.example:25?starttls=required", 25, "required"),
        ("smtp://mail.example?starttls=never", 587, "never"),
        ("smtps://mail.example", 465, "implicit"),
        ("smtps://mail.example:2465", 2465, "implicit"),
    ],
)
def test_how_to_reach_a_server(url: str, port: int, tls: str) -> None:
    settings = mail(url)
    assert (settings.host, settings.port, settings.tls, settings.user) == ("mail.example", port, tls, "")


def test_a_user_and_a_password() -> None:
    settings = mail("smtp://us%40er:p%2Fss%20w%3Ard@mail.example:2525")
    assert (settings.user, settings.password, settings.port) == ("us@er", "p/ss w:rd", 2525)
    assert "p/ss" not in repr(settings)


@pytest.mark.parametrize(
    "url",
    ["mail.example", "http://mail.example", "smtp://", "smtp://mail.example:0", "smtp://mail.example:99999",
     "smtp://mail.example/inbox", "smtp://mail.example?starttls=perhaps", "smtp://mail.example?tls=1",
     "smtps://mail.example?starttls=required", "smtp://mail.example#x", "smtp://user@mail.example",
     "smtp://:password@mail.example", "smtp://u%0d%0a:p@mail.example", "smtp://mail example"],
)  # fmt: skip
def test_a_wrong_url_is_named_and_not_shown(url: str) -> None:
    with pytest.raises(Misconfigured, match='FATAL: environment variable "SMTP_URL" is a hidden value') as wrong:
        mail(url)
    assert "smtp://" in str(wrong.value)
    assert "password@mail.example\n" not in str(wrong.value)


def test_a_server_needs_a_sender() -> None:
    with pytest.raises(Misconfigured, match='required environment variable "MAIL_FROM" is not set'):
        read(SMTP_URL="smtp://mail.example")


@pytest.mark.parametrize(
    ("text", "sender", "address"),
    [
        ("no-reply@sho.rt", "no-reply@sho.rt", "no-reply@sho.rt"),
        ("Refract <no-reply@sho.rt>", "Refract <no-reply@sho.rt>", "no-reply@sho.rt"),
        ('"Short, Ltd." <no-reply@sho.rt>', '"Short, Ltd." <no-reply@sho.rt>', "no-reply@sho.rt"),
        ("Kürzer <no-reply@sho.rt>", "=?utf-8?q?K=C3=BCrzer?= <no-reply@sho.rt>", "no-reply@sho.rt"),
    ],
)
def test_who_mails_are_from(text: str, sender: str, address: str) -> None:
    settings = mail("smtp://mail.example", MAIL_FROM=text)
    assert (settings.sender, settings.sender_address) == (sender, address)


@pytest.mark.parametrize(
    "text",
    ["nobody", "a@b.example, c@d.example", "a@b.example\r\nBcc: c@d.example", "<>", "a@", "@b.example", "a b@c.example",
     "A <a@b.example> c", "jörg@sho.rt", "a@b_c.example"],
)  # fmt: skip
def test_what_is_nobody(text: str) -> None:
    with pytest.raises(Misconfigured, match="MAIL_FROM"):
        mail("smtp://mail.example", MAIL_FROM=text)


def test_private_webhooks_are_a_choice() -> None:
    assert read(WEBHOOK_ALLOW_PRIVATE="true").allow_private is True
    with pytest.raises(Misconfigured, match="WEBHOOK_ALLOW_PRIVATE"):
        read(WEBHOOK_ALLOW_PRIVATE="yes")
