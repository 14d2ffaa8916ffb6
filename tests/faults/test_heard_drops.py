"""Drops that are not heard: it is known at once, and links that were trusted because of them are asked for again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.distributed import redis_subscription
from refract.runtime.ports import Database
from refract.services.links.redirect.engine import Prepared
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.redirect.memory import FRESH_SECONDS, RENEWAL, STALE_SECONDS, VOUCHED_SECONDS
from tests.faults.test_redis_faults import Ports, heard, ports, said, server, start
from tests.services.test_redirect import change, over_redis, told
from tests.support.databases import Location, database, database_location, empty_location
from tests.support.fault_proxy import FaultProxy
from tests.support.redirects import Instance, RedirectWorld, redirect_world
from tests.support.redis_twins import administering
from tests.support.servers import Redis
from tests.support.waiting import eventually

__all__ = ["database", "database_location", "empty_location", "heard", "ports", "server"]


async def test_a_first_try_that_nobody_waited_for_is_a_gap(server: Redis, ports: Ports) -> None:
    await start(server)
    await ports.cache.start()  # as if Redis had been away a moment ago: whoever starts does not wait for it
    assert not ports.cache.hears
    await eventually(lambda: ports.cache.hears)
    assert (ports.losses, ports.gaps) == (0, 1), "what was dropped in between was not heard"


async def test_a_loss_that_nobody_can_take_in_ends_nothing(
    server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    await start(server)
    await ports.start()

    def fail() -> None:
        raise ZeroDivisionError

    ports.cache.on_invalidation(lambda _: None, lambda: None, fail)
    async with administering(server.address) as client:
        assert await client.client_kill_filter(_type="pubsub") == 1
    await eventually(lambda: ports.gaps == 1)
    async with asyncio.timeout(30):
        await ports.cache.close()
    assert said(caplog) == [("ERROR", "the loss of a subscription could not be handled")] * 2


# Redirects

FIRST, SECOND = "https://example.com/first", "https://example.com/second"


@pytest.fixture
async def world(
    database: Database,
    database_location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server: Redis,
) -> AsyncIterator[RedirectWorld]:
    """Links over a Redis of this test's own. No relay runs: of a change the others hear over Redis alone."""
    await start(server)
    options = {"redis_address": server.address, "redis_deadline": 0.5}
    async with redirect_world(database, database_location, request, monkeypatch, **options) as world:
        yield world


@pytest.fixture
async def proxy(server: Redis) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.to("127.0.0.1", server.port) as proxy:
        yield proxy


async def behind(world: RedirectWorld, proxy: FaultProxy) -> Instance:
    """A process that hears its Redis at the other end of the proxy."""
    direct, world.redis_address = world.redis_address, f"127.0.0.1:{proxy.port}"
    instance = await world.instance()
    world.redis_address = direct
    await eventually(lambda: instance.cache.hears)
    return instance


def known(instance: Instance, code: str) -> Prepared | None:
    """What L1 has of a link."""
    assert isinstance(instance.service.fast_path, FastRedirect)
    return instance.service.fast_path._redirects.memory.entries.get(code.encode())


def lose(proxy: FaultProxy, fault: str) -> None:
    """Keep an instance from its Redis until the proxy is healed; by a cut it is known at once."""
    proxy.swallow()
    if fault == "cut":
        proxy.cut()


@over_redis
@pytest.mark.parametrize("fault", ["cut", "black hole"])
async def test_a_change_that_was_not_heard_is_seen_when_drops_are_heard_again(
    world: RedirectWorld, proxy: FaultProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_subscription, "QUIET_SECONDS", 1.0)
    here, there = await behind(world, proxy), await world.instance()
    code = await world.link("moving", FIRST)
    assert await told(here.fast, code) == (301, FIRST)
    lose(proxy, fault)
    await change(world, there, code, url=SECOND)
    assert await told(there.fast, code) == (301, SECOND)
    assert await told(here.fast, code) == (301, FIRST), "how should it know?"
    await eventually(lambda: not here.cache.hears)
    proxy.heal()
    await eventually(lambda: here.cache.hears)
    assert await told(here.fast, code) == (301, SECOND)


@over_redis
@pytest.mark.parametrize("fault", ["cut", "black hole"])
async def test_a_change_that_was_not_heard_is_seen_a_minute_after_drops_were_lost(
    world: RedirectWorld, proxy: FaultProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_subscription, "QUIET_SECONDS", 1.0)
    here, there = await behind(world, proxy), await world.instance()
    code, idle = [await world.link(name, FIRST) for name in ("moving", "idle")]  # past the API, which would drop them
    for each in (code, idle):
        assert await told(here.fast, each) == (301, FIRST)
    world.clock.advance(RENEWAL[0] * VOUCHED_SECONDS - 1)
    lose(proxy, fault)
    for each in (code, idle):
        await change(world, there, each, url=SECOND)
    await eventually(lambda: not here.cache.hears)
    world.clock.advance(RENEWAL[0] * FRESH_SECONDS - 1)
    assert await told(here.fast, code) == (301, FIRST)
    world.clock.advance(FRESH_SECONDS / 2)
    assert await told(here.fast, code) == (301, FIRST), "it is renewed while it is used"
    await eventually(lambda: told_by(here, code, SECOND))
    world.clock.advance(FRESH_SECONDS / 2)
    assert await told(here.fast, idle) == (301, SECOND)
    link = known(here, idle)
    assert link is not None
    assert link.fresh_until <= world.clock.monotonic() + FRESH_SECONDS, "nothing is heard yet"


async def told_by(instance: Instance, code: str, place: str) -> bool:
    return await told(instance.fast, code) == (301, place)


@over_redis
async def test_a_known_link_is_followed_while_redis_and_database_are_away(world: RedirectWorld, server: Redis) -> None:
    asked: list[str] = []

    async def away(*_: object, **__: object) -> Any:
        asked.append("asked")
        raise Unavailable("database", "it is to be away")

    instance = await world.instance()
    await eventually(lambda: instance.cache.hears)
    code = await world.link("known")
    assert await told(instance.fast, code) == (301, "https://example.com/")
    fetching, world.guarded.fetch = world.guarded.fetch, away
    await asyncio.to_thread(server.kill)
    await eventually(lambda: not instance.cache.hears)
    assert await told(instance.fast, code) == (301, "https://example.com/")
    world.clock.advance(FRESH_SECONDS)
    assert not asked
    assert await told(instance.fast, code) == (301, "https://example.com/")
    assert asked, "it is no longer fresh"
    world.clock.advance(STALE_SECONDS - FRESH_SECONDS - 1)
    assert await told(instance.fast, code) == (301, "https://example.com/")
    world.clock.advance(1)
    assert (await told(instance.fast, code))[0] == 503
    world.guarded.fetch = fetching
    assert await told(instance.fast, code) == (301, "https://example.com/")
