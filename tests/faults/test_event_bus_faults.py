"""The event bus over RabbitMQ under faults: brokers that die, hang, refuse and forget."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiormq
import pytest

from refract.kernel.errors import BusAway, NotPublished, Unavailable, Unroutable
from refract.runtime.distributed import rabbit_publisher
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.messages import Binding, Message
from refract.runtime.ports import EventBus, QueueReader
from tests.support.buses import RabbitBuses, bodies, drain, take
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import RabbitMQ
from tests.support.servers.rabbitmq import script
from tests.support.waiting import eventually

RECOVERY = 60.0
NO_HEARTBEAT = "?heartbeat=600"
"""For what must not be left to it: a connection that is dead would else be noticed within RECOVERY in any case."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    """A broker that these tests may kill; each leaves it running."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture
async def buses(broker: RabbitMQ) -> AsyncIterator[RabbitBuses]:
    """Buses straight to the broker."""
    await asyncio.to_thread(broker.start)
    here = RabbitBuses(broker.address)
    yield here
    await here.close()


@pytest.fixture
async def proxy(broker: RabbitMQ) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the broker."""
    async with FaultProxy.to("127.0.0.1", broker.port) as proxy:
        yield proxy


@pytest.fixture
async def proxied(buses: RabbitBuses, proxy: FaultProxy) -> AsyncIterator[RabbitBus]:
    """A bus through the proxy."""
    bus = RabbitBus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/{NO_HEARTBEAT}")
    await bus.start()
    await bus.ping()
    yield bus
    proxy.heal()
    await bus.close()


@contextmanager
def little_patience() -> Iterator[None]:
    """For a block in which the broker confirms nothing: publishing gives up sooner than in real life."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rabbit_publisher, "PUBLISH_TIMEOUT", 1.0)
        yield


class Ledger:
    """Reads a queue and knows what has arrived."""

    def __init__(self, reader: QueueReader) -> None:
        self.received: set[bytes] = set()
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader: QueueReader) -> None:
        while True:
            batch = await reader.next_batch()
            self.received.update(bodies(batch))
            await reader.acknowledge(batch)

    async def stop(self) -> None:
        """Stop reading; what the reading raised is raised here."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def publish_until_taken(bus: EventBus, message: Message) -> None:
    """What the relay does: try again until it is confirmed."""
    while True:
        with suppress(NotPublished):
            await bus.publish(message)
            return
        await asyncio.sleep(0.05)


async def publish_like_relays(
    bus: EventBus, messages: list[Message], publishers: int, confirmed: list[Message] | None = None
) -> None:
    """Share the messages among publishers, and note those that are confirmed."""

    async def publish(mine: list[Message]) -> None:
        for message in mine:
            await publish_until_taken(bus, message)
            if confirmed is not None:
                confirmed.append(message)

    await asyncio.gather(*(publish(messages[number::publishers]) for number in range(publishers)))


class TestBroker:
    async def test_nothing_confirmed_is_lost_when_the_broker_is_killed(
        self, broker: RabbitMQ, buses: RabbitBuses
    ) -> None:
        await _survive_kills(broker, buses, messages=2_000, publishers=20, kills_after=(600,))

    @pytest.mark.full
    @pytest.mark.timeout(300)
    async def test_nothing_confirmed_is_lost_when_the_broker_is_killed_twice(
        self, broker: RabbitMQ, buses: RabbitBuses
    ) -> None:
        await _survive_kills(broker, buses, messages=10_000, publishers=100, kills_after=(3_333, 5_000))

    async def test_a_bus_starts_without_its_broker_and_finds_it_later(
        self, broker: RabbitMQ, buses: RabbitBuses, caplog: pytest.LogCaptureFixture
    ) -> None:
        await asyncio.to_thread(broker.stop)
        bus = await buses.open()
        with pytest.raises(Unavailable) as unavailable:
            await bus.ping()
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert {record.getMessage() for record in warnings} == {"rabbitmq unavailable; will retry in background"}
        assert "guest" not in str(unavailable.value) + "".join(str(vars(record)) for record in caplog.records)

        gaps: list[None] = []
        heard: list[Message] = []
        await bus.listen([Binding(buses.exchange, "heard")], heard.append, lambda: gaps.append(None))
        await bus.declare(buses.queue("declared", "declared"))
        async with bus.reader(buses.queue("reader", "read")) as reader:
            messages = [buses.message(key, b"patient") for key in ("heard", "declared", "read")]
            publishing = asyncio.create_task(publish_like_relays(bus, messages, publishers=3))
            await asyncio.to_thread(broker.start)
            assert bodies(await asyncio.wait_for(drain(reader, 1), RECOVERY)) == [b"patient"]
            await asyncio.wait_for(publishing, RECOVERY)
        await eventually(lambda: bodies(heard) == [b"patient"])
        assert gaps == [None]

    async def test_a_blocked_broker_delays_publishers_only(self, broker: RabbitMQ, buses: RabbitBuses) -> None:
        bus = await buses.open()
        queue = buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish_all([buses.message("key", b"before") for _ in range(10)])
            before = await take(reader, 10)
            await asyncio.to_thread(_set_memory_watermark, broker, "0")
            with little_patience():
                await eventually(lambda: _is_refused(bus, buses.message("key", b"refused")))  # an alarm takes its time
                for _ in range(2):
                    with pytest.raises(BusAway, match="no confirmation"):
                        await asyncio.wait_for(bus.publish(buses.message("key", b"refused")), RECOVERY)
            with pytest.raises(Unavailable, match="an alarm keeps it from taking messages"):
                await bus.ping()
            await reader.acknowledge(before)
            await asyncio.to_thread(_set_memory_watermark, broker, "0.4")
            await asyncio.wait_for(publish_until_taken(bus, buses.message("key", b"after")), RECOVERY)
            received: list[bytes] = []
            while b"after" not in received:
                received += bodies(await drain(reader, 1))
        assert b"before" not in received

    async def test_a_deleted_binding_makes_messages_unroutable_until_it_is_back(self, buses: RabbitBuses) -> None:
        bus = await buses.open()
        queue = buses.queue("reader", "key")
        messages = [buses.message("key", b"%d" % number) for number in range(100)]
        async with bus.reader(queue) as reader:
            async with aiormq.connect(buses.url) as connection:
                channel = await connection.channel()
                await channel.queue_unbind(queue.name, buses.exchange, "key")
            outcomes = await bus.publish_all(messages)
            assert {type(outcome) for outcome in outcomes} == {Unroutable}
            await bus.declare(queue)
            assert await bus.publish_all(messages) == [None] * 100
            assert len(await drain(reader, 100)) == 100

    async def test_a_broker_that_lost_its_data_gets_its_queues_back(self, broker: RabbitMQ, buses: RabbitBuses) -> None:
        bus = await buses.open()
        await bus.declare(buses.queue("declared", "declared"))
        async with bus.reader(buses.queue("reader", "read")) as reader:
            await bus.publish(buses.message("read", b"before"))
            await drain(reader, 1)
            await asyncio.to_thread(broker.stop)
            shutil.rmtree(broker.folder / "mnesia")
            await asyncio.to_thread(broker.start)
            messages = [buses.message(key, b"after") for key in ("declared", "read")]
            await asyncio.wait_for(publish_like_relays(bus, messages, publishers=2), RECOVERY)
            assert bodies(await drain(reader, 1)) == [b"after"]

    async def test_a_deleted_queue_is_declared_again_by_its_reader_and_missed(
        self, buses: RabbitBuses, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = await buses.open()
        queue = buses.queue("reader", "key")
        async with bus.reader(queue) as reader:
            async with aiormq.connect(buses.url) as connection:
                channel = await connection.channel()
                await channel.queue_delete(queue.name)
                await channel.exchange_delete(buses.exchange)
            await publish_until_taken(bus, buses.message("key", b"again"))
            assert bodies(await drain(reader, 1)) == [b"again"]
        assert [vars(record)["queue"] for record in caplog.records if _misses_a_queue(record)] == [queue.name]


class TestConnection:
    async def test_a_cut_connection_loses_nothing_and_is_made_again(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = [buses.message("key", b"%d" % number) for number in range(1_000)]
        async with proxied.reader(buses.queue("reader", "#", prefetch=50)) as reader:
            ledger = Ledger(reader)
            publishing = asyncio.create_task(publish_like_relays(proxied, messages, publishers=20))
            for share in (100, 300, 500):
                await eventually(lambda share=share: len(ledger.received) > share)  # type: ignore[misc]
                proxy.cut()
            await asyncio.wait_for(publishing, RECOVERY)
            await eventually(lambda: len(ledger.received) == 1_000, timeout=RECOVERY)
            await ledger.stop()
        assert not any(map(_misses_a_queue, caplog.records))

    async def test_no_publish_outlasts_a_black_hole_and_the_connection_is_replaced(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        queue = buses.queue("reader", "#")
        await proxied.declare(queue)
        await proxied.publish(buses.message("key", b"before"))
        proxy.swallow()
        messages = [buses.message("key", b"%d" % number) for number in range(50)]
        with little_patience():
            for _ in range(2):  # on the dead connection, and while no new one can be made
                outcomes = await asyncio.wait_for(proxied.publish_all(messages), RECOVERY)
                assert {type(outcome) for outcome in outcomes} == {BusAway}
        proxy.heal()
        await asyncio.wait_for(publish_like_relays(proxied, messages, publishers=5), RECOVERY)
        async with (await buses.open()).reader(queue) as reader:
            ledger = Ledger(reader)
            await eventually(lambda: len(ledger.received) == 51)
            await ledger.stop()

    async def test_confirmations_that_come_too_late_harm_nobody(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        queue = buses.queue("reader", "#")
        await proxied.declare(queue)
        await proxied.publish(buses.message("key", b"before"))
        proxy.pause()
        with little_patience(), pytest.raises(NotPublished, match="no confirmation"):
            await proxied.publish(buses.message("key", b"late"))
        proxy.heal()
        await publish_until_taken(proxied, buses.message("key", b"after"))
        async with (await buses.open()).reader(queue) as reader:
            ledger = Ledger(reader)
            await eventually(lambda: {b"before", b"after"} <= ledger.received)
            await ledger.stop()

    async def test_a_listener_is_told_of_the_gap_once_it_hears_again(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        heard: list[bytes] = []
        await proxied.listen(
            [Binding(buses.exchange, "#")], lambda message: heard.append(message.body), lambda: heard.append(b"gap")
        )
        await proxied.publish(buses.message("key", b"before"))
        await eventually(lambda: heard == [b"before"])
        proxy.cut()
        await eventually(lambda: heard == [b"before", b"gap"])
        await publish_until_taken(proxied, buses.message("key", b"after"))
        await eventually(lambda: heard == [b"before", b"gap", b"after"])

    async def test_what_a_lost_connection_delivered_comes_again(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        async with proxied.reader(buses.queue("reader", "#")) as reader:
            await proxied.publish(buses.message("key", b"body"))
            stale = await take(reader, 1)
            proxy.cut()
            (again,) = await take(reader, 1)
            assert again.redelivered
            await reader.acknowledge(stale)
            await reader.give_back(stale)
            await reader.acknowledge([again])
            await publish_until_taken(proxied, buses.message("key", b"the end"))
            assert bodies(await take(reader, 1)) == [b"the end"]

    async def test_a_reader_in_a_black_hole_is_connected_again(self, buses: RabbitBuses, proxy: FaultProxy) -> None:
        bus = RabbitBus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/?heartbeat=1")
        await bus.start()
        async with bus.reader(buses.queue("reader", "#")) as reader:
            reading = asyncio.create_task(take(reader, 1))
            proxy.swallow()
            proxy.heal()
            publisher = await buses.open()
            await publisher.publish(buses.message("key", b"through"))
            assert bodies(await asyncio.wait_for(reading, RECOVERY)) == [b"through"]
        await bus.close()

    async def test_closing_does_not_wait_for_a_broker_that_hangs(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        async with proxied.reader(buses.queue("reader", "#")):
            proxy.swallow()
            await asyncio.wait_for(proxied.close(), RECOVERY)
        await eventually(lambda: proxy.connections == 0)

    async def test_starting_does_not_wait_for_a_broker_that_hangs(self, buses: RabbitBuses, proxy: FaultProxy) -> None:
        proxy.swallow()
        bus = RabbitBus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/{NO_HEARTBEAT}")
        await asyncio.wait_for(bus.start(), RECOVERY)
        with pytest.raises(Unavailable):
            await bus.ping()
        proxy.heal()
        await eventually(lambda: _answers(bus), timeout=RECOVERY)
        await bus.close()


async def _survive_kills(
    broker: RabbitMQ, buses: RabbitBuses, *, messages: int, publishers: int, kills_after: tuple[int, ...]
) -> None:
    bus = await buses.open()
    sent = [buses.message("key", b"%d" % number) for number in range(messages)]
    async with bus.reader(buses.queue("reader", "#", prefetch=50)) as reader:
        ledger = Ledger(reader)
        confirmed: list[Message] = []
        publishing = asyncio.create_task(publish_like_relays(bus, sent, publishers, confirmed))
        for share in kills_after:
            await eventually(lambda share=share: len(confirmed) > share, timeout=RECOVERY)  # type: ignore[misc]
            assert len(confirmed) < messages
            await asyncio.to_thread(broker.kill)
            await eventually(lambda: _is_away(bus))
            await asyncio.to_thread(broker.start)
        await asyncio.wait_for(publishing, RECOVERY)
        await eventually(lambda: len(ledger.received) == messages, timeout=RECOVERY)
        await ledger.stop()


async def _answers(bus: EventBus) -> bool:
    await bus.ping()
    return True


async def _is_refused(bus: EventBus, message: Message) -> bool:
    try:
        await bus.publish(message)
    except BusAway:
        return True
    return False


async def _is_away(bus: EventBus) -> bool:
    try:
        await bus.ping()
    except Unavailable:
        return True
    return False


def _set_memory_watermark(broker: RabbitMQ, fraction: str) -> None:
    """Raise or end a memory alarm."""
    control = Path(script() or "rabbitmq-server").with_name("rabbitmqctl")
    command = [str(control), "-n", broker._node, "set_vm_memory_high_watermark", fraction]
    subprocess.run(command, env=dict(broker._environment()), check=True, capture_output=True)


def _misses_a_queue(record: logging.LogRecord) -> bool:
    return record.levelno == logging.ERROR and "gone from the broker" in record.getMessage()
