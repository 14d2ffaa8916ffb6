"""Looking up links that L1 does not know, on both modes: through L2 and the database, together, once."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refract.kernel.ids import Snowflakes
from refract.runtime.caching import CacheEntry
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.ports import Cache, Database, Row
from refract.runtime.statements import Statement
from refract.services.links.domain.link import Link, Status
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.lookup import Found, Lookup
from refract.services.links.redirect.records import LinkRecord, decode_copy
from refract.services.links.store import Links
from tests.support.clocks import ManualClock
from tests.support.databases import database, database_location, empty_location
from tests.support.redis_twins import connected, shared_cache
from tests.support.waiting import eventually

__all__ = ["database", "database_location", "empty_location"]

NOW = datetime.now(UTC)
next_id = Snowflakes(0).next


def link(code: str = "", **fields: Any) -> Link:
    """A link that nobody else has."""
    code = code or secrets.token_hex(6)
    given: dict[str, Any] = {
        "id": next_id(),
        "short_code": code,
        "original_url": f"https://example.com/{code}",
        "workspace_id": "owner",
        "created_by": "owner",
        "owner_email": "owner@example.com",
        "created_at": NOW,
        "updated_at": NOW,
        "stats_public": True,
    }
    return Link(**given | fields)


def record(link: Link) -> LinkRecord:
    return LinkRecord(
        link.short_code,
        link.original_url,
        link.created_by,
        link.owner_email,
        link.status.value,
        link.expires_at,
        link.redirect_status,
        link.version,
    )


class CountingDatabase:
    """The database, with its questions counted, and held back while the gate is shut."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.questions: list[list[str]] = []
        self.read = 0
        """Questions that the database has answered, whether or not the gate has let the answers pass."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble: Exception | None = None

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        self.questions.append(parameters["codes"])
        gate = self.gate
        rows = await self._database.fetch(statement, **parameters)
        self.read += 1
        await gate.wait()
        if self.trouble is not None:
            raise self.trouble
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.fixture
async def cache(database: Database, request: pytest.FixtureRequest, redis_namespace: str) -> AsyncIterator[Cache]:
    """The cache of the mode that the database is of."""
    if database.dialect == "sqlite":
        yield EmbeddedCache()
        return
    async with (
        connected(request.getfixturevalue("redis_address")) as redis,
        shared_cache(redis, redis_namespace) as shared,
    ):
        yield shared


@pytest.fixture
def counting(database: Database) -> CountingDatabase:
    return CountingDatabase(database)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture
async def lookup(
    cache: Cache, counting: CountingDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lookup]:
    # A stall of our own is not to look like a silent database.
    monkeypatch.setattr(lookup_module, "DATABASE_DEADLINE", 60.0)
    lookup = Lookup(cache, counting, clock)
    yield lookup
    counting.gate.set()
    await lookup.drain()


async def add(database: Database, *links: Link) -> None:
    async with database.transaction() as tx:
        for one in links:
            await Links().add(tx, one)


async def save(database: Database, before: Link, after: Link) -> None:
    async with database.transaction() as tx:
        await Links().save(tx, before, after)


async def copy_of(cache: Cache, code: str) -> bytes | None:
    return (await cache.get_many([f"url:{code}"]))[0]


async def answers(lookup: Lookup, codes: Sequence[str]) -> list[Found]:
    """What `soon` gives for each, in their order."""
    given: dict[int, Found] = {}
    for number, code in enumerate(codes):
        lookup.soon(code, lambda found, number=number: given.__setitem__(number, found))  # type: ignore[misc]  # a default in a lambda
    assert given == {}, "no answer comes inside the call"
    await eventually(lambda: len(given) == len(codes), interval=0.001)
    return [given[number] for number in range(len(codes))]


async def test_a_link_is_found_with_all_that_a_redirect_needs(lookup: Lookup, database: Database) -> None:
    expiry = datetime.now(UTC) + timedelta(days=1)
    plain, odd = link(), link(status=Status.DISABLED, redirect_status=307, expires_at=expiry, version=7)
    await add(database, plain, odd)
    assert await lookup.find(plain.short_code) == record(plain)
    assert await lookup.find(odd.short_code) == record(odd)
    assert await lookup.find(secrets.token_hex(6)) is None
    assert await lookup.find(plain.short_code.upper() + "x") is None


async def test_the_misses_of_one_turn_are_one_question(
    lookup: Lookup, counting: CountingDatabase, database: Database
) -> None:
    links = [link() for _ in range(20)]
    await add(database, *links)
    codes = [one.short_code for one in links] + ["absent"]
    found = await answers(lookup, codes)
    assert found == [*map(record, links), None]
    assert [sorted(question) for question in counting.questions] == [sorted(codes)]


async def test_many_misses_for_one_code_are_one_question_even_while_it_is_under_way(
    lookup: Lookup, counting: CountingDatabase, database: Database
) -> None:
    one = link()
    await add(database, one)
    counting.gate.clear()
    given: list[Found] = []
    for _ in range(50):
        lookup.soon(one.short_code, given.append)
    await eventually(lambda: counting.questions)
    for _ in range(50):
        lookup.soon(one.short_code, given.append)
    counting.gate.set()
    await eventually(lambda: len(given) == 100)
    assert given == [record(one)] * 100
    assert counting.questions == [[one.short_code]]


async def test_who_asks_after_a_drop_is_not_given_what_was_read_before_it(
    lookup: Lookup, counting: CountingDatabase, database: Database, cache: Cache
) -> None:
    before = link()
    await add(database, before)
    counting.gate.clear()
    early: list[Found] = []
    lookup.soon(before.short_code, early.append)
    await eventually(lambda: counting.read == 1)  # the gate holds only the answer
    after, _ = before.retired(NOW)
    await save(database, before, after)
    await cache.drop({f"url:{after.short_code}": after.version})
    late: list[Found] = []
    lookup.soon(before.short_code, late.append)
    counting.gate.set()
    await eventually(lambda: early and late)
    assert early == [record(before)]
    assert late == [record(after)]
    await lookup.drain()
    copy = await copy_of(cache, after.short_code)
    assert copy is None or decode_copy(copy, after.short_code) == record(after)


async def test_who_asks_after_a_drop_shares_the_question_that_was_asked_after_it(
    lookup: Lookup, counting: CountingDatabase, database: Database, cache: Cache
) -> None:
    one = link()
    await add(database, one)
    first, second = asyncio.Event(), asyncio.Event()
    counting.gate = first
    given: list[Found] = []
    lookup.soon(one.short_code, given.append)
    await eventually(lambda: counting.read == 1)
    await cache.drop({f"url:{one.short_code}": 1})
    counting.gate = second
    lookup.soon(one.short_code, given.append)
    await eventually(lambda: len(counting.questions) == 2)
    first.set()
    await eventually(lambda: len(given) == 1)
    lookup.soon(one.short_code, given.append)
    second.set()
    await eventually(lambda: len(given) == 3)
    assert len(counting.questions) == 2


async def test_many_codes_are_several_questions_and_few_are_under_way_at_once(
    lookup: Lookup, counting: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "CODES_AT_ONCE", 10)
    counting.gate.clear()
    given: list[Found] = []
    for number in range(95):
        lookup.soon(f"absent-{number}", given.append)
    await eventually(lambda: len(counting.questions) == 4)
    await asyncio.sleep(0.05)
    assert len(counting.questions) == lookup_module.FLIGHTS == 4
    counting.gate.set()
    await eventually(lambda: len(given) == 95)
    assert [len(question) for question in counting.questions] == [10] * 9 + [5]


async def test_what_was_found_is_kept_in_l2_and_asked_there_first(
    lookup: Lookup, counting: CountingDatabase, database: Database, cache: Cache
) -> None:
    one = link()
    await add(database, one)
    assert await lookup.find(one.short_code) == record(one)
    await lookup.drain()
    copy = await copy_of(cache, one.short_code)
    assert copy is not None
    assert b'"original_url":"https://example.com/' in copy
    assert b'"is_active":true' in copy
    assert await lookup.find(one.short_code) == record(one)
    assert len(counting.questions) == 1


async def test_absent_codes_are_not_kept_in_l2(lookup: Lookup, cache: Cache, counting: CountingDatabase) -> None:
    code = secrets.token_hex(6)
    assert await lookup.find(code) is None
    await lookup.drain()
    assert await copy_of(cache, code) is None


async def test_answers_do_not_wait_for_l2_to_be_filled(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a cache that never finishes keeping; that is no engine, but one that is slow in one call only."""

    class Slow(EmbeddedCache):
        async def set_many(self, entries: Sequence[CacheEntry]) -> None:
            await asyncio.Event().wait()

    one, two = link(), link()
    await add(database, one, two)
    monkeypatch.setattr(lookup_module, "DATABASE_DEADLINE", 60.0)
    lookup = Lookup(Slow(), database, clock)
    async with asyncio.timeout(60):
        assert await lookup.find(one.short_code) == record(one)
        assert await lookup.find(two.short_code) == record(two)
    assert lookup._filling is not None
    lookup._filling.cancel()


async def test_what_l2_cannot_keep_up_with_is_left_out(
    lookup: Lookup, database: Database, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "MOST_UNFILLED", 3)
    links = [link() for _ in range(10)]
    await add(database, *links)
    assert await answers(lookup, [one.short_code for one in links]) == list(map(record, links))
    await lookup.drain()
    copies = await cache.get_many([f"url:{one.short_code}" for one in links])
    assert sum(copy is not None for copy in copies) == 3


@pytest.mark.parametrize(("left", "ttl"), [(None, 3600.0), (10.0, 10.0), (7200.0, 3600.0), (0.0, 0.0), (-5.0, -5.0)])
async def test_a_copy_never_outlives_the_link(left: float | None, ttl: float) -> None:
    expiry = None if left is None else NOW + timedelta(seconds=left)
    assert record(link(expires_at=expiry)).copy_seconds(NOW) == ttl


async def test_an_expired_link_is_not_kept_and_a_short_one_only_as_long(
    lookup: Lookup, database: Database, cache: Cache, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, float] = {}
    set_many = cache.set_many

    async def noted(entries: Sequence[CacheEntry]) -> None:
        kept.update((entry.key, entry.ttl) for entry in entries)
        await set_many(entries)

    monkeypatch.setattr(cache, "set_many", noted)
    over = link(expires_at=clock.now() - timedelta(seconds=1))
    brief = link(expires_at=clock.now() + timedelta(seconds=90))
    await add(database, over, brief)
    assert await lookup.find(over.short_code) == record(over)
    assert await lookup.find(brief.short_code) == record(brief)
    await lookup.drain()
    assert await copy_of(cache, over.short_code) is None
    assert await copy_of(cache, brief.short_code) is not None
    assert kept[f"url:{brief.short_code}"] == 90, "and the cache forgets it by itself"


async def test_a_copy_that_was_read_long_ago_is_not_put_into_l2(
    lookup: Lookup, counting: CountingDatabase, database: Database, cache: Cache, clock: ManualClock
) -> None:
    """The tombstone of the drop may be gone when a slow reader comes with the version before it."""
    slow, quick = link(), link()
    await add(database, slow, quick)
    counting.gate.clear()
    given: list[Found] = []
    lookup.soon(slow.short_code, given.append)
    await eventually(lambda: counting.questions)
    clock.advance(2.5)
    counting.gate.set()
    await eventually(lambda: given == [record(slow)])
    await lookup.find(quick.short_code)
    await lookup.drain()
    assert await copy_of(cache, slow.short_code) is None
    assert await copy_of(cache, quick.short_code) is not None


async def test_an_old_fill_after_a_newer_drop_is_refused_by_l2(
    lookup: Lookup, counting: CountingDatabase, database: Database, cache: Cache
) -> None:
    before = link()
    await add(database, before)
    counting.gate.clear()
    given: list[Found] = []
    lookup.soon(before.short_code, given.append)
    await eventually(lambda: counting.read == 1)
    await cache.drop({f"url:{before.short_code}": before.version + 1})
    counting.gate.set()
    await eventually(lambda: given)
    await lookup.drain()
    assert await copy_of(cache, before.short_code) is None
