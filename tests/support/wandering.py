"""Clients that do everything that can be done at the front door, right and wrong, from addresses that are known."""

import asyncio
import contextlib

from tests.support.http import head
from tests.support.platforms import Platform
from tests.support.traces import Strangers

Client = tuple[str, tuple[str, ...]]
"""Where somebody sends from, and what they say of where they are."""


def clients_of(strangers: Strangers) -> list[Client]:
    """Everybody whose address is known, in every way in which it can be."""
    proxy = "127.0.0.1"
    return [
        (strangers.peer(), ()),
        (proxy, (f"X-Forwarded-For: {strangers.behind_proxy()}",)),
        (proxy, (f"X-Forwarded-For: {strangers.behind_proxy()}:4711",)),
        (proxy, (f"X-Forwarded-For: ::ffff:{strangers.behind_proxy()}",)),
        (proxy, (f"X-Forwarded-For: {strangers.behind_proxy_6()}",)),
        (proxy, (f"X-Forwarded-For: [{strangers.behind_proxy_6().upper()}]:443",)),
        (proxy, (f"X-Forwarded-For: unknown, {strangers.behind_proxy()}",)),
        # Nobody believes this one, and it says where somebody is all the same.
        (strangers.peer(), (f"X-Forwarded-For: {strangers.behind_proxy()}", f"X-Real-IP: {strangers.behind_proxy()}")),
        (strangers.peer(), (f'Forwarded: for="[{strangers.behind_proxy_6()}]"',)),
    ]


async def wander(platform: Platform, client: Client, code: str, agent: str) -> int:
    """Everything that somebody can do at the door, right and wrong; how many of it are clicks."""
    source, headers = client
    own = (*headers, f"User-Agent: {agent}")
    clicks = 0
    for method, target, expected in (
        ("GET", f"/r/{code}", {301}),
        ("GET", f"/{code}?utm_source=somewhere", {301}),
        ("HEAD", f"/r/{code}", {301}),
        ("GET", "/r/absent", {404}),
        ("GET", "/no/such/page", {404}),
        ("GET", "/api/urls", {401}),
        ("GET", f"/api/stats/{code}", {200}),
        ("DELETE", "/api/urls/absent", {401}),
        ("BREW", "/", {400, 404, 405, 501}),
    ):
        answer = await platform.call(method, target, None, *own, source=source)
        assert answer.status in expected, (method, target, answer)
        clicks += method == "GET" and answer.status == 301
    for target, body in (
        ("/api/auth/register", {"email": "nobody"}),
        ("/api/auth/reset", {"email": "nobody@example.com"}),
        ("/api/shorten", {"url": "javascript:alert(1)"}),
    ):
        answer = await platform.call("POST", target, body, *own, source=source)
        assert answer.status in {202, 204, 400, 401}, (target, answer)
    await misbehave(platform.port, source, own)
    return clicks


async def fail_to_sign_in(platform: Platform, *clients: Client) -> None:
    """Which is counted for the account and for the address."""
    for source, headers in clients:
        credentials = {"email": "nobody@example.com", "password": "wrong"}
        answer = await platform.call("POST", "/api/auth/login", credentials, *headers, source=source)
        assert answer.status == 401


async def misbehave(port: int, source: str, headers: tuple[str, ...]) -> None:
    """What no client should send."""
    for request in (
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        head("GET", "/r/x", *headers, f"X-Long: {'x' * 100_000}"),
        head("POST", "/api/shorten", *headers, "Content-Length: nonsense"),
        head("POST", "/api/auth/login", *headers, "Content-Length: 1000") + b"{",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write(request)
        with contextlib.suppress(TimeoutError, ConnectionError):  # it may wait for the rest, or hang up
            async with asyncio.timeout(0.3):
                await reader.read()
        writer.transport.abort()


async def wear_out(platform: Platform, source: str, code: str, limit: int) -> int:
    """Come more often than anybody may; how many of it were clicks."""
    statuses = [(await platform.call("GET", f"/r/{code}", source=source)).status for _ in range(limit + 2)]
    assert statuses == [301] * limit + [429] * 2
    return limit
