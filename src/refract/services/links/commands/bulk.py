"""Shortens up to a thousand URLs in one request: a transaction for each hundred, and a result for every row."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from refract.kernel.errors import Invalid, RefractError
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Cache, Database, RateLimiter, Transaction
from refract.runtime.web import STATUSES
from refract.runtime.windows import OverLimit, Policy
from refract.services.links.commands.making import (
    ATTEMPTS,
    InTheWay,
    LinkMaker,
    Safety,
    cache_key,
    clear_away,
    has_outlived,
)
from refract.services.links.commands.remembering import Answer, KeyedRequest, Memory
from refract.services.links.domain.drafts import Draft, Unsafe, Wish, WishRow
from refract.services.links.domain.link import CodesExhausted, CodeTaken, Link, Owner
from refract.services.links.store import Links, find_by_keys

log = logging.getLogger(__name__)

ROUTE = "shorten/bulk"
ROWS = 1_000
CHUNK = 100
"""Rows in one transaction; a remembered part is one chunk, so that another number forgets what was half done."""
DRAFTS_AT_ONCE = 10
"""Long hosts beyond ASCII take half a millisecond each."""
COUNTED = 0
"""The first part of a remembered request, which only says that its rows were counted; the chunks follow."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one row, counted from 1."""

    row: int
    status: int
    short_code: str = ""
    short_url: str = ""
    error: str = ""


@dataclass(slots=True, eq=False)
class _Wanted:
    """A link that one row asks for, or several with the same URL; the first of them is the one that made it."""

    draft: Draft
    rows: list[int]
    link: Link | None = None
    created: bool = False
    trouble: RefractError | None = None


@dataclass(slots=True)
class _Chunk:
    """Some rows of a request: what is wrong with the bad ones, and what the others want."""

    part: int
    rows: range
    troubles: dict[int, RefractError] = field(default_factory=dict)
    drafts: dict[int, Draft] = field(default_factory=dict)


class BulkShortening:
    """Makes many links at once."""

    def __init__(
        self,
        *,
        database: Database,
        cache: Cache,
        maker: LinkMaker,
        safety: Safety,
        metrics: Metrics,
        base_url: str,
        limiter: RateLimiter,
        limit: int,
    ) -> None:
        self._database = database
        self._cache = cache
        self._maker = maker
        self._safety = safety
        self._base_url = base_url
        self._limiter = limiter
        self._policy = Policy("bulk", limit, 60.0)
        self._memory = Memory(database, maker.clock)
        self._links = Links()
        self._known_url = metrics.idempotency_hits.labels("url")
        self._known_key = metrics.idempotency_hits.labels("key")

    async def answer(self, owner: Owner, rows: Sequence[WishRow], key: str | None = None) -> Answer:
        """Grant the wishes that can be granted; what is wrong with a row is said in its place.

        What a chunk did is saved with it under the key: after a crash, the same request finds that and does the rest.
        """
        request = None if key is None else KeyedRequest.of(owner.user_id, key, ROUTE, rows)
        remembered = {} if request is None else await self._memory.recall(request)
        if not remembered:
            await self._count_once(owner, len(rows), request)
        chunks = await self._chunks(rows, remembered)
        await self._refuse_threats(chunks)
        parts = {part: answer.body for part, answer in remembered.items() if part != COUNTED}
        is_new = request is None
        for chunk in chunks:
            parts[chunk.part], made = await self._shorten(owner, chunk, request)
            is_new = is_new or made
        if not is_new:
            self._known_key.inc()
            log.info("request repeated", extra={"user_id": owner.user_id})
        results = b",".join(parts[part][1:-1] for part in sorted(parts))
        return Answer(200, b'{"results":[' + results + b"]}")

    async def _count_once(self, owner: Owner, rows: int, request: KeyedRequest | None) -> None:
        """Count the rows of a request once, however often it is sent, and however many copies of it come together.

        This is before all that costs more, and what is refused leaves nothing behind, so that it may be tried again.
        """
        if request is None:
            await self._count(owner, rows)
            return
        # Copies wait here for the end of this transaction: it is a short one, and what is done comes later.
        async with self._database.transaction() as tx:
            if await self._memory.claim(tx, request, COUNTED) is None:
                await self._count(owner, rows)

    async def _count(self, owner: Owner, rows: int) -> None:
        """Count each row against what the user may send in a minute."""
        limit = self._policy.limit
        if 0 < limit < rows:  # no minute would be long enough, and whoever waited for one would wait for ever
            raise Invalid(f"{rows} URLs in one request are more than the {limit} that may be sent in a minute")
        verdict = await self._limiter.hit(owner.user_id, self._policy, rows)
        if not verdict.allowed:
            raise OverLimit(self._policy, verdict)

    async def _chunks(self, rows: Sequence[WishRow], remembered: Mapping[int, Answer]) -> list[_Chunk]:
        """What is still to be done, checked."""
        chunks = []
        for part, start in enumerate(range(0, len(rows), CHUNK), start=COUNTED + 1):
            if part in remembered:
                continue
            chunk = _Chunk(part, range(start + 1, min(start + CHUNK, len(rows)) + 1))
            for number in chunk.rows:
                try:
                    chunk.drafts[number] = self._maker.draft(Wish.of(rows[number - 1]))
                except RefractError as trouble:
                    chunk.troubles[number] = trouble
                if number % DRAFTS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a thousand in one go would hold up redirects for many milliseconds
            chunks.append(chunk)
        return chunks

    async def _refuse_threats(self, chunks: Iterable[_Chunk]) -> None:
        urls = {draft.destination.url: None for chunk in chunks for draft in chunk.drafts.values()}
        if not urls:
            return
        threats = await self._safety.check(list(urls))
        for chunk in chunks if threats else ():
            for number, draft in list(chunk.drafts.items()):
                if draft.destination.url in threats:
                    chunk.troubles[number] = Unsafe(threats[draft.destination.url])
                    del chunk.drafts[number]

    async def _shorten(self, owner: Owner, chunk: _Chunk, request: KeyedRequest | None) -> tuple[bytes, bool]:
        """The results of a chunk as a JSON array, and whether they are ours and not those of a copy of the request."""
        while True:
            try:
                async with self._database.transaction() as tx:
                    if request is not None:
                        remembered = await self._memory.claim(tx, request, chunk.part)
                        if remembered is not None:
                            return remembered.body, False
                    wanted = await self._insert(tx, owner, chunk)
                    results = msgspec.json.encode(self._results(chunk, wanted))
                    if request is not None:
                        await self._memory.keep(tx, request, Answer(200, results), chunk.part)
            except InTheWay as obstacle:
                await clear_away(obstacle.links, database=self._database, cache=self._cache, clock=self._maker.clock)
            else:
                await self._tell(owner, wanted)
                return results, True

    async def _insert(self, tx: Transaction, owner: Owner, chunk: _Chunk) -> list[_Wanted]:
        wanted = open_wishes = self._wanted(owner, chunk)
        for attempt in range(ATTEMPTS):
            if attempt:
                for one in open_wishes:
                    one.link = self._maker.link(owner, one.draft)
            open_wishes = await self._insert_once(tx, owner, open_wishes)
            if not open_wishes:
                break
        for one in open_wishes:
            one.link, one.trouble = None, CodesExhausted()
        if open_wishes:
            extra = {"attempts": ATTEMPTS, "rows": len(open_wishes), "user_id": owner.user_id}
            log.warning("no unique short code found", extra=extra)
        await tx.announce(*(one.link.created() for one in wanted if one.link is not None and one.created))
        return wanted

    def _wanted(self, owner: Owner, chunk: _Chunk) -> list[_Wanted]:
        """The links to be made, in an order that is the same in every request.

        Each row waits for others that write its URL or its alias: URLs in order, then aliases in order, and two
        requests with the same ones can wait for each other in one direction only.
        """
        by_url: dict[bytes, _Wanted] = {}
        wanted = []
        for number, draft in chunk.drafts.items():
            link = self._maker.link(owner, draft)
            same = None if link.url_key is None else by_url.get(link.url_key)
            if same is not None:
                same.rows.append(number)
                continue
            one = _Wanted(draft, [number], link)
            wanted.append(one)
            if link.url_key is not None:
                by_url[link.url_key] = one
        return sorted(wanted, key=_order)

    async def _insert_once(self, tx: Transaction, owner: Owner, wanted: Sequence[_Wanted]) -> list[_Wanted]:
        """Insert what can be, and find what is there; returns those whose code was taken, to be tried with another."""
        links = [one.link for one in wanted if one.link is not None]
        kept = await self._links.add_many(tx, links) if links else set()
        keys = [link.url_key for link in links if link.id not in kept and link.url_key is not None]
        found = await find_by_keys(tx, owner.workspace_id, keys) if keys else {}
        outlived = [link for link in found.values() if has_outlived(link, self._maker.clock)]
        if outlived:
            raise InTheWay(*outlived)
        again = []
        for one in wanted:
            assert one.link is not None
            if one.link.id in kept:
                one.created = True
            elif one.link.url_key in found:
                one.link = found[one.link.url_key]
            elif one.draft.alias is not None:
                one.link, one.trouble = None, CodeTaken()
            else:
                again.append(one)
        return again

    def _results(self, chunk: _Chunk, wanted: Iterable[_Wanted]) -> list[Result]:
        results = {number: _refused(number, trouble) for number, trouble in chunk.troubles.items()}
        for one in wanted:
            for number in one.rows:
                if one.link is None:
                    assert one.trouble is not None
                    results[number] = _refused(number, one.trouble)
                else:
                    code = one.link.short_code
                    status = 201 if one.created and number == one.rows[0] else 200
                    results[number] = Result(
                        row=number, status=status, short_code=code, short_url=f"{self._base_url}/{code}"
                    )
        return [results[number] for number in chunk.rows]

    async def _tell(self, owner: Owner, wanted: Iterable[_Wanted]) -> None:
        """What follows after the commit."""
        known, awaited = 0, {}
        for one in wanted:
            if one.link is not None:
                known += len(one.rows) - one.created
                if one.created and self._maker.may_be_awaited(one.draft):
                    awaited[cache_key(one.link)] = one.link.version
        if known:
            self._known_url.inc(known)
            log.info("urls known", extra={"rows": known, "user_id": owner.user_id})
        if awaited:
            await self._cache.drop(awaited)


def _order(one: _Wanted) -> tuple[bool, bytes, str]:
    assert one.link is not None
    return one.link.url_key is None, one.link.url_key or b"", one.draft.alias or ""


def _refused(number: int, trouble: RefractError) -> Result:
    return Result(row=number, status=STATUSES[trouble.kind], error=trouble.message)
