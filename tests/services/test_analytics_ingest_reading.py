"""The reader of clicks, on both modes: poison is kept and the rest is counted, and several readers share the work."""

import logging
import random
from collections.abc import Sequence

import msgspec
import pytest

from refract.kernel.events import Event
from refract.runtime import inbox
from refract.runtime.ports import Transaction
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.reactions import CLICKS as QUEUE
from refract.services.analytics.reactions import QUEUES, ClickDecoder, clicks
from refract.services.links.api import UrlClicked
from tests.support.counting import (
    assert_counted,
    click_inbox,
    clicked,
    enricher,
    hand_over,
    ingesting,
    letter,
    random_clicks,
)
from tests.support.following import Between, analytics
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["analytics"]

pytestmark = pytest.mark.usefixtures("patient_bus")


async def test_poison_is_kept_and_the_rest_is_counted(analytics: Between, caplog: pytest.LogCaptureFixture) -> None:
    good = clicked()
    [reaction] = clicks(ingesting(analytics.clock), readers=1)
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    bodies = {
        "malformed": b"{",
        "neither event_id nor correlation_id": clicked(event_id="", correlation_id="").encode(),
        "without a short_code": clicked("").encode(),
        "empty array": b"[]",
        "missing required field `ip_hash`": b'{"event_type":"url.clicked","occurred_at":"2026-03-01T12:00:00Z",'
        b'"short_code":"a","user_id":"u","user_agent":"x"}',
        "Expected `datetime`": clicked().encode().replace(b"2026-03-01T12:00:00Z", b"2026-03-01T12:00:00"),
        "Expected `object | array`": b"7",
        "not UTF-8": good.encode().replace(b'"owner"', b'"\xff"'),
    }
    letters = [letter(body=body).message for body in bodies.values()]
    await analytics.publish(*letters, good)
    with caplog.at_level(logging.ERROR):
        async with running(analytics.reader(reaction, queue).run):
            await eventually(lambda: analytics.counted("inbox_buried_total") == len(bodies))
            await eventually(lambda: analytics.counted("inbox_handled_total") == 1)
    reasons = {dead.message.message_id: dead.reason for dead in await analytics.dead(queue)}
    for message, (said, _) in zip(letters, bodies.items(), strict=True):
        assert said in reasons[message.message_id] or said == "malformed"
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == len(bodies)
    await assert_counted(analytics, [good])


async def test_an_event_that_breaks_the_handler_is_buried_alone(
    analytics: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_PAUSE", 0.0)
    counting = ingesting(analytics.clock)

    class Fragile(Ingesting):
        async def ingest(self, tx: Transaction, events: Sequence[Event]) -> None:
            await counting.ingest(tx, events)
            if any(isinstance(event, UrlClicked) and event.short_code == "bad" for event in events):
                raise RuntimeError("this one never works")

    fragile = Fragile(enricher(), analytics.clock)
    events = [clicked(code) for code in ("a", "bad", "b")]
    reader = click_inbox(analytics.database, analytics.clock, fragile)
    desk = await hand_over(reader, *map(letter, events))
    assert [reason for _, reason in desk.buried] == ["RuntimeError: this one never works"]
    await assert_counted(analytics, [events[0], events[2]])


async def test_several_readers_share_the_work(analytics: Between) -> None:
    events = random_clicks(random.Random(3), 400, codes=["a", "b", "c"])
    reactions = clicks(ingesting(analytics.clock), readers=3)
    assert len(reactions) == 3
    queue = analytics.queue_of(reactions[0])
    await analytics.bus.declare(queue)
    await analytics.publish(*events[:200], *events[:50])
    await analytics.publish(*(letter(*events[first : first + 40]).message for first in range(160, 400, 40)))
    async with running(*(analytics.reader(reaction, queue).run for reaction in reactions)):
        await eventually(lambda: analytics.counted("inbox_handled_total") == 400)
    await assert_counted(analytics, events)


def test_the_queue_is_the_documented_one() -> None:
    assert QUEUE in QUEUES
    assert (QUEUE.name, QUEUE.dead, QUEUE.prefetch) == ("analytics.clicks", "analytics.clicks.dead", 500)
    assert [(binding.exchange, binding.pattern) for binding in QUEUE.bindings] == [("url-shortener", "url.clicked")]


def test_a_click_that_carries_more_than_we_know_is_read() -> None:
    body = msgspec.json.decode(clicked().encode()) | {"added_in_2030": True}
    [event] = ClickDecoder().decode("url.clicked", msgspec.json.encode(body))
    assert isinstance(event, UrlClicked)
