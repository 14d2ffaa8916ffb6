"""What only Kafka can do to a record log: a producer beyond help, a broker that lost its topics, one that refuses."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from confluent_kafka.admin import AdminClient

from refract.kernel.errors import NotPublished
from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.records import Topic
from tests.support.kafka_library import NOT_LEADER, PRODUCE, break_for_good, mock_cluster
from tests.support.record_logs import KafkaLogs, log_at, numbers, records, take
from tests.support.waiting import eventually


@pytest.fixture
async def logs(kafka_bootstrap: str) -> AsyncIterator[KafkaLogs]:
    logs = KafkaLogs(kafka_bootstrap)
    yield logs
    await logs.close()


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


async def test_what_a_broker_refused_is_not_confirmed_by_what_it_took_later() -> None:
    first, later = records(Topic("things", 1), 1, 2)
    with mock_cluster() as cluster:
        cluster.create("things", partitions=1)
        log = await log_at(cluster.bootstrap)
        try:
            cluster.refuse_next(PRODUCE, NOT_LEADER, after_milliseconds=300)
            publishing = asyncio.create_task(log.publish(first))
            await eventually(lambda: cluster.received(PRODUCE) == 1)
            await asyncio.gather(publishing, log.publish(later))
            assert await asyncio.to_thread(cluster.stored, "things") == [first.value, later.value]
        finally:
            await log.close()
