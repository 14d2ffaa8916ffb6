"""Mail servers on loopback: a real one that keeps what it gets, and one that misbehaves to the letter."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from refract.services.notifications.settings.sending import MailSettings, Tls

USER, PASSWORD = "refract", "open sesame"


@dataclass
class PostOffice:
    """What a mail server does with mails: by default it takes them all."""

    mails: list[EmailMessage] = field(default_factory=list)
    envelopes: list[tuple[str | None, list[str]]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    signed_in: list[bool] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    """What recipients are answered with in place of a welcome."""
    verdict: str = "250 OK"
    on_mail: Any = None
    """Called when a mail is there and its sender does not know."""
    port: int = 0

    async def handle_RCPT(  # noqa: N802  # the library's names
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.mails.append(message_from_bytes(cast(bytes, envelope.content), policy=default))
        self.envelopes.append((envelope.mail_from, envelope.rcpt_tos))
        self.encrypted.append(session.ssl is not None)
        self.signed_in.append(bool(session.authenticated))
        if self.on_mail is not None:
            self.on_mail()
        return self.verdict

    def settings(self, tls: Tls = "offered", *, user: str = "", host: str = "127.0.0.1") -> MailSettings:
        """How to reach it."""
        sender = "Refract <no-reply@sho.rt>"
        return MailSettings(host, self.port, tls, user, PASSWORD if user else "", sender, "no-reply@sho.rt")


def _authenticate(*arguments: Any) -> AuthResult:
    login = arguments[-1]
    right = isinstance(login, LoginPassword) and (login.login, login.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=right, handled=False)


@contextmanager
def post_office(
    *, starttls: ssl.SSLContext | None = None, implicit: ssl.SSLContext | None = None, auth: bool = False
) -> Iterator[PostOffice]:
    """A real server, in a thread with an event loop of its own: the library's STARTTLS needs asyncio's."""
    office = PostOffice()
    loop = asyncio.new_event_loop()

    def protocol() -> SMTP:
        return SMTP(
            office,
            loop=loop,
            hostname="mail.test",
            tls_context=starttls,
            authenticator=_authenticate if auth else None,
            auth_required=auth,
            auth_require_tls=starttls is not None,
            enable_SMTPUTF8=True,
        )

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = loop.create_server(protocol, "127.0.0.1", 0, ssl=implicit)
    server = asyncio.run_coroutine_threadsafe(listening, loop).result(60)
    office.port = server.sockets[0].getsockname()[1]
    try:
        yield office
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_all() -> None:
    """Let connections that the clients have closed come to their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=30)
    await asyncio.sleep(0.01)


GOOD = {
    "GREETING": b"220 mail.test\r\n",
    "EHLO": b"250-mail.test\r\n250 SIZE 1000000\r\n",
    "MAIL": b"250 OK\r\n",
    "RCPT": b"250 OK\r\n",
    "DATA": b"354 go on\r\n",
    "BODY": b"250 taken\r\n",
    "QUIT": b"221 bye\r\n",
}
HANG = b"\x00hang"
CUT = b"\x00cut"
DRIP = b"\x00drip"


@dataclass
class BadOffice:
    """A server that answers each step with the bytes it is told to, or hangs there, or cuts the connection."""

    answers: dict[str, bytes]
    port: int = 0
    steps: list[str] = field(default_factory=list)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def settings(self, tls: Tls = "offered", *, user: str = "") -> MailSettings:
        """How to reach it."""
        sender = "no-reply@sho.rt"
        return MailSettings("127.0.0.1", self.port, tls, user, PASSWORD if user else "", sender, sender)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        try:
            await self._converse(reader, writer)
        finally:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            going = await self._answer("GREETING", reader, writer)
            while going and (line := await reader.readline()):
                step = line.split()[0].decode().upper()
                going = await self._answer(step, reader, writer)
                if step == "DATA" and going and self.answers["DATA"].startswith(b"354"):
                    await reader.readuntil(b"\r\n.\r\n")
                    going = await self._answer("BODY", reader, writer)

    async def _answer(self, step: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.steps.append(step)
        answer = self.answers.get(step, b"502 what?\r\n")
        if answer == CUT:
            return False
        if answer == HANG:
            await reader.read()  # until the client has had enough
            return False
        while answer == DRIP:
            writer.write(b"250-and more\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(answer)
        await writer.drain()
        return True


@asynccontextmanager
async def bad_office(**answers: bytes) -> AsyncIterator[BadOffice]:
    """A server with these answers instead of good ones."""
    office = BadOffice(GOOD | answers)
    server = await asyncio.start_server(office.serve, "127.0.0.1", 0, limit=2**20)
    office.port = server.sockets[0].getsockname()[1]
    try:
        yield office
    finally:
        server.close()
        for task in list(office.serving):
            task.cancel()
        if office.serving:
            await asyncio.wait(office.serving)


@dataclass(frozen=True)
class Certificate:
    """A certificate for loopback that nobody knows but whoever is given `client`."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def certificate(folder: Path, name: str = "127.0.0.1") -> Certificate:
    """A certificate of a name or address, made now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    alternative = x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate_file, key_file)
    return Certificate(server, ssl.create_default_context(cafile=str(certificate_file)))
