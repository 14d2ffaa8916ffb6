"""GET /me has the same answer, log line and measurement on the fast path and through the application."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from refract.runtime.edge import Receive, Scope, Send, answer
from refract.runtime.request_log import flush_request_logs
from refract.runtime.server import HttpServer
from tests.support.http import running
from tests.support.identity import EMAIL, ON_SQLITE, IdentityWorld, identity, identity_location
from tests.support.redirects import CLOSE, LAST, asked, converse, exchange, masked

__all__ = ["identity", "identity_location"]

pytestmark = ON_SQLITE

USER_ID = "6f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9"
TWICE = (b"X-Some: field", b"x-some: again")
"""A field that comes twice is for the application, and makes no difference to what it says."""


@dataclass
class Twins:
    """Two servers before one identity, the first with the fast path."""

    world: IdentityWorld
    fast: HttpServer
    slow: HttpServer
    token: bytes

    @property
    def bearer(self) -> bytes:
        """The field of somebody with a good token."""
        return b"Authorization: Bearer " + self.token

    async def compare(self, sent: bytes) -> bytes:
        """Send the same to both; gives the answer."""
        fast, slow = [masked(await exchange(server, sent)) for server in (self.fast, self.slow)]
        assert fast == slow, sent
        return fast


@pytest.fixture
async def twins(identity: IdentityWorld, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Twins]:
    """Both, with a token that either accepts."""
    caplog.set_level(logging.INFO)
    await identity.serve()
    async with AsyncExitStack() as stack:
        application = identity.service.application
        fast = await stack.enter_async_context(running(application, fast_path=identity.service.fast_path))
        slow = await stack.enter_async_context(running(application))
        yield Twins(identity, fast, slow, identity.signer.sign(USER_ID, EMAIL).token.encode())


async def test_it_says_who_a_token_speaks_for(twins: Twins) -> None:
    answered = await twins.compare(asked("/me", twins.bearer, CLOSE))
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answered.endswith(b'{"user_id":"%b","email":"%b"}' % (USER_ID.encode(), EMAIL.encode()))
    assert b"cache-control: no-store\r\n" in answered


async def test_it_does_not_ask_the_application(twins: Twins) -> None:
    async def elsewhere(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 418, b"{}")

    async with running(elsewhere, fast_path=twins.world.service.fast_path) as server:
        answers = await converse(server, [asked("/me", twins.bearer)] * 5)
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 5


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (b"X-Correlation-ID: mine",),
        (b"X-Correlation-ID: two words", b"Accept: text/html"),
        (b"X-Correlation-ID: " + b"x" * 300,),
        (b"X-Correlation-ID: \xff",),
        (b"Cookie: session=other",),
        (b"X-Forwarded-For: 203.0.113.7", b"Accept-Encoding: gzip"),
        TWICE,
        (b"X-Correlation-ID: one", b"X-Correlation-ID: two"),
    ],
)
async def test_whatever_else_is_sent(twins: Twins, fields: tuple[bytes, ...]) -> None:
    answered = await twins.compare(asked("/me", twins.bearer, *fields, CLOSE))
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "proof",
    [
        b"X-None: at all",
        b"Authorization: Bearer ",
        b"Authorization: bearer a.b.c",
        b"Authorization: Bearer a.b.c",
        b"Authorization: Bearer \xff",
        b"Authorization: Bearer " + b"x" * 9_000,
        b"Authorization: Basic YTpi",
    ],
)
async def test_without_a_good_token_it_is_the_applications(twins: Twins, proof: bytes) -> None:
    assert (await twins.compare(asked("/me", proof, CLOSE))).startswith(b"HTTP/1.1 401 ")


async def test_two_tokens_are_looked_at_by_the_application(twins: Twins) -> None:
    await twins.compare(asked("/me", twins.bearer, b"Authorization: Bearer a.b.c", CLOSE))
    await twins.compare(asked("/me", b"Authorization: Bearer a.b.c", twins.bearer, CLOSE))


@pytest.mark.parametrize("target", ["/me?", "/me?x=1", "/me/", "//me", "/ME", "/m%65", "/me#", "/health", "/nowhere"])
async def test_other_targets(twins: Twins, target: str) -> None:
    await twins.compare(asked(target, twins.bearer, CLOSE))


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "PATCH"])
async def test_other_methods(twins: Twins, method: str) -> None:
    await twins.compare(asked("/me", twins.bearer, CLOSE, method=method))


async def test_somebody_who_repeats_himself_and_asks_for_other_things_in_between(twins: Twins) -> None:
    parts = [
        *[asked("/me", twins.bearer)] * 3,
        asked("/health", twins.bearer),
        asked("/me", twins.bearer),
        asked("/me", twins.bearer, b"X-Correlation-ID: mine"),
        asked("/me", b"Authorization: Bearer a.b.c"),
        asked("/me", b"Authorization: Bearer a.b.c"),
        asked("/me", twins.bearer) * 3,
        LAST,
    ]
    fast, slow = [[masked(answer) for answer in await converse(server, parts)] for server in (twins.fast, twins.slow)]
    assert fast == slow
    assert [answer.split(b" ")[1] for answer in fast] == [b"200"] * 6 + [b"401"] * 2 + [b"200"] * 4


async def test_a_token_that_has_expired_since_is_refused(twins: Twins) -> None:
    async with running(twins.world.service.application, fast_path=twins.world.service.fast_path) as server:
        first = await exchange(server, asked("/me", twins.bearer, CLOSE))
        twins.world.clock.advance(24 * 3600)
        second = await exchange(server, asked("/me", twins.bearer, CLOSE))
    assert [answer[:12] for answer in (first, second)] == [b"HTTP/1.1 200", b"HTTP/1.1 401"]


async def test_it_is_logged_and_measured_alike(twins: Twins, caplog: pytest.LogCaptureFixture) -> None:
    for server in (twins.fast, twins.slow):
        await exchange(server, asked("/me", twins.bearer, CLOSE))
    flush_request_logs()
    lines = [vars(record) for record in caplog.records if record.getMessage() == "request completed"]
    seen = [[line[name] for name in ("method", "path", "status")] for line in lines]
    assert seen == [["GET", "/me", 200]] * 2
    labels = {"service": "user-service", "method": "GET", "route": "/me", "status": "200"}
    assert twins.world.metrics.registry.get_sample_value("http_requests_total", labels) == 2
