"""The SMS gateway as a process of its own in either mode: killed, started again, and read from outside."""

import asyncio
import re
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES
from refract.kernel.clock import SystemClock
from refract.runtime.tokens import TokenSigner
from refract.services.sms.api import OUTBOUND
from tests.support.commands import PATIENT, Running, running
from tests.support.http import Answer, Client
from tests.support.ledger import Ledger
from tests.support.load import PAUSE, Load
from tests.support.servers.places import free_port

_SENT = re.compile(r"SMS Sent: (\d+): n=(\d+)\Z")
_WRITTEN = re.compile(rb"\d+: n=(\d+)")


class SmsProcess(ABC):
    """One instance that sends messages; all that it ever logged is kept."""

    api: str

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self.folder = folder
        self.changes = dict(changes)
        self.port = free_port()
        self.secret = secrets.token_urlsafe(48)
        self.processes: list[Running] = []
        self._process = ExitStack()

    async def start(self) -> None:
        """Start it on the data of the one before, and wait until it answers."""
        self._process.close()
        entering = running(
            *self._command(),
            address=f"http://127.0.0.1:{self.port}",
            folder=self.folder / f"sms-{self.port}-{len(self.processes)}",
            variables=self._variables() | self.changes,
            command=PATIENT,
        )
        self.processes.append(await asyncio.to_thread(self._process.enter_context, entering))

    async def kill(self) -> None:
        """SIGKILL."""
        process = self.processes[-1].process
        process.kill()
        await asyncio.to_thread(process.wait)

    async def stop(self) -> int:
        """SIGTERM; its exit status, which has to come in time."""
        return await asyncio.to_thread(self.processes[-1].stop)

    async def close(self) -> None:
        """Leave nothing behind."""
        await asyncio.to_thread(self._process.close)

    @property
    def headers(self) -> tuple[str, ...]:
        """What an administrator's requests come with."""
        token = TokenSigner(self.secret, SystemClock()).sign("root", "root@example.com", role="administrator").token
        return (f"Authorization: Bearer {token}",)

    async def call(self, method: str, target: str, body: Any = None) -> Answer:
        """One request of an administrator, by the path that follows /api in document 003."""
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(f"{self.api}{target}", *self.headers, method=method)
            return await client.post(f"{self.api}{target}", msgspec.json.encode(body), *self.headers)

    async def configure(self, users: Sequence[int], limit: int, minutes: int = 60) -> None:
        """Set the limits of users."""
        for user in users:
            answer = await self.call("POST", "/config", {"userId": user, "rateLimit": limit, "timeWindow": minutes})
            assert answer.status == 200, answer

    def sent(self, processes: int = 0) -> list[int]:
        """The numbers of the messages that were sent, by the logs of all processes or of the last few."""
        found = []
        for process in self.processes[-processes:]:
            # A process that was killed may have left half a line.
            for line in (process.folder / "stdout").read_bytes().split(b"\n")[:-1]:
                match = _SENT.search(msgspec.json.decode(line)["msg"])
                if match is not None:
                    found.append(int(match[2]))
        return found

    @abstractmethod
    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of sms."""

    @abstractmethod
    async def in_topic(self) -> list[int]:
        """The numbers of the messages in the topic; the process has ended."""

    @abstractmethod
    def _command(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _variables(self) -> dict[str, str]: ...


class EmbeddedSms(SmsProcess):
    """`refract serve`."""

    api = "/api/sms"

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        super().__init__(folder, changes)
        self.data = DataDirectory(folder / "data")

    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of sms."""
        return await asyncio.to_thread(_fetch, self.data.database("sms"), query)

    async def in_topic(self) -> list[int]:
        """What is in the file: nothing of it is so old that it may be gone."""
        rows = await asyncio.to_thread(_fetch, self.data.records, "SELECT value FROM records")
        found = [_WRITTEN.fullmatch(row[0]) for row in rows]  # the attempts are there, too
        return [int(match[1]) for match in found if match is not None]

    def _command(self) -> tuple[str, ...]:
        return "serve", "--data-dir", str(self.data.path), "--port", str(self.port)

    def _variables(self) -> dict[str, str]:
        return {"JWT_SECRET": self.secret}


class DistributedSms(SmsProcess):
    """`refract run sms` on servers that are named."""

    api = "/api"

    def __init__(
        self, folder: Path, changes: Mapping[str, str], *, postgres: str, redis: str, rabbitmq: str, kafka: str
    ) -> None:
        super().__init__(folder, changes)
        self.dsn, self.redis, self.rabbitmq, self.kafka = postgres, redis, rabbitmq, kafka

    async def fetch(self, query: str) -> list[Any]:
        """The rows of a query to the database of sms."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    async def in_topic(self) -> list[int]:
        """Read to the end of every partition."""
        return await asyncio.to_thread(_in_partitions, self.kafka)

    def _command(self) -> tuple[str, ...]:
        return "run", "sms"

    def _variables(self) -> dict[str, str]:
        return {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "SERVICE_NAME": SERVICES["sms"].wire_name,
            "DATABASE_DSN": self.dsn,
            "RABBITMQ_URL": self.rabbitmq,
            "REDIS_ADDR": self.redis,
            "KAFKA_BOOTSTRAP": self.kafka,
            "JWT_SECRET": self.secret,
        }


@dataclass
class Texting(Load):
    """Clients who send messages, each with a number of its own, for users in turn."""

    target: str = "/api/send"
    users: Sequence[int] = (1,)
    headers: tuple[str, ...] = ()
    sent_by: dict[int, int] = field(default_factory=dict)
    """How many were answered with 200 for each user."""

    async def _ask(self, client: Client, number: int) -> Answer:
        body = msgspec.json.encode({"userId": self.users[number % len(self.users)], "message": f"n={number}"})
        answer = await client.post(self.target, body, *self.headers)
        if answer.status == 503:
            await asyncio.sleep(PAUSE)
        return answer

    def _is_acknowledged(self, number: int, answer: Answer) -> bool:
        if answer.status != 200:
            return False
        user = self.users[number % len(self.users)]
        self.sent_by[user] = self.sent_by.get(user, 0) + 1
        return True


def texting(process: SmsProcess, ledger: Ledger, users: Sequence[int], attempts: int | None = None) -> Texting:
    """Clients of a process."""
    target = f"{process.api}/send"
    return Texting(process.port, ledger, attempts=attempts, target=target, users=users, headers=process.headers)


@asynccontextmanager
async def started(*processes: Any) -> AsyncIterator[Any]:
    """Processes that answer; gone at the end."""
    try:
        for process in processes:
            await process.start()
        yield processes
    finally:
        for process in processes:
            await process.close()


def _fetch(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path, timeout=30)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def _in_partitions(bootstrap: str) -> list[int]:
    """The numbers of all messages: without a group, which would have to gather first."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ledger",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    found: list[int] = []
    try:
        ends = set(range(OUTBOUND.partitions))
        consumer.assign([TopicPartition(OUTBOUND.name, partition, OFFSET_BEGINNING) for partition in ends])
        while ends:
            message = consumer.poll(30)
            assert message is not None, "the broker does not answer"
            error = message.error()
            if error is None:
                found.append(int((message.value() or b"").rpartition(b"n=")[2]))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.discard(message.partition() or 0)
    finally:
        consumer.close()
    return found
