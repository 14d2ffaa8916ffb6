"""What only Kafka can do to a record log: a producer that is beyond help, and a broker that lost its topics."""

import ctypes
from collections.abc import AsyncIterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from refract.kernel.errors import NotPublished
from refract.runtime.distributed.record_log import KafkaLog
from tests.support.record_logs import KafkaLogs, numbers, records, take
from tests.support.waiting import eventually

OUT_OF_ORDER_SEQUENCE = 45


@pytest.fixture
async def logs(kafka_bootstrap: str) -> AsyncIterator[KafkaLogs]:
    logs = KafkaLogs(kafka_bootstrap)
    yield logs
    await logs.close()


def break_for_good(producer: confluent_kafka.Producer) -> None:
    """Have the library find a fatal error, by its own function for tests."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value  # the first field of the object
    library.rd_kafka_name.argtypes = [ctypes.c_void_p]
    library.rd_kafka_name.restype = ctypes.c_char_p
    assert library.rd_kafka_name(handle).startswith(b"refract#producer")
    library.rd_kafka_test_fatal_error.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    assert library.rd_kafka_test_fatal_error(handle, OUT_OF_ORDER_SEQUENCE, b"the test says so") == 0


async def test_a_producer_with_a_fatal_error_gives_way_to_a_new_one(logs: KafkaLogs) -> None:
    topic = logs.topic()
    log = await logs.open()
    assert isinstance(log, KafkaLog)
    await log.declare(topic)
    await log.publish(*records(topic, 1))
    broken = log._producer._producer
    break_for_good(broken)
    await eventually(lambda: log._producer._producer is not broken)
    assert await log.publish_all(records(topic, 2, 3)) == [None, None]
    break_for_good(log._producer._producer)

    async def published() -> bool:
        return await log.publish_all(records(topic, 4)) == [None]

    await eventually(published)
    async with log.reader(topic, "group") as reader:
        assert list(dict.fromkeys(numbers(await take(reader, 4)))) == [1, 2, 3, 4]  # it may have had the last before


async def test_a_topic_that_the_broker_lost_is_declared_again(logs: KafkaLogs, kafka_bootstrap: str) -> None:
    topic = logs.topic()
    log = await logs.open()
    await log.declare(topic)
    await log.publish(*records(topic, 1))
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(60)

    async def refused() -> bool:
        return isinstance((await log.publish_all(records(topic, 2)))[0], NotPublished)

    async def published() -> bool:
        return not await refused()

    await eventually(refused, timeout=60)
    await eventually(published, timeout=60)
    assert len(admin.list_topics(topic.name, timeout=60).topics[topic.name].partitions) == topic.partitions
