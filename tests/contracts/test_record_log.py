"""The promises of the record log, the same for both twins."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refract.kernel.errors import NotPublished
from refract.runtime.ports import RecordLog
from refract.runtime.record_line import RecordLine
from refract.runtime.records import LARGEST_BATCH, LARGEST_RECORD, LONGEST_KEY, Record, Topic
from tests.support.record_logs import Logs, logs, numbers, records, take
from tests.support.waiting import eventually

__all__ = ["logs"]


@pytest.fixture
async def log(logs: Logs) -> RecordLog:
    """One of them."""
    return await logs.open()


async def test_a_record_arrives_as_it_was_written(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    written = Record(topic.name, "Ünï 1", b"\x00\xff value", {"message-id": "m-1", "correlation-id": "ü"})
    await log.publish(written)
    async with log.reader(topic, "group") as reader:
        [found] = await take(reader, 1)
    assert (found.topic, found.key, found.value) == (written.topic, written.key, written.value)
    assert dict(found.headers) == dict(written.headers)
    assert 0 <= found.partition < topic.partitions
    assert abs(datetime.now(UTC) - found.written_at) < timedelta(minutes=5)


async def test_records_of_one_key_stay_in_order_whoever_publishes_them(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    keys = [f"user {number}" for number in range(20)]

    async def publish(key: str) -> None:
        for number in range(10):
            await log.publish(*records(topic, number, key=key))
        await log.publish_all(records(topic, *range(10, 30), key=key))

    await asyncio.gather(*map(publish, keys))
    async with log.reader(topic, "group") as reader:
        found = await take(reader, 600)
    for key in keys:
        mine = [record for record in found if record.key == key]
        assert numbers(mine) == list(range(30))
        assert len({record.partition for record in mine}) == 1
    assert len({record.partition for record in found}) == topic.partitions


async def test_what_was_not_committed_comes_again_and_what_was_does_not(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic(partitions=1)
    await log.declare(topic)
    await log.publish_all(records(topic, *range(10)))
    async with log.reader(topic, "group") as reader:
        found = await take(reader, 10)
        await reader.commit(found[:4])
    await log.close()
    async with (await logs.open()).reader(topic, "group") as reader:
        again = await take(reader, 6)
        assert numbers(again) == [4, 5, 6, 7, 8, 9]
        await reader.commit(again)
    async with (await logs.open()).reader(topic, "group") as reader:
        await (log := await logs.open()).publish_all(records(topic, 10))
        assert numbers(await take(reader, 1)) == [10]


async def test_each_group_gets_every_record(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    await log.publish_all([Record(topic.name, str(number), b"%d" % number) for number in range(50)])
    for group in ("first", "second"):
        async with log.reader(topic, group) as reader:
            found = await take(reader, 50)
            await reader.commit(found)
        assert sorted(numbers(found)) == list(range(50))


async def test_the_readers_of_a_group_share_the_partitions(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    found: list[list[int]] = [[], []]
    partitions: list[set[int]] = [set(), set()]

    async def read(place: int) -> None:
        async with log.reader(topic, "group") as reader:
            while True:
                batch = await reader.next_batch()
                found[place] += numbers(batch)
                partitions[place] |= {record.partition for record in batch}
                await reader.commit(batch)

    readers = [asyncio.create_task(read(place)) for place in range(2)]
    sent = 0
    while not all(partitions) or sent < 100:  # until both have their share
        await log.publish_all([Record(topic.name, str(sent + each), b"%d" % (sent + each)) for each in range(20)])
        sent += 20
        await asyncio.sleep(0.05)
    await eventually(lambda: set(found[0] + found[1]) == set(range(sent)), timeout=60)
    # Of what was read while they divided it some may still come again; of what comes from now on nothing does.
    shared = range(sent, sent + 100)
    await log.publish_all([Record(topic.name, str(each), b"%d" % each) for each in shared])
    await eventually(lambda: sorted(set(shared) & {*found[0], *found[1]}) == list(shared), timeout=60)
    shares = [[number for number in numbers_of_one if number in shared] for numbers_of_one in found]
    assert all(shares), "each has its share"
    assert sorted(shares[0] + shares[1]) == list(shared), "nothing went to both"
    readers[0].cancel()
    await asyncio.wait(readers[:1])
    left = range(sent + 100, sent + 140)
    await log.publish_all([Record(topic.name, str(each), b"%d" % each) for each in left])
    await eventually(lambda: set(left) <= set(found[1]), timeout=60)
    readers[1].cancel()
    await asyncio.wait(readers)


async def test_a_batch_is_bounded(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    await log.publish_all([Record(topic.name, str(number), b"%d" % number) for number in range(LARGEST_BATCH + 200)])
    async with log.reader(topic, "group") as reader:
        total = 0
        while total < LARGEST_BATCH + 200:
            batch = await reader.next_batch()
            assert 1 <= len(batch) <= LARGEST_BATCH
            total += len(batch)


async def test_a_reader_that_gave_up_waiting_loses_nothing(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic(partitions=1)
    await log.declare(topic)
    async with log.reader(topic, "group") as reader:
        for number in range(5):
            waiting = asyncio.create_task(reader.next_batch())
            await asyncio.sleep(0)
            publishing = asyncio.create_task(log.publish(*records(topic, number)))
            await asyncio.sleep(0.002 * number)
            waiting.cancel()
            await asyncio.wait([waiting])
            await publishing
            if waiting.cancelled():
                continue
            await reader.commit(waiting.result())
        await log.publish(*records(topic, 5))
        found: list[int] = []
        while 5 not in found:
            found += numbers(await reader.next_batch())
    async with log.reader(topic, "another") as other:
        assert numbers(await take(other, 6)) == list(range(6))
    assert found == list(range(found[0], 6)), "no gap before the last"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": ""}, "no name"),
        ({"topic": "with space"}, "no name"),
        ({"topic": ".."}, "no name"),
        ({"topic": "a" * 250}, "no name"),
        ({"key": ""}, "a key has"),
        ({"key": "k" * (LONGEST_KEY + 1)}, "a key has"),
        ({"key": "\ud800"}, "cannot be encoded"),
        ({"headers": {"name": "\ud800"}}, "cannot be encoded"),
        ({"value": b"v" * LARGEST_RECORD}, "a record has at most"),
        ({"value": b"v" * (1024 * 1024 + 1)}, "a record has at most"),
        ({"headers": {"name": "h" * LARGEST_RECORD}}, "a record has at most"),
    ],
)
async def test_what_cannot_be_written_is_refused(
    logs: Logs, log: RecordLog, change: dict[str, Any], words: str
) -> None:
    topic = logs.topic()
    await log.declare(topic)
    good = Record(topic.name, "k", b"v")
    bad = replace(good, **change)
    with pytest.raises(NotPublished, match=words):
        await log.publish(bad)
    outcomes = await log.publish_all([good, bad, good])
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    log.publish_soon(bad)
    assert await log.drain(60) == 0
    assert logs.metrics.registry.get_sample_value("records_dropped_total", {"topic": "invalid"}) == 1


async def test_the_largest_record_goes_through(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    await log.publish(Record(topic.name, "k" * LONGEST_KEY, b"v" * (LARGEST_RECORD - LONGEST_KEY)))
    async with log.reader(topic, "group") as reader:
        [found] = await take(reader, 1)
    assert len(found.value) == LARGEST_RECORD - LONGEST_KEY


async def test_a_topic_that_nobody_declared_takes_nothing(logs: Logs, log: RecordLog) -> None:
    with pytest.raises(NotPublished):
        await log.publish(Record(f"{logs.prefix}-nowhere", "k", b"v"))


async def test_a_topic_keeps_its_partitions(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic(partitions=2)
    await log.declare(topic)
    await log.declare(Topic(topic.name, 4))
    await log.publish_all([Record(topic.name, str(number), b"%d" % number) for number in range(100)])
    async with log.reader(Topic(topic.name, 4), "group") as reader:
        found = await take(reader, 100)
    assert {record.partition for record in found} == {0, 1}


@pytest.mark.parametrize(("name", "partitions"), [("", 1), ("a b", 1), (".", 1), ("ok", 0), ("ok", 1_001)])
def test_a_topic_has_a_sound_name_and_some_partitions(name: str, partitions: int) -> None:
    with pytest.raises(ValueError, match="topic"):
        Topic(name, partitions)


async def test_what_is_published_soon_arrives_in_order(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    for record in records(topic, *range(1_200)):
        log.publish_soon(record)
    assert await log.drain(60) == 0
    async with log.reader(topic, "group") as reader:
        assert numbers(await take(reader, 1_200)) == list(range(1_200))


async def test_closing_sends_what_waits(logs: Logs, log: RecordLog) -> None:
    topic = logs.topic()
    await log.declare(topic)
    for record in records(topic, *range(10)):
        log.publish_soon(record)
    await log.close()
    async with (await logs.open()).reader(topic, "group") as reader:
        assert numbers(await take(reader, 10)) == list(range(10))


async def test_ping_answers(logs: Logs, log: RecordLog) -> None:
    await log.ping()


# --- the line, which both twins have ---


async def test_a_full_line_drops_and_counts_and_a_refused_record_does_not_hold_up_the_others(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refract.runtime.record_line.LONGEST_LINE", 5)
    sent: list[bytes] = []
    gate = asyncio.Event()

    async def publish(batch: object) -> list[NotPublished | None]:
        await gate.wait()
        assert isinstance(batch, list)
        outcomes: list[NotPublished | None] = [NotPublished("no") if each.value == b"0" else None for each in batch]
        sent.extend(each.value for each in batch if each.value != b"0")
        return outcomes

    line = RecordLine(publish, logs.metrics)
    topic = logs.topic()
    for record in records(topic, *range(8)):
        line.add(record)
    dropped = {"topic": topic.name}
    assert logs.metrics.registry.get_sample_value("records_dropped_total", dropped) == 3
    gate.set()
    assert await line.drain(60) == 0
    assert sent == [b"1", b"2", b"3", b"4"]
    assert logs.metrics.registry.get_sample_value("records_dropped_total", dropped) == 4
    assert [record.message for record in caplog.records].count("records are dropped: the line is full") == 1
    await line.close(1)
