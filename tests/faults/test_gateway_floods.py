"""ACCEPTANCE 20 and 23 at the gateway: how many get in, whatever the clocks say, and when to come again."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.ports import RateLimiter
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.domain import limits
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http import Limits
from tests.support.doors import PATIENT, Backstage, ask_all, doors
from tests.support.fronts import serve_gateway
from tests.support.http import Client, fetch, running
from tests.support.redis_twins import connected
from tests.support.waiting import eventually

TRUSTED = [ip_network("127.0.0.1")]
CLIENTS = 100


# Four processes are no news to a limiter with one (tests/contracts): it is their clocks that could be.
@pytest.mark.parametrize("wrong_by", [(0, 61), pytest.param((0, 61, -61, 122), marks=pytest.mark.full)])
async def test_a_thousand_at_gateways_whose_clocks_differ_are_admitted_up_to_the_limit(
    tmp_path: Path, redis_address: str, wrong_by: tuple[float, ...]
) -> None:
    backstage = Backstage()
    changes = {"RATE_LIMIT_REDIRECT": "100"}
    async with (
        running(backstage, limits=PATIENT) as server,
        doors(tmp_path, server.port, redis_address, changes, wrong_by) as opened,
    ):
        share = 1_000 // len(opened)
        some = await asyncio.gather(*(ask_all(door.port, 25, share, "/r/abc") for door in opened))
        answered = sum(some, Counter[int]())
        assert answered == {200: 100, 429: 900}
        assert backstage.reached.total() == 100
        # And a minute later by the clock of one of them, which is no minute at all.
        await opened[0].turn_clock()
        await opened[0].turn_clock()
        assert {(await fetch(door.port, "/abc")).status for door in opened} == {429}


@pytest.fixture(params=["embedded", "distributed"])
async def limiter(request: pytest.FixtureRequest) -> AsyncIterator[RateLimiter]:
    if request.param == "embedded":
        yield EmbeddedRateLimiter()
        return
    async with connected(request.getfixturevalue("redis_address")) as redis:
        yield DistributedRateLimiter(redis)


async def come_again(port: int, number: int) -> list[int]:
    """Ask until it is too much, wait as long as was said, and ask once more."""
    address = f"X-Forwarded-For: 203.0.113.{number}"
    statuses = []
    async with await Client.connect(port) as client:
        while True:
            answer = await client.get("/r/abc", address)
            statuses.append(answer.status)
            if answer.status == 200:
                continue
            told = time.monotonic()
            early = await client.get("/r/abc", address)  # to ask early costs nothing
            if early.status != 200:
                break
            statuses.append(200)  # the machine stood still, and it was not early at all
        over = told + int(answer.headers["retry-after"])
        await eventually(lambda: time.monotonic() >= over, timeout=90)  # a timer may end a little before its time
        statuses.append((await client.get("/r/abc", address)).status)
    return statuses


async def test_whoever_waits_as_told_is_let_in_every_time(
    limiter: RateLimiter, redis_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A minute would be too long for a short test; over a second, so that more is said than the least there is.
    monkeypatch.setitem(limits.WINDOWS, "redirect", 1.5)
    counted = Limits(limiter, RouteLimits({"redirect": 3}, hashes_with(redis_namespace)))
    async with AsyncExitStack() as stack:
        services = InProcess({"links": Backstage()})
        port = await serve_gateway(services, stack, trusted=TRUSTED, counted=counted)
        answered = await asyncio.gather(*(come_again(port, number) for number in range(CLIENTS)))
    # One that is slow may find its first hits gone before its last: then it is let in more than three times.
    assert all(statuses[:3] == [200] * 3 and statuses[-2:] == [429, 200] for statuses in answered), answered


@pytest.mark.full
@pytest.mark.timeout(180)
async def test_a_hundred_clients_wait_out_a_real_minute(tmp_path: Path, redis_address: str) -> None:
    backstage = Backstage()
    changes = {"RATE_LIMIT_REDIRECT": "3", "TRUSTED_PROXIES": "127.0.0.1"}
    async with (
        running(backstage, limits=PATIENT) as server,
        doors(tmp_path, server.port, redis_address, changes) as (door,),
    ):
        answered = await asyncio.gather(*(come_again(door.port, number) for number in range(CLIENTS)))
    assert answered == [[200, 200, 200, 429, 200]] * CLIENTS
