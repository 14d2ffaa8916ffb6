"""Clicks and link events as a bus may deliver them: again, in any order, and with poison among them; on both modes."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from refract.kernel.events import Event
from refract.kernel.ids import new_event_id
from refract.runtime import inbox
from refract.runtime.messages import Message, Queue
from refract.runtime.ports import Transaction
from refract.runtime.service import Reaction
from refract.services.analytics.commands.following import LinkChange
from refract.services.analytics.reactions import ClickDecoder, clicks, link_changes
from refract.services.links.api import UrlClicked, UrlCreated, UrlDeleted, UrlUpdated
from tests.support.clocks import START
from tests.support.counting import MILESTONES, STALE, assert_counted, clicked, ingesting, letter, random_clicks
from tests.support.databases import empty_location
from tests.support.following import LINKS, Between, analytics
from tests.support.outboxes import OUTBOX
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["analytics", "empty_location"]

CODES = [f"code-{number}" for number in range(12)]
POISON = "the one that nobody can read"


def life(code: str, chance: random.Random) -> list[LinkChange]:
    """The events of a link, the last of which decides."""
    owner: dict[str, Any] = {"user_id": f"owner of {code}", "user_email": f"{code}@example.com", "short_code": code}
    place: dict[str, Any] = {"original_url": "https://example.com/", "occurred_at": START, **owner}
    events: list[LinkChange] = [UrlCreated(event_id=new_event_id(), order=1, title="made", **place)]
    for order in range(2, chance.randrange(3, 6)):
        public = chance.random() < 0.5
        update = UrlUpdated(event_id=new_event_id(), order=order, title=f"{order}", stats_public=public, **place)
        events.append(update)
    if chance.random() < 0.3:
        events.append(UrlDeleted(event_id=new_event_id(), occurred_at=START, order=9, **owner))
    return events


def packed(events: Sequence[UrlClicked], chance: random.Random) -> list[Message]:
    """Clicks in messages of one or of many, each time others together."""
    messages, rest = [], list(events)
    while rest:
        size = chance.choice((1, 1, 1, 2, 10, 40))
        messages.append(letter(*rest[:size]).message)
        del rest[:size]
    return messages


def three_times_shuffled(
    followed: Sequence[UrlClicked], changes: Sequence[LinkChange], chance: random.Random
) -> list[Message]:
    """Everything three times: clicks in other company each time, and no order in any of it."""
    again = list(followed) * 3
    chance.shuffle(again)
    messages = packed(again, chance) + [Message.of(change) for change in changes] * 3
    chance.shuffle(messages)
    return messages


async def told(analytics: Between) -> dict[str, int]:
    """The milestones that were announced, by link and threshold."""
    rows = await analytics.database.fetch(MILESTONES)
    assert len(await analytics.database.fetch(OUTBOX)) == len(rows)
    return {f"{row['short_code']} {row['milestone']}": 1 for row in rows}


async def known(analytics: Between) -> list[tuple[Any, ...]]:
    """Of each link what its last version decides."""
    rows = await analytics.rows(LINKS)
    return [(row["short_code"], row["user_id"], row["user_email"], row["order_number"], row["status"]) for row in rows]


class Readers:
    """Two of each queue, who take everything."""

    def __init__(self, analytics: Between) -> None:
        self._analytics = analytics

    async def read(self, messages: Sequence[Message], handled: int, repeated: int) -> None:
        """Let them have messages, and wait until all were read."""
        counted = self._analytics.counted
        before = counted("inbox_handled_total"), counted("inbox_repeated_total")
        for first in range(0, len(messages), 200):
            await self._analytics.publish(*messages[first : first + 200])
        await eventually(lambda: counted("inbox_handled_total") - before[0] == handled, timeout=60)
        await eventually(lambda: counted("inbox_repeated_total") - before[1] == repeated, timeout=60)


@asynccontextmanager
async def reading(analytics: Between) -> AsyncIterator[Readers]:
    """Readers who go on until the end: one that is stopped may have counted what it has not acknowledged yet."""
    counting, following = clicks(ingesting(analytics.clock), readers=2), [link_changes()] * 2
    queues = {reaction.queue.name: analytics.queue_of(reaction) for reaction in (counting[0], following[0])}
    for queue in queues.values():
        await analytics.bus.declare(queue)
    readers = [analytics.reader(reaction, queues[reaction.queue.name]) for reaction in (*counting, *following)]
    async with running(*(reader.run for reader in readers)):
        yield Readers(analytics)
    for queue in queues.values():
        assert await analytics.dead(queue) == []


@pytest.mark.parametrize("number", [800, pytest.param(20_000, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_everything_three_times_and_shuffled_changes_no_aggregate(analytics: Between, number: int) -> None:
    chance = random.Random(16)
    followed = random_clicks(chance, number, codes=CODES, days=2)
    changes = [event for code in CODES for event in life(code, chance)]
    messages = three_times_shuffled(followed, changes, chance)
    events = len(followed) + len(changes)
    last = {code: [change for change in changes if change.short_code == code][-1] for code in CODES}
    async with reading(analytics) as readers:
        await readers.read(messages, handled=events, repeated=2 * events)
        await assert_counted(analytics, followed)
        assert await known(analytics) == sorted(
            (code, f"owner of {code}", f"{code}@example.com", change.order, _status(change))
            for code, change in last.items()
        )
        milestones = await told(analytics)
        # And all of it once more, when it has long been counted: as after a replay of the outbox.
        again = three_times_shuffled(followed, changes, chance)
        await readers.read(again, handled=0, repeated=3 * events)
    await assert_counted(analytics, followed)
    assert await told(analytics) == milestones
    assert await analytics.rows(STALE) == []


def _status(change: LinkChange) -> str:
    return "deleted" if isinstance(change, UrlDeleted) else "active"


class Fragile:
    """Counts clicks, but for one that it fails at until it is mended."""

    def __init__(self, analytics: Between) -> None:
        self._ingest = ingesting(analytics.clock).ingest
        self.mended = False
        self.attempts = 0
        self.handed = 0

    async def ingest(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Count, and find out too late."""
        self.handed += len(events)
        await self._ingest(tx, events)
        if not self.mended and any(isinstance(event, UrlClicked) and event.referer == POISON for event in events):
            self.attempts += 1
            raise RuntimeError(POISON)


async def poison(analytics: Between, number: int) -> None:
    """One poison among many: it is kept with its reason, the others are counted, and a replay counts nothing twice."""
    fragile = Fragile(analytics)
    reaction = Reaction(clicks(ingesting(analytics.clock), 1)[0].queue, ClickDecoder(), fragile.ingest)
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    good = random_clicks(random.Random(18), number - 1, codes=CODES)
    bad = clicked(CODES[0], referer=POISON)
    messages = [Message.of(event) for event in [*good[: number // 2], bad, *good[number // 2 :]]]
    for first in range(0, len(messages), 500):
        await analytics.publish(*messages[first : first + 500])
    async with AsyncExitStack() as stack:
        readers = [analytics.reader(reaction, queue) for _ in range(2)]
        await stack.enter_async_context(running(*(reader.run for reader in readers)))
        await eventually(lambda: analytics.counted("inbox_handled_total") == number - 1, timeout=120)
        await eventually(lambda: analytics.counted("inbox_buried_total") == 1, timeout=30)
        await _check_letter(analytics, queue, bad)
        await assert_counted(analytics, good)
        assert fragile.attempts <= inbox.ATTEMPTS + 6, "it was tried more often than alone and in the parts of a batch"
        assert fragile.handed - number <= 1.25 * queue.prefetch, "more was done again than the batch it came with"
        # Nothing is mended: it comes back to the dead letters, and nothing is counted.
        assert await analytics.bus.replay(queue.name) == 1
        await eventually(lambda: analytics.counted("inbox_buried_total") == 2, timeout=30)
        await assert_counted(analytics, good)
        # Mended: it is counted, and once, though its message is sent again and again.
        fragile.mended = True
        assert await analytics.bus.replay(queue.name) == 1
        await eventually(lambda: analytics.counted("inbox_handled_total") == number, timeout=30)
        await analytics.publish(*[Message.of(bad)] * 3, *messages[:20])
        await eventually(lambda: analytics.counted("inbox_repeated_total") == 23, timeout=30)
    await assert_counted(analytics, [*good, bad])
    assert await analytics.dead(queue) == []


async def _check_letter(analytics: Between, queue: Queue, bad: UrlClicked) -> None:
    [dead] = await analytics.dead(queue)
    assert (dead.message.message_id, dead.queue) == (bad.event_id, queue.name)
    assert dead.reason == f"RuntimeError: {POISON}"
    assert dead.message.body == bad.encode()


async def test_one_poison_click_among_a_thousand(analytics: Between) -> None:
    await poison(analytics, 1_000)


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_one_poison_click_among_ten_thousand(analytics: Between) -> None:
    await poison(analytics, 10_000)
