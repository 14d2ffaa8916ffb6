"""The broker where its jars cannot be had: the mock that stands in says so, and messages go through it."""

import asyncio
from collections.abc import Iterator

import pytest

from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.records import Record
from refract.services.sms.api import OUTBOUND
from tests.support.servers import Kafka, kafka_jars, kafka_wire


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kafka]:
    """A Kafka on a machine that has no jars and no way to them."""

    def bring() -> None:
        raise kafka_jars.NoJars("no way to\nthe jars")

    monkeypatch.setattr(kafka_jars, "bring", bring)
    with Kafka() as server:
        yield server


def test_a_stand_in_says_that_it_is_one(stand_in: Kafka) -> None:
    assert not stand_in.real
    assert stand_in.version().startswith("is NOT real")
    assert stand_in.version().endswith("no way to the jars")
    assert kafka_wire.release_at(stand_in.address)
    stand_in.restart()
    assert kafka_wire.release_at(stand_in.address), "it answers where it says that it is"


async def test_records_of_the_services_topics_go_through_it(stand_in: Kafka) -> None:
    log = KafkaLog(stand_in.address)
    await log.start()
    records = [Record(OUTBOUND.name, str(number), b"%d: x" % number) for number in range(20)]
    assert await log.publish_all(records) == [None] * 20
    found: list[str] = []
    async with asyncio.timeout(60), log.reader(OUTBOUND, "readers") as reader:
        while len(found) < 20:
            batch = await reader.next_batch()
            found += [record.key for record in batch]
            await reader.commit(batch)
    assert sorted(found, key=int) == [record.key for record in records]
    await log.close()
