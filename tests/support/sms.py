"""The SMS gateway in a test of one mode: a server on a database, a state store and a record log that may be away."""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.errors import BusAway, NotPublished, Unavailable
from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.distributed.state_store import DistributedStateStore
from refract.runtime.embedded.record_log import EmbeddedRecordLog
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, RecordLog, RecordReader, Row, StateStore
from refract.runtime.records import Record, Topic
from refract.runtime.service import Foundation, Service
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenVerifier
from refract.runtime.transitions import Transition
from refract.services.sms.api import NOTIFICATION_EVENTS, OUTBOUND
from refract.services.sms.domain.copies import key_of
from refract.services.sms.domain.limits import Limit, Slice
from refract.services.sms.service import build_sms
from refract.services.sms.settings import SmsSettings
from refract.services.sms.store.limits import keep_counts, read_limit
from tests.support.databases import Location, furnish, open_database
from tests.support.http import Answer, Client, running
from tests.support.redis_twins import PATIENT, connected
from tests.support.waiting import eventually
from tests.support.worlds import buses_beside

SENT = (200, "Message Sent Successfully")
INVALID = (400, "Missing/Invalid Arguments")
UNKNOWN = (404, "User Not Found")
LIMITED = (429, "Rate Limit Exceeded")
LOG_AWAY = (503, "Kafka Down : Service Unavailable")
DATABASE_AWAY = (503, "Postgres Down : Service Unavailable")

PLANT = Statement(
    "plant",
    "Makes a limit as it may have become.",
    """
    INSERT INTO rate_limits (user_id, rate_limit, time_window, algorithm, current_count, last_refresh_time)
    VALUES (:user_id, :rate_limit, :time_window, 'fixed', :count, :refreshed)
    """,
)
LIMITS = Statement("limits", "Reads all limits.", "SELECT * FROM rate_limits ORDER BY user_id")
KEYS = Statement("keys", "Reads a user's keys.", "SELECT * FROM send_keys WHERE user_id = :user_id ORDER BY key_hash")

_users = count(secrets.randbelow(1 << 29) + 1)


def new_user() -> int:
    """A user of whom no test has heard, and no Redis either."""
    return next(_users)


class Corner:
    """A record log in a corner of its own, with topics and groups that nobody else has. It can be made to fail."""

    def __init__(self, log: RecordLog, prefix: str) -> None:
        self._log = log
        self._prefix = prefix
        self.away = False
        self.published: list[Record] = []
        self.attempts: list[dict[str, Any]] = []

    async def publish(self, record: Record) -> None:
        """As told."""
        if self.away:
            raise BusAway("the test says so")
        await self._log.publish(self._moved(record))
        self.published.append(record)

    async def publish_all(self, records: Sequence[Record]) -> list[NotPublished | None]:
        """As told."""
        if self.away:
            return [BusAway("the test says so") for _ in records]
        outcomes = await self._log.publish_all([self._moved(record) for record in records])
        self.published += [record for record, outcome in zip(records, outcomes, strict=True) if outcome is None]
        return outcomes

    def publish_soon(self, record: Record) -> None:
        """Kept in any case, so that a test sees it."""
        self.attempts.append(json.loads(record.value))
        self._log.publish_soon(self._moved(record))

    async def declare(self, topic: Topic) -> None:
        """Here."""
        await self._log.declare(self._own(topic))

    def reader(self, topic: Topic, group: str) -> AbstractAsyncContextManager[RecordReader]:
        """Of this corner."""
        return self._log.reader(self._own(topic), self._prefix + group)

    async def drain(self, timeout: float) -> int:
        """The log's."""
        return await self._log.drain(timeout)

    async def ping(self) -> None:
        """The log's."""
        await self._log.ping()

    async def close(self) -> None:
        """The log's."""
        await self._log.close()

    def _own(self, topic: Topic) -> Topic:
        return replace(topic, name=self._prefix + topic.name)

    def _moved(self, record: Record) -> Record:
        return replace(record, topic=self._prefix + record.topic)


class Absent:
    """A state store that can be made to fail, and says how often it was asked."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self.away = False
        self.asked = 0
        self.lives: dict[str, float] = {}

    def _check(self) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("redis", "the test says so")

    async def read(self, key: str) -> dict[str, str]:
        """As told."""
        return await self._state.read(key)

    async def write(self, key: str, fields: Any, ttl: float) -> None:
        """As told; for how long is noted."""
        self._check()
        self.lives[key] = ttl
        await self._state.write(key, fields, ttl)

    async def apply(self, transition: Transition, key: str, *arguments: str | int) -> str:
        """As told."""
        self._check()
        return await self._state.apply(transition, key, *arguments)

    async def delete(self, key: str) -> None:
        """As told."""
        self._check()
        await self._state.delete(key)

    async def ping(self) -> None:
        """As told."""
        self._check()
        await self._state.ping()

    async def ping_quietly(self) -> bool:
        """Whether it answers."""
        await self._state.ping()
        return True

    async def close(self) -> None:
        """Whoever opened the store closes it."""


@dataclass
class SmsWorld:
    """A server, and all that stands behind it. Without `state` every send goes behind the lock."""

    service: Service
    database: Database
    state: Absent
    records: Corner
    clock: Clock
    port: int
    clients: list[Client] = field(default_factory=list)

    async def post(self, target: str, body: bytes, *headers: str) -> Answer:
        """One request, on a connection that is kept for the next."""
        client = self.clients.pop() if self.clients else await Client.connect(self.port)
        answer = await client.post(target, body, *headers)
        if answer.closes:
            client.close()
        else:
            self.clients.append(client)
        return answer

    async def configure(self, user_id: int, limit: int = 5, minutes: int = 10, algorithm: str = "fixed") -> Answer:
        """Set a limit."""
        body = {"userId": user_id, "rateLimit": limit, "timeWindow": minutes, "algorithm": algorithm}
        answer = await self.post("/api/config", msgspec.json.encode(body))
        assert answer.status == 200, answer
        return answer

    async def user(self, limit: int = 5, minutes: int = 10, algorithm: str = "fixed", *, used: int = 0) -> int:
        """A new user with a limit, of which so much is used."""
        user_id = new_user()
        await self.configure(user_id, limit, minutes, algorithm)
        if used:
            await self.count(user_id, used)
        return user_id

    async def plant(self, limit: int, minutes: int, used: int, elapsed: float) -> int:
        """A new user whose window began so many seconds ago."""
        user_id = new_user()
        refreshed = self.clock.now() - timedelta(seconds=elapsed)
        async with self.database.transaction() as tx:
            await tx.execute(
                PLANT, user_id=user_id, rate_limit=limit, time_window=minutes, count=used, refreshed=refreshed
            )
        return user_id

    async def send(self, user_id: int, message: str = "hello", key: str | None = None) -> Answer:
        """Send a message."""
        headers = [] if key is None else [f"Idempotency-Key: {key}"]
        return await self.post("/api/send", msgspec.json.encode({"userId": user_id, "message": message}), *headers)

    async def said(self, user_id: int, message: str = "hello", key: str | None = None) -> tuple[int, str]:
        """Send a message; the status and the text."""
        answer = await self.send(user_id, message, key)
        return answer.status, answer.text

    async def limit(self, user_id: int) -> Limit:
        """A limit as the database has it."""
        seen = await read_limit(self.database, user_id, self.clock.now())
        assert seen is not None
        return seen.limit

    async def count(self, user_id: int, used: int) -> None:
        """Have so much of a limit used, past everything, and no copy of it."""
        await self._change(user_id, current_count=used)

    async def age(self, user_id: int, seconds: float) -> None:
        """As if so many seconds had passed for a user: what was counted was counted so much earlier."""
        limit = await self.limit(user_id)
        width = -(-limit.time_window * 60_000_000 // 60)
        slices: tuple[Slice, ...] = tuple(
            (number - round(seconds * 1_000_000) // width, sends) for number, sends in limit.slices
        )
        moved = limit.last_refresh_time - timedelta(seconds=seconds)
        await self._change(user_id, last_refresh_time=moved, slices=slices)

    async def copy(self, user_id: int) -> dict[str, str]:
        """What the state store has of a user."""
        return await self.state.read(key_of(user_id))

    async def keys(self, user_id: int) -> list[Row]:
        """The keys that are remembered."""
        return await self.database.fetch(KEYS, user_id=user_id)

    def messages(self, user_id: int) -> list[str]:
        """What was published for a user, in order."""
        return [record.value.decode() for record in self.records.published if record.key == str(user_id)]

    def noted(self, user_id: int | None) -> list[dict[str, Any]]:
        """The attempts of a user."""
        return [attempt for attempt in self.records.attempts if attempt["userId"] == user_id]

    async def _change(self, user_id: int, **fields: Any) -> None:
        limit = changed(await self.limit(user_id), **fields)
        async with self.database.transaction() as tx:
            await keep_counts(tx, {user_id: limit})
        await self.state.delete(key_of(user_id))


class Burst:
    """Clients who send for one user without rest, and what they were told."""

    def __init__(self, worlds: list[SmsWorld], user_id: int) -> None:
        self._worlds = worlds
        self.user_id = user_id
        self._numbers = count()
        self.said: Counter[int] = Counter()
        self.sent: list[str] = []
        """The messages that were answered with 200."""

    async def send(self, number: int, at_once: int = 20) -> None:
        """So many requests, some at a time, over all worlds."""
        left = islice(self._numbers, number)
        async with asyncio.TaskGroup() as clients:
            for index in range(at_once):
                clients.create_task(self._client(self._worlds[index % len(self._worlds)], left))

    async def _client(self, world: SmsWorld, left: Iterator[int]) -> None:
        async with await Client.connect(world.port) as client:
            for number in left:
                body = msgspec.json.encode({"userId": self.user_id, "message": f"{number}"})
                answer = await client.post("/api/send", body)
                self.said[answer.status] += 1
                if answer.status == 200:
                    self.sent.append(f"{number}")


@asynccontextmanager
async def sms_world(
    location: Location,
    request: pytest.FixtureRequest,
    *,
    fast_path: bool = True,
    redis: str | None = None,
    kafka: str | None = None,
    redis_deadline: float = PATIENT,
) -> AsyncIterator[SmsWorld]:
    """A world on an empty database; `redis` and `kafka` name others than the usual."""
    await furnish("sms", location)
    buses = buses_beside(location, request)
    async with AsyncExitStack() as stack:
        database = await open_database(location)
        stack.push_async_callback(database.close)
        bus = await buses.open()
        stack.push_async_callback(buses.close)
        clock = SystemClock()
        state: StateStore
        if isinstance(location, Path):
            state = EmbeddedStateStore(location.parent / "state.sqlite3", clock)
            stack.push_async_callback(state.close)
            log: RecordLog = EmbeddedRecordLog(location.parent / "records.sqlite3")
        else:
            address = redis or request.getfixturevalue("redis_address")
            state = DistributedStateStore(await stack.enter_async_context(connected(address, deadline=redis_deadline)))
            log = in_kafka = KafkaLog(kafka or request.getfixturevalue("kafka_bootstrap"))
            await in_kafka.start()
            await eventually(lambda: in_kafka._producer.away is None)
        records = Corner(log, f"test-{secrets.token_hex(4)}-")
        stack.push_async_callback(records.close)
        for topic in (OUTBOUND, NOTIFICATION_EVENTS):
            await records.declare(topic)
        absent = Absent(state)
        foundation = Foundation(
            database=database,
            bus=bus,
            clock=clock,
            metrics=Metrics(),
            tokens=TokenVerifier(("x" * 32,), clock),
            outbox_retention=timedelta(days=1),
            records=records,
        )
        service = build_sms(foundation, SmsSettings(fast_path=fast_path), absent)
        server = await stack.enter_async_context(running(service.application))
        world = SmsWorld(service, database, absent, records, clock, server.port)
        yield world
        for client in world.clients:
            client.close()


@pytest.fixture
async def sms(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[SmsWorld]:
    """An SMS gateway that counts in its state store first."""
    async with sms_world(empty_location, request) as world:
        yield world


@pytest.fixture
async def locked_sms(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[SmsWorld]:
    """One that counts behind the lock."""
    async with sms_world(empty_location, request, fast_path=False) as world:
        yield world


@pytest.fixture(params=["redis", "row-lock"])
async def gateway(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[SmsWorld]:
    """One of either way."""
    async with sms_world(empty_location, request, fast_path=request.param == "redis") as world:
        yield world


async def all_at_once(number: int, make: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Many requests at the same time."""
    return list(await asyncio.gather(*(make(index) for index in range(number))))
