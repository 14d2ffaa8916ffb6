"""Destinations that nobody should be sent to: Safe Browsing over HTTP, and all checks as one."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Kind, Unavailable
from refract.runtime.edge import Receive, Scope, Send, answer
from refract.services.links.adapters import safe_browsing
from refract.services.links.adapters.blocklist import REASON, Blocklist
from refract.services.links.adapters.safe_browsing import SafeBrowsing, Unanswered
from refract.services.links.adapters.safety import Safety
from tests.support.applications import read_body
from tests.support.clocks import ManualClock
from tests.support.http import running

KEY = "the-key-of-the-service"
HARMLESS = "https://harmless.example/secret-path"
MALWARE = "https://malware.example/secret-path?token=abc"
PATIENT = 30.0
"""Seconds for an answer that does come: a busy machine does not make the service away."""


class FakeService:
    """The lookup as it is documented, over HTTP; a test may put another answer in its place."""

    def __init__(self, threats: Mapping[str, Mapping[str, Any]]) -> None:
        self.threats = threats
        self.questions: list[dict[str, Any]] = []
        self.instead: Callable[[Send], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = msgspec.json.decode(await read_body(receive))
        assert (scope["method"], scope["path"]) == ("POST", "/v4/threatMatches:find")
        assert scope["query_string"] == f"key={KEY}".encode()
        assert dict(scope["headers"])[b"content-type"] == b"application/json"
        self.questions.append(body)
        if self.instead is not None:
            await self.instead(send)
            return
        asked = [entry["url"] for entry in body["threatInfo"]["threatEntries"]]
        matches = [
            {"threatEntryType": "URL", "threat": {"url": url}, **self.threats[url]}
            for url in asked
            if url in self.threats
        ]
        await answer(send, 200, msgspec.json.encode({"matches": matches} if matches else {}))

    @property
    def asked(self) -> list[list[str]]:
        return [[entry["url"] for entry in each["threatInfo"]["threatEntries"]] for each in self.questions]


class Lookup:
    """The check, the service it asks, and the clock between them."""

    def __init__(self, service: FakeService, check: SafeBrowsing, clock: ManualClock) -> None:
        self.service = service
        self.check = check
        self.clock = clock

    async def find(self, *urls: str) -> Mapping[str, str]:
        return await self.check.find_threats(urls)

    async def trouble(self, *urls: str) -> Unanswered:
        with pytest.raises(Unanswered) as caught:
            await self.find(*urls)
        assert caught.value.kind is Kind.UNAVAILABLE
        assert caught.value.message == "service unavailable"
        return caught.value


@asynccontextmanager
async def looking_up(threats: Mapping[str, Mapping[str, Any]]) -> AsyncIterator[Lookup]:
    service, clock = FakeService(threats), ManualClock()
    async with running(service) as server:
        check = SafeBrowsing(KEY, clock, endpoint=f"http://127.0.0.1:{server.port}/v4/threatMatches:find")
        try:
            yield Lookup(service, check, clock)
        finally:
            await check.close()


@pytest.fixture
async def lookup(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lookup]:
    monkeypatch.setattr(safe_browsing, "TIMEOUT", PATIENT)
    threats = {MALWARE: {"threatType": "MALWARE", "platformType": "ANY_PLATFORM", "cacheDuration": "600.5s"}}
    async with looking_up(threats) as each:
        yield each


async def test_asks_as_documented(lookup: Lookup) -> None:
    assert await lookup.find(HARMLESS, MALWARE) == {MALWARE: "malware"}
    (question,) = lookup.service.questions
    assert question["client"]["clientId"] == "refract"
    assert question["threatInfo"] == {
        "threatTypes": ["MALWARE", "SOCIAL_ENGINEERING", "UNWANTED_SOFTWARE", "POTENTIALLY_HARMFUL_APPLICATION"],
        "platformTypes": ["ANY_PLATFORM"],
        "threatEntryTypes": ["URL"],
        "threatEntries": [{"url": HARMLESS}, {"url": MALWARE}],
    }


async def test_harmless_urls_are_let_pass(lookup: Lookup) -> None:
    assert await lookup.find(HARMLESS) == {}
    assert await lookup.find() == {}
    assert len(lookup.service.questions) == 1


async def test_an_answer_is_remembered_for_its_time(lookup: Lookup) -> None:
    for _ in range(2):
        assert await lookup.find(HARMLESS, MALWARE) == {MALWARE: "malware"}
    lookup.clock.advance(300)
    assert await lookup.find(HARMLESS, MALWARE) == {MALWARE: "malware"}
    lookup.clock.advance(300)
    assert await lookup.find(MALWARE) == {MALWARE: "malware"}
    assert lookup.service.asked == [[HARMLESS, MALWARE], [HARMLESS]]
    lookup.clock.advance(0.5)
    assert await lookup.find(MALWARE) == {MALWARE: "malware"}
    assert lookup.service.asked[2:] == [[MALWARE]]


@pytest.mark.parametrize(
    ("stated", "seconds"), [("", 300), ("soon", 300), ("-5s", 300), ("60s", 60), ("9999999s", 86_400)]
)
async def test_a_stated_time_is_read_with_care(lookup: Lookup, stated: str, seconds: float) -> None:
    lookup.service.threats = {MALWARE: {"threatType": "MALWARE", "cacheDuration": stated}}
    await lookup.find(MALWARE)
    lookup.clock.advance(seconds - 0.001)
    await lookup.find(MALWARE)
    assert len(lookup.service.questions) == 1
    lookup.clock.advance(0.001)
    await lookup.find(MALWARE)
    assert len(lookup.service.questions) == 2


async def test_what_is_remembered_is_bounded(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_browsing, "MAX_REMEMBERED", 3)
    await lookup.find(*(f"https://{n}.example/" for n in range(5)))
    assert len(lookup.check._remembered) == 3
    await lookup.find("https://4.example/", "https://2.example/", "https://0.example/")
    assert lookup.service.asked[1:] == [["https://0.example/"]]


async def test_many_urls_are_asked_500_at_a_time(lookup: Lookup) -> None:
    urls = [f"https://{n}.example/" for n in range(1100)]
    assert await lookup.find(*urls, MALWARE, *urls) == {MALWARE: "malware"}
    assert [len(asked) for asked in lookup.service.asked] == [500, 500, 101]
    assert [url for asked in lookup.service.asked for url in asked] == [*urls, MALWARE]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("SOCIAL_ENGINEERING", "social engineering"),
        ("UNWANTED_SOFTWARE", "unwanted software"),
        ("POTENTIALLY_HARMFUL_APPLICATION", "a potentially harmful application"),
        ("SOMETHING_NEW", "a threat"),
    ],
)
async def test_says_what_kind_of_threat_it_is(lookup: Lookup, kind: str, reason: str) -> None:
    lookup.service.threats = {MALWARE: {"threatType": kind}}
    assert await lookup.find(MALWARE) == {MALWARE: reason}


async def test_a_threat_in_another_spelling_is_not_overlooked(lookup: Lookup) -> None:
    asked, repeated = "HTTPS://Malware.example:443/a/../%61", "https://MALWARE.example/a"
    lookup.service.threats = {asked: {"threatType": "MALWARE", "threat": {"url": repeated}}}
    assert await lookup.find(HARMLESS, asked) == {asked: "malware"}


async def test_all_spellings_of_a_threat_are_threats(lookup: Lookup) -> None:
    spellings = ("https://malware.example/a", "HTTPS://Malware.example:443/%61", "https://malware.example/b/../a")
    for repeated in (*spellings, "https://MALWARE.example/a"):
        lookup.clock.advance(86_400)  # what was said is forgotten
        told = {"threatType": "MALWARE", "threat": {"url": repeated}}
        lookup.service.threats = {spellings[0]: told}
        assert await lookup.find(HARMLESS, *spellings) == dict.fromkeys(spellings, "malware")


def answering(status: int, body: bytes) -> Callable[[Send], Awaitable[None]]:
    async def respond(send: Send) -> None:
        await answer(send, status, body)

    return respond


async def silence(send: Send) -> None:
    await asyncio.Event().wait()


async def elsewhere(send: Send) -> None:
    headers = [(b"location", b"/v4/threatMatches:find?key=another"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body"})


async def half_an_answer(send: Send) -> None:
    headers = [(b"content-length", b"100")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"matches"', "more_body": True})
    await asyncio.Event().wait()


def about(url: str) -> bytes:
    return msgspec.json.encode({"matches": [{"threatType": "MALWARE", "threat": {"url": url}}]})


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (answering(500, b"{}"), "status 500"),
        (answering(429, b"{}"), "status 429"),
        (answering(400, f"bad key {KEY}".encode()), "status 400"),
        (elsewhere, "status 307"),
        (answering(204, b""), "status 204"),
        (answering(200, b'{"matches": ['), "an answer that cannot be read"),
        (answering(200, b"<html>"), "an answer that cannot be read"),
        (answering(200, b'{"matches": "\xff"}'), "an answer that cannot be read"),
        (answering(200, b'{"matches": [{}]}'), "an answer that cannot be read"),
        (answering(200, b'{"matches": 5}'), "an answer that cannot be read"),
        (answering(200, b"[" * 100_000), "an answer that cannot be read"),
        (answering(200, b'{"x": "' + b" " * 5_000_000 + b'"}'), "an answer that is too long"),
        (answering(200, about("https://unasked.example/")), "an answer about something else"),
        (silence, "no answer within 0.2 s"),
        (half_an_answer, "no answer within 0.2 s"),
    ],
)
async def test_any_failure_is_unavailable(
    lookup: Lookup,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    instead: Callable[[Send], Awaitable[None]],
    reason: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    if "0.2" in reason:
        monkeypatch.setattr(safe_browsing, "TIMEOUT", 0.2)
    lookup.service.instead = instead
    trouble = await lookup.trouble(HARMLESS)
    assert str(trouble) == f"safe browsing is unavailable: {reason}"
    lookup.service.instead = None
    monkeypatch.setattr(safe_browsing, "TIMEOUT", PATIENT)
    lookup.clock.advance(5)
    assert await lookup.find(MALWARE) == {MALWARE: "malware"}
    said = [str(trouble), repr(trouble), *(f"{record.getMessage()} {vars(record)}" for record in caplog.records)]
    assert not any(secret in line for line in said for secret in (KEY, "secret-path", "harmless.example"))


async def test_a_service_that_is_not_there_is_unavailable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_browsing, "TIMEOUT", PATIENT)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}/v4/threatMatches:find"
        check = SafeBrowsing(KEY, ManualClock(), endpoint=endpoint)
        with pytest.raises(Unanswered, match="ClientConnectorError") as caught:
            await check.find_threats([HARMLESS])
        await check.close()
    assert caught.value.__suppress_context__  # a traceback would show the URL that was asked
    assert KEY not in caplog.text


async def test_the_timeout_is_two_seconds() -> None:
    assert safe_browsing.TIMEOUT == 2.0


async def test_an_outage_is_logged_once_and_asked_about_now_and_then(
    lookup: Lookup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def ours() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.name.startswith("refract")]

    await lookup.find(HARMLESS)
    lookup.service.instead = answering(500, b"")
    for n in range(4):
        await lookup.trouble(f"https://{n}.example/")
    assert len(lookup.service.questions) == 2
    assert await lookup.find(HARMLESS) == {}  # from memory, which says nothing about the outage
    lookup.clock.advance(5)
    await lookup.trouble(MALWARE)
    assert len(lookup.service.questions) == 3
    lookup.clock.advance(4.9)
    await lookup.trouble(MALWARE)
    assert len(lookup.service.questions) == 3
    assert [record.message.partition(";")[0] for record in ours()] == ["safe browsing unavailable"]
    assert vars(ours()[0])["reason"] == "status 500"
    lookup.service.instead = None
    lookup.clock.advance(0.1)
    assert await lookup.find(MALWARE) == {MALWARE: "malware"}
    assert [record.message for record in ours()[1:]] == ["safe browsing answers again"]
    lookup.service.instead = answering(429, b"")
    await lookup.trouble("https://another.example/")
    assert [vars(record).get("reason") for record in ours()] == ["status 500", None, "status 429"]


class Scripted:
    """A check that a test gives its answers."""

    def __init__(self, threats: Mapping[str, str] | None = None, trouble: Exception | None = None) -> None:
        self.threats = threats or {}
        self.trouble = trouble
        self.asked: list[list[str]] = []
        self.closed = False

    async def find_threats(self, urls: Sequence[str]) -> Mapping[str, str]:
        self.asked.append(list(urls))
        if self.trouble is not None:
            raise self.trouble
        return {url: self.threats[url] for url in urls if url in self.threats}

    async def close(self) -> None:
        self.closed = True


async def test_a_check_is_asked_only_about_what_others_let_pass() -> None:
    first, second = Scripted({"a": "listed"}), Scripted({"a": "malware", "b": "malware"})
    safety = Safety([first, second], fails_open=False)
    assert await safety.check(["a", "b", "c"]) == {"a": "listed", "b": "malware"}
    assert (first.asked, second.asked) == ([["a", "b", "c"]], [["b", "c"]])
    assert await safety.check(["a"]) == {"a": "listed"}
    assert len(second.asked) == 1
    await safety.close()
    assert first.closed
    assert second.closed


async def test_without_checks_everything_passes() -> None:
    assert await Safety([], fails_open=False).check(["a"]) == {}


async def test_open_lets_pass_what_an_absent_check_would_have_seen() -> None:
    away = Scripted(trouble=Unavailable("a check", "away"))
    safety = Safety([away, Scripted({"b": "listed"})], fails_open=True)
    assert await safety.check(["a", "b"]) == {"b": "listed"}


async def test_closed_lets_nothing_pass_while_a_check_is_absent() -> None:
    away = Scripted(trouble=Unavailable("a check", "away"))
    with pytest.raises(Unavailable):
        await Safety([Scripted({"b": "listed"}), away], fails_open=False).check(["a", "b"])
    assert away.asked == [["a"]]


async def test_open_still_refuses_what_is_known_of(lookup: Lookup) -> None:
    safety = Safety([lookup.check], fails_open=True)
    assert await safety.check([MALWARE]) == {MALWARE: "malware"}
    lookup.service.instead = answering(500, b"")
    for _ in range(2):
        assert await safety.check([HARMLESS, MALWARE]) == {MALWARE: "malware"}


async def test_the_list_and_the_service_together(tmp_path: Path, lookup: Lookup) -> None:
    (tmp_path / "list").write_text("evil.example\n")
    listed = Blocklist(tmp_path / "list", lookup.clock)
    evil = "https://www.evil.example/"
    opened = Safety([listed, lookup.check], fails_open=True)
    closed = Safety([listed, lookup.check], fails_open=False)
    assert await opened.check([evil, HARMLESS, MALWARE]) == {evil: REASON, MALWARE: "malware"}
    assert lookup.service.asked == [[HARMLESS, MALWARE]]  # what we know ourselves is nobody else's business
    lookup.service.instead = answering(429, b"")
    unknown = "https://unknown.example/"
    assert await opened.check([evil, unknown]) == {evil: REASON}
    assert await closed.check([evil, HARMLESS]) == {evil: REASON}
    with pytest.raises(Unavailable):
        await closed.check([evil, unknown])
