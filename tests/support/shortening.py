"""All that shortening needs in a test, in the open: what it wrote, dropped and counted can be looked at."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from refract.kernel.ids import Snowflakes
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.links.commands.bulk import BulkShortening
from refract.services.links.commands.making import LinkMaker
from refract.services.links.commands.remembering import Answer
from refract.services.links.commands.shortening import Shortening
from refract.services.links.domain.codes import code_source
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.domain.drafts import Wish, WishRow
from refract.services.links.domain.link import Link, Owner
from refract.services.links.http.bodies import BulkBody, read_row, read_rows
from tests.support.clocks import ManualClock
from tests.support.outboxes import OUTBOX

BASE_URL = "https://short.example"
ANNA = Owner("6a1f0a52-6f55-4f39-9c8e-2d9d0d5a7f01", "anna@example.com")
BORIS = Owner("6a1f0a52-6f55-4f39-9c8e-2d9d0d5a7f02", "boris@example.com")

LINKS = Statement("links", "Reads all links.", "SELECT * FROM links ORDER BY id")
TAGS = Statement("tags", "Reads all tags.", "SELECT * FROM link_tags ORDER BY link_id, tag")
KEYS = Statement("keys", "Reads all keys.", "SELECT * FROM idempotency_keys ORDER BY caller, key, part")


class Blocklist:
    """A safety check that knows what it is told, and notes what it was asked."""

    def __init__(self) -> None:
        self.threats: dict[str, str] = {}
        self.asked: list[list[str]] = []

    async def check(self, urls: Sequence[str]) -> Mapping[str, str]:
        self.asked.append(list(urls))
        return {url: self.threats[url] for url in urls if url in self.threats}


class FailingDatabase:
    """A database whose commits fail from the n-th transaction on, as in a crash; what was committed before stays."""

    def __init__(self, database: Database, *, commits: int) -> None:
        self._database = database
        self._left = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield tx
            self._count()

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """A transaction of its own."""
        self._count()
        return await self._database.post(*messages, held=held)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Crash


class Crash(Exception):
    """The process is gone."""


def sent(row: object) -> WishRow:
    """A row as a client sends it."""
    return read_row(msgspec.Raw(msgspec.json.encode(row)))


def render(link: Link) -> bytes:
    """A link as JSON; its version and its number show whether an answer was made anew."""
    return msgspec.json.encode({"short_code": link.short_code, "id": link.id, "version": link.version})


@dataclass
class Workshop:
    """One database, and what shortens on it."""

    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    metrics: Metrics = field(default_factory=Metrics)
    safety: Blocklist = field(default_factory=Blocklist)
    dropped: list[str] = field(default_factory=list)
    bulk_limit: int = 0

    def __post_init__(self) -> None:
        self.cache = EmbeddedCache(self.clock)
        self.limiter = EmbeddedRateLimiter(self.clock)
        self.cache.on_invalidation(self.dropped.extend, lambda: None)
        self.maker = LinkMaker(
            own=OwnDomains.of(BASE_URL, ()),
            normalization="rfc3986",
            stats_public=True,
            ids=Snowflakes(0, self.clock).next,
            codes=code_source("random"),
            clock=self.clock,
        )

    @property
    def shortening(self) -> Shortening:
        return Shortening(
            database=self.database,
            cache=self.cache,
            maker=self.maker,
            safety=self.safety,
            metrics=self.metrics,
            render=render,
        )

    @property
    def bulk(self) -> BulkShortening:
        return BulkShortening(
            database=self.database,
            cache=self.cache,
            maker=self.maker,
            safety=self.safety,
            metrics=self.metrics,
            base_url=BASE_URL,
            limiter=self.limiter,
            limit=self.bulk_limit,
        )

    def with_codes(self, codes: Iterable[str]) -> None:
        """Generate these codes, one after the other."""
        following: Iterator[str] = iter(codes)
        self.maker = replace(self.maker, codes=lambda _link_id: next(following))

    async def shorten(self, wish: Wish | str, owner: Owner = ANNA, key: str | None = None) -> Answer:
        wish = Wish(url=wish) if isinstance(wish, str) else wish
        return await self.shortening.answer(owner, wish, key)

    async def code(self, wish: Wish | str, owner: Owner = ANNA) -> str:
        answer = await self.shorten(wish, owner)
        return str(json.loads(answer.body)["short_code"])

    async def results(self, rows: Sequence[object], key: str | None = None, owner: Owner = ANNA) -> list[Any]:
        """The results of a bulk request."""
        body = msgspec.json.decode(msgspec.json.encode({"urls": rows}), type=BulkBody)
        answer = await self.bulk.answer(owner, await read_rows(body), key)
        assert answer.status == 200
        results: list[Any] = json.loads(answer.body)["results"]
        return results

    async def links(self) -> list[Row]:
        return await self.database.fetch(LINKS)

    async def tags(self) -> list[Row]:
        return await self.database.fetch(TAGS)

    async def keys(self) -> list[Row]:
        return await self.database.fetch(KEYS)

    async def events(self, event_type: str | None = None) -> list[dict[str, Any]]:
        """What was announced, in its order."""
        rows = await self.database.fetch(OUTBOX)
        return [json.loads(row["payload"]) for row in rows if event_type in {None, row["event_type"]}]

    def hits(self, by: str) -> float:
        return self.metrics.registry.get_sample_value("idempotency_hits_total", {"by": by}) or 0.0

    async def check_each_link_was_announced_once(self) -> None:
        created = [event["short_code"] for event in await self.events("url.created")]
        assert sorted(created) == sorted(row["short_code"] for row in await self.links())


async def at_once(*works: Any) -> list[Any]:
    """Run all at the same time; what one raises is raised."""
    return list(await asyncio.gather(*works))
