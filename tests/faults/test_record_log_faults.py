"""The record log under kills: of its process, and of the broker in the middle of publishing."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from refract.kernel.errors import BusAway, Unavailable
from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.embedded import record_file
from refract.runtime.embedded.record_log import EmbeddedRecordLog
from refract.runtime.records import Record, Topic
from tests.support.record_logs import EmbeddedLogs, KafkaLogs, Logs, logs, numbers, records, take
from tests.support.servers import Kafka
from tests.support.waiting import eventually

__all__ = ["logs"]

REPOSITORY = Path(__file__).parents[2]
TOPIC = Topic("things")


@pytest.fixture
async def broker() -> AsyncIterator[Kafka]:
    """A broker of this test's own, to be killed."""
    server = Kafka()
    await asyncio.to_thread(server.start)
    assert server.real, "a mock keeps nothing over a kill"
    yield server
    await asyncio.to_thread(server.close)


async def victim(way: str, logs: Logs, topic: Topic) -> Process:
    command = [sys.executable, "-m", "tests.support.record_victims", way, logs.address(), topic.name]
    return await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdin=PIPE, stdout=PIPE)


async def killed_after(process: Process, count: int) -> list[int]:
    """Kill the process when it has said so many numbers; all that it said."""
    assert process.stdout is not None
    said = [int(await process.stdout.readline()) for _ in range(count)]
    process.kill()
    said += [int(line) for line in (await process.stdout.read()).splitlines()]
    await process.wait()
    return said


async def test_what_a_killed_process_had_published_is_there_once_and_in_order(logs: Logs) -> None:
    topic = logs.topic()
    said = await killed_after(await victim("publish", logs, topic), 100)
    async with (await logs.open()).reader(topic, "group") as reader:
        found = numbers(await take(reader, len(said)))
    assert found[: len(said)] == said


async def test_what_a_killed_reader_held_comes_again(logs: Logs) -> None:
    topic = logs.topic()
    log = await logs.open()
    await log.declare(topic)
    await log.publish_all([Record(topic.name, str(number), b"%d" % number) for number in range(100)])
    if isinstance(logs, EmbeddedLogs):
        await log.close()
    said = await killed_after(await victim("read", logs, topic), 100)
    assert sorted(said) == list(range(100))
    async with (await logs.open()).reader(topic, "group") as reader:
        assert sorted(numbers(await take(reader, 100))) == list(range(100))


async def test_no_answered_record_is_lost_when_the_broker_is_killed(broker: Kafka) -> None:
    log = KafkaLog(broker.address)
    await log.start()
    await log.declare(TOPIC)
    answered: list[int] = []
    refused: list[int] = []
    numbers_left = iter(range(1_000_000))
    stop = False

    async def publish(key: str) -> None:
        while not stop:
            number = next(numbers_left)
            try:
                await log.publish(*records(TOPIC, number, key=key))
            except BusAway:
                refused.append(number)
                await asyncio.sleep(0.01)
            else:
                answered.append(number)

    publishers = [asyncio.create_task(publish(f"user {place}")) for place in range(16)]
    await eventually(lambda: len(answered) > 500)
    await asyncio.to_thread(broker.kill)
    await eventually(lambda: len(refused) > 100)
    before = len(answered)
    await asyncio.to_thread(broker.start)
    await eventually(lambda: len(answered) > before + 500, timeout=60)
    stop = True
    await asyncio.gather(*publishers)
    found: set[int] = set()
    async with log.reader(TOPIC, "group") as reader:
        while lost := set(answered) - found:
            try:
                found.update(numbers(await asyncio.wait_for(reader.next_batch(), 60)))
            except TimeoutError:  # whether a record is lost or the reader hears nothing is not the same trouble
                pytest.fail(
                    f"nothing more came: {len(found)} found, {len(lost)} of {len(answered)} not, {min(lost)} first"
                )
    await log.close()


async def test_while_the_broker_is_away_nobody_waits_and_everything_recovers(
    broker: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    log = KafkaLog(broker.address)
    await log.start()
    await log.declare(TOPIC)
    await log.publish(*records(TOPIC, 0))
    await asyncio.to_thread(broker.kill)
    with pytest.raises(BusAway):
        await log.publish(*records(TOPIC, 1))
    await eventually(lambda: log._producer.away)
    with monkeypatch.context() as patch:
        patch.setattr(log._producer, "_produce", lambda *_: pytest.fail("the library was asked"))
        for number in range(200):
            with pytest.raises(BusAway):
                await log.publish(*records(TOPIC, number))
    with pytest.raises(Unavailable):
        await log.ping()
    for record in records(TOPIC, *range(100, 110), key="soon"):
        log.publish_soon(record)
    later = Topic("later")
    await log.declare(later)
    assert await log.drain(0.5) == 10
    await asyncio.to_thread(broker.start)
    assert await log.drain(60) == 0
    await eventually(lambda: log._producer.away is None and not log._undeclared)
    await log.publish(*records(TOPIC, 2))
    await log.publish(*records(later, 3))
    await log.ping()
    async with log.reader(TOPIC, "group") as reader:
        found: list[int] = []
        while not set(found) >= {0, 2, *range(100, 110)}:
            found += numbers(await reader.next_batch())
    assert [number for number in found if number >= 100] == list(range(100, 110))
    await log.close()
    said = [record.getMessage() for record in caplog.records]
    assert said.count("kafka is away: publishing fails until it answers") == 1
    assert said.count("kafka answers again") == 1
    assert sum(record.name == "refract.kafka" for record in caplog.records) < 10


async def test_a_log_whose_broker_is_away_from_the_start_begins_and_finds_it(
    broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(broker.stop)
    log = KafkaLog(broker.address)
    await log.start()
    with pytest.raises(BusAway):
        await log.publish(*records(TOPIC, 0))
    found: list[int] = []

    async def read() -> None:
        async with log.reader(TOPIC, "group") as reader:
            found.extend(numbers(await reader.next_batch()))

    reading = asyncio.create_task(read())
    with monkeypatch.context() as patch:
        patch.setattr(log, "_create_now", lambda _: pytest.fail("the library was asked, and whoever starts waited"))
        await log.declare(TOPIC)
    await asyncio.to_thread(broker.start)
    await eventually(lambda: not log._undeclared and log._producer.away is None, timeout=60)
    await log.publish(*records(TOPIC, 1))
    await asyncio.wait_for(reading, 60)
    assert 1 in found
    await log.close()


async def test_a_process_ends_in_time_though_its_broker_hangs(broker: Kafka) -> None:
    logs = KafkaLogs(broker.address)
    log = await logs.open()
    await log.declare(TOPIC)
    await log.publish(*records(TOPIC, 1))
    process = await victim("leave", logs, TOPIC)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"1\n"
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        process.stdin.write(b"go on\n")
        async with asyncio.timeout(40):
            assert await process.wait() == 0
    finally:
        os.kill(broker.pid, signal.SIGCONT)
        if process.returncode is None:
            process.kill()
            await process.wait()
    await log.close()


# --- the file ---


async def test_an_instance_that_publishes_nothing_has_no_file(tmp_path: Path) -> None:
    logs = EmbeddedLogs(tmp_path)
    log = await logs.open()
    await log.declare(TOPIC)
    await log.ping()
    async with log.reader(TOPIC, "group") as reader:
        waiting = asyncio.create_task(reader.next_batch())
        await asyncio.sleep(0.05)
        assert not logs.path.exists()
        await log.publish(*records(TOPIC, 1))
        assert numbers(await waiting) == [1]
    await logs.close()


async def test_what_every_group_has_handled_is_trimmed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.runtime.embedded.record_log.SECONDS_BETWEEN_TRIMS", 0.0)
    monkeypatch.setattr(record_file, "READ_FOR", -record_file.READ_FOR)
    logs = EmbeddedLogs(tmp_path)
    log = await logs.open()
    assert isinstance(log, EmbeddedRecordLog)
    await log.declare(TOPIC)
    await log.publish_all(records(TOPIC, *range(10)))
    async with log.reader(TOPIC, "fast") as fast, log.reader(TOPIC, "slow") as slow:
        first, second = await take(fast, 10), await take(slow, 10)
        await fast.commit(first)
        async with log.reader(TOPIC, "new") as new:
            assert len(await take(new, 10)) == 10, "one of two groups has not handled them"
            await new.commit(first)
        await slow.commit(second[:4])
        async with log.reader(TOPIC, "newest") as newest:
            assert numbers(await take(newest, 6)) == list(range(4, 10))
    await logs.close()


async def test_a_file_that_cannot_be_written_is_away(tmp_path: Path) -> None:
    logs = EmbeddedLogs(tmp_path / "nowhere")
    log = await logs.open()
    with pytest.raises(BusAway):
        await log.publish(*records(TOPIC, 1))
    await logs.close()
