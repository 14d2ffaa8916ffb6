"""Outbox and inbox while relays, readers, databases and brokers die: nothing is lost and nothing is done twice."""

import asyncio
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import aiormq
import pytest

from refract.kernel.clock import SystemClock
from refract.kernel.errors import NotPublished, Unavailable
from refract.kernel.events import Event
from refract.runtime import inbox
from refract.runtime.distributed import rabbit_publisher
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.inbox import ATTEMPTS
from refract.runtime.outbox import FIRST_BATCH, pending_in_outbox
from refract.runtime.ports import Transaction
from tests.support import victims
from tests.support.buses import EmbeddedBuses, RabbitBuses, drain, take
from tests.support.databases import Location
from tests.support.fault_proxy import proxy_before
from tests.support.servers import PostgreSQL, RabbitMQ
from tests.support.victims import KILLER
from tests.support.waiting import eventually
from tests.support.worlds import Noted, World, add_effects, buses_beside, noted, open_world, running

ROOT = Path(__file__).parents[2]
RECOVERY = 60.0

FRESH = 20
"""So many rows each relay that is killed meets that no relay has met before."""

KILLS_IN_A_ROW = FIRST_BATCH // FRESH
"""Then one lives: a batch has room for the rows of so many, and more would meet no fresh ones."""


@pytest.fixture(params=["embedded", "distributed"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where the database of a world is to be."""
    if request.param == "embedded":
        return tmp_path / "test.db"
    dsn: str = request.getfixturevalue("fresh_database")
    return dsn


@pytest.fixture
async def world(location: Location, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A world with a queue, in real time."""
    async with open_world(location, buses_beside(location, request), clock=SystemClock()) as world:
        await world.bus.declare(world.queue)
        yield world


async def killed(world: World, way: str) -> None:
    """Start a victim and see it die of its own hand."""
    victim = await _start(world, way)
    async with asyncio.timeout(60):
        assert await victim.wait() == -signal.SIGKILL
    await eventually(world.is_left)


async def _start(world: World, way: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", victims.__name__, way]
    victim = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, cwd=ROOT)
    assert victim.stdin is not None
    victim.stdin.write(world.address().encode())
    victim.stdin.close()
    return victim


async def effects_are(world: World, numbers: Sequence[int]) -> bool:
    return await world.effects() == list(numbers)


@asynccontextmanager
async def healthy_reader(world: World) -> AsyncIterator[None]:
    """A reader in this process that comes after others have died, with a bus that has just been opened."""
    async with running(world.inbox(bus=await world.buses.open()).run):
        yield


class TestKilledRelays:
    async def test_killed_between_confirm_and_mark(self, world: World) -> None:
        await self._kill_relays(world, 10)

    @pytest.mark.full
    @pytest.mark.timeout(900)
    async def test_killed_between_confirm_and_mark_two_hundred_times(self, world: World) -> None:
        await self._kill_relays(world, 200)

    async def _kill_relays(self, world: World, times: int) -> None:
        sent_again = 0
        async with running(world.inbox().run):
            for kill in range(times):
                announced = range(FRESH * (kill + 1))
                await world.announce(*map(noted, announced[-FRESH:]))
                await killed(world, "between_confirm_and_mark")
                # It sent the rows that nobody had sent before, beside those of its predecessors, and marked none.
                await eventually(partial(effects_are, world, announced), timeout=RECOVERY)
                in_a_row = kill % KILLS_IN_A_ROW + 1
                assert await pending_in_outbox(world.database) == FRESH * in_a_row
                sent_again += FRESH * in_a_row
                if in_a_row == KILLS_IN_A_ROW or kill == times - 1:
                    await world.relay().drain()
                    assert await pending_in_outbox(world.database) == 0
            name = world.queue.name
            await eventually(lambda: world.counted("inbox_repeated_total", reader=name) >= sent_again, timeout=RECOVERY)
        assert await world.effects() == list(range(FRESH * times))


class TestKilledReaders:
    async def test_killed_between_commit_and_acknowledgement(self, world: World) -> None:
        await world.publish(*map(noted, range(200)))
        for _ in range(3):
            await killed(world, "between_commit_and_acknowledgement")
        assert await world.effects(), "the readers died before they had done anything"
        async with healthy_reader(world):
            await eventually(lambda: effects_are(world, range(200)), timeout=RECOVERY)
            name = world.queue.name
            await eventually(lambda: world.counted("inbox_repeated_total", reader=name) > 0)
        assert await world.effects() == list(range(200))
        assert await world.dead() == []

    async def test_killed_between_counting_and_commit(self, world: World) -> None:
        await world.publish(*map(noted, range(victims.ALL)))
        for _ in range(4):
            await killed(world, "before_commit")
        assert await world.effects() == []
        # The first death was not of a redelivery, the second of all together, and then one alone was to blame.
        counted = Counter(row["attempts"] for row in await world.attempts())
        assert set(counted) == {1, 3}
        assert counted[3] == 1
        async with healthy_reader(world):
            await eventually(lambda: effects_are(world, range(200)), timeout=RECOVERY)
            await eventually(lambda: _no_attempts(world))
        assert await world.dead() == []

    async def test_a_message_that_kills_its_reader_is_found_out(self, world: World) -> None:
        numbers = [*range(100), KILLER, *range(100, 200)]
        await world.publish(*map(noted, numbers))
        for _ in range(6):
            await killed(world, "by_a_message")
        survivor = await _start(world, "by_a_message")
        await eventually(lambda: effects_are(world, range(200)), timeout=RECOVERY)
        [letter] = await eventually(world.dead)
        assert survivor.returncode is None
        survivor.kill()
        await survivor.wait()
        assert letter.reason == "the reader died 5 times while handling it"
        assert b'"number":-1' in letter.message.body
        assert await world.attempts() == []


async def _no_attempts(world: World) -> bool:
    return await world.attempts() == []


class TestPoison:
    async def test_one_poison_message_among_two_thousand(self, world: World) -> None:
        await self._find_the_poison(world, 2_000)

    @pytest.mark.full
    async def test_one_poison_message_among_ten_thousand(self, world: World) -> None:
        await self._find_the_poison(world, 10_000)

    async def _find_the_poison(self, world: World, number: int) -> None:
        async def handle(tx: Transaction, events: Sequence[Event]) -> None:
            await add_effects(tx, events)
            for event in events:
                assert isinstance(event, Noted)
                if event.number == KILLER:
                    raise ValueError(f"{event.number} cannot be handled")

        numbers = list(range(number))
        numbers[number // 3] = KILLER
        for first in range(0, number, 500):
            await world.publish(*map(noted, numbers[first : first + 500]))
        async with running(world.inbox(handle).run):
            expected = [one for one in numbers if one != KILLER]
            await eventually(lambda: effects_are(world, expected), timeout=RECOVERY)
            [letter] = await eventually(world.dead)
        assert letter.reason == "ValueError: -1 cannot be handled"
        assert await world.attempts() == []
        assert await world.bus.replay(world.queue.name) == 1
        async with running(world.inbox().run):
            await eventually(lambda: effects_are(world, [KILLER, *expected]))


class Ledger:
    """Announces numbers as long as it is asked to, and knows which of them were acknowledged."""

    def __init__(self) -> None:
        self.attempted: set[int] = set()
        self.acknowledged: set[int] = set()

    async def write(self, world: World) -> None:
        """Announce number after number, whatever happens."""
        for number in count():
            self.attempted.add(number)
            with suppress(Unavailable):
                await world.announce(noted(number))
                self.acknowledged.add(number)
            await asyncio.sleep(0.002)

    async def check(self, world: World) -> None:
        """Everything acknowledged was handled, once, and nothing that nobody tried."""

        async def settled() -> bool:
            return self.acknowledged <= set(await world.effects()) and await pending_in_outbox(world.database) == 0

        await eventually(settled, timeout=RECOVERY)
        found = await world.effects()
        assert len(found) == len(set(found))
        assert set(found) <= self.attempted
        assert await world.dead() == []


class TestServers:
    @pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.full)])
    async def test_the_database_is_killed_and_back(self, rabbitmq_url: str, times: int) -> None:
        with PostgreSQL() as postgres:
            async with open_world(postgres.address, RabbitBuses(rabbitmq_url), clock=SystemClock()) as world:
                await self._kill(postgres, world, times)

    @pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.full)])
    @pytest.mark.timeout(300)
    async def test_the_broker_is_killed_and_back(self, fresh_database: str, times: int) -> None:
        with RabbitMQ() as broker:
            async with open_world(fresh_database, RabbitBuses(broker.address), clock=SystemClock()) as world:
                await self._kill(broker, world, times)

    async def _kill(self, server: PostgreSQL | RabbitMQ, world: World, times: int) -> None:
        ledger = Ledger()
        await world.bus.declare(world.queue)
        async with running(world.relay().run, world.inbox().run):
            async with running(lambda: ledger.write(world)):
                for _ in range(times):
                    await self._see_progress(world)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await self._see_progress(world)
            await ledger.check(world)

    async def _see_progress(self, world: World) -> None:
        before = len(await eventually(world.effects, timeout=RECOVERY))

        async def more() -> bool:
            return len(await world.effects()) > before + 50

        await eventually(more, timeout=RECOVERY)

    async def test_a_database_that_dies_in_every_attempt_condemns_no_message(
        self, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inbox, "LONGEST_PAUSE", 0.1)
        with PostgreSQL() as postgres:
            async with (
                open_world(postgres.address, RabbitBuses(rabbitmq_url), clock=SystemClock()) as world,
                world.bus.reader(world.queue) as reader,
            ):
                deaths = 0
                up = asyncio.Event()  # whoever starts it has seen it answer; killed before that, it would never start
                up.set()

                async def handle(tx: Transaction, events: Sequence[Event]) -> None:
                    nonlocal deaths
                    if deaths <= ATTEMPTS:
                        await up.wait()
                        up.clear()
                        await asyncio.to_thread(postgres.kill)
                        deaths += 1
                    await add_effects(tx, events)

                await world.publish(noted(1))
                suspects = [replace(delivery, redelivered=True) for delivery in await take(reader, 1)]
                settling = asyncio.create_task(world.inbox(handle).settle(reader, suspects))
                for death in range(1, ATTEMPTS + 2):
                    await eventually(lambda death=death: deaths == death)  # type: ignore[misc]
                    await asyncio.to_thread(postgres.start)
                    up.set()
                await asyncio.wait_for(settling, RECOVERY)
                assert await world.effects() == [1]
                assert await world.dead() == []
                assert await world.attempts() == []


class TestBindings:
    async def test_a_deleted_binding_loses_none_of_a_thousand(self, fresh_database: str, rabbitmq_url: str) -> None:
        buses = RabbitBuses(rabbitmq_url)
        async with open_world(fresh_database, buses, clock=SystemClock()) as world:
            await world.bus.declare(world.queue)
            async with aiormq.connect(rabbitmq_url) as connection:
                channel = await connection.channel()
                await channel.queue_unbind(world.queue.name, buses.exchange, Noted.routing_key())
            await world.announce(*map(noted, range(1_000)))
            async with running(world.relay().run):
                await eventually(lambda: world.counted("outbox_failed_total", service="test") >= 1_000)
                assert await world.unpublished() == 1_000
                await world.bus.declare(world.queue)
                async with running(world.inbox().run):
                    await eventually(lambda: effects_are(world, range(1_000)), timeout=RECOVERY)
                    await eventually(lambda: _nothing_waits(world))


async def _nothing_waits(world: World) -> bool:
    return await pending_in_outbox(world.database) == 0


class TestHangingBuses:
    async def test_a_broker_that_does_not_answer_leaves_the_rows_untouched(
        self, fresh_database: str, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buses = RabbitBuses(rabbitmq_url)
        async with (
            proxy_before(rabbitmq_url) as (behind, proxy),
            open_world(fresh_database, buses, clock=SystemClock()) as world,
            world.bus.reader(world.queue) as reader,
        ):
            proxied = RabbitBus(behind)
            await proxied.start()
            relay = world.relay(bus=proxied)
            await world.announce(noted(0))
            await relay.drain()
            await world.announce(*map(noted, range(1, 31)))
            before = await world.outbox()
            proxy.swallow()
            with monkeypatch.context() as patch:
                patch.setattr(rabbit_publisher, "PUBLISH_TIMEOUT", 0.3)
                for _ in range(3):
                    with pytest.raises((NotPublished, Unavailable)):
                        await relay.move()
            assert await world.outbox() == before
            proxy.heal()
            async with running(relay.run):
                assert len(await asyncio.wait_for(drain(reader, 31), RECOVERY)) == 31
            await proxied.close()

    async def test_a_locked_file_leaves_the_rows_untouched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with (
            open_world(tmp_path / "test.db", EmbeddedBuses(tmp_path), clock=SystemClock()) as world,
            world.bus.reader(world.queue) as reader,
        ):
            events = [noted(number) for number in range(30)]
            await world.announce(*events)
            before = await world.outbox()
            holder = sqlite3.connect(tmp_path / "bus.sqlite", isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            relay = world.relay()
            with monkeypatch.context() as patch:
                patch.setattr("refract.runtime.embedded.event_bus.PUBLISH_TIMEOUT", 0.3)
                with pytest.raises((NotPublished, Unavailable)):
                    await relay.move()
            assert await world.outbox() == before
            holder.execute("ROLLBACK")
            holder.close()
            received: set[str] = set()
            async with running(relay.run), asyncio.timeout(RECOVERY):
                while len(received) < 30:
                    received.update(message.message_id for message in await drain(reader, 1))
            assert received == {event.event_id for event in events}
