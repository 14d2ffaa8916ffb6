"""Corners of the redirect that a review found: memory that lasts too long, or that strangers could fill."""

from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.caching import CacheEntry
from refract.runtime.client_address import ClientAddresses
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.services.links.redirect import lookup as lookup_module
from refract.services.links.redirect.answers import accepts_pages
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.redirect.lookup import Lookup
from refract.services.links.redirect.memory import ABSENT_SECONDS
from refract.services.links.redirect.records import KEY_PREFIX, LinkRecord, encode_copy
from refract.services.links.redirect.visits import ClientWords
from tests.services.test_redirect import DISABLE
from tests.support.http import Client, head
from tests.support.links import ALICE, keep, some_link
from tests.support.redirects import RedirectWorld, redirects
from tests.support.waiting import eventually

__all__ = ["redirects"]


async def test_a_code_that_is_asked_for_all_the_time_comes_to_be(redirects: RedirectWorld) -> None:
    """Nobody tells this process of the new link: another one made it and was killed before it could."""
    instance = await redirects.instance()
    code = redirects.code("late")
    async with await Client.connect(instance.fast.port) as client:
        assert (await client.get(f"/{code}")).status == 404
        await redirects.link("late")
        for _ in range(3):
            redirects.clock.advance(ABSENT_SECONDS / 2)
            last = await client.get(f"/{code}")
    assert last.status == 301


async def test_strangers_do_not_fill_the_memory_with_forwarded_addresses(redirects: RedirectWorld) -> None:
    instance = await redirects.instance(trusted=[ip_network("127.0.0.1/32")])
    fast = instance.service.fast_path
    assert isinstance(fast, FastRedirect)
    for number in range(5):
        fast(b"GET", b"/nothing", [(b"x-forwarded-for", b"203.0.113.%d" % number)], "198.51.100.1")
    assert len(fast._visitors) == 1, "a peer that is not trusted has one address, whatever it says"
    for number in range(5):
        fast(b"GET", b"/nothing", [(b"x-forwarded-for", b"203.0.113.%d" % number)], "127.0.0.1")
    assert len(fast._visitors) == 6
    fast(b"GET", b"/nothing", [(b"x-forwarded-for", b"203.0.113.9, " * 100 + b"203.0.113.10")], "127.0.0.1")
    assert len(fast._visitors) == 6, "what is long is not remembered"
    await redirects.link("x")  # the look-ups that these began have somebody to ask


def test_long_words_of_a_client_are_not_remembered() -> None:
    words = ClientWords()
    for number in range(5):
        assert b'"user_agent"' in words.of({b"user-agent": b"%d" % number * 3000})
    assert not words._encoded
    words.of({b"user-agent": b"short"})
    assert len(words._encoded) == 1


@pytest.mark.parametrize(("peer", "trusted"), [("10.0.0.1", True), ("10.1.0.1", False), ("unix", False)])
def test_whose_word_counts(peer: str, trusted: bool) -> None:
    assert ClientAddresses([ip_network("10.0.0.0/16")]).trusts(peer) is trusted


@pytest.mark.parametrize(
    ("accept", "wants_page"),
    [
        (b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        (b"application/json, Text/HTML", True),
        (b"application/json;q=0,text/html;level=1;q=0.001", True),
        (b"text/html;q=0", False),
        (b"application/json, TEXT/HTML ; Q=0.000 ;x=y, */*;q=0.1", False),
        (b"*/*", False),
        (b"application/json", False),
        (b"text/htmlx", False),
        (b"", False),
    ],
)
def test_who_asks_for_a_page(accept: bytes, wants_page: bool) -> None:
    assert accepts_pages(accept) is wants_page


async def test_a_copy_from_before_a_change_is_a_miss(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that takes no writes keeps giving away what it has; the bus has told us better."""
    monkeypatch.setattr(lookup_module, "DATABASE_DEADLINE", 60.0)
    cache = EmbeddedCache()
    lookup = Lookup(cache, database, SystemClock())
    await keep(database, some_link(1, ALICE, short_code="moved", original_url="https://new.example/", version=3))
    old = LinkRecord("moved", "https://old.example/", "user", "mail", "active", None, 301, 2)
    await cache.set_many([CacheEntry(f"{KEY_PREFIX}moved", 2, encode_copy(old), 60)])
    found = await lookup.find("moved")
    assert found is not None
    assert found.original_url == "https://old.example/"
    lookup.hear_orders({f"{KEY_PREFIX}moved": 3})
    found = await lookup.find("moved")
    assert found is not None
    assert found.original_url == "https://new.example/"
    await lookup.drain()


async def test_white_space_behind_a_field_is_not_part_of_it(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    async with await Client.connect(instance.fast.port) as client:
        await client.send(head("GET", "/nothing", "X-Correlation-ID: mine  \t"))
        assert (await client.answer()).headers["x-correlation-id"] == "mine"


async def test_a_link_in_use_is_renewed_before_it_is_too_old_and_nobody_waits(redirects: RedirectWorld) -> None:
    code, gone = await redirects.link("used", "https://example.com/1"), await redirects.link("gone")
    instance = await redirects.instance()
    assert isinstance(instance.service.fast_path, FastRedirect)
    memory = instance.service.fast_path._redirects.memory
    async with await Client.connect(instance.fast.port) as client:
        for each in (code, gone):
            await client.get(f"/{each}")
        first, held = memory.entries[code.encode()], memory.entries[gone.encode()]
        # As if nobody had told us.
        async with redirects.database.transaction() as tx:
            await tx.execute(DISABLE, code=gone)
        await instance.cache.drop({f"{KEY_PREFIX}{gone}": 10})  # the copy that all share, but not ours
        assert memory.keep(gone.encode(), held, memory.ticket)
        redirects.clock.advance(500)
        for each in (code, gone):
            assert (await client.get(f"/{each}")).status == 301
        await eventually(lambda: memory.entries[code.encode()] is not first)
        assert memory.entries[code.encode()].fresh_until == first.fresh_until + 500
        await eventually(lambda: gone.encode() not in memory.entries)
        assert (await client.get(f"/{gone}")).status == 410
        redirects.clock.advance(500)
        assert (await client.get(f"/{code}")).headers["location"] == "https://example.com/1"


async def test_where_no_drop_is_missed_links_stay_until_somebody_else_writes(
    redirects: RedirectWorld,
) -> None:
    cache = EmbeddedCache(redirects.clock, capacity=0, misses_nothing=True)
    code = await redirects.link("stays", "https://example.com/1")
    short = await redirects.link("short", expires_at=redirects.clock.now() + timedelta(seconds=400))
    instance = await redirects.instance(cache=cache)
    assert isinstance(instance.service.fast_path, FastRedirect)
    memory = instance.service.fast_path._redirects.memory
    async with await Client.connect(instance.fast.port) as client:
        for each in (code, short):
            assert (await client.get(f"/{each}")).status == 301
        first = memory.entries[code.encode()]
        assert memory.entries[short.encode()].fresh_until == redirects.clock.monotonic() + 60
        redirects.clock.advance(1000)
        assert (await client.get(f"/{code}")).status == 301
        assert memory.entries[code.encode()] is first
        assert (await client.get(f"/{short}")).status == 410
        async with redirects.database.transaction() as tx:
            await tx.execute(DISABLE, code=code)
        cache.tell_gap()
        assert (await client.get(f"/{code}")).status == 410


async def test_a_file_knows_whether_somebody_else_wrote_to_it(tmp_path: Path) -> None:
    path = tmp_path / "links.sqlite3"
    await migrate("links", path)
    ours, other = await EmbeddedDatabase.open(path), await EmbeddedDatabase.open(path)
    try:
        await ours.post(Message("url-shortener", "url.clicked", b"[]", "m-1"))
        assert not await ours.changed_elsewhere()
        await other.post(Message("url-shortener", "url.clicked", b"[]", "m-2"))
        assert await ours.changed_elsewhere()
        assert not await ours.changed_elsewhere()
    finally:
        await ours.close()
        await other.close()
