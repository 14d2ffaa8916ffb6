"""Links behind four doors that have to give the same bytes: with the fast path and without, own port and gateway's."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.events import EventDecoder
from refract.runtime.client_address import Network, hashes_with
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Cache, Database, RateLimiter
from refract.runtime.server import HttpServer
from refract.runtime.service import Foundation, Service
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http.counting import Limits
from refract.services.gateway.service import build_gateway
from refract.services.links.api import UrlClicked
from refract.services.links.domain.link import Link, Owner
from refract.services.links.redirect import fast as fast_module
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.service import build_links
from refract.services.links.settings import Durability, LinksSettings
from tests.support.clicks import GuardedDatabase
from tests.support.clocks import ManualClock
from tests.support.databases import Location
from tests.support.http import PATIENCE, Answer, Client, running
from tests.support.links import ALICE, BASE_URL, SECRET, keep, some_link, token_for
from tests.support.outboxes import OUTBOX
from tests.support.redis_twins import PATIENT, connected, shared_cache
from tests.support.worlds import buses_beside
from tests.support.worlds import running as tasks_running

SALT = "salt-of-tests"
DECODER = EventDecoder(UrlClicked)

_ids = iter(range(1, 1_000_000))


@dataclass
class Instance:
    """One process of links: with the fast path at `fast`, and at `slow` the same application without it."""

    service: Service
    fast: HttpServer
    slow: HttpServer
    cache: Cache


@dataclass
class RedirectWorld:
    """A database, a clock that stands still, and as many instances as a test opens."""

    location: Location
    database: Database
    clock: ManualClock
    request: pytest.FixtureRequest
    stack: AsyncExitStack
    channel: str
    notes: list[str] = field(default_factory=list)
    prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    """Codes begin with it: tests share a Redis, in which a code is a key."""
    redis_address: str = ""
    redis_deadline: float = PATIENT

    def __post_init__(self) -> None:
        self.guarded = GuardedDatabase(self.database, self.notes)

    async def instance(
        self,
        *,
        durability: Durability = "commit",
        trusted: Sequence[Network] = (),
        sample: float = 0.0,
        cache: Cache | None = None,
    ) -> Instance:
        """Another process of links on the same database."""
        cache = cache or await self.cache()
        spool = Path(self.request.getfixturevalue("tmp_path")) / f"spool-{next(_ids)}"
        settings = LinksSettings(BASE_URL, SALT, spool, click_durability=durability, redirect_log_sample=sample)
        buses = buses_beside(self.location, self.request)
        self.stack.push_async_callback(buses.close)
        foundation = Foundation(
            self.guarded,
            await buses.open(),
            self.clock,
            Metrics(),
            TokenVerifier([SECRET], self.clock),
            timedelta(days=7),
            trusted_proxies=trusted,
        )
        service = await build_links(foundation, settings, cache, EmbeddedRateLimiter())
        clicks = next(task for task in service.tasks if task.name == "clicks")
        if clicks.drain is not None:
            self.stack.push_async_callback(clicks.drain)
        await self.stack.enter_async_context(tasks_running(clicks.run))
        fast = await self.stack.enter_async_context(running(service.application, fast_path=service.fast_path))
        slow = await self.stack.enter_async_context(running(service.application))
        return Instance(service, fast, slow, cache)

    async def cache(self) -> Cache:
        """The cache of this mode; on one Redis every process has its own connection."""
        if isinstance(self.location, Path):
            return EmbeddedCache(self.clock)
        address = self.redis_address or self.request.getfixturevalue("redis_address")
        redis = await self.stack.enter_async_context(connected(address, deadline=self.redis_deadline))
        return await self.stack.enter_async_context(shared_cache(redis, self.channel))

    def code(self, name: str) -> str:
        """A code that no other test has."""
        return f"{self.prefix}-{name}"

    async def link(self, name: str, url: str = "https://example.com/", *, owner: Owner = ALICE, **fields: Any) -> str:
        """Put a link into the database, past every check; gives its code."""
        code = fields.pop("short_code", self.code(name))
        await keep(self.database, some_link(next(_ids), owner, short_code=code, original_url=url, **fields))
        return str(code)

    async def keep(self, link: Link) -> None:
        """Put any link into the database."""
        await keep(self.database, link)

    async def clicks(self, known: Sequence[UrlClicked] = ()) -> list[UrlClicked]:
        """Every click so far but those that are known, as a reader decodes it; of one millisecond in any order."""
        ids = {click.event_id for click in known}
        rows = await self.database.fetch(OUTBOX)
        return [
            event
            for row in rows
            if row["event_type"] == "url.clicked"
            for event in DECODER.decode(row["event_type"], row["payload"].encode())
            if isinstance(event, UrlClicked) and event.event_id not in ids
        ]

    async def manage(self, instance: Instance, method: str, target: str, body: Any = None) -> Answer:
        """A request of Alice's to the API of an instance."""
        authorization = f"Authorization: Bearer {token_for(ALICE, self.clock)}"
        async with await Client.connect(instance.fast.port) as client:
            if body is None:
                return await client.get(target, authorization, method=method)
            return await client.post(target, msgspec.json.encode(body), authorization, method=method)

    async def gateway(
        self,
        instance: Instance,
        limiter: RateLimiter | None = None,
        *,
        limit: int = 0,
        trusted: Sequence[Network] = (),
        with_fast_path: bool = True,
    ) -> HttpServer:
        """The gateway before an instance in the same process, as embedded mode wires it."""
        limiter = limiter or EmbeddedRateLimiter(self.clock)
        limits = Limits(limiter, RouteLimits({"redirect": limit}, hashes_with(SALT)))
        assert isinstance(instance.service.fast_path, FastRedirect)
        gateway = build_gateway(
            InProcess({"links": instance.service.application}),
            tokens=TokenVerifier([SECRET], self.clock),
            limits=limits,
            redirects=instance.service.fast_path.at_gateway(limits.admission()),
            trusted_proxies=trusted,
        )
        fast_path = gateway.fast_path if with_fast_path else None
        return await self.stack.enter_async_context(running(gateway.application, fast_path=fast_path))


@asynccontextmanager
async def redirect_world(
    database: Database,
    location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> AsyncIterator[RedirectWorld]:
    """A world on a migrated database."""
    clock = ManualClock()
    # The hot path reads the process's clock itself, to save a call; here its freshness has to go by the test's clock.
    monkeypatch.setattr(fast_module, "monotonic", clock.monotonic)
    # A stall of our own is not to look like a silent database.
    monkeypatch.setattr(lookup_module, "DATABASE_DEADLINE", 30.0)
    async with AsyncExitStack() as stack:
        channel = f"dropped-{secrets.token_hex(6)}"
        yield RedirectWorld(location, database, clock, request, stack, channel, **options)


@pytest.fixture
async def redirects(
    database: Database,
    database_location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[RedirectWorld]:
    """A world in both modes."""
    async with redirect_world(database, database_location, request, monkeypatch) as world:
        yield world


# What a server writes for bytes that a client sends.


async def exchange(server: HttpServer, sent: bytes) -> bytes:
    """Everything that comes back for these bytes until the server closes, which the last request has to ask for."""
    async with await Client.connect(server.port) as client:
        await client.send(sent)
        received = b""
        while part := await client.reader.read(65_536):
            received += part
        return received


async def converse(server: HttpServer, parts: Sequence[bytes]) -> list[bytes]:
    """Send parts one by one on one connection, each when the whole requests before it are answered; the answers.

    No request may have a body.
    """
    answers: list[bytes] = []
    sent = b""
    async with await Client.connect(server.port) as client, asyncio.timeout(PATIENCE):
        for part in parts:
            await client.send(part)
            sent += part
            unanswered = sent.split(_END)[len(answers) : -1]
            if not unanswered:
                await asyncio.sleep(0.01)  # there is no answer to wait for, and the next part is to come by itself
            for asked in unanswered:
                try:
                    answers.append(await _raw_answer(client, to_head=asked.startswith(b"HEAD")))
                except asyncio.IncompleteReadError as error:
                    return [*answers, b"the end: " + error.partial]
    return answers


async def _raw_answer(client: Client, *, to_head: bool) -> bytes:
    head = await client.reader.readuntil(_END)
    length = re.search(rb"content-length: (\d+)", head)
    return head + (b"" if to_head or length is None else await client.reader.readexactly(int(length[1])))


_END = b"\r\n\r\n"


def asked(target: str | bytes, *headers: bytes, method: str = "GET", version: str = "1.1") -> bytes:
    """The head of a request."""
    raw = target.encode("latin-1") if isinstance(target, str) else target
    lines = (b"%b %b HTTP/%b" % (method.encode(), raw, version.encode()), b"Host: test", *headers, b"", b"")
    return b"\r\n".join(lines)


CLOSE = b"Connection: close"
LAST = asked("/health", CLOSE)
"""A last request, by which a connection ends."""

_DATE = re.compile(rb"(?m)^date: [^\r]*\r\n")
_OWN_ID = re.compile(rb"(?m)^x-correlation-id: [0-9a-f-]{36}\r\n")


def masked(answer: bytes) -> bytes:
    """An answer without its date, and without a correlation id that we made: those have another form than a test's."""
    return _OWN_ID.sub(b"x-correlation-id: made\r\n", _DATE.sub(b"date: now\r\n", answer))


_REST = re.compile(rb"(?m)^(x-ratelimit-remaining: |ratelimit: \"redirect\";r=)\d+")


def without_rest(answer: bytes) -> bytes:
    """An answer without what is left of the limit: of a pipeline, the fast path counts first what it can answer."""
    return _REST.sub(rb"\1some", answer)


def words(click: UrlClicked) -> dict[str, Any]:
    """What two clicks of the same request have in common."""
    fields: dict[str, Any] = msgspec.to_builtins(click)
    if re.fullmatch("[0-9a-f-]{36}", fields["correlation_id"]):
        fields["correlation_id"] = "made"
    del fields["event_id"]
    return fields
