"""The mail server's side of a mail: what it is told, whose fault a failure is, and that nobody waits for ever."""

import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.domain.letters import Letter, written
from refract.services.notifications.domain.sending import Away, NotDelivered, Postponed, Refused
from refract.services.notifications.settings.sending import MailSettings, Tls
from tests.support.mail_servers import CUT, DRIP, HANG, USER, BadOffice, bad_office, certificate, post_office
from tests.support.waiting import eventually

LETTER = Letter("Ten clicks", ".\n..\nTen people: äöü\n", "<p>Ten people: äöü</p>")
TO = "alice@example.com"


def mail(recipient: str = TO, letter: Letter = LETTER) -> bytes:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    return written(letter, sender="Refract <no-reply@sho.rt>", recipient=recipient, message_id="<1@sho.rt>", at=moment)


def patient(settings: MailSettings) -> MailServer:
    return MailServer(settings, timeout=30.0, longest=60.0)


def impatient(settings: MailSettings) -> MailServer:
    """For servers from which no answer comes; to one that does, a busy machine would not give the time."""
    return MailServer(settings, timeout=0.2, longest=1.0)


async def failure(
    office: BadOffice,
    recipient: str = TO,
    *,
    tls: Tls = "offered",
    user: str = "",
    server: Callable[[MailSettings], MailServer] = patient,
) -> NotDelivered:
    """What comes of a mail that this server does not take."""
    with pytest.raises(NotDelivered) as failed:
        await server(office.settings(tls, user=user)).send(mail(recipient), recipient)
    return failed.value


async def test_a_mail_arrives_as_it_was_written() -> None:
    with post_office() as office:
        await MailServer(office.settings()).send(mail(), TO)
    [message] = office.mails
    assert office.envelopes == [("no-reply@sho.rt", [TO])]
    assert (message["From"], message["To"], message["Subject"]) == ("Refract <no-reply@sho.rt>", TO, "Ten clicks")
    assert message["Message-ID"] == "<1@sho.rt>"
    text, html = (part.get_content().replace("\r\n", "\n") for part in message.iter_parts())
    assert text == LETTER.text
    assert html == LETTER.html + "\n"
    assert message.get_content_type() == "multipart/alternative"


async def test_starttls_is_used_where_it_is_offered(tmp_path: Path) -> None:
    known = certificate(tmp_path)
    with post_office(starttls=known.server) as office:
        await MailServer(office.settings(), tls=known.client).send(mail(), TO)
        await MailServer(office.settings("required"), tls=known.client).send(mail(), TO)
        await MailServer(office.settings("never"), tls=known.client).send(mail(), TO)
    assert office.encrypted == [True, True, False]


async def test_a_password_goes_to_a_server_that_is_known(tmp_path: Path) -> None:
    known = certificate(tmp_path)
    with post_office(starttls=known.server, auth=True) as office:
        await MailServer(office.settings(user=USER), tls=known.client).send(mail(), TO)
        assert office.signed_in == [True]
        with pytest.raises(Away, match="does not accept our user and password: 535"):
            await MailServer(office.settings(user="mallory"), tls=known.client).send(mail(), TO)


async def test_tls_from_the_start(tmp_path: Path) -> None:
    known = certificate(tmp_path)
    with post_office(implicit=known.server) as office:
        await MailServer(office.settings("implicit"), tls=known.client).send(mail(), TO)
    assert len(office.mails) == 1


@pytest.mark.parametrize("tls", ["offered", "implicit"])
async def test_a_server_with_a_foreign_certificate_gets_nothing(tmp_path: Path, tls: Tls) -> None:
    context = certificate(tmp_path).server
    stranger = post_office(starttls=context) if tls == "offered" else post_office(implicit=context)
    with stranger as office, pytest.raises(Away, match="no TLS with the mail server: CERTIFICATE_VERIFY_FAILED"):
        await MailServer(office.settings(tls)).send(mail(), TO)
    assert office.mails == []


async def test_a_certificate_of_another_name_is_foreign_too(tmp_path: Path) -> None:
    known = certificate(tmp_path, "mail.example")
    with post_office(starttls=known.server) as office, pytest.raises(Away, match="no TLS"):
        await MailServer(office.settings(), tls=known.client).send(mail(), TO)
    assert office.mails == []


@pytest.mark.parametrize(("tls", "user"), [("required", ""), ("offered", USER)])
async def test_nothing_that_needs_tls_goes_without(tls: Tls, user: str) -> None:
    async with bad_office() as office:
        assert str(await failure(office, tls=tls, user=user)) == "the mail server offers no STARTTLS"
    assert not {"AUTH", "MAIL"} & set(office.steps)


async def test_a_server_that_offers_tls_and_has_none_is_away() -> None:
    async with bad_office(
        EHLO=b"250-mail.test\r\n250 STARTTLS\r\n", STARTTLS=b"220 go\r\nthis is no TLS\r\n"
    ) as office:
        assert isinstance(await failure(office, server=impatient), Away)
    assert "MAIL" not in office.steps


@pytest.mark.parametrize(
    ("step", "answer", "kind"),
    [
        ("RCPT", b"550 5.1.1 unknown user\r\n", Refused),
        ("RCPT", b"553 no such\r\n", Refused),
        ("RCPT", b"450 4.2.0 greylisted\r\n", Postponed),
        ("DATA", b"554 5.7.1 spam\r\n", Refused),
        ("DATA", b"451 later\r\n", Postponed),
        ("BODY", b"552 too big\r\n", Refused),
        ("BODY", b"452 disk full\r\n", Postponed),
        # Those say nothing of the mail, however they are meant.
        ("GREETING", b"554 not you\r\n", Away),
        ("EHLO", b"500 what?\r\n", Away),
        ("MAIL", b"550 not from you\r\n", Away),
        ("MAIL", b"451 later\r\n", Away),
        ("RCPT", b"421 going down\r\n", Away),
        ("BODY", b"421 going down\r\n", Away),
    ],
)
async def test_whose_fault_it_is(step: str, answer: bytes, kind: type[NotDelivered]) -> None:
    async with bad_office(**{step: answer}) as office:
        error = await failure(office)
    assert type(error) is kind
    assert answer.split()[0].decode() in str(error)


@pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "BODY"])
@pytest.mark.parametrize("way", [HANG, CUT])
async def test_a_server_that_goes_silent_or_away_is_not_waited_for(step: str, way: bytes) -> None:
    async with bad_office(**{step: way}) as office:

        async def came_so_far() -> bool:
            """Unless the machine was so busy that an answer before that one came too late."""
            office.steps.clear()
            kinds.add(type(await failure(office, server=impatient)))
            return office.steps[-1:] == [step]

        kinds: set[type[NotDelivered]] = set()
        await eventually(came_so_far)
    assert kinds == {Away}


@pytest.mark.parametrize("way", [HANG, CUT, b"500 no\r\n"])
async def test_a_mail_that_was_taken_is_sent_whatever_happens_then(way: bytes) -> None:
    async with bad_office(QUIT=way) as office:
        await patient(office.settings()).send(mail(), TO)
    assert office.steps[-2:] == ["BODY", "QUIT"]


@pytest.mark.parametrize(
    "answer",
    [b"garbage\r\n", b"\xff\xfe\r\n", b"2" * 100_000, b"250-more\r\n" * 10_000, b"\r\n", b"99999999999 x\r\n"],
)
async def test_what_is_no_answer_is_none(answer: bytes) -> None:
    for step in ("GREETING", "RCPT"):
        async with bad_office(**{step: answer}) as office:
            assert isinstance(await failure(office, server=impatient), Postponed)


async def test_a_server_that_keeps_us_busy_has_an_end() -> None:
    """Another line comes before the last one was too long ago."""
    async with bad_office(EHLO=DRIP) as office:
        with pytest.raises(Away, match="does not answer in time"):
            await MailServer(office.settings(), timeout=60, longest=0.3).send(mail(), TO)


async def test_a_server_that_is_not_there() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        settings = replace(BadOffice({}).settings(), port=nobody.getsockname()[1])
        with pytest.raises(Away, match="Error connecting"):
            await patient(settings).send(mail(), TO)


async def test_a_name_that_does_not_exist() -> None:
    settings = MailSettings("mail.invalid", 25, "offered", "", "", "no-reply@sho.rt", "no-reply@sho.rt")
    with pytest.raises(Away, match="Error connecting"):
        await patient(settings).send(mail(), TO)


async def test_an_address_beyond_ascii_needs_a_server_that_takes_it() -> None:
    recipient = "jörg@example.com"
    with post_office() as office:
        await MailServer(office.settings()).send(mail(recipient), recipient)
    assert office.envelopes == [("no-reply@sho.rt", [recipient])]
    assert office.mails[0]["To"] == recipient
    async with bad_office() as bad:
        assert type(await failure(bad, recipient)) is Refused
    assert "MAIL" not in bad.steps


async def test_nothing_breaks_out_of_the_envelope() -> None:
    async with bad_office() as office:
        for recipient in ("a@b.example>\r\nRCPT TO:<eve@evil.example", "a@b.example\nDATA", "a@b.example\x00"):
            with pytest.raises(Refused):
                await patient(office.settings()).send(mail(), recipient)
        assert "RCPT" not in office.steps
