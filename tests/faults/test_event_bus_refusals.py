"""The event bus over RabbitMQ where one queue, exchange or message is refused: the others must not suffer."""

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiormq
import pytest

from refract.kernel.errors import BusAway, NotPublished
from refract.runtime.distributed import rabbit_connection, rabbit_publisher
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.ports import EventBus
from tests.support.buses import RabbitBuses, bodies, drain, take
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import RabbitMQ
from tests.support.servers.rabbitmq import script
from tests.support.waiting import eventually

RECOVERY = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    """A broker that these tests may command."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture
async def buses(broker: RabbitMQ) -> AsyncIterator[RabbitBuses]:
    """Buses straight to the broker."""
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
    bus = RabbitBus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs is not waited for as long as in real life; one that was only late is taken again."""
    monkeypatch.setattr(rabbit_connection, "STEP_SECONDS", 1.0)


class TestQueues:
    async def test_deleted_dead_letters_are_declared_again(self, buses: RabbitBuses) -> None:
        bus, queue = await buses.open(), buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish(buses.message("key", b"poison"))
            (delivery,) = await take(reader, 1)
            await _delete_queue(buses, queue.dead)
            await reader.bury(delivery, "poison")
        assert [letter.message.body for letter in await bus.dead_letters(queue.name, 10)] == [b"poison"]

    async def test_a_deleted_queue_gets_its_dead_letters_back(self, buses: RabbitBuses) -> None:
        bus, queue = await buses.open(), buses.queue("reader", "#")
        async with bus.reader(queue) as reader:
            await bus.publish_all([buses.message("key", b"poison") for _ in range(3)])
            for delivery in await take(reader, 3):
                await reader.bury(delivery, "poison")
        await _delete_queue(buses, queue.name)
        assert await bus.replay(queue.name) == 3
        async with bus.reader(queue) as reader:
            assert bodies(await drain(reader, 3)) == [b"poison"] * 3
            await bus.publish(buses.message("key", b"bound again"))
            assert bodies(await drain(reader, 1)) == [b"bound again"]

    async def test_a_refused_queue_leaves_the_other_readers_alone(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        refused, fine = buses.queue("refused", "refused"), buses.queue("fine", "fine")
        await _declare_otherwise(buses, refused)
        await proxied.declare(refused)
        async with proxied.reader(refused) as waiting, proxied.reader(fine) as reader:
            for _ in range(2):  # on a session that was there before, and on one that begins with all of them
                await eventually(lambda: _publishes(proxied, buses.message("fine", b"body")))
                assert bodies(await asyncio.wait_for(drain(reader, 1), RECOVERY)) == [b"body"]
                await eventually(lambda: _answers(proxied))
                proxy.cut()
            for step in (f"queue {refused.name}", f"reader of {refused.name}"):
                await eventually(partial(_warned, caplog, f"rabbitmq: the {step} failed; will retry in background"))

            await _delete_queue(buses, refused.name)
            await eventually(lambda: _publishes(proxied, buses.message("refused", b"at last")))
            assert bodies(await asyncio.wait_for(drain(waiting, 1), RECOVERY)) == [b"at last"]

    async def test_a_queue_that_hangs_leaves_the_other_readers_alone(
        self, broker: RabbitMQ, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy, short_steps: None
    ) -> None:
        hanging, fine = buses.queue("hanging", "hanging"), buses.queue("fine", "fine")
        await proxied.declare(hanging)
        async with (
            proxied.reader(fine) as reader,
            _suspended(broker, hanging) as resume,
            proxied.reader(hanging) as waiting,
        ):
            for _ in range(2):
                await eventually(lambda: _publishes(proxied, buses.message("fine", b"body")))
                assert bodies(await asyncio.wait_for(drain(reader, 1), RECOVERY)) == [b"body"]
                proxy.cut()
            await resume()
            await eventually(lambda: _publishes(proxied, buses.message("hanging", b"at last")))
            assert bodies(await asyncio.wait_for(drain(waiting, 1), RECOVERY)) == [b"at last"]

    async def test_a_refused_reader_closes_at_once(self, buses: RabbitBuses) -> None:
        bus, refused = await buses.open(), buses.queue("refused", "refused")
        await _declare_otherwise(buses, refused)
        async with bus.reader(refused):
            pass
        await bus.ping()


class TestPublishing:
    async def test_a_refused_exchange_fails_its_own_messages_only(self, buses: RabbitBuses) -> None:
        bus, queue = await buses.open(), buses.queue("reader", "#")
        direct = f"{buses.prefix}.direct"
        async with aiormq.connect(buses.url) as connection:
            await (await connection.channel()).exchange_declare(direct, exchange_type="direct", auto_delete=True)
        async with bus.reader(queue) as reader:
            outcomes = await bus.publish_all(
                [
                    Message("exchangé", "key", b"{}", "1"),
                    buses.message("key", b"fine"),
                    Message(direct, "key", b"{}", "2"),
                    Message("amq.reserved", "key", b"{}", "3"),
                ]
            )
            assert [type(outcome) for outcome in outcomes] == [NotPublished, type(None), NotPublished, NotPublished]
            assert "exchangé" in str(outcomes[0])
            assert bodies(await drain(reader, 1)) == [b"fine"]
        async with aiormq.connect(buses.url) as connection:
            await (await connection.channel()).exchange_delete(direct)

    async def test_a_message_that_its_queue_never_confirms_is_not_the_bus_s_fault(
        self, broker: RabbitMQ, buses: RabbitBuses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rabbit_publisher, "SHARE_OF_PROBE", 10.0)  # the broker may take its time to say it is there
        bus, stuck, fine = await buses.open(), buses.queue("stuck", "stuck"), buses.queue("fine", "fine")
        await bus.declare(stuck)
        await bus.declare(fine)
        async with _suspended(broker, stuck):
            outcomes = await bus.publish_all([buses.message("stuck", b"x" * 100_000), buses.message("fine")])
            assert [type(outcome) for outcome in outcomes] == [NotPublished, type(None)]
            monkeypatch.setattr(rabbit_publisher, "SHARE_OF_CONFIRMATIONS", 0.1)  # nothing is to come
            (alone,) = await bus.publish_all([buses.message("stuck")])
            assert type(alone) is NotPublished
            assert isinstance(bus, RabbitBus)
            assert _unconfirmed(bus) == 0
        await eventually(lambda: _publishes(bus, buses.message("stuck")))

    async def test_a_message_too_large_for_the_broker_is_not_the_bus_s_fault(
        self, broker: RabbitMQ, buses: RabbitBuses
    ) -> None:
        limit = "application:set_env(rabbit, max_message_size, {})."
        await asyncio.to_thread(_evaluate, broker, limit.format(100_000))
        bus, queue = await buses.open(), buses.queue("reader", "#")
        await bus.declare(queue)
        (outcome,) = await bus.publish_all([buses.message("key", b"x" * 200_000)])
        assert type(outcome) is NotPublished
        assert "larger than" in str(outcome)
        await eventually(lambda: _publishes(bus, buses.message("key", b"x" * 90_000)))
        await asyncio.to_thread(_evaluate, broker, limit.format(134_217_728))

    async def test_publishing_does_not_need_the_connection_that_reads(self, buses: RabbitBuses) -> None:
        bus, queue = await buses.open(), buses.queue("reader", "#")
        assert isinstance(bus, RabbitBus)
        await bus.declare(queue)
        await bus._reading.close()
        assert await bus.publish_all([buses.message("key")]) == [None]

    async def test_a_lost_connection_is_the_bus_s_fault(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy
    ) -> None:
        await proxied.declare(buses.queue("reader", "#"))
        await proxied.publish(buses.message("key"))
        proxy.pause()
        publishing = asyncio.create_task(proxied.publish_all([buses.message("key")] * 3))
        await eventually(lambda: _unconfirmed(proxied) == 3)
        proxy.cut()
        proxy.heal()
        assert [type(outcome) for outcome in await publishing] == [BusAway] * 3


class TestListening:
    async def test_a_listener_that_fails_on_a_gap_hears_on(
        self, buses: RabbitBuses, proxied: RabbitBus, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[bytes] = []

        def fail() -> None:
            heard.append(b"gap")
            raise ValueError("a broken listener")

        await proxied.listen([Binding(buses.exchange, "#")], lambda message: heard.append(message.body), fail)
        proxy.cut()
        await eventually(lambda: heard == [b"gap"])
        await eventually(lambda: _publishes(proxied, buses.message("key", b"after")))
        await eventually(lambda: heard == [b"gap", b"after"])
        assert "a listener failed on a gap" in caplog.messages
        assert "rabbitmq: the listener failed; will retry in background" not in caplog.messages


async def _publishes(bus: EventBus, message: Message) -> bool:
    await bus.publish(message)
    return True


def _warned(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(record.levelno == logging.WARNING and record.getMessage() == text for record in caplog.records)


async def _answers(bus: EventBus) -> bool:
    await bus.ping()
    return True


def _unconfirmed(bus: RabbitBus) -> int:
    assert bus._publisher._channel is not None
    return len(bus._publisher._channel._sent)


async def _delete_queue(buses: RabbitBuses, name: str) -> None:
    async with aiormq.connect(buses.url) as connection:
        await (await connection.channel()).queue_delete(name)


async def _declare_otherwise(buses: RabbitBuses, queue: Queue) -> None:
    """Make a queue that our declaration does not fit."""
    async with aiormq.connect(buses.url) as connection:
        channel = await connection.channel()
        await channel.queue_declare(queue.name, durable=True, arguments={"x-message-ttl": 600_000})


@asynccontextmanager
async def _suspended(broker: RabbitMQ, queue: Queue) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Let a queue's process hang, as a replicated queue does without its majority, until the end or sooner."""

    async def resume() -> None:
        await asyncio.to_thread(_evaluate, broker, f"sys:resume({_process_of(queue)}).")

    await asyncio.to_thread(_evaluate, broker, f"sys:suspend({_process_of(queue)}).")
    try:
        yield resume
    finally:
        await resume()


def _process_of(queue: Queue) -> str:
    resource = f'rabbit_misc:r(<<"/">>, queue, <<"{queue.name}">>)'
    return f"amqqueue:get_pid(element(2, rabbit_amqqueue:lookup({resource})))"


def _evaluate(broker: RabbitMQ, expression: str) -> None:
    control = Path(script() or "rabbitmq-server").with_name("rabbitmqctl")
    command = [str(control), "-n", broker._node, "eval", expression]
    subprocess.run(command, env=dict(broker._environment()), check=True, capture_output=True, timeout=60)
