"""A webhook's request: where it may go, what an answer means, and that no receiver can hold us or lead us on."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refract.runtime import public_connections
from refract.services.notifications.adapters.webhooks import WebhookClient
from refract.services.notifications.domain.sending import Gone, NotDelivered, Postponed
from refract.services.notifications.domain.webhooks import check_webhook_url
from tests.support.mail_servers import certificate
from tests.support.receivers import OK, receiver, status
from tests.support.waiting import eventually

PRIVATE = "the address is private or local"


@asynccontextmanager
async def client(*, allow_private: bool = True, timeout: float = 30.0) -> AsyncIterator[WebhookClient]:
    made = WebhookClient(allow_private=allow_private, timeout=timeout)
    try:
        yield made
    finally:
        await made.close()


async def failure(url: str, *, allow_private: bool = True, timeout: float = 30.0) -> NotDelivered:
    async with client(allow_private=allow_private, timeout=timeout) as webhooks:
        with pytest.raises(NotDelivered) as failed:
            await webhooks.post(url, b"{}", {})
    return failed.value


async def test_a_request_is_what_it_was_asked_to_be() -> None:
    async with receiver() as receiving, client() as webhooks:
        await webhooks.post(receiving.url(path="/a%2Fb?q=%20x"), b'{"a":1}', {"webhook-id": "1"})
    [request] = receiving.requests
    assert request.line == "POST /a%2Fb?q=%20x HTTP/1.1"
    assert request.body == b'{"a":1}'
    assert (request.headers["content-type"], request.headers["webhook-id"]) == ("application/json", "1")
    assert request.headers["user-agent"].startswith("Refract/")


@pytest.mark.parametrize("answer", [status(200), status(201), status(202), OK, status(299)])
async def test_every_2xx_is_a_yes(answer: bytes) -> None:
    async with receiver(answer) as receiving, client() as webhooks:
        await webhooks.post(receiving.url(), b"{}", {})


@pytest.mark.parametrize("code", [400, 401, 404, 500, 502, 101, 600, 999])
async def test_everything_else_is_tried_again(code: int) -> None:
    async with receiver(status(code)) as receiving:
        error = await failure(receiving.url())
    assert type(error) is Postponed
    assert str(error) == f"status {code}"


async def test_who_is_gone_says_so() -> None:
    async with receiver(status(410)) as receiving:
        assert type(await failure(receiving.url())) is Gone


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"), [("120", 120), ("0", 0), ("-5", 0), ("soon", 0), ("1" * 50, 0), ("12,5", 0), ("", 0)]
)
async def test_who_is_busy_may_name_a_pause(code: int, header: str, seconds: int) -> None:
    answer = status(code, f"Retry-After: {header}".encode().decode("latin-1"))
    async with receiver(answer) as receiving:
        error = await failure(receiving.url())
    assert isinstance(error, Postponed)
    assert error.at_least == timedelta(seconds=seconds)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(code: int) -> None:
    async with receiver() as elsewhere, receiver(status(code, f"Location: {elsewhere.url()}")) as receiving:
        assert str(await failure(receiving.url())) == f"status {code}: redirects are not followed"
    assert elsewhere.connections == 0


async def test_a_receiver_that_never_answers_is_left() -> None:
    async with receiver(None) as receiving:
        assert str(await failure(receiving.url(), timeout=0.2)) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "endless",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"X: " + b"y" * 4000 + b"\r\n", b"y" * 60_000, b"\r\n" * 999, b" " * 999],
)
async def test_a_head_that_never_ends_is_left(endless: bytes) -> None:
    start = b"HTTP/1.1 200 OK\r\n" if endless.startswith(b"X") else b""
    async with receiver(start or b"HTTP/1.1 ", endless=endless) as receiving:
        assert type(await failure(receiving.url(), timeout=0.5)) is Postponed


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked", b"Content-Length: 99999999999999", b"X: y"])
async def test_a_body_that_never_ends_is_not_read(head: bytes) -> None:
    endless = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    answer = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"
    async with receiver(answer, endless=endless) as receiving, client() as webhooks:
        await webhooks.post(receiving.url(), b"{}", {})
        await eventually(lambda: not receiving.open)  # it ends when it notices that we have left


@pytest.mark.parametrize(
    "answer", [b"", b"\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"\x00\xff" * 99]
)
async def test_what_is_no_answer_is_none(answer: bytes) -> None:
    async with receiver(answer) as receiving:
        receiving.hangs_up = True
        assert type(await failure(receiving.url(), timeout=2)) is Postponed


async def test_nobody_there() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        assert str(await failure("http://{}:{}/hook".format(*nobody.getsockname()))) == "no connection"


async def test_a_name_that_leads_nowhere() -> None:
    assert str(await failure("http://nobody.invalid/")) == "the name cannot be resolved"


async def test_a_foreign_certificate_gets_nothing(tmp_path: Path) -> None:
    async with receiver(tls=certificate(tmp_path).server) as receiving:
        assert str(await failure(receiving.url(scheme="https"))) == "the certificate is not valid"
    assert receiving.requests == []


async def test_tls_is_asked_of_whoever_speaks_none() -> None:
    async with receiver(b"no TLS here\r\n") as receiving:
        error = await failure(receiving.url(scheme="https"), timeout=1)
    assert type(error) is Postponed
    assert receiving.requests == []


SPELLINGS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "localhost",
    "127.0.0.1.", "127.8.8.8", "0", "0.0.0.0",
]  # fmt: skip
OTHERS = ["[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"]


@pytest.mark.parametrize("host", SPELLINGS + OTHERS)
async def test_no_spelling_of_a_private_address_is_called(host: str) -> None:
    async with receiver() as receiving:
        assert str(await failure(receiving.url(host), allow_private=False)) in {PRIVATE, "the url is not valid"}
    assert receiving.connections == 0


async def test_those_spellings_do_lead_there() -> None:
    """Else the test above would prove nothing."""
    async with receiver() as receiving, client() as webhooks:
        led = []
        for host in SPELLINGS:
            try:
                await webhooks.post(check_webhook_url(receiving.url(host), allow_private=True), b"{}", {})
            except NotDelivered:
                continue
            led.append(host)
    assert led == [host for host in SPELLINGS if host != "127.8.8.8"]  # where nobody listens


class Names:
    """Name servers that say what they are told to, one answer after the other."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found
        ]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "fe80::1",
     "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"],
)  # fmt: skip
async def test_a_name_that_leads_inside_is_not_followed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names([address]))
    assert str(await failure("http://hook.example/", allow_private=False)) == PRIVATE


async def test_a_name_that_changes_its_mind_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up once for a request, and the answer to that is what is checked and connected to."""
    names = Names(["192.0.2.1"], ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    monkeypatch.setattr(public_connections, "is_public", lambda address: address == "192.0.2.1")
    async with receiver() as receiving:
        # 192.0.2.1 is nobody's: whether it is refused or silent is the network's matter.
        await failure(receiving.url("hook.example"), allow_private=False, timeout=0.3)
        await eventually(lambda: names.asked == 1)  # by a thread, which may have been late
        assert str(await failure(receiving.url("hook.example"), allow_private=False)) == PRIVATE
        assert receiving.connections == 0


async def test_of_many_addresses_only_public_ones_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["10.0.0.1", "127.0.0.1", "fe80::1"]))
    asked: list[str] = []

    def public(address: str) -> bool:
        asked.append(address)
        return address == "127.0.0.1"

    monkeypatch.setattr(public_connections, "is_public", public)
    async with receiver() as receiving, client(allow_private=False) as webhooks:
        await webhooks.post(receiving.url("hook.example"), b"{}", {})
        assert [request.headers["host"] for request in receiving.requests] == [f"hook.example:{receiving.port}"]
    assert "127.0.0.1" in asked


async def test_a_name_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(*_: Any, **__: Any) -> list[Any]:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)
        return []

    monkeypatch.setattr(public_connections, "MAX_LOOKUPS", 2)
    monkeypatch.setattr(socket, "getaddrinfo", wait)
    async with client(timeout=0.1) as webhooks:

        def waiting() -> int:
            session: Any = webhooks._session
            return int(session._connector._resolver._waiting)

        async def both_wait() -> bool:
            with pytest.raises(Postponed, match=r"^no answer within 0\.1 s$"):
                await webhooks.post("http://hook.example/", b"{}", {})
            return waiting() == 2

        await eventually(both_wait)
        webhooks._timeout = 30.0  # the next one is answered, at once unless the machine is busy
        with pytest.raises(Postponed, match=r"^the name cannot be resolved$"):
            await webhooks.post("http://hook.example/", b"{}", {})
        released.set()
        await eventually(lambda: waiting() == 0)


async def test_a_system_without_threads_costs_no_place_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(public_connections, "MAX_LOOKUPS", 1)
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.1"]))
    async with receiver() as receiving, client() as webhooks:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(Postponed, match="the name cannot be resolved"):
                await webhooks.post(receiving.url("hook.example"), b"{}", {})
        await webhooks.post(receiving.url("hook.example"), b"{}", {})
        assert receiving.connections == 1


@pytest.mark.parametrize("url", ["http://[", "http://a:99999/", "ftp://a/", "nonsense", "http://", "http://%zz/"])
async def test_what_is_no_url_fails_as_a_request(url: str) -> None:
    assert type(await failure(url, allow_private=False, timeout=2)) is Postponed


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url(path=""))
        monkeypatch.setattr(socket, "getaddrinfo", Names(["10.0.0.1"]))
        monkeypatch.setattr(public_connections, "is_public", lambda address: address == "127.0.0.1")
        assert str(await failure("http://hook.example/", allow_private=False)) == PRIVATE
    assert proxy.connections == 0


async def test_a_receiver_can_be_used_by_two_at_a_time() -> None:
    async with receiver() as receiving, client() as webhooks:
        await asyncio.gather(*(webhooks.post(receiving.url(), b"{}", {}) for _ in range(20)))
        assert len(receiving.requests) == receiving.connections == 20
