"""The life of a link as those who follow it see it: right at once here, and within a moment everywhere."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.server import HttpServer
from refract.runtime.statements import Statement
from refract.services.links.redirect.engine import SAME_ANSWER
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.redirect.memory import FRESH_SECONDS, VOUCHED_SECONDS
from tests.support.clocks import START
from tests.support.databases import Location
from tests.support.http import Answer, Client, fetch
from tests.support.redirects import Instance, RedirectWorld, redirect_world, redirects
from tests.support.redis_twins import administering, slow_line
from tests.support.servers import Redis
from tests.support.waiting import eventually

__all__ = ["redirects"]

DISABLE = Statement(
    "disable",
    "Disables a link behind everybody's back.",
    "UPDATE links SET status = 'disabled' WHERE short_code = :code",
)
END = Statement(
    "end",
    "Lets a link end behind everybody's back.",
    "UPDATE links SET expires_at = :at, version = version + 1 WHERE short_code = :code",
)
over_redis = pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)


async def told(server: HttpServer, code: str) -> tuple[int, str]:
    """The status, and where it leads or what it says."""
    answer = await fetch(server.port, f"/{code}")
    return answer.status, answer.headers.get("location") or answer.json["error"]


async def both(instance: Instance, code: str) -> tuple[int, str]:
    """What both paths say, the fast one first."""
    fast, again, slow = [await told(server, code) for server in (instance.fast, instance.fast, instance.slow)]
    assert fast == again == slow
    return fast


def remembers(instance: Instance, code: str) -> bool:
    """Whether L1 has the link."""
    path = instance.service.fast_path
    assert isinstance(path, FastRedirect)
    return code.encode() in path._entries


async def create(world: RedirectWorld, instance: Instance, name: str, **options: Any) -> str:
    """A link by the API, with an alias."""
    body = {"url": "https://example.com/first", "custom_code": world.code(name), **options}
    answer = await world.manage(instance, "POST", "/shorten", body)
    assert answer.status == 201, answer.body
    return world.code(name)


async def change(world: RedirectWorld, instance: Instance, code: str, **fields: Any) -> Answer:
    """Change a link by the API."""
    answer = await world.manage(instance, "PATCH", f"/urls/{code}", fields)
    assert answer.status == 200, answer.body
    return answer


# Here


async def test_a_new_destination_is_where_the_next_one_goes(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await create(redirects, instance, "moving")
    for number in range(5):
        await change(redirects, instance, code, url=f"https://example.com/{number}")
        assert await both(instance, code) == (301, f"https://example.com/{number}")
        assert remembers(instance, code)
    await change(redirects, instance, code, redirect_status=308)
    assert await both(instance, code) == (308, "https://example.com/4")


async def test_disabled_enabled_and_deleted(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await create(redirects, instance, "switched")
    for _ in range(2):
        assert await both(instance, code) == (301, "https://example.com/first")
        await change(redirects, instance, code, status="disabled")
        assert await both(instance, code) == (410, "this link has been disabled")
        assert not remembers(instance, code)
        await change(redirects, instance, code, status="active")
    assert await both(instance, code) == (301, "https://example.com/first")
    assert (await redirects.manage(instance, "DELETE", f"/urls/{code}")).status in {200, 204}
    assert await both(instance, code) == (410, "this link is no longer active")


async def test_a_client_that_stays_is_told_at_once_too(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await create(redirects, instance, "kept-alive")
    async with await Client.connect(instance.fast.port) as client:

        async def asked() -> tuple[int, str]:
            answers = [await client.get(f"/{code}", "User-Agent: the same") for _ in range(3)]
            assert len({(answer.status, answer.headers.get("location"), answer.body) for answer in answers}) == 1
            return answers[0].status, answers[0].headers.get("location") or answers[0].json["error"]

        assert await asked() == (301, "https://example.com/first")
        await change(redirects, instance, code, url="https://example.com/second")
        assert await asked() == (301, "https://example.com/second")
        await change(redirects, instance, code, status="disabled")
        assert await asked() == (410, "this link has been disabled")
        await change(redirects, instance, code, status="active")
        assert await asked() == (301, "https://example.com/second")
        await change(redirects, instance, code, expires_at=(START + timedelta(seconds=200)).isoformat())
        assert await asked() == (301, "https://example.com/second")
        redirects.clock.advance(60)  # longer than it is remembered, and less than it lives
        assert await asked() == (301, "https://example.com/second")
        redirects.clock.advance(140)
        assert await asked() == (410, "this link has expired")


async def test_expiry_needs_nobody_to_sweep(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await create(redirects, instance, "mortal", expires_at=(START + timedelta(seconds=400)).isoformat())
    for _ in range(8):
        assert (await both(instance, code))[0] == 301
        redirects.clock.advance(49.9)
    assert remembers(instance, code), "it has to be L1 that knows its time"
    assert (await both(instance, code))[0] == 301
    redirects.clock.advance(0.8)
    assert await both(instance, code) == (410, "this link has expired")
    later = (redirects.clock.now() + timedelta(days=1)).isoformat()
    assert (await redirects.manage(instance, "PATCH", f"/urls/{code}", {"expires_at": later})).status in {200, 409}


async def test_a_clock_that_is_set_forward_ends_links_within_a_minute(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await redirects.link("overslept", expires_at=START + timedelta(seconds=400))
    assert (await told(instance.fast, code))[0] == 301
    redirects.clock.set_forward(500)
    assert (await told(instance.fast, code))[0] == 301, "it is remembered by durations"
    redirects.clock.advance(FRESH_SECONDS)
    assert await both(instance, code) == (410, "this link has expired")


async def test_an_earlier_expiry_counts_at_once(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await create(redirects, instance, "shortened")
    assert (await both(instance, code))[0] == 301
    await change(redirects, instance, code, expires_at=(START + timedelta(seconds=30)).isoformat())
    assert (await both(instance, code))[0] == 301
    redirects.clock.advance(30)
    assert await both(instance, code) == (410, "this link has expired")


async def test_an_alias_after_a_404(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = redirects.code("awaited")
    assert await both(instance, code) == (404, "not found")
    await create(redirects, instance, "awaited")
    assert await both(instance, code) == (301, "https://example.com/first")


async def test_a_404_is_not_remembered_for_long(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = redirects.code("behind-our-back")
    assert (await told(instance.fast, code))[0] == 404
    await redirects.link("behind-our-back")
    redirects.clock.advance(5)
    assert (await told(instance.fast, code))[0] == 301


async def away(*_: object, **__: object) -> Any:
    """A database that does not answer."""
    raise Unavailable("database", "it is to be away")


async def test_without_a_database_what_is_known_is_served_for_an_hour(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await redirects.link("known")
    assert (await both(instance, code))[0] == 301
    fetching, redirects.guarded.fetch = redirects.guarded.fetch, away
    await _forget_copies(redirects, instance, code)
    redirects.clock.advance(3000)
    assert await both(instance, code) == (301, "https://example.com/")
    assert (await told(instance.fast, redirects.code("unknown")))[0] == 503
    redirects.clock.advance(700)
    assert (await told(instance.fast, code))[0] == 503, "it was made younger by being used"
    redirects.guarded.fetch = fetching
    assert (await both(instance, code))[0] == 301


async def test_without_a_database_no_browser_keeps_what_expires(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await redirects.link("ending", expires_at=START + timedelta(seconds=400))
    assert (await both(instance, code))[0] == 301
    redirects.guarded.fetch = away
    await _forget_copies(redirects, instance, code)
    for passed, age in ((290, 90), (60, 50), (45, 5)):
        redirects.clock.advance(passed)
        for server in (instance.fast, instance.slow):
            for proof in ((), ("Authorization: Bearer x",)):
                answer = await fetch(server.port, f"/{code}", *proof)
                assert (answer.status, answer.headers["cache-control"]) == (301, f"private, max-age={age}")
    redirects.clock.advance(6)
    assert (await told(instance.fast, code))[0] == 503


async def test_what_was_seen_to_be_gone_is_not_followed_again(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await redirects.link("gone")
    assert (await both(instance, code))[0] == 301
    async with redirects.database.transaction() as tx:  # and nobody was told
        await tx.execute(DISABLE, code=code)
    await _forget_copies(redirects, instance, code)
    redirects.clock.advance(VOUCHED_SECONDS)
    assert (await both(instance, code))[0] == 410
    redirects.guarded.fetch = away
    await _forget_copies(redirects, instance, code)
    assert (await both(instance, code))[0] == 503


async def test_what_was_seen_to_end_soon_is_not_followed_beyond_its_end(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    code = await redirects.link("soon")
    assert (await both(instance, code))[0] == 301
    redirects.clock.advance(VOUCHED_SECONDS)
    async with redirects.database.transaction() as tx:  # and nobody was told
        await tx.execute(END, code=code, at=redirects.clock.now() + timedelta(seconds=SAME_ANSWER - 1))
    await _forget_copies(redirects, instance, code)
    assert (await both(instance, code))[0] == 301
    redirects.guarded.fetch = away
    await _forget_copies(redirects, instance, code)
    redirects.clock.advance(SAME_ANSWER)
    assert (await both(instance, code))[0] == 503


async def test_nothing_long_is_remembered_as_absent(redirects: RedirectWorld) -> None:
    instance = await redirects.instance()
    for length in (7, 50, 51, 64, 65, 5000):
        for server in (instance.fast, instance.slow):
            assert (await told(server, "x" * length))[0] == 404
    path = instance.service.fast_path
    assert isinstance(path, FastRedirect)
    assert max(map(len, path._redirects.memory._absent)) <= 64


async def _forget_copies(world: RedirectWorld, instance: Instance, code: str) -> None:
    """Take the copy out of L2 without a word to L1."""
    if isinstance(world.location, str):
        async with administering(world.request.getfixturevalue("redis_address")) as client:
            await client.delete(f"url:{code}")
    else:
        await instance.cache.close()


# Elsewhere


@over_redis
async def test_another_instance_is_right_within_a_moment(redirects: RedirectWorld) -> None:
    here, there = await redirects.instance(), await redirects.instance()
    code = await create(redirects, here, "shared")
    awaited = redirects.code("shared-later")
    assert await both(there, code) == (301, "https://example.com/first")
    assert await both(there, awaited) == (404, "not found")
    assert remembers(there, code)
    await create(redirects, here, "shared-later")
    await change(redirects, here, code, url="https://example.com/second")
    await _eventually(there, code, (301, "https://example.com/second"))
    await _eventually(there, awaited, (301, "https://example.com/first"))
    await change(redirects, here, code, status="disabled")
    await _eventually(there, code, (410, "this link has been disabled"))
    await change(redirects, there, code, status="active")
    await _eventually(here, code, (301, "https://example.com/second"))
    await redirects.manage(there, "DELETE", f"/urls/{code}")
    await _eventually(here, code, (410, "this link is no longer active"))


async def _eventually(instance: Instance, code: str, expected: tuple[int, str]) -> None:
    async def is_right() -> bool:
        return await told(instance.fast, code) == expected

    await eventually(is_right)
    assert await both(instance, code) == expected


# Trouble with Redis


@pytest.fixture
def server() -> Iterator[Redis]:
    """A Redis of this test's own."""
    with Redis() as server:
        yield server


@asynccontextmanager
async def following(instance: Instance, codes: list[str]) -> AsyncIterator[None]:
    """Follow links again and again for the time of the block; every one has to lead somewhere."""
    stop = asyncio.Event()

    async def follow() -> int:
        count = 0
        while not stop.is_set():
            for code in codes:
                for port in (instance.fast.port, instance.slow.port):
                    assert (await fetch(port, f"/{code}")).status == 301
                    count += 1
        return count

    followers = [asyncio.create_task(follow()) for _ in range(3)]
    try:
        yield
    finally:
        stop.set()
        assert all(await asyncio.gather(*followers))


async def _ten_links(world: RedirectWorld) -> list[str]:
    return [await world.link(f"ten-{number}") for number in range(10)]


@over_redis
async def test_redirects_go_on_while_redis_comes_and_goes(
    database: Database,
    database_location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server: Redis,
) -> None:
    options = {"redis_address": server.address}  # one that is killed is away at once: no deadline is needed for that
    async with redirect_world(database, database_location, request, monkeypatch, **options) as world:
        codes = await _ten_links(world)
        instance = await world.instance()
        async with following(instance, codes):
            async with administering(server.address) as client:
                await eventually(lambda: client.exists(f"url:{codes[0]}"))
                await client.flushall()
                for code in codes:
                    world.clock.advance(VOUCHED_SECONDS / 8)  # L1 asks again from time to time
                    async with client.pipeline(transaction=True) as together:  # or a copy may come in between
                        together.delete(f"url:{code}")
                        together.lpush(f"url:{code}", "not", "a", "copy")
                        await together.execute()
                world.clock.advance(VOUCHED_SECONDS)
            await asyncio.to_thread(server.kill)
            for _ in range(10):
                world.clock.advance(61)
                await asyncio.sleep(0.01)
            await change_all(world, instance, codes)
            await asyncio.to_thread(server.start)
            world.clock.advance(61)
        for code in codes:
            assert (await both(instance, code))[0] == 301


async def change_all(world: RedirectWorld, instance: Instance, codes: list[str]) -> None:
    """While Redis is away, a change is right here at once all the same."""
    for number, code in enumerate(codes):
        await change(world, instance, code, url=f"https://example.com/changed/{number}")
        assert await told(instance.fast, code) == (301, f"https://example.com/changed/{number}")


@over_redis
async def test_a_slow_redis_costs_its_deadline_once(
    database: Database,
    database_location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server: Redis,
) -> None:
    async with slow_line(server.address, delay=30.0) as (address, _):
        options = {"redis_address": address, "redis_deadline": 0.05}
        async with redirect_world(database, database_location, request, monkeypatch, **options) as world:
            codes = await _ten_links(world)
            instance = await world.instance()
            async with asyncio.timeout(60):  # who waited for Redis would need five minutes
                for code in codes:
                    assert (await both(instance, code))[0] == 301
