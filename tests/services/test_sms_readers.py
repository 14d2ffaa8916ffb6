"""The readers of sms: each message is sent once and none is left out, each attempt is kept, and poison stops nobody."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from refract.kernel.errors import TimedOut, Unavailable
from refract.kernel.ids import new_event_id
from refract.runtime.correlation import current_correlation_id
from refract.runtime.metrics import Metrics
from refract.runtime.ports import RecordReader
from refract.runtime.records import ReceivedRecord, Record
from refract.services.sms import reactions
from refract.services.sms.api import NOTIFICATION_EVENTS, OUTBOUND
from refract.services.sms.commands.auditing import AuditTrail
from refract.services.sms.commands.delivering import Delivering, message_in
from refract.services.sms.domain.attempt_events import encode
from refract.services.sms.reactions import AUDITORS, SENDERS, Reading, RecordInbox, record_readers
from tests.support.audit import ATTEMPTS, MINUTES, SENT, attempt
from tests.support.clocks import START
from tests.support.sms import SmsWorld, locked_sms, new_user, sms
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["locked_sms", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")

ON_SQLITE = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
"""What the log has no part in."""


class Lines(logging.Handler):
    """What was sent: the lines that say so, each with the correlation id that it was under."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.correlated: list[str] = []
        self.others: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("SMS Sent: "):
            assert record.levelno == logging.INFO
            self.sent.append(text.removeprefix("SMS Sent: "))
            self.correlated.append(current_correlation_id())
        else:
            self.others.append(record)


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    """What the service logs."""
    logger, handler = logging.getLogger("refract.services.sms"), Lines()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@asynccontextmanager
async def at_work(world: SmsWorld, metrics: Metrics | None = None) -> AsyncIterator[Metrics]:
    """Both readers."""
    metrics = metrics or Metrics()
    tasks = record_readers(world.records, world.database, world.clock, metrics)
    async with running(*(task.run for task in tasks)):
        yield metrics


def message(user_id: int, text: str, *, message_id: str | None = None, **headers: str) -> Record:
    """A record as a send publishes it."""
    identity = new_event_id() if message_id is None else message_id
    return Record(
        OUTBOUND.name,
        str(user_id),
        f"{user_id}: {text}".encode(),
        {"message-id": identity, "correlation-id": f"c-{user_id}", **headers},
    )


def received(value: bytes, offset: int = 0, headers: Mapping[str, str] | None = None) -> ReceivedRecord:
    return ReceivedRecord("t", "7", value, headers or {}, partition=1, offset=offset, written_at=START)


def passed_over(metrics: Metrics, group: str) -> float:
    return metrics.registry.get_sample_value("records_passed_over_total", {"reader": group}) or 0.0


async def test_a_send_is_sent_and_kept(sms: SmsWorld, lines: Lines) -> None:
    """From the request to the line in the log and to the audit."""
    user = await sms.user(limit=1)
    async with at_work(sms):
        first = await sms.post(
            "/api/send", b'{"userId": %d, "message": "hello: you"}' % user, "X-Correlation-ID: mine-1"
        )
        assert first.status == 200
        assert (await sms.send(user)).status == 429
        await eventually(lambda: lines.sent == [f"{user}: hello: you"])
        assert lines.correlated == ["mine-1"]

        async def kept() -> list[Any]:
            rows = await sms.database.fetch(ATTEMPTS)
            return rows if len(rows) == 2 else []

        sent, limited = await eventually(kept)
        [mark] = await eventually(lambda: sms.database.fetch(SENT))  # which is committed after the line is written
    assert (sent["status"], sent["user_id"], sent["message"]) == ("sent", user, "hello: you")
    assert (sent["correlation_id"], sent["reason"]) == ("mine-1", "")
    assert (limited["status"], limited["reason"]) == ("limited", "Rate Limit Exceeded")
    assert mark["message_id"] == sent["message_id"]


async def test_messages_of_one_user_are_sent_in_order_and_each_once(sms: SmsWorld, lines: Lines) -> None:
    users = [new_user() for _ in range(3)]
    records = [message(user, str(number)) for number in range(40) for user in users]
    outcomes = await sms.records.publish_all([*records, *records[:30]])
    assert outcomes == [None] * 150
    async with at_work(sms) as metrics:
        count = metrics.registry.get_sample_value
        await eventually(lambda: count("inbox_handled_total", {"reader": SENDERS}) == 120)
        await eventually(lambda: count("inbox_repeated_total", {"reader": SENDERS}) == 30)
    for user in users:
        assert [line for line in lines.sent if line.startswith(f"{user}:")] == [f"{user}: {n}" for n in range(40)]


async def test_a_reader_that_ended_before_its_commit_sends_nothing_again(sms: SmsWorld, lines: Lines) -> None:
    user = new_user()
    await sms.records.publish(message(user, "once"))
    delivering = Delivering(sms.database, sms.clock)
    async with sms.records.reader(OUTBOUND, SENDERS) as reader:
        batch = await reader.next_batch()
        assert await delivering.send([message_in(record) for record in batch]) == 1
    async with at_work(sms) as metrics:
        repeated = metrics.registry.get_sample_value
        await eventually(lambda: repeated("inbox_repeated_total", {"reader": SENDERS}) == 1, timeout=60)
        await sms.records.publish(message(user, "after"))
        await eventually(lambda: lines.sent == [f"{user}: once", f"{user}: after"])


POISON = [b"", b"hello", b"7:hello", b"7: ", b"-7: hello", b": hello", b"\xff\xfe: x", b"7" * 20 + b": x", b"x7: hello"]


@pytest.mark.parametrize("value", POISON)
async def test_poison_among_messages_is_passed_over(value: bytes) -> None:
    inbox, handled = made_inbox()
    await inbox.take(Handing([received(b"7: first"), received(value, 1), received(b"7: last", 2)]))
    assert [one.text for one in handled] == ["7: first", "7: last"]


async def test_poison_in_the_topics_stops_nobody(sms: SmsWorld, lines: Lines) -> None:
    user = new_user()
    noted = attempt(user, at=sms.clock.now())
    poison = [Record(topic.name, "7", value) for topic in (OUTBOUND, NOTIFICATION_EVENTS) for value in POISON]
    assert set(await sms.records.publish_all(poison)) == {None}
    await sms.records.publish(message(user, "good"))
    await sms.records.publish(Record(NOTIFICATION_EVENTS.name, "7", encode(noted)))
    async with at_work(sms) as metrics:
        await eventually(lambda: lines.sent == [f"{user}: good"])
        await eventually(lambda: passed_over(metrics, SENDERS) == passed_over(metrics, AUDITORS) == len(POISON))

        async def kept() -> list[Any]:
            return await sms.database.fetch(ATTEMPTS)

        assert [row["event_id"] for row in await eventually(kept)] == [noted.event_id]
    errors = [record for record in lines.others if record.levelno == logging.ERROR]
    assert len(errors) == 2 * len(POISON)
    assert {"topic", "partition", "offset", "reason", "group"} <= vars(errors[0]).keys()


@pytest.mark.parametrize("message_id", ["", " ", "x" * 201, "with space", "ü", "\0", "a\nb"])
def test_a_message_without_an_id_that_can_be_kept_is_known_by_its_place(message_id: str) -> None:
    own = message_in(received(b"7: x", 5, {"message-id": message_id}))
    assert own.message_id == "t/1/5"
    assert message_in(received(b"7: x", 6)).message_id == "t/1/6"
    assert message_in(received(b"7: x", 5, {"message-id": "m-1"})).message_id == "m-1"


@pytest.mark.parametrize("offered", ["", "with space", "x" * 129, "a\nb"])
def test_a_correlation_id_that_is_not_harmless_is_replaced(offered: str) -> None:
    assert message_in(received(b"7: x", headers={"correlation-id": offered})).correlation_id != offered
    assert message_in(received(b"7: x", headers={"correlation-id": "c-1"})).correlation_id == "c-1"


async def test_what_was_sent_by_a_transaction_that_failed_is_not_sent_again(
    sms: SmsWorld, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same process; in another one it is, because none may be lost."""
    user = new_user()
    messages = [message_in(received(f"{user}: {number}".encode(), number)) for number in range(3)]
    real = sms.database.transaction

    @asynccontextmanager
    async def failing() -> AsyncIterator[Any]:
        async with real() as tx:
            yield tx
            raise Unavailable("database", "it went away with the commit")

    delivering = Delivering(sms.database, sms.clock)
    with monkeypatch.context() as patched:
        patched.setattr(sms.database, "transaction", failing)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await delivering.send(messages)
    assert await delivering.send(messages) == 3
    assert lines.sent == [f"{user}: {number}" for number in range(3)]
    assert await delivering.send(messages) == 0
    assert await Delivering(sms.database, sms.clock).send(messages) == 0
    assert len(lines.sent) == 3


async def test_what_was_sent_by_a_batch_that_failed_is_not_sent_again_by_its_parts(
    sms: SmsWorld, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = new_user()
    messages = [message_in(received(f"{user}: {number}".encode(), number)) for number in range(9)]
    real = sms.database.transaction
    failures = iter([TimedOut("database", "there is too much in it")])

    @asynccontextmanager
    async def failing_once() -> AsyncIterator[Any]:
        async with real() as tx:
            yield tx
            for failure in failures:
                raise failure

    delivering = Delivering(sms.database, sms.clock)
    monkeypatch.setattr(sms.database, "transaction", failing_once)
    with pytest.raises(TimedOut):
        await delivering.send(messages)
    assert [await delivering.send(messages[first : first + 3]) for first in (0, 3, 6)] == [3, 3, 3]
    assert lines.sent == [f"{user}: {number}" for number in range(9)]


async def test_two_senders_with_the_same_messages_send_each_once(sms: SmsWorld, lines: Lines) -> None:
    """As after a rebalance, when one has not committed what the other has got."""
    messages = [message_in(received(b"7: x", number)) for number in range(3_000)]
    senders = [Delivering(sms.database, sms.clock) for _ in range(4)]
    orders = [messages, messages[::-1], messages[1_500:] + messages[:1_500], messages]
    sent = await asyncio.gather(*(sender.send(order) for sender, order in zip(senders, orders, strict=True)))
    assert sum(sent) == len(lines.sent) == 3_000


@ON_SQLITE
async def test_noting_never_fails_a_request(sms: SmsWorld) -> None:
    """Whatever stands in it, and while the log takes nothing."""
    sms.records.away = True
    trail = AuditTrail(sms.records)
    trail.note(attempt(None, "invalid", message="\0\ud800" * 5_000, correlation_id="x" * 500))
    trail.note(attempt(1 << 80, "invalid"))
    sms.records.away = False
    assert await sms.records.drain(30) == 0

    async def kept() -> bool:
        return len(await sms.database.fetch(ATTEMPTS)) == 2

    async with at_work(sms):
        await eventually(kept)
    assert {row["user_id"] for row in await sms.database.fetch(ATTEMPTS)} == {None}
    assert await sms.database.fetch(MINUTES) == []


class Handing(RecordReader):
    """A reader that hands out what it is given, and can refuse a commit."""

    def __init__(self, batch: list[ReceivedRecord], refusals: int = 0) -> None:
        self.batch = batch
        self.refusals = refusals
        self.committed: list[Sequence[ReceivedRecord]] = []

    async def next_batch(self) -> list[ReceivedRecord]:
        return self.batch

    async def commit(self, records: Sequence[ReceivedRecord]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("kafka", "the test says so")
        self.committed.append(records)


def made_inbox(handle: Any = None, metrics: Metrics | None = None) -> tuple[RecordInbox[Any], list[Any]]:
    """An inbox that collects what it handles, or does as it is told."""
    handled: list[Any] = []

    async def collect(items: Sequence[Any]) -> int:
        handled.extend(items)
        return len(items)

    reading: Reading[Any] = Reading(OUTBOUND, SENDERS, message_in, handle or collect, rest=0)
    no_log: Any = None  # what is to be read is handed over
    return RecordInbox(reading, no_log, metrics or Metrics()), handled


async def test_a_record_that_no_database_takes_is_found_and_passed_over() -> None:
    """The others of its batch are handled, in their order, and the batch is committed."""
    handled: list[str] = []

    async def handle(items: Sequence[Any]) -> int:
        if any(item.text == "7: 57" for item in items):
            raise ValueError("a value does not fit its column")
        handled.extend(item.text for item in items)
        return len(items)

    metrics = Metrics()
    inbox, _ = made_inbox(handle, metrics)
    reader = Handing([received(b"7: %d" % number, number) for number in range(100)])
    await inbox.take(reader)
    assert handled == [f"7: {number}" for number in range(100) if number != 57]
    assert passed_over(metrics, SENDERS) == 1
    assert reader.committed == [reader.batch]


async def test_a_database_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the records: nothing is passed over, and nothing is committed before it is back."""
    monkeypatch.setattr(reactions, "LONGEST_PAUSE", 0.001)
    reader = Handing([received(b"7: x")])
    tries: list[int] = []

    async def handle(items: Sequence[Any]) -> int:
        assert reader.committed == []
        tries.append(len(items))
        if len(tries) < 4:
            raise Unavailable("database", "it is away")
        return 1

    metrics = Metrics()
    inbox, _ = made_inbox(handle, metrics)
    await inbox.take(reader)
    assert tries == [1] * 4
    assert reader.committed == [reader.batch]
    assert passed_over(metrics, SENDERS) == 0


async def test_a_commit_is_tried_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactions, "LONGEST_PAUSE", 0.001)
    inbox, handled = made_inbox()
    reader = Handing([received(b"7: x")], refusals=3)
    await inbox.take(reader)
    assert (len(handled), reader.committed) == (1, [reader.batch])


async def test_nothing_is_committed_before_it_is_handled() -> None:
    reader = Handing([received(b"7: x")])

    class Dead(BaseException):
        """What ends a process."""

    async def handle(items: Sequence[Any]) -> int:
        raise Dead

    inbox, _ = made_inbox(handle)
    with pytest.raises(Dead):
        await inbox.take(reader)
    assert reader.committed == []
