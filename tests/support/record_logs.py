"""Both twins of the record log for a test: opened as often as it likes, with topics that nobody else uses."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.embedded.record_log import EmbeddedRecordLog
from refract.runtime.metrics import Metrics
from refract.runtime.ports import RecordLog, RecordReader
from refract.runtime.records import ReceivedRecord, Record, Topic
from tests.support.waiting import eventually


class Logs(ABC):
    """Opens logs that meet in one place; closes them, and forgets their topics."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.prefix = f"test-{secrets.token_hex(6)}"
        self._topics: list[Topic] = []
        self._open: list[RecordLog] = []

    def topic(self, name: str = "things", partitions: int = 4) -> Topic:
        """A topic of this test alone."""
        topic = Topic(f"{self.prefix}-{name}", partitions)
        self._topics.append(topic)
        return topic

    async def open(self) -> RecordLog:
        """One more log, as another process would have it."""
        log = await self._make()
        self._open.append(log)
        return log

    async def close(self) -> None:
        """Leave nothing behind."""
        for log in self._open:
            await log.close()
        self._clean([topic.name for topic in self._topics])

    @abstractmethod
    def address(self) -> str:
        """All that another process needs to come here."""

    @abstractmethod
    async def _make(self) -> RecordLog: ...

    @abstractmethod
    def _clean(self, topics: list[str]) -> None: ...


class EmbeddedLogs(Logs):
    """Logs in one file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "records.sqlite3"

    def address(self) -> str:
        return str(self.path)

    async def _make(self) -> RecordLog:
        return EmbeddedRecordLog(self.path, metrics=self.metrics)

    def _clean(self, topics: list[str]) -> None:
        """The file goes with its folder."""


class KafkaLogs(Logs):
    """Logs over one broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap

    def address(self) -> str:
        return self.bootstrap

    async def _make(self) -> KafkaLog:
        log = KafkaLog(self.bootstrap, metrics=self.metrics)
        await log.start()
        await eventually(lambda: log._producer.away is None)  # a broker that was late is found again by the log itself
        return log

    def _clean(self, topics: list[str]) -> None:
        if topics:
            admin = AdminClient({"bootstrap.servers": self.bootstrap})  # which must outlive its answers
            for answer in admin.delete_topics(topics).values():
                answer.exception(60)


async def log_at(address: str) -> RecordLog:
    """The log at an address, in another process."""
    if address.endswith(".sqlite3"):
        return EmbeddedRecordLog(Path(address))
    log = KafkaLog(address)
    await log.start()
    return log


def records(topic: Topic, *numbers: int, key: str = "one") -> list[Record]:
    """Records of one key whose values are numbers."""
    return [Record(topic.name, key, str(number).encode()) for number in numbers]


def numbers(found: list[ReceivedRecord]) -> list[int]:
    """The values of such records."""
    return [int(record.value) for record in found]


async def take(reader: RecordReader, count: int) -> list[ReceivedRecord]:
    """Read until there are so many, without committing."""
    found: list[ReceivedRecord] = []
    while len(found) < count:
        found += await reader.next_batch()
    return found


@pytest.fixture(params=["embedded", "distributed"])
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Logs]:
    """Where logs of one mode meet."""
    embedded = request.param == "embedded"
    logs: Logs = EmbeddedLogs(tmp_path) if embedded else KafkaLogs(request.getfixturevalue("kafka_bootstrap"))
    yield logs
    await logs.close()
