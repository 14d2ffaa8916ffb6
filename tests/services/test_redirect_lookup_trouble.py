"""Looking up links in trouble, on both modes: strange copies and codes, a database that fails or falls silent."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.caching import CacheEntry
from refract.runtime.ports import Cache, Database
from refract.services.links.domain.link import Status
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.lookup import Found, Lookup
from refract.services.links.redirect.records import decode_copy, encode_copy
from tests.services.test_redirect_lookup import (
    NOW,
    CountingDatabase,
    add,
    answers,
    cache,
    clock,
    copy_of,
    counting,
    link,
    lookup,
    record,
)
from tests.support.clocks import ManualClock
from tests.support.databases import database, database_location, empty_location
from tests.support.waiting import eventually

__all__ = ["cache", "clock", "counting", "database", "database_location", "empty_location", "lookup"]


STRANGE = [
    b"",
    b"garbage \xff",
    b"null",
    b"[" * 10_000,
    b'{"unknown":' + b"[" * 10_000,
    b'{"short_code":"\xff"}',
    b"{}",
    b'{"original_url":"https://example.com","is_active":true}',
    encode_copy(record(link("another"))),
]


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
async def test_a_strange_copy_is_a_miss_and_is_replaced(
    lookup: Lookup, database: Database, cache: Cache, strange: bytes
) -> None:
    one = link()
    await add(database, one)
    await cache.set_many([CacheEntry(f"url:{one.short_code}", 0, strange, 60)])
    assert await lookup.find(one.short_code) == record(one)
    await lookup.drain()
    assert await copy_of(cache, one.short_code) == encode_copy(record(one))


@pytest.mark.parametrize(
    "change",
    [
        (b'"status":"active"', b'"status":"paused"'),
        (b'"redirect_status":301', b'"redirect_status":200'),
        (b'"order":1', b'"order":-1'),
        (b'"order":1', b'"order":"1"'),
        (b'"expires_at":null', b'"expires_at":"2026-01-01T00:00:00"'),
        (b'"user_id":"owner",', b""),
    ],
)
def test_a_copy_of_another_version_is_a_miss(change: tuple[bytes, bytes]) -> None:
    one = record(link())
    copy = encode_copy(one)
    assert decode_copy(copy, one.short_code) == one
    assert change[0] in copy
    assert decode_copy(copy.replace(*change), one.short_code) is None


def test_a_copy_says_whether_the_link_is_active() -> None:
    assert encode_copy(record(link(status=Status.DISABLED))).endswith(b'"is_active":false}')


def test_the_status_that_counts_and_how_long_it_does() -> None:
    expiry = NOW + timedelta(seconds=10)
    active, disabled = record(link(expires_at=expiry)), record(link(expires_at=expiry, status=Status.DISABLED))
    assert active.effective_status(NOW) is Status.ACTIVE
    assert active.seconds_left(NOW) == 10
    assert active.effective_status(expiry) is Status.EXPIRED
    assert active.seconds_left(expiry) is None
    assert disabled.effective_status(expiry) is Status.DISABLED
    assert disabled.seconds_left(NOW) is None
    assert record(link()).seconds_left(NOW) is None


async def test_an_older_change_that_is_heard_of_late_makes_no_copy_good_again(
    lookup: Lookup, database: Database, cache: Cache
) -> None:
    """Events come in any order, and again; a Redis that takes no writes keeps what it has."""
    before = link(version=2)
    code = before.short_code
    after = replace(before, original_url="https://example.com/changed", version=3)
    await add(database, after)
    await cache.set_many([CacheEntry(f"url:{code}", 2, encode_copy(record(before)), 60)])
    assert await lookup.unchanged([(code, 301, 2)]) == [True]
    for order in (3, 2):
        lookup.hear_orders({f"url:{code}": order})
    assert await lookup.unchanged([(code, 301, 2)]) == [False]
    assert await lookup.find(code) == record(after)


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "ü", "x" * 65, "a\nb"])
async def test_an_odd_code_is_absent_and_harms_nobody(
    lookup: Lookup, counting: CountingDatabase, database: Database, odd: str
) -> None:
    one = link()
    await add(database, one)
    assert await answers(lookup, [odd, one.short_code]) == [None, record(one)]
    assert counting.questions == [[one.short_code]]


async def test_a_database_that_fails_is_said_to_everyone_and_asked_again(
    lookup: Lookup, counting: CountingDatabase, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one = link()
    await add(database, one)
    for trouble in (Unavailable("database", "it is on fire"), ZeroDivisionError("a bug")):
        counting.trouble = trouble
        found = await answers(lookup, [one.short_code, "absent", one.short_code])
        assert [type(answer) for answer in found] == [Unavailable] * 3
        with pytest.raises(Unavailable):
            await lookup.find(one.short_code)
    counting.trouble = None
    assert await lookup.find(one.short_code) == record(one)
    assert caplog.text.count("a lookup failed") == 2, "a bug is not kept quiet"


async def test_what_l2_knows_is_answered_while_the_database_is_away(
    lookup: Lookup, counting: CountingDatabase, database: Database
) -> None:
    one = link()
    await add(database, one)
    await lookup.find(one.short_code)
    await lookup.drain()
    counting.trouble = Unavailable("database", "it is away")
    found = await answers(lookup, [one.short_code, "absent"])
    assert found[0] == record(one)
    assert isinstance(found[1], Unavailable)


async def test_a_database_that_does_not_answer_is_given_up_also_by_those_who_wait_behind(
    lookup: Lookup, counting: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "DATABASE_DEADLINE", 0.2)
    monkeypatch.setattr(lookup_module, "CODES_AT_ONCE", 1)
    counting.gate.clear()
    found = await answers(lookup, [f"code-{number}" for number in range(40)])
    assert {type(answer) for answer in found} == {Unavailable}
    assert 1 <= len(counting.questions) <= lookup_module.FLIGHTS, "those behind the first were asked for nevertheless"


async def test_a_database_that_fell_silent_is_left_alone_for_a_moment(
    lookup: Lookup,
    counting: CountingDatabase,
    database: Database,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, unknown = link(), link()
    await add(database, known, unknown)
    await lookup.find(known.short_code)
    await lookup.drain()
    counting.gate.clear()
    with monkeypatch.context() as impatient:
        impatient.setattr(lookup_module, "DATABASE_DEADLINE", 0.1)
        with pytest.raises(Unavailable, match="within"):
            await lookup.find(unknown.short_code)
    counting.gate.set()
    clock.advance(0.9)
    asked = len(counting.questions)
    found = await answers(lookup, [known.short_code, unknown.short_code])
    assert found[0] == record(known), "L2 is asked all the same"
    assert isinstance(found[1], Unavailable)
    assert len(counting.questions) == asked
    clock.advance(0.1)
    assert await lookup.find(unknown.short_code) == record(unknown)


async def test_too_many_who_wait_are_refused_at_once(
    lookup: Lookup, counting: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "MOST_WAITING", 10)
    given: list[Found] = []
    for number in range(15):
        lookup.soon(f"code-{number}", given.append)
    await eventually(lambda: len(given) == 15)
    assert sum(isinstance(found, Unavailable) for found in given) == 5


async def test_a_caller_that_fails_or_is_gone_takes_nobody_along(
    lookup: Lookup, counting: CountingDatabase, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one = link()
    await add(database, one)
    counting.gate.clear()

    def fail(found: Found) -> None:
        raise ZeroDivisionError

    given: list[Found] = []
    lookup.soon(one.short_code, fail)
    gone = asyncio.create_task(lookup.find(one.short_code))
    await eventually(lambda: counting.questions)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    lookup.soon(one.short_code, given.append)
    counting.gate.set()
    await eventually(lambda: given == [record(one)])
    ours = [entry for entry in caplog.records if entry.name.startswith("refract")]
    assert [entry.getMessage() for entry in ours if entry.levelname == "ERROR"] == ["an answer to a redirect failed"]
