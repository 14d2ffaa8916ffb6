"""What an operator sets for links is what links does: from the variables, through the builder, to the answers."""

import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Misconfigured
from refract.kernel.ids import encode_base62
from refract.runtime.edge import Receive, Scope, Send, answer
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, Row
from refract.runtime.service import Foundation
from refract.runtime.tokens import TokenVerifier
from refract.services.links import service as service_module
from refract.services.links.adapters import safe_browsing
from refract.services.links.adapters.safe_browsing import SafeBrowsing
from refract.services.links.domain import codes
from refract.services.links.domain.link import Owner
from refract.services.links.service import build_links
from refract.services.links.settings import LinksSettings
from tests.support.applications import read_body
from tests.support.clocks import ManualClock
from tests.support.databases import Location
from tests.support.http import Answer, Client, running
from tests.support.instances import servers, started
from tests.support.links import ALICE, BOB, SECRET, said, token_for
from tests.support.outboxes import OUTBOX
from tests.support.shortening import LINKS
from tests.support.worlds import buses_beside

__all__ = ["servers"]

BASE = {"BASE_URL": "https://sho.rt/"}
URL = "https://example.com/Path"
OTHER_CASE = "https://example.com/path"
BAD = "https://login.evil.example/now"
REFUSED = "url is flagged as unsafe: on this service's blocklist"
KEY = "the-key-of-the-service"
PATIENT = 30.0
"""Seconds for an answer that does come: a busy machine does not make Safe Browsing away."""


@dataclass
class Built:
    """Links as the builder made it of some variables, behind a server."""

    port: int
    database: Database
    clock: ManualClock

    async def call(self, target: str, body: Any, owner: Owner = ALICE) -> Answer:
        """Post something in the name of a user."""
        authorization = f"Authorization: Bearer {token_for(owner, self.clock)}"
        async with await Client.connect(self.port) as client:
            return await client.post(target, msgspec.json.encode(body), authorization)

    async def shorten(self, url: str = URL, **options: Any) -> Answer:
        return await self.call("/shorten", {"url": url, **options})

    async def links(self) -> list[Row]:
        return await self.database.fetch(LINKS)

    async def is_empty(self) -> bool:
        """Whether there is neither a link nor an event."""
        return not await self.links() and not await self.database.fetch(OUTBOX)


class Builder:
    """Builds links on one database, as the apps do it."""

    def __init__(
        self, database: Database, location: Location, stack: AsyncExitStack, request: pytest.FixtureRequest
    ) -> None:
        self.database = database
        self.clock = ManualClock()
        self._location = location
        self._stack = stack
        self._request = request

    async def __call__(self, **variables: str) -> Built:
        """Links with these variables beside those that it always needs."""
        spool = Path(self._request.getfixturevalue("tmp_path")) / "spool"
        settings = LinksSettings.from_environment(Environment({**BASE, **variables}), spool=spool)
        buses = buses_beside(self._location, self._request)
        self._stack.push_async_callback(buses.close)
        foundation = Foundation(
            self.database,
            await buses.open(),
            self.clock,
            Metrics(),
            TokenVerifier([SECRET], self.clock),
            timedelta(days=7),
        )
        service = await build_links(foundation, settings, EmbeddedCache(self.clock), EmbeddedRateLimiter(self.clock))
        for task in service.tasks:
            if task.drain is not None:
                self._stack.push_async_callback(task.drain)
        server = await self._stack.enter_async_context(running(service.application))
        return Built(server.port, self.database, self.clock)


@pytest.fixture
async def build(
    database: Database, database_location: Location, request: pytest.FixtureRequest
) -> AsyncIterator[Builder]:
    """On both engines. The clock stands still until a test turns it."""
    async with AsyncExitStack() as stack:
        yield Builder(database, database_location, stack, request)


@pytest.mark.parametrize(
    "domain", ["a b", "*.s.example", "s.example!", "https://", "[::1", "mailto://x", "s.example/go"]
)
async def test_a_short_domain_that_is_none_stops_the_start(build: Builder, domain: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        await build(SHORT_DOMAINS=f"s.example,{domain}")
    expected = f'has "{domain}"; expected a host such as "s.example"'
    assert str(caught.value) == f'FATAL: environment variable "SHORT_DOMAINS" {expected}'


async def test_a_blocklist_that_is_not_there_stops_the_start(build: Builder, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as caught:
        await build(SAFETY_BLOCKLIST=str(tmp_path / "none"))
    trouble = "cannot be used: No such file or directory; check SAFETY_BLOCKLIST"
    assert str(caught.value) == f'FATAL: blocklist "{tmp_path / "none"}" {trouble}'


def blocklist(folder: Path) -> str:
    """A list of one host; gives its path."""
    path = folder / "blocklist.txt"
    path.write_text("evil.example  # and all below it\n")
    return str(path)


async def test_what_the_blocklist_names_is_refused_and_leaves_nothing_behind(build: Builder, tmp_path: Path) -> None:
    built = await build(SAFETY_BLOCKLIST=blocklist(tmp_path))
    assert said(await built.shorten(BAD)) == (422, REFUSED)
    report = await built.call("/shorten/bulk", {"urls": [BAD]})
    assert report.json["results"] == [{"row": 1, "status": 422, "error": REFUSED}]
    assert await built.is_empty()
    assert (await built.shorten(URL)).status == 201


async def test_without_a_blocklist_nothing_is_refused(build: Builder) -> None:
    assert (await (await build()).shorten(BAD)).status == 201


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Safe Browsing is asked at a place where nobody listens."""
    monkeypatch.setattr(safe_browsing, "TIMEOUT", PATIENT)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        monkeypatch.setattr(service_module, "SafeBrowsing", partial(SafeBrowsing, endpoint=endpoint))
        yield


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("variables", [{}, {"SAFETY_FAIL": "open"}])
async def test_while_safe_browsing_is_away_open_makes_links(build: Builder, variables: dict[str, str]) -> None:
    built = await build(SAFE_BROWSING_API_KEY=KEY, **variables)
    assert (await built.shorten()).status == 201
    assert len(await built.links()) == 1


@pytest.mark.usefixtures("nobody")
async def test_while_safe_browsing_is_away_closed_makes_none(build: Builder, tmp_path: Path) -> None:
    built = await build(SAFE_BROWSING_API_KEY=KEY, SAFETY_FAIL="closed", SAFETY_BLOCKLIST=blocklist(tmp_path))
    assert said(await built.shorten()) == (503, "service unavailable")
    assert said(await built.call("/shorten/bulk", {"urls": [URL]})) == (503, "service unavailable")
    assert said(await built.shorten(BAD)) == (422, REFUSED), "what the list names needs no second opinion"
    assert await built.is_empty()


async def test_closed_refuses_nothing_where_nobody_is_to_be_asked(build: Builder) -> None:
    assert (await (await build(SAFETY_FAIL="closed")).shorten()).status == 201


async def test_safe_browsing_is_asked_with_the_key(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def malware(scope: Scope, receive: Receive, send: Send) -> None:
        [entry] = msgspec.json.decode(await read_body(receive))["threatInfo"]["threatEntries"]
        asked.append(scope["query_string"])
        await answer(send, 200, msgspec.json.encode({"matches": [{"threatType": "MALWARE", "threat": entry}]}))

    monkeypatch.setattr(safe_browsing, "TIMEOUT", PATIENT)
    async with running(malware) as server:
        endpoint = f"http://127.0.0.1:{server.port}/"
        monkeypatch.setattr(service_module, "SafeBrowsing", partial(SafeBrowsing, endpoint=endpoint))
        built = await build(SAFE_BROWSING_API_KEY=KEY)
        assert said(await built.shorten()) == (422, "url is flagged as unsafe: malware")
    assert asked == [f"key={KEY}".encode()]
    assert await built.is_empty()


async def test_paths_keep_their_case_unless_it_is_said(build: Builder) -> None:
    for variables in ({}, {"URL_NORMALIZATION": "rfc3986"}):
        built = await build(**variables)
        for url in (URL, OTHER_CASE):
            await built.shorten(url)
        assert [row["original_url"] for row in await built.links()] == [URL, OTHER_CASE]


async def test_in_lower_case_two_spellings_are_one_link(build: Builder) -> None:
    built = await build(URL_NORMALIZATION="lowercase")
    first, second = [await built.shorten(url) for url in (URL, OTHER_CASE)]
    assert (first.status, second.status, second.body) == (201, 200, first.body)
    report = await built.call("/shorten/bulk", {"urls": [OTHER_CASE.upper()]})
    assert [row["status"] for row in report.json["results"]] == [200]
    [row] = await built.links()
    assert row["original_url"] == URL


async def test_what_was_made_in_lower_case_is_not_taken_for_another_page_afterwards(build: Builder) -> None:
    await (await build(URL_NORMALIZATION="lowercase")).shorten(URL)
    built = await build()
    assert (await built.shorten(URL.lower())).status == 201
    assert [row["original_url"] for row in await built.links()] == [URL, URL.lower()]


async def test_a_code_is_random_unless_it_is_said(build: Builder) -> None:
    code = (await (await build()).shorten()).json["short_code"]
    [row] = await build.database.fetch(LINKS)
    assert len(code) == 7
    assert code != encode_base62(row["id"])


async def test_a_code_can_be_the_id(build: Builder) -> None:
    built = await build(CODE_STRATEGY="snowflake")
    single = (await built.shorten()).json["short_code"]
    report = await built.call("/shorten/bulk", {"urls": [OTHER_CASE]})
    spelt = [encode_base62(row["id"]) for row in await built.links()]
    assert spelt == [single, report.json["results"][0]["short_code"]]


async def test_after_five_taken_codes_the_client_is_told_to_try_again(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, taken = await build(), secrets.token_hex(4)[:7]
    tries = iter([taken] * 6)
    with monkeypatch.context() as patch:
        patch.setattr(codes, "random_code", lambda: next(tries))
        assert (await built.shorten()).json["short_code"] == taken
        refused = await built.shorten(OTHER_CASE)
    assert said(refused) == (503, "could not generate unique code; try again")
    assert refused.headers["content-type"] == "application/json"
    assert next(tries, None) is None, "five were tried"
    assert len(await built.links()) == 1
    assert (await built.shorten(OTHER_CASE)).status == 201, "and trying again helps"


async def test_a_short_domain_is_no_destination(build: Builder) -> None:
    built = await build(SHORT_DOMAINS="s.example")
    for url in ("https://S.example/abc", "https://sho.rt/abc"):
        assert said(await built.shorten(url)) == (400, "url must not lead to a short domain of this service")
    assert await built.is_empty()


@pytest.mark.parametrize(("value", "public"), [("", True), ("true", True), ("false", False)])
async def test_statistics_are_public_as_it_is_said(build: Builder, value: str, public: bool) -> None:
    built = await build(STATS_PUBLIC=value)
    assert (await built.shorten()).json["stats_public"] is public
    assert (await built.shorten(stats_public=not public)).json["stats_public"] is not public


async def test_rows_in_bulk_count_against_what_is_set(build: Builder) -> None:
    built = await build(RATE_LIMIT_BULK="3")
    assert (await built.call("/shorten/bulk", {"urls": [URL, OTHER_CASE]})).status == 200
    refused = await built.call("/shorten/bulk", {"urls": [BAD, BAD]})
    assert said(refused) == (429, "rate limit exceeded")
    assert (await built.call("/shorten/bulk", {"urls": [BAD]})).status == 200
    assert said(await built.call("/shorten/bulk", {"urls": [BAD]})) == (429, "rate limit exceeded")
    assert (await built.call("/shorten/bulk", {"urls": [URL] * 3}, owner=BOB)).status == 200
    assert (await built.shorten()).status == 200, "one at a time is counted at the gateway"


async def test_a_limit_of_zero_is_none(build: Builder) -> None:
    built = await build(RATE_LIMIT_BULK="0")
    # Bad rows count like good ones, and cost less.
    for _ in range(11):
        assert (await built.call("/shorten/bulk", {"urls": [0] * 1_000})).status == 200


async def test_a_process_does_what_its_variables_say(servers: dict[str, str] | None, tmp_path: Path) -> None:
    """All of them at once, so that it is one start for each mode."""
    variables = {
        "SAFETY_BLOCKLIST": blocklist(tmp_path),
        "URL_NORMALIZATION": "lowercase",
        "CODE_STRATEGY": "snowflake",
        "RATE_LIMIT_BULK": "3",
        "STATS_PUBLIC": "false",
    }
    async with started(tmp_path, servers, **variables) as instance:
        assert said(await instance.call("POST", "/shorten", {"url": BAD})) == (422, REFUSED)
        answers = [await instance.call("POST", "/shorten", {"url": url}) for url in (URL, OTHER_CASE)]
        assert [each.status for each in answers] == [201, 200]
        [(link_id, code, public)] = await instance.fetch("SELECT id, short_code, stats_public FROM links")
        assert (code, bool(public)) == (encode_base62(link_id), False)
        assert answers[0].json["short_code"] == answers[1].json["short_code"] == code
        assert (await instance.call("POST", "/shorten/bulk", {"urls": [URL] * 4})).status == 400
        assert (await instance.call("POST", "/shorten/bulk", {"urls": [URL] * 3})).status == 200
        over = await instance.call("POST", "/shorten/bulk", {"urls": [URL]})
        assert said(over) == (429, "rate limit exceeded")
        assert 1 <= int(over.headers["retry-after"]) <= 63
