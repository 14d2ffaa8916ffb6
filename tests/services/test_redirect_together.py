"""Visits that are answered together: each gets its own answer, click and line, and none is lost when one goes wrong."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from ipaddress import ip_network

import pytest

from refract.runtime.telemetry import configure_logging
from refract.services.links.redirect import gathering
from refract.services.links.settings import Durability
from tests.support.clocks import START
from tests.support.http import Answer, Client, head
from tests.support.redirects import RedirectWorld, redirects
from tests.support.waiting import eventually

__all__ = ["redirects"]

TRUSTED = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes."""
    root, ours = logging.getLogger(), logging.getLogger("refract")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    stream = io.StringIO()
    configure_logging("url-service", "info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@asynccontextmanager
async def known_clients(port: int, code: str, headers: list[str]) -> AsyncIterator[list[Client]]:
    """Clients whose head is known to the server, each with one header field of its own."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(port)) for _ in headers]
        for client, header in zip(clients, headers, strict=True):
            assert (await client.get(f"/{code}", header)).status == 301
        yield clients


async def together(world: RedirectWorld, clients: list[Client], targets: list[str], headers: list[str]) -> list[Answer]:
    """Ask while a flush is under way, so that all wait for the next."""
    world.guarded.open.clear()
    async with await Client.connect(clients[0].writer.get_extra_info("peername")[1]) as first:
        await first.send(head("GET", targets[0]))
        await eventually(lambda: world.guarded.waiting)
        for client, target, header in zip(clients, targets, headers, strict=True):
            await client.send(head("GET", target, header))
        await asyncio.sleep(0.05)  # there is nothing to see until they are answered
        world.guarded.open.set()
        assert (await first.answer()).status == 301
        return [await client.answer() for client in clients]


async def test_each_has_its_own_answer_and_click(redirects: RedirectWorld, stream: io.StringIO) -> None:
    statuses = [301, 302, 307, 308, 301, 301]
    codes = [
        await redirects.link(f"t{n}", f"https://example.com/{n}", redirect_status=s) for n, s in enumerate(statuses)
    ]
    instance = await redirects.instance(sample=1.0)
    headers = [f"User-Agent: agent-{number}" for number in range(len(codes))]
    async with known_clients(instance.fast.port, codes[0], headers) as clients:
        async with await Client.connect(instance.fast.port) as client:
            for code in codes:
                await client.get(f"/{code}")
        before = await redirects.clicks()
        answers = await together(redirects, clients, [f"/{code}" for code in codes], headers)
    assert [answer.status for answer in answers] == statuses
    assert [answer.headers["location"] for answer in answers] == [f"https://example.com/{n}" for n in range(len(codes))]
    clicks = {click.event_id: click for click in await redirects.clicks(before)}
    ids = [answer.headers["x-correlation-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert [(clicks[i].short_code, clicks[i].user_agent) for i in ids] == [
        (code, f"agent-{number}") for number, code in enumerate(codes)
    ]
    await eventually(lambda: all(each in stream.getvalue() for each in ids))
    lines = {line["correlation_id"]: line for line in map(json.loads, stream.getvalue().splitlines())}
    assert [(lines[i]["path"], lines[i]["status"], lines[i]["method"]) for i in ids] == [
        (f"/{code}", status, "GET") for code, status in zip(codes, statuses, strict=True)
    ]


async def test_those_within_their_limit_are_answered_and_the_others_refused(redirects: RedirectWorld) -> None:
    code = await redirects.link("limited")
    instance = await redirects.instance(trusted=TRUSTED)
    gateway = await redirects.gateway(instance, limit=4, trusted=TRUSTED)
    # Each client comes once before: one address has one visit left, and the other three.
    headers = [f"X-Forwarded-For: 203.0.113.{last}" for last in (1, 1, 1, 2)]
    async with known_clients(gateway.port, code, headers) as clients:
        before = await redirects.clicks()
        answers = await together(redirects, clients, [f"/{code}"] * 4, headers)
    # Of the three with one address, one: which of them the server reads first is nobody's promise.
    assert (sorted(answer.status for answer in answers[:3]), answers[3].status) == ([301, 429, 429], 301)
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["0", "0", "0", "2"]
    assert all("retry-after" in answer.headers for answer in answers if answer.status == 429)
    assert len(await redirects.clicks(before)) == 3  # two of these, and the one before which they waited


def dated(answer: Answer) -> datetime:
    """The moment that an answer names, to the second."""
    return parsedate_to_datetime(answer.headers["date"])


@pytest.mark.parametrize("durability", ["commit", "async"])
async def test_a_click_and_its_answer_are_of_their_own_moments(
    redirects: RedirectWorld, durability: Durability
) -> None:
    code = await redirects.link("dated")
    instance = await redirects.instance(durability=durability)
    async with known_clients(instance.fast.port, code, ["X: 1"]) as [client]:
        await eventually(redirects.clicks)
        before = await redirects.clicks()
        redirects.clock.advance(5.5)
        answer = await client.get(f"/{code}", "X: 1")
        [click] = await eventually(partial(redirects.clicks, before))
    assert click.occurred_at == START + timedelta(seconds=5.5)
    assert dated(answer) == START + timedelta(seconds=5)


async def test_an_answer_has_the_date_of_its_leaving(redirects: RedirectWorld) -> None:
    code = await redirects.link("late")
    instance = await redirects.instance()
    async with known_clients(instance.fast.port, code, ["X: 1"]) as [client]:
        before = await redirects.clicks()
        redirects.guarded.open.clear()
        await client.send(head("GET", f"/{code}", "X: 1"))
        await eventually(lambda: redirects.guarded.waiting)
        redirects.clock.advance(1.5)
        redirects.guarded.open.set()
        answer = await client.answer()
        [click] = await redirects.clicks(before)
    assert click.occurred_at == START
    assert dated(answer) == START + timedelta(seconds=1)


async def test_who_is_refused_is_told_the_date_of_now(redirects: RedirectWorld) -> None:
    code = await redirects.link("refused")
    gateway = await redirects.gateway(await redirects.instance(), limit=1)
    async with known_clients(gateway.port, code, ["X: 1"]) as [client]:
        redirects.clock.advance(7)
        answer = await client.get(f"/{code}", "X: 1")
    assert answer.status == 429
    assert dated(answer) == START + timedelta(seconds=7)


@pytest.mark.parametrize("durability", ["commit", "async"])
async def test_what_goes_wrong_is_an_error_and_no_click(
    redirects: RedirectWorld, durability: Durability, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = await redirects.link("wrong")
    instance = await redirects.instance(durability=durability)
    async with known_clients(instance.fast.port, code, ["X: 1"]) as [client]:
        await eventually(redirects.clicks)
        before = await redirects.clicks()
        with monkeypatch.context() as broken:
            broken.setattr(gathering, "_AND_CORRELATED", None)
            assert (await client.get(f"/{code}", "X: 1")).status == 500
        assert "redirects failed" in caplog.text
        assert (await client.get(f"/{code}", "X: 1")).status == 301

    async def counted() -> bool:
        return len(await redirects.clicks(before)) == 1

    await eventually(counted)


async def test_a_known_client_may_ask_for_what_is_not_known_yet(redirects: RedirectWorld) -> None:
    code, other = await redirects.link("first"), await redirects.link("other", "https://example.com/other")
    instance = await redirects.instance()
    header = "Accept: text/html"
    async with known_clients(instance.fast.port, code, [header]) as [client]:
        before = await redirects.clicks()
        assert (await client.get(f"/{other}", header)).headers["location"] == "https://example.com/other"
        for absent in (redirects.code("absent"), redirects.code("absent")):
            answer = await client.get(f"/{absent}", header)
            assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert (await client.get("/health", header)).status == 200
        assert (await client.get(f"/{code}?a=b", header)).status == 301
    clicks = await redirects.clicks(before)
    assert [(click.short_code, click.query) for click in clicks] == [(other, ""), (code, "a=b")]
