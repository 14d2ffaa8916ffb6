"""The HTTP face of links in one mode: a real server on a migrated database, a bus, a cache, and users with tokens."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from refract.kernel.errors import Unavailable
from refract.kernel.ids import Snowflakes
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Cache, Database
from refract.runtime.server import ServerLimits
from refract.runtime.service import Foundation, compose
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenVerifier
from refract.services.links.api import WIRE_NAME
from refract.services.links.commands.bulk import BulkShortening
from refract.services.links.commands.making import LinkMaker
from refract.services.links.commands.managing import Managing
from refract.services.links.commands.shortening import Shortening
from refract.services.links.domain.codes import code_source
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.domain.link import Link, Owner
from refract.services.links.http.routes import link_routes
from refract.services.links.queries.links import LinkQueries
from refract.services.links.queries.views import LinkViews
from refract.services.links.settings import LinksSettings
from refract.services.links.store import COLUMNS, parameters_of
from tests.support.caches import OwnKeys
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location
from tests.support.http import Answer, Client, running
from tests.support.outboxes import OUTBOX
from tests.support.redis_twins import connected, shared_cache
from tests.support.worlds import buses_beside

SECRET = "the secret of identity, 32 bytes."
BASE_URL = "https://sho.rt"
ALICE = Owner("550e8400-e29b-41d4-a716-446655440000", "alice@example.com")
BOB = Owner("550e8400-e29b-41d4-a716-446655440001", "bob@example.com")

LINKS = Statement("links", "Counts the links.", "SELECT count(*) AS links FROM links")


def some_link(number: int, owner: Owner = ALICE, **changes: Any) -> Link:
    """A link as it may lie in the database, the newer the greater its number."""
    made = START + timedelta(seconds=number)
    fields: dict[str, Any] = {
        "id": number,
        "short_code": f"code-{number}",
        "original_url": f"https://example.com/{number}",
        "workspace_id": owner.workspace_id,
        "created_by": owner.user_id,
        "owner_email": owner.email,
        "created_at": made,
        "updated_at": made,
        "stats_public": True,
    }
    return Link(**{**fields, **changes})


async def keep(database: Database, *kept: Link) -> None:
    """Put links into the database, past every check."""
    rows = [tuple(parameters_of(link).values()) for link in kept]
    tags = [(link.workspace_id, tag, link.id) for link in kept for tag in link.tags]
    async with database.transaction() as tx:
        await tx.insert_many("links", COLUMNS, rows)
        await tx.insert_many("link_tags", ("workspace_id", "tag", "link_id"), tags)


def token_for(owner: Owner, clock: ManualClock, **changes: Any) -> str:
    """A token as identity signs it, unless something is changed."""
    now = int(clock.now().timestamp())
    claims = {"sub": owner.user_id, "email": owner.email, "iat": now, "exp": now + 86_400, "iss": "url-shortener"}
    return jwt.encode({"alg": "HS256"}, {**claims, **changes}, OctKey.import_key(SECRET), algorithms=["HS256"])


def said(answer: Answer) -> tuple[int, Any]:
    """The status, and the message of an error."""
    return answer.status, answer.json.get("error") if answer.body else None


async def refused(links: "LinksWorld", method: str, target: str, cases: dict[Any, str]) -> None:
    """Each body gets 400 and its message."""
    answers = {body: await links.call(method, target, body) for body in cases}
    assert {body: said(answer) for body, answer in answers.items()} == {body: (400, cases[body]) for body in cases}
    assert {answer.headers["content-type"] for answer in answers.values()} == {"application/json"}


class Blocklist:
    """A safety check whose list the test writes: threats by URL. It notes what it was asked, and can be away."""

    def __init__(self) -> None:
        self.threats: dict[str, str] = {}
        self.asked: list[str] = []
        self.away = False

    async def check(self, urls: Any) -> Mapping[str, str]:
        """Those that are on the list."""
        self.asked.extend(urls)
        if self.away:
            raise Unavailable("safety check", "nobody answers")
        return {url: self.threats[url] for url in urls if url in self.threats}


@dataclass
class LinksWorld:
    """A server, and all that stands behind it."""

    database: Database
    cache: Cache
    clock: ManualClock
    settings: LinksSettings
    safety: Blocklist
    views: LinkViews
    queries: LinkQueries
    managing: Managing
    shortening: Shortening
    port: int = 0

    async def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *headers: str,
        owner: Owner | None = ALICE,
    ) -> Answer:
        """One request in the name of a user; bytes are sent as they are, anything else as JSON."""
        lines = list(headers)
        if owner is not None:
            lines.append(f"Authorization: Bearer {self.token(owner)}")
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
            return await client.post(target, sent, *lines, method=method)

    def token(self, owner: Owner) -> str:
        """A good token of a user, now."""
        return token_for(owner, self.clock)

    async def create(self, url: str = "https://example.com/", *, owner: Owner = ALICE, **options: Any) -> Any:
        """A new link, as the answer tells it."""
        answer = await self.call("POST", "/shorten", {"url": url, "force_new": True, **options}, owner=owner)
        assert answer.status == 201, answer.body
        return answer.json

    async def events(self, short_code: str = "") -> list[dict[str, Any]]:
        """What was announced, in its order, of one link or of all."""
        payloads = [msgspec.json.decode(row["payload"]) for row in await self.database.fetch(OUTBOX)]
        return [payload for payload in payloads if short_code in {"", payload["short_code"]}]

    async def count(self) -> int:
        """How many links there are."""
        row = await self.database.fetch_one(LINKS)
        assert row is not None
        return int(row["links"])


async def _build(
    stack: AsyncExitStack, database: Database, cache: Cache, clock: ManualClock, request: pytest.FixtureRequest
) -> LinksWorld:
    location: Location = request.getfixturevalue("database_location")
    settings = LinksSettings(base_url=BASE_URL, click_salt="salt-of-tests", spool=Path("spool"))
    metrics, safety, tokens = Metrics(), Blocklist(), TokenVerifier([SECRET], clock)
    own, views = OwnDomains.of(settings.base_url, settings.short_domains), LinkViews(settings.base_url, clock)
    ids, codes = Snowflakes(0, clock).next, code_source(settings.code_strategy)
    maker = LinkMaker(own, settings.url_normalization, settings.stats_public, ids, codes, clock)
    making: dict[str, Any] = {
        "database": database,
        "cache": cache,
        "maker": maker,
        "safety": safety,
        "metrics": metrics,
    }
    queries, managing = LinkQueries(database, clock, views), Managing(database, cache, clock, safety)
    shortening = Shortening(**making, render=views.render)
    routes = link_routes(
        shortening=shortening,
        bulk=BulkShortening(
            **making, base_url=settings.base_url, limiter=EmbeddedRateLimiter(clock), limit=settings.bulk_limit
        ),
        managing=managing,
        queries=queries,
        views=views,
        own=own,
        clock=clock,
        tokens=tokens,
    )
    buses = buses_beside(location, request)
    stack.push_async_callback(buses.close)
    foundation = Foundation(database, await buses.open(), clock, metrics, tokens, timedelta(days=7))
    service = compose(WIRE_NAME, foundation, routes=routes)
    limits = ServerLimits(body=8 * 1024 * 1024, receive=60, send=60)
    server = await stack.enter_async_context(running(service.application, limits=limits))
    return LinksWorld(database, cache, clock, settings, safety, views, queries, managing, shortening, port=server.port)


@pytest.fixture
async def links(
    database: Database, database_location: Location, request: pytest.FixtureRequest, redis_namespace: str
) -> AsyncIterator[LinksWorld]:
    """The face of links in both modes. The clock stands still until a test turns it."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        cache: Cache = EmbeddedCache(clock)
        if not isinstance(database_location, Path):
            redis = await stack.enter_async_context(connected(request.getfixturevalue("redis_address")))
            shared = await stack.enter_async_context(shared_cache(redis, f"{redis_namespace}dropped"))
            cache = OwnKeys(shared, redis_namespace)
        yield await _build(stack, database, cache, clock, request)
