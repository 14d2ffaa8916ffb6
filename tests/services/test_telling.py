"""The reader of notifications.events (M5): what is kept, what is logged, what is put on its way; each event once."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Unavailable
from refract.kernel.events import Event
from refract.runtime.messages import Binding, DeadLetter, Queue
from refract.runtime.ports import Database, Transaction
from refract.services.notifications.domain.notices import notice_of
from tests.support.clocks import START
from tests.support.databases import open_database
from tests.support.notices import (
    ALICE,
    BOB,
    EMAILS,
    URL,
    NoticesWorld,
    Post,
    created,
    deleted,
    lines,
    reached,
)
from tests.support.patience import patient
from tests.support.waiting import eventually

__all__ = ["patient"]


@asynccontextmanager
async def settled(world: NoticesWorld, count: int, **options: Any) -> AsyncIterator[Post]:
    """The reader at work; at the end of the block it has so many notifications."""
    async with world.reading(**options) as post:
        yield post
        await eventually(lambda: _has(world, count))


async def _has(world: NoticesWorld, count: int) -> bool:
    return len(await world.notifications()) == count


# What is kept (M5 11.1 and 11.5).


async def test_each_of_the_three_events_becomes_a_notification_and_a_line(
    notices: NoticesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    events = [created(short_code="aB3xY9z"), deleted(short_code="old"), reached(short_code="hot", milestone=1_000)]
    async with settled(notices, 3) as post:
        await post.send(*events)
    rows = {row["event_type"]: row for row in await notices.notifications()}
    assert set(rows) == {"url.created", "url.deleted", "milestone.reached"}
    for event in events:
        row = rows[event.routing_key()]
        assert (row["user_id"], row["event_id"], row["status"]) == (ALICE, event.event_id, "sent")
        assert row["sent_at"] == row["created_at"] == notices.clock.now()
        assert row["read_at"] is None
        assert row["payload"] == msgspec.to_builtins(event)
    assert rows["url.created"]["title"] == f"New link aB3xY9z → {URL}"
    assert rows["url.deleted"]["title"] == "Link old was deleted"
    assert rows["milestone.reached"]["title"] == "Link hot reached 1,000 clicks"
    logged = {line["event_type"]: line for line in lines(caplog)}
    assert set(logged) == set(rows)
    for event in events:
        line = logged[event.routing_key()]
        assert line["levelname"] == "INFO"
        assert line["correlation_id"] == event.correlation_id
        assert line["user_email"] == EMAILS[ALICE]
        assert line["text"] == rows[event.routing_key()]["title"]
    assert await notices.deliveries() == []
    assert await notices.unread() == {ALICE: 3}


async def test_an_event_that_comes_thrice_and_shuffled_is_told_once(
    notices: NoticesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    events = [created(random.choice([ALICE, BOB])) for _ in range(30)]
    copies = events * 3
    random.shuffle(copies)
    events.append(created())
    async with notices.reading(prefetch=7) as post:
        await post.send(*copies, events[-1])
        await eventually(lambda: _told(notices, events[-1]))
    assert sorted(row["event_id"] for row in await notices.notifications()) == sorted(e.event_id for e in events)
    assert sum((await notices.unread()).values()) == 31
    assert len(lines(caplog)) == 31


async def _told(world: NoticesWorld, event: Event) -> bool:
    """Whether the last event is told, and so all before it are handled."""
    return event.identity in await world.marks()


async def test_an_event_without_an_id_is_known_by_its_composite(notices: NoticesWorld) -> None:
    event, last = created(event_id="", correlation_id="the-request"), created()
    async with notices.reading() as post:
        await post.send(event)
        await eventually(lambda: _told(notices, event))
        await post.send(event, created(event_id="", correlation_id="the-request", short_code="other"), last)
        await eventually(lambda: _told(notices, last))
    assert [row["event_id"] for row in await notices.notifications()] == ["url.created:the-request", last.event_id]


async def test_events_of_a_batch_are_listed_by_when_they_happened(notices: NoticesWorld) -> None:
    events = [created(occurred_at=START + timedelta(seconds=second)) for second in (3, 1, 2)]
    await notices.tell(*events)
    listed = [row["short_code"] for row in (await notices.page())["notifications"]]
    assert listed == [events[0].short_code, events[2].short_code, events[1].short_code]


async def test_a_body_may_carry_several_events(notices: NoticesWorld) -> None:
    events = [created(), created(BOB)]
    async with settled(notices, 2) as post:
        await post.send_body("url.created", msgspec.json.encode(events))
    assert await notices.unread() == {ALICE: 1, BOB: 1}


# Poison (M5 step 3; ACCEPTANCE 18).

POISON: list[tuple[str, bytes, str]] = [
    ("url.created", b"{", "truncated"),
    ("url.created", b"\xff\xfe", ""),
    ("url.created", b"[]", "empty array"),
    ("url.created", b"null", "null"),
    ("url.created", b'"text"', "str"),
    ("url.created", b"[" * 100_000, ""),
    ("url.created", created(user_id="").encode(), "user_id is empty"),
    ("url.created", created(user_id="  ").encode(), "user_id is empty"),
    ("url.created", created(user_id="a\0b").encode(), "user_id is no id"),
    ("url.created", created(user_id="u" * 300).encode(), "user_id is no id"),
    ("url.created", created(event_id="e" * 3_000).encode(), "an id of 3000 characters"),
    ("url.created", created(event_id="", correlation_id="c" * 250).encode(), "event_id is longer"),
    ("url.created", created(original_url="x" * 70_000).encode(), "larger than"),
    ("url.created", created(event_id="", correlation_id="").encode(), "neither"),
    ("url.created", deleted().encode(), "url.deleted"),
    ("url.created", created().encode().replace(b"code", b"\\ud800"), ""),
    ("milestone.reached", reached(milestone=5).encode().replace(b":5", b":-5"), "0"),
    ("milestone.reached", reached(milestone=5).encode().replace(b":5", b':"5"'), "str"),
]


async def test_poison_is_buried_with_its_reason_and_nothing_else_suffers(notices: NoticesWorld) -> None:
    async with settled(notices, 2 * len(POISON)) as post:
        for number, (routing_key, body, _) in enumerate(POISON):
            await post.send(created())
            await post.send_body(routing_key, body, f"poison-{number}")
            await post.send(created())
        letters = {letter.message.message_id: letter for letter in await eventually(lambda: _dead(post, len(POISON)))}
    for number, (routing_key, body, reason) in enumerate(POISON):
        letter = letters[f"poison-{number}"]
        assert letter.message.body == body
        assert letter.reason.startswith(f"{routing_key}: ")
        assert reason in letter.reason
        assert len(letter.reason) < 1_000
    assert await notices.unread() == {ALICE: 2 * len(POISON)}


async def test_of_an_array_only_who_can_be_told_nothing_is_buried(notices: NoticesWorld) -> None:
    nobodys = created(user_id="").encode()
    async with settled(notices, 2) as post:
        await post.send_body("url.created", b"[%b,%b,%b]" % (created().encode(), nobodys, created().encode()), "packed")
        [letter] = await eventually(post.dead)
    assert letter.message.body == b"[%b]" % nobodys
    assert letter.reason == "1 of 3 events: url.created: user_id is empty, so there is nobody to tell"
    assert await notices.unread() == {ALICE: 2}


async def _dead(post: Post, count: int) -> list[DeadLetter]:
    letters = await post.dead()
    return letters if len(letters) == count else []


async def test_an_unknown_routing_key_is_poison(notices: NoticesWorld) -> None:
    async with settled(notices, 1) as post:
        await post.bus.declare(notices.buses.using(_also(post.queue, "unknown.event", notices.buses.exchange)))
        await post.send_body("unknown.event", created().encode())
        await post.send(created())
        [letter] = await eventually(post.dead)
    assert letter.reason == "unknown.event: not an event that this reader knows"


def _also(queue: Queue, pattern: str, exchange: str) -> Queue:
    return replace(queue, bindings=(*queue.bindings, Binding(exchange, pattern)))


# Trouble.


class Stubborn:
    """A database whose transactions fail a few times first, as if it were away or in a way nobody thought of."""

    def __init__(self, database: Database, *failures: Exception) -> None:
        self._database = database
        self.failures = list(failures)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield _StubbornTransaction(tx, self)


class _StubbornTransaction:
    def __init__(self, tx: Transaction, database: Stubborn) -> None:
        self._tx = tx
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def insert_many(self, table: str, columns: Sequence[str], rows: Any) -> None:
        if table == "notifications" and self._database.failures:
            raise self._database.failures.pop(0)
        await self._tx.insert_many(table, columns, rows)


async def test_a_database_that_is_away_costs_no_attempt_and_no_event(
    notices: NoticesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    database = Stubborn(notices.database, *[Unavailable("database", "away")] * 3)
    async with settled(notices, 1, database=database) as post:
        await post.send(created())
    assert database.failures == []
    assert await notices.unread() == {ALICE: 1}, "what failed was rolled back, the count too"
    assert len(lines(caplog)) == 1
    assert await post.dead() == []


async def test_a_handler_that_fails_in_any_way_is_tried_again(notices: NoticesWorld) -> None:
    database = Stubborn(notices.database, ValueError("nobody thought of it"), KeyError("nor of this"))
    async with settled(notices, 1, database=database) as post:
        await post.send(created())
    assert await notices.unread() == {ALICE: 1}


async def test_what_never_succeeds_is_buried_and_a_replay_tells_it_once(notices: NoticesWorld) -> None:
    database = Stubborn(notices.database, *[ValueError("broken")] * 6)  # with the batch, and five times alone
    async with settled(notices, 1, database=database) as post:
        await post.send(created())
        [letter] = await eventually(post.dead)
        assert letter.reason == "ValueError: broken"
        assert await notices.notifications() == []
        assert await post.bus.replay(post.queue.name) == 1
    async with settled(notices, 2) as post:
        await post.send_messages([letter.message])
        await post.send(created())  # behind it
    assert await notices.unread() == {ALICE: 2}


@pytest.mark.usefixtures("patient")
async def test_two_readers_of_two_processes_neither_lose_nor_repeat(notices: NoticesWorld) -> None:
    """Each has its own connections; the same users in both, in every order: no deadlock either."""
    other = await open_database(notices.location)
    try:
        events = [created(user) for user in (ALICE, BOB, "carol", "dave") for _ in range(40)]
        random.shuffle(events)
        async with notices.reading(prefetch=10) as post, settled(notices, 160, prefetch=10, database=other):
            await post.send(*events, *random.sample(events, 40))
        assert await notices.unread() == {ALICE: 40, BOB: 40, "carol": 40, "dave": 40}
    finally:
        await other.close()


# What a hostile or foreign event may hold.

HOSTILE = "a\0b\r\nBcc: x@example.com\u202e<script>"


async def test_whatever_stands_in_an_event_is_kept_and_shown_on_one_line(notices: NoticesWorld) -> None:
    await notices.prefer(channels={"url.created": ["email"]})
    event = created(
        title=HOSTILE,
        original_url=f"https://example.com/{HOSTILE}",
        user_email=f"a@example.com\r\n{HOSTILE}",
        correlation_id=HOSTILE,
    )
    await notices.tell(event, sends_mail=True)
    [row] = await notices.notifications()
    assert row["title"].isprintable()
    assert row["payload"]["title"] == HOSTILE.replace("\0", "\ufffd")
    [mail] = await notices.deliveries()
    assert mail["subject"].isprintable()
    assert mail["recipient"].isprintable()
    assert "<script>" not in mail["html"]


async def test_no_address_of_a_client_is_kept(notices: NoticesWorld) -> None:
    """What an event says beyond its form is not kept (ACCEPTANCE 38)."""
    body = msgspec.json.decode(created().encode()) | {"ip": "203.0.113.77", "client": {"address": "203.0.113.77"}}
    async with settled(notices, 1) as post:
        await post.send_body("url.created", msgspec.json.encode(body))
    [row] = await notices.notifications()
    assert "203.0.113.77" not in str(dict(row))


@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
async def test_readers_with_the_same_users_wait_for_each_other_instead_of_deadlocking(notices: NoticesWorld) -> None:
    async with notices.database.transaction() as tx:
        await notices.telling().tell(tx, [notice_of(created(ALICE))])
        other = asyncio.create_task(notices.tell(created(BOB), created(ALICE)))
        await eventually(notices.somebody_waits)
        await notices.telling().tell(tx, [notice_of(created(BOB))])
    await other
    assert await notices.unread() == {ALICE: 2, BOB: 2}
