"""Redis absent, killed, emptied, frozen and locked: what each port does without it, and that it comes back."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.caching import CacheEntry
from refract.runtime.distributed import redis_connection, redis_subscription
from refract.runtime.distributed.cache import DistributedCache
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.distributed.state_store import DistributedStateStore
from refract.runtime.transitions import COUNT_ITEM
from refract.runtime.windows import Policy
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_twins import PATIENT, administering, impatient, slow_line
from tests.support.servers import Redis
from tests.support.waiting import eventually

OPEN = Policy("redirect", limit=2, window=60, when_away="open")
LOCAL = Policy("login", limit=2, window=60, when_away="local")
PASSWORD = "a-password-that-nobody-may-read"
WARNING = "redis unavailable; cache disabled"


class Ports:
    """All three ports over one Redis, and what they were told."""

    def __init__(self, address: str, password: str | None = None, deadline: float = PATIENT) -> None:
        self.redis = RedisConnection(address, password=password, deadline=deadline)
        self.cache = DistributedCache(self.redis)
        self.limits = DistributedRateLimiter(self.redis)
        self.states = DistributedStateStore(self.redis)
        self.dropped: list[str] = []
        self.gaps = 0
        self.losses = 0
        self.cache.on_invalidation(self.dropped.extend, self._gap, self._lose)

    def _gap(self) -> None:
        self.gaps += 1

    def _lose(self) -> None:
        self.losses += 1

    async def start(self) -> None:
        await self.redis.start()
        await self.cache.start()

    async def close(self) -> None:
        await self.cache.close()
        await self.redis.close()

    async def assert_working(self) -> None:
        await self.redis.ping()
        await self.cache.set_many([CacheEntry("url:kept", 1, b"kept", 60)])
        assert await self.cache.get_many(["url:kept"]) == [b"kept"]
        await self.states.write("state", {"total": 5}, 60)
        assert await self.states.apply(COUNT_ITEM, "state", os.urandom(4).hex(), "ok") == "counted"

    async def assert_away(self) -> None:
        assert await self.cache.get_many(["url:kept", "url:absent"]) == [None, None]
        await self.cache.set_many([CacheEntry("url:kept", 1, b"kept", 60)])
        await self.cache.drop({"url:other": 1})
        assert all([(await self.limits.hit("somebody", OPEN)).allowed for _ in range(5)])
        assert not (await self.limits.hit("somebody", LOCAL, cost=3)).allowed
        for call in (self.states.read("state"), self.states.apply(COUNT_ITEM, "state", "1", "ok"), self.redis.ping()):
            with pytest.raises(Unavailable, match="redis is unavailable: "):
                await call

    async def back(self) -> bool:
        await self.redis.ping()
        return True


@pytest.fixture
def server() -> Iterator[Redis]:
    server = Redis()
    yield server
    server.close()


@pytest.fixture
async def ports(server: Redis) -> AsyncIterator[Ports]:
    """Ports over the server, which the test starts when it likes."""
    ports = Ports(server.address)
    yield ports
    await ports.close()


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said is kept, and a subscription on which nothing comes for a while is not taken for a dead one."""
    caplog.set_level(logging.INFO, logger="refract.redis")
    monkeypatch.setattr(redis_subscription, "QUIET_SECONDS", PATIENT)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "refract.redis"]


async def start(server: Redis) -> None:
    await asyncio.to_thread(server.start)


async def test_absent_at_start_and_there_later(server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    await ports.start()
    for _ in range(20):
        await ports.assert_away()
    assert said(caplog) == [("WARNING", WARNING)]
    assert ports.dropped == ["url:other"] * 20, "a process always hears of its own drops"
    assert not ports.cache.hears
    await start(server)
    await eventually(ports.back)
    await ports.assert_working()
    await eventually(lambda: ports.gaps == 1)
    assert ports.cache.hears
    assert ports.losses == 0, "what was never heard cannot be lost"
    assert said(caplog) == [("WARNING", WARNING), ("INFO", "redis is back")]


async def test_killed_in_mid_use_and_back_twice(server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    await start(server)
    await ports.start()
    for outage in range(1, 3):
        await ports.assert_working()
        users = [asyncio.create_task(_use(ports)) for _ in range(20)]
        await asyncio.to_thread(server.kill)
        await asyncio.gather(*users)
        await ports.assert_away()
        await eventually(lambda: not ports.cache.hears)
        await start(server)
        await eventually(ports.back)
        await ports.assert_working()
        await eventually(lambda: ports.cache.hears)
        assert (ports.losses, ports.gaps) == (outage, outage)
        assert said(caplog) == [("WARNING", WARNING), ("INFO", "redis is back")] * outage


async def _use(ports: Ports) -> None:
    """Keep asking until Redis is seen to be away; nothing but the answer may show it."""
    while ports.redis.away is None:
        assert await ports.cache.get_many(["url:kept"]) in ([b"kept"], [None])
        await ports.limits.hit("somebody", OPEN)


async def test_emptied_in_mid_use(server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    await start(server)
    await ports.start()
    await ports.assert_working()
    assert (await ports.limits.hit("somebody", LOCAL, cost=2)).allowed
    async with administering(server.address) as client:
        await client.flushall()
        await client.script_flush()
    assert await ports.cache.get_many(["url:kept"]) == [None]
    assert await ports.states.apply(COUNT_ITEM, "state", "1", "ok") == "absent"
    assert (await ports.limits.hit("somebody", LOCAL)).remaining == 1
    await ports.assert_working()
    assert said(caplog) == []


async def test_frozen_in_mid_use_fails_at_once_after_the_first(
    server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(server)
    with monkeypatch.context() as patch:
        patch.setattr(redis_subscription, "QUIET_SECONDS", 1.0)  # read again for each word that is waited for
        await ports.start()
        await ports.assert_working()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with impatient(ports.redis):
                # Were each of these to wait for its deadline of 0.2 s, it would take minutes.
                async with asyncio.timeout(60):
                    more_than_a_batch = 2 * redis_connection.MAX_BATCH + 1
                    asked = (ports.cache.get_many(["url:kept"]) for _ in range(more_than_a_batch))
                    assert await asyncio.gather(*asked) == [[None]] * more_than_a_batch
                    for _ in range(100):
                        await ports.assert_away()
            await eventually(lambda: not ports.cache.hears)  # it has given up the subscription
            patch.setattr(redis_subscription, "QUIET_SECONDS", PATIENT)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await eventually(ports.back)
        await ports.assert_working()
        await eventually(lambda: ports.gaps >= 1)
    assert said(caplog) == [("WARNING", WARNING), ("INFO", "redis is back")]


async def test_a_line_that_is_always_slow_is_one_outage(
    server: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "PROBE_PAUSE", 0.05)
    await start(server)
    async with slow_line(server.address, delay=30) as (address, callers):
        ports = Ports(address, deadline=0.05)
        await ports.start()
        await ports.assert_away()
        # Probes are let in, and answered too late: were that enough, Redis would be lost and found again for ever.
        await eventually(lambda: len(callers) > 12)
        await ports.assert_away()
        assert said(caplog) == [("WARNING", WARNING)]
        await ports.close()


async def test_swallowed_by_the_network_and_back(
    server: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(server)
    async with FaultProxy.to("127.0.0.1", server.port) as proxy:
        ports = Ports(f"127.0.0.1:{proxy.port}")
        with monkeypatch.context() as patch:
            patch.setattr(redis_subscription, "QUIET_SECONDS", 1.0)
            await ports.start()
            await ports.assert_working()
            proxy.swallow()
            with impatient(ports.redis):
                for _ in range(20):
                    await ports.assert_away()
                await eventually(lambda: not ports.cache.hears)
                proxy.heal()  # no probe with more patience has been swallowed before
        await eventually(ports.back)
        await ports.assert_working()
        await eventually(lambda: ports.gaps >= 1)
        assert said(caplog) == [("WARNING", WARNING), ("INFO", "redis is back")]
        await ports.close()


async def test_local_limits_hold_while_redis_is_away(server: Redis, ports: Ports) -> None:
    await ports.start()
    verdicts = [await ports.limits.hit("somebody", LOCAL) for _ in range(20)]
    assert [verdict.allowed for verdict in verdicts] == [True, True] + [False] * 18
    assert 0 < verdicts[-1].retry_after <= 63


async def test_a_connection_closed_by_the_server_is_no_outage(
    server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    await start(server)
    await ports.start()
    await ports.assert_working()
    async with administering(server.address) as client:
        assert await client.client_kill_filter(_type="normal", skipme=True) == 1
    connection = ports.redis._connection
    assert connection is not None
    await eventually(connection.can_read)
    await ports.assert_working()
    assert [level for level, _ in said(caplog)].count("WARNING") == 0


async def test_a_lost_subscription_tells_of_the_gap_and_hears_again(server: Redis, ports: Ports) -> None:
    await start(server)
    await ports.start()
    async with administering(server.address) as client:
        assert await client.client_kill_filter(_type="pubsub") == 1
        await eventually(lambda: ports.gaps == 1)
        assert ports.losses == 1
        other = Ports(server.address)
        await other.start()
        await other.cache.drop({"url:told": 1})
        await eventually(lambda: "url:told" in ports.dropped)
        await other.close()
    assert ports.gaps == 1


async def test_a_callback_that_fails_does_not_end_the_subscription(
    server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    await start(server)
    await ports.start()
    other = Ports(server.address)
    await other.start()
    failures = iter([ZeroDivisionError])

    def fail_once(keys: object) -> None:
        for failure in failures:
            raise failure

    ports.cache.on_invalidation(fail_once, lambda: None)
    await other.cache.drop({"url:first": 1})
    await eventually(lambda: ports.gaps == 1)
    await other.cache.drop({"url:second": 1})
    await eventually(lambda: "url:second" in ports.dropped)
    await other.close()
    assert said(caplog) == [("ERROR", "an invalidation could not be handled")]


async def test_the_password_is_used_and_never_shown(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    await start(server)
    async with administering(server.address) as client:
        await client.config_set("requirepass", PASSWORD)
    right, wrong, none = Ports(server.address, PASSWORD), Ports(server.address, PASSWORD[::-1]), Ports(server.address)
    for ports in (right, wrong, none):
        await ports.start()
    await right.assert_working()
    await wrong.assert_away()
    await none.assert_away()
    shown = " ".join(str(vars(record)) for record in caplog.records) + str(wrong.redis.away) + str(none.redis.away)
    assert PASSWORD not in shown
    assert PASSWORD[::-1] not in shown
    for ports in (right, wrong, none):
        await ports.close()


async def test_a_full_redis_is_said_once_and_nobody_fails(
    server: Redis, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    await start(server)
    await ports.start()
    async with administering(server.address) as client:
        await client.config_set("maxmemory", "1")
    for _ in range(20):
        await ports.cache.set_many([CacheEntry("url:kept", 1, b"kept", 60)])
        assert (await ports.limits.hit("somebody", OPEN)).allowed
    assert not (await ports.limits.hit("somebody", LOCAL, cost=3)).allowed
    with pytest.raises(Unavailable):
        await ports.states.write("state", {"total": 1}, 60)
    assert said(caplog) == [("WARNING", "redis refused a command")]


async def test_a_busy_process_does_not_take_its_own_delay_for_an_outage(
    server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await start(server)
    ports = Ports(server.address)
    await ports.start()
    await ports.cache.set_many([CacheEntry("url:kept", 1, b"kept", 60)])
    busy = True

    def hog() -> None:
        time.sleep(0.6)  # holds the event loop for three deadlines, as a long computation would
        if busy:
            asyncio.get_running_loop().call_soon(hog)

    with impatient(ports.redis):
        asked = [asyncio.create_task(ports.cache.get_many(["url:kept"])) for _ in range(10)]
        hog()
        try:
            assert await asyncio.gather(*asked) == [[b"kept"]] * 10
        finally:
            busy = False
    assert said(caplog) == []
    await ports.close()


async def test_a_caller_that_is_gone_takes_nobody_along(server: Redis, ports: Ports) -> None:
    await start(server)
    await ports.start()
    await ports.assert_working()
    gone = [asyncio.create_task(ports.cache.get_many(["url:kept"])) for _ in range(10)]
    staying = [asyncio.create_task(ports.cache.get_many(["url:kept"])) for _ in range(10)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    assert await asyncio.gather(*staying) == [[b"kept"]] * 10
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*gone, return_exceptions=True))


async def test_an_address_that_swallows_everything_does_not_hold_up_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_connection, "DIAL_TIMEOUT", 0.2)
    callers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: callers.append(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    ports = Ports(f"{host}:{port}", PASSWORD, deadline=0.2)
    async with asyncio.timeout(30):
        await ports.start()
        await ports.assert_away()
    assert said(caplog) == [("WARNING", WARNING)]
    await ports.close()
    silent.close()
    for caller in callers:
        caller.close()


async def test_closed_is_closed(server: Redis) -> None:
    await start(server)
    ports = Ports(server.address)
    await ports.start()
    await ports.close()
    await ports.assert_away()
    await ports.close()
