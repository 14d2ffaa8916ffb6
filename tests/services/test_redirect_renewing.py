"""Links in use are renewed together, by their order numbers alone; and look-ups leave together, on both modes."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from refract.runtime.caching import CacheEntry
from refract.runtime.ports import Cache, Database
from refract.services.links.domain.link import Link, Status
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.lookup import Found, Lookup
from refract.services.links.redirect.memory import Memory
from refract.services.links.redirect.records import KEY_PREFIX, encode_copy, is_same_copy
from refract.services.links.redirect.renewing import CODES_AT_ONCE, Renewals
from tests.services.test_redirect_lookup import (
    NOW,
    CountingDatabase,
    add,
    cache,
    clock,
    counting,
    database,
    database_location,
    empty_location,
    link,
    lookup,
    record,
)
from tests.support.clocks import ManualClock
from tests.support.waiting import eventually

__all__ = ["cache", "clock", "counting", "database", "database_location", "empty_location", "lookup"]


class Entry(Struct, frozen=True):
    """As much of a prepared answer as a renewal needs."""

    status: int
    order: int
    renew_at: float = 0.0
    fresh_until: float = 0.0
    stale_until: float = 0.0
    size: int = 100

    def renewed(self, lifetimes: tuple[float, float, float]) -> "Entry":
        return Entry(self.status, self.order, *lifetimes)


@pytest.fixture
def memory(clock: ManualClock) -> Memory[Entry]:
    return Memory(1_000, clock.monotonic, capacity_bytes=100_000)


class Desk:
    """Renewals, and what had to be looked up."""

    def __init__(self, lookup: Lookup, memory: Memory[Entry]) -> None:
        self.looked: dict[bytes, Found] = {}
        self.renewals = Renewals(lookup, memory, self._look)

    def _look(self, code: bytes, _link: Entry, _ticket: int, found: Found) -> None:
        self.looked[code] = found


async def keep_copy(cache: Cache, one: Link) -> None:
    await cache.set_many([CacheEntry(KEY_PREFIX + one.short_code, one.version, encode_copy(record(one)), 60.0)])


async def test_what_l2_knows_unchanged_is_renewed_without_a_question_to_the_database(
    lookup: Lookup, memory: Memory[Entry], counting: CountingDatabase, cache: Cache
) -> None:
    links = [link(version=3) for _ in range(CODES_AT_ONCE + 2)]
    for one in links:
        await keep_copy(cache, one)
        memory.keep(one.short_code.encode(), Entry(301, 3), memory.ticket)
    desk = Desk(lookup, memory)
    for one in links:
        desk.renewals.soon(one.short_code.encode(), Entry(301, 3))
    await eventually(lambda: all(entry.fresh_until > 0 for entry in memory.entries.values()))
    assert not desk.looked
    assert not counting.questions


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 4},
        {"version": 33},
        {"status": Status.DISABLED},
        {"redirect_status": 302},
        {"expires_at": NOW + timedelta(hours=2)},
    ],
    ids=["an older version", "a newer version", "a status", "a redirect status", "an expiry"],
)
async def test_what_l2_knows_otherwise_is_looked_up(
    lookup: Lookup, memory: Memory[Entry], cache: Cache, changed: dict[str, Any]
) -> None:
    one = replace(link(version=3), **changed)
    await keep_copy(cache, one)
    desk = Desk(lookup, memory)
    desk.renewals.soon(one.short_code.encode(), Entry(301, 3))
    await eventually(lambda: desk.looked)
    assert desk.looked[one.short_code.encode()] == record(one)
    assert not memory.entries


async def test_what_l2_does_not_know_is_looked_up(
    lookup: Lookup, memory: Memory[Entry], counting: CountingDatabase, database: Database
) -> None:
    one = link()
    await add(database, one)
    desk = Desk(lookup, memory)
    for _ in range(3):
        desk.renewals.soon(one.short_code.encode(), Entry(301, 1))
    assert len(desk.renewals._waiting) == 1
    await eventually(lambda: desk.looked)
    assert desk.looked[one.short_code.encode()] == record(one)
    assert counting.questions == [[one.short_code]]


async def test_a_copy_from_before_a_change_that_was_heard_of_renews_nothing(
    lookup: Lookup, memory: Memory[Entry], cache: Cache, database: Database
) -> None:
    one = link()
    await add(database, replace(one, version=2))
    await keep_copy(cache, one)
    lookup.hear_orders({KEY_PREFIX + one.short_code: 2})
    desk = Desk(lookup, memory)
    desk.renewals.soon(one.short_code.encode(), Entry(301, 1))
    await eventually(lambda: desk.looked)
    assert not memory.entries


async def test_a_drop_while_l2_is_asked_wins_over_the_renewal(
    lookup: Lookup, memory: Memory[Entry], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = link()
    await keep_copy(cache, one)
    asked, answered = asyncio.Event(), asyncio.Event()
    unchanged = lookup.unchanged

    async def slowly(links: Any) -> list[bool]:
        same = await unchanged(links)
        asked.set()
        await answered.wait()
        return same

    monkeypatch.setattr(lookup, "unchanged", slowly)
    desk = Desk(lookup, memory)
    desk.renewals.soon(one.short_code.encode(), Entry(301, 1))
    await asked.wait()
    memory.hear([KEY_PREFIX + one.short_code])
    answered.set()
    await eventually(lambda: desk.renewals._task is None)
    assert not memory.entries


def test_no_url_passes_for_the_fields_behind_it() -> None:
    tail = '","status":"active","expires_at":null,"redirect_status":301,"order":7,"is_active":true}'
    hostile = link("hostile", original_url=f"https://example.com/{tail}", version=8)
    assert not is_same_copy(encode_copy(record(hostile)), "hostile", 301, 7)
    assert is_same_copy(encode_copy(record(hostile)), "hostile", 301, 8)
    assert not is_same_copy(encode_copy(record(hostile)), "hostil", 301, 8)
    assert not is_same_copy(b"", "hostile", 301, 8)


async def test_while_a_question_is_under_way_few_wait_for_more(
    lookup: Lookup, counting: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "LATE_SECONDS", 3600.0)
    counting.gate.clear()
    given: list[Found] = []
    for number in range(3):
        lookup.soon(f"first-{number}", given.append)
    await eventually(lambda: len(counting.questions) == 1)
    for number in range(2):
        lookup.soon(f"second-{number}", given.append)
        await asyncio.sleep(0.01)
    assert len(counting.questions) == 1
    lookup.soon("second-2", given.append)
    await eventually(lambda: len(counting.questions) == 2)
    counting.gate.set()
    await eventually(lambda: len(given) == 6)
    assert [len(question) for question in counting.questions] == [3, 3]


async def test_nobody_waits_long_for_more_to_come(lookup: Lookup, counting: CountingDatabase) -> None:
    counting.gate.clear()
    given: list[Found] = []
    for code in ("first", "also"):
        lookup.soon(code, given.append)
    await eventually(lambda: len(counting.questions) == 1)
    lookup.soon("late", given.append)
    await eventually(lambda: len(counting.questions) == 2)
    counting.gate.set()
    await eventually(lambda: len(given) == 3)


async def test_whoever_has_gathered_leaves_when_the_question_before_is_answered(
    lookup: Lookup, counting: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "LATE_SECONDS", 3600.0)
    counting.gate.clear()
    given: list[Found] = []
    for code in ("first", "also"):
        lookup.soon(code, given.append)
    await eventually(lambda: len(counting.questions) == 1)
    lookup.soon("alone", given.append)
    counting.gate.set()
    await eventually(lambda: len(given) == 3)
