"""Limits at the gateway: exactly so many from each address in the window, on both paths together."""

import asyncio
import logging
import secrets
from ipaddress import ip_network

import pytest

from refract.runtime.client_address import address_hash, hashes_with
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.server import HttpServer
from refract.runtime.windows import Policy, Verdict
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http.counting import Limits
from refract.services.gateway.service import build_gateway
from tests.support.clocks import ManualClock
from tests.support.fronts import mirror, tokens
from tests.support.http import Answer, Client, fetch, head, running
from tests.support.redirects import SALT, Instance, RedirectWorld, redirects
from tests.support.redis_twins import administering, connected

__all__ = ["redirects"]

TRUSTED = (ip_network("127.0.0.1/32"),)
EVERYBODY = "127.0.0.1"

in_one_process = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
"""Only there has the gateway a fast path."""


World = tuple[RedirectWorld, Instance, str]


class NotingLimiter(EmbeddedRateLimiter):
    """Notes whom it counted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.counted: list[str] = []

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Both ways of counting come by here."""
        self.counted.append(who)
        return super().hit_soon(who, policy, cost)


@pytest.fixture
async def embedded(redirects: RedirectWorld) -> World:
    """Links behind a gateway in one process, and a code of theirs."""
    code = await redirects.link("limited")
    return redirects, await redirects.instance(trusted=TRUSTED), code


def fields_of(answer: Answer) -> tuple[str | None, ...]:
    names = ("x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy", "ratelimit", "retry-after")
    return tuple(answer.headers.get(name) for name in names)


async def statuses(server: HttpServer, *targets: str) -> list[int]:
    return [(await fetch(server.port, target)).status for target in targets]


@in_one_process
async def test_both_paths_and_both_addresses_are_counted_together(embedded: World) -> None:
    world, instance, code = embedded
    fast = await world.gateway(instance, limit=10)
    spelled = "%" + f"{ord(code[0]):02x}" + code[1:]  # not for the fast path
    targets = [f"/{code}", f"/r/{code}", f"/{spelled}", f"/r/{spelled}", f"/{world.code('absent')}"] * 2
    for number, target in enumerate(targets):
        answer = await fetch(fast.port, target, method="HEAD" if number == 5 else "GET")
        assert answer.status in {301, 404}
        left = 9 - number
        assert fields_of(answer) == ("10", str(left), '"redirect";q=10;w=60', f'"redirect";r={left};t=60', None)
    for target in targets:
        for method in ("GET", "HEAD"):
            answer = await fetch(fast.port, target, method=method)
            assert answer.status == 429
            assert fields_of(answer) == ("10", "0", '"redirect";q=10;w=60', '"redirect";r=0;t=63', "63")
    assert (await fetch(fast.port, f"/{code}")).json == {"error": "rate limit exceeded"}
    assert (await fetch(fast.port, "/health")).status == 200
    world.clock.advance(62)
    assert await statuses(fast, f"/{code}", f"/{spelled}") == [429, 429]
    world.clock.advance(1)
    assert await statuses(fast, *[f"/{code}"] * 11) == [301] * 10 + [429]


@in_one_process
async def test_a_flood_at_once_is_admitted_up_to_the_limit(embedded: World) -> None:
    world, instance, code = embedded
    gateway = await world.gateway(instance, limit=25)

    async def ask(number: int) -> list[int]:
        async with await Client.connect(gateway.port) as client:
            target = f"/{code}" if number % 2 else f"/r/%{ord(code[0]):02x}{code[1:]}"
            await client.send(head("GET", target) * 10)
            return [(await client.answer()).status for _ in range(10)]

    answered = [status for some in await asyncio.gather(*map(ask, range(8))) for status in some]
    assert sorted(answered) == [301] * 25 + [429] * 55
    assert len(await world.clicks()) == 25


@in_one_process
async def test_a_client_that_repeats_itself_is_counted_each_time(embedded: World) -> None:
    world, instance, code = embedded
    gateway = await world.gateway(instance, limit=5, trusted=TRUSTED)
    async with await Client.connect(gateway.port) as client:
        for address in ("203.0.113.1", "203.0.113.2"):
            answers = [await client.get(f"/{code}", f"X-Forwarded-For: {address}") for _ in range(8)]
            assert [answer.status for answer in answers] == [301] * 5 + [429] * 3
            assert [fields_of(answer)[1] for answer in answers] == ["4", "3", "2", "1", "0", "0", "0", "0"]
            assert fields_of(answers[5]) == fields_of(
                await fetch(gateway.port, "/other", f"X-Forwarded-For: {address}")
            )
    assert len(await world.clicks()) == 10


@in_one_process
async def test_each_address_has_its_own_and_none_is_told(embedded: World) -> None:
    world, instance, code = embedded
    limiter = NotingLimiter(world.clock)
    gateway = await world.gateway(instance, limiter, limit=2, trusted=TRUSTED)
    addresses = ("203.0.113.1", "203.0.113.2")
    for address in addresses:
        for target, expected in ((f"/{code}", 301), (f"/r/%{ord(code[0]):02x}{code[1:]}", 301), (f"/{code}", 429)):
            answer = await fetch(gateway.port, target, f"X-Forwarded-For: {address}")
            assert answer.status == expected
    assert limiter.counted == [address_hash(address, SALT) for address in addresses for _ in range(3)]


@in_one_process
async def test_an_ipv6_network_is_one_client_on_both_paths(embedded: World) -> None:
    world, instance, code = embedded
    limiter = NotingLimiter(world.clock)
    gateway = await world.gateway(instance, limiter, limit=6, trusted=TRUSTED)
    spelled = f"/r/%{ord(code[0]):02x}{code[1:]}"  # not for the fast path

    async def ask(network: int, number: int, target: str) -> int:
        address = f"X-Forwarded-For: 2001:db8:0:{network:x}::{number:x}"
        async with await Client.connect(gateway.port) as client:
            # Words that come again to the byte take a way of their own.
            return [(await client.get(target, address)).status for _ in range(2)][1]

    for network in (1, 2):
        assert [
            await ask(network, 1, f"/{code}"),
            await ask(network, 2, spelled),
            await ask(network, 3, f"/{code}"),
        ] == [301] * 3
        assert [await ask(network, number, target) for number, target in ((4, f"/{code}"), (5, spelled))] == [429] * 2
    clients = [address_hash(f"2001:db8:0:{network}::/64", SALT) for network in (1, 2)]
    assert list(dict.fromkeys(limiter.counted)) == clients
    assert len({click.ip_hash for click in await world.clicks()}) == 6, "visitors are still told apart"


@in_one_process
async def test_who_is_not_trusted_cannot_change_its_name(embedded: World) -> None:
    world, _, code = embedded
    gateway = await world.gateway(await world.instance(), limit=3)
    answered = [(await fetch(gateway.port, f"/{code}", f"X-Forwarded-For: 203.0.113.{n}")).status for n in range(5)]
    assert answered == [301] * 3 + [429] * 2


@in_one_process
@pytest.mark.parametrize("with_fast_path", [True, False])
async def test_zero_is_off(embedded: World, with_fast_path: bool) -> None:
    world, instance, code = embedded
    gateway = await world.gateway(instance, limit=0, with_fast_path=with_fast_path)
    for _ in range(20):
        answer = await fetch(gateway.port, f"/{code}")
        assert (answer.status, fields_of(answer)) == (301, (None,) * 5)


@in_one_process
async def test_links_own_port_has_no_limit(embedded: World) -> None:
    world, instance, code = embedded
    await world.gateway(instance, limit=1)
    assert await statuses(instance.fast, *[f"/{code}"] * 5) == [301] * 5


# In Redis, as a gateway of its own has it


async def test_redis_counts_by_the_hash_and_says_the_same(redis_address: str) -> None:
    salt = f"{SALT}-{secrets.token_hex(8)}"
    # Of nobody else: other tests have keys in the same Redis.
    address = ".".join(map(str, (10, *secrets.token_bytes(3))))
    key = f"ratelimit:redirect:{address_hash(address, salt)}"
    async with connected(redis_address) as redis, administering(redis_address) as client:
        limits = Limits(DistributedRateLimiter(redis), RouteLimits({"redirect": 3}, hashes_with(salt)))
        gateway = build_gateway(InProcess({"links": mirror}), tokens=tokens(), limits=limits, trusted_proxies=TRUSTED)
        async with running(gateway.application) as server:
            try:
                field = f"X-Forwarded-For: {address}"
                answers = [await fetch(server.port, f"{path}code", field) for path in ("/", "/r/", "/", "/r/", "/")]
                assert await client.exists(key) == 1
                assert [name async for name in client.scan_iter(f"*{address}*", count=1000)] == []
            finally:
                await client.delete(key)
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]
    assert all("retry-after" not in answer.headers for answer in answers[:3])
    assert all(1 <= int(answer.headers["retry-after"]) <= 63 for answer in answers[3:])


@pytest.mark.parametrize("way", ["embedded", "distributed"])
async def test_an_ipv6_network_is_one_client(redis_address: str, way: str) -> None:
    routes = RouteLimits({"redirect": 3}, hashes_with(f"{SALT}-{secrets.token_hex(8)}"))
    async with connected(redis_address) as redis:
        limiter = EmbeddedRateLimiter() if way == "embedded" else DistributedRateLimiter(redis)
        gateway = build_gateway(
            InProcess({"links": mirror}), tokens=tokens(), limits=Limits(limiter, routes), trusted_proxies=TRUSTED
        )
        async with running(gateway.application, fast_path=gateway.fast_path) as server:
            for network in (1, 2):
                fields = [f"X-Forwarded-For: 2001:db8:0:{network}::{number}" for number in range(1, 6)]
                assert [(await fetch(server.port, "/code", field)).status for field in fields] == [200] * 3 + [429] * 2


async def test_without_redis_everything_is_let_through_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "refract"):
        async with connected("127.0.0.1:1", deadline=0.05) as redis:
            limits = Limits(DistributedRateLimiter(redis), RouteLimits({"redirect": 1}, hashes_with(SALT)))
            gateway = build_gateway(InProcess({"links": mirror}), tokens=tokens(), limits=limits)
            async with running(gateway.application) as server:
                assert await statuses(server, *["/code"] * 5) == [200] * 5
    ours = [one for one in caplog.records if one.name.startswith("refract")]
    assert [record.getMessage() for record in ours] == ["redis unavailable; cache disabled"]
    assert all(EVERYBODY + ":" not in record.getMessage() for record in caplog.records)
