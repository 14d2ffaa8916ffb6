"""Clicks that nobody can count, packed with others that everybody can: the others are counted; on both modes."""

import json
import logging
from typing import Any

import pytest

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import array_of
from refract.services.analytics.reactions import ClickDecoder, clicks
from tests.support.counting import CLICKS, assert_counted, clicked, ingesting, letter
from tests.support.following import Between, analytics
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["analytics"]

pytestmark = pytest.mark.usefixtures("patient_bus")


def changed(**fields: Any) -> bytes:
    """A click with other values, or without those that are None."""
    click = json.loads(clicked().encode()) | fields
    return json.dumps({name: value for name, value in click.items() if value is not None}).encode()


BAD: dict[str, tuple[bytes, str]] = {
    "no code": (changed(short_code=None), "missing required field `short_code`"),
    "an empty code": (changed(short_code=""), "a click without a short_code"),
    "a code of ten kilobytes": (changed(short_code="x" * 10_240), "a short_code of 10240 characters that no link has"),
    "a code that PostgreSQL does not keep": (changed(short_code="a\0b"), "a short_code of 3 characters"),
    "a code that is a number": (changed(short_code=7), "Expected `str`, got `int` - at `$.short_code`"),
    "no time": (changed(occurred_at=None), "missing required field `occurred_at`"),
    "a time that is none": (changed(occurred_at="yesterday"), "Invalid RFC3339"),
    "a time without a zone": (changed(occurred_at="2026-03-01T12:00:00"), "Expected `datetime` with a timezone"),
    "a time that is a number": (changed(occurred_at=1_772_366_400), "Expected `datetime`, got `int`"),
    "an id of ten kilobytes": (changed(event_id="x" * 10_240), "an id of 10240 characters that cannot be kept"),
    "an id that PostgreSQL does not keep": (changed(event_id="a\0b"), "an id of 3 characters that cannot be kept"),
    "an id that is a number": (changed(event_id=7), "Expected `str`, got `int` - at `$.event_id`"),
    "nobody": (changed(ip_hash=None), "missing required field `ip_hash`"),
    "a visitor that is a list": (changed(ip_hash=[]), "Expected `str`, got `array` - at `$.ip_hash`"),
    "another event": (changed(event_type="url.created"), "Invalid value 'url.created'"),
    "a number": (b"7", "Expected `object | array`, got `int`"),
    "an array": (array_of([clicked().encode()]), "an array within an array"),
}

ODD: dict[str, dict[str, Any]] = {
    "a referer that is no page": {"referer": "\0" * 5_000},
    "an agent of ten kilobytes": {"user_agent": "x" * 10_240},
    "an owner that PostgreSQL does not keep": {"user_id": "a\0b", "user_email": "a\0@example.com"},
    "a story that PostgreSQL does not keep": {"correlation_id": "a\0b"},
    "a hash that is none": {"ip_hash": "nobody\0"},
    "an address that is none": {"ip_anonymized": "here\0"},
    "a language that is none": {"accept_language": "\0;q=\0"},
    "a query that is none": {"query": "utm_source=%00%ff&utm_source=\0"},
    "another age": {"occurred_at": "0001-01-01T00:00:00Z"},
    "an age to come": {"occurred_at": "9999-12-31T23:59:59-12:00"},
}


@pytest.mark.parametrize("case", BAD)
def test_the_reason_says_what_is_wrong(case: str) -> None:
    body, said = BAD[case]
    with pytest.raises(PoisonMessage) as raised:
        ClickDecoder().sort_out("url.clicked", array_of([body]) if body.startswith(b"[") else body)
    assert said in str(raised.value) or body.startswith(b"[")
    good = clicked()
    events, [unreadable] = ClickDecoder().sort_out("url.clicked", array_of([body, good.encode()]))
    assert events == [good]
    assert (unreadable.body, said in unreadable.reason) == (body, True)


async def test_those_that_were_packed_with_them_are_counted(
    analytics: Between, caplog: pytest.LogCaptureFixture
) -> None:
    good = [clicked(code, visitor=number) for number, code in enumerate("abcab" * 8)]
    bodies = [body for body, _ in BAD.values()]
    [reaction] = clicks(ingesting(analytics.clock), readers=1)
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    parts = [click.encode() for click in good[:30]]
    mixed = letter(body=array_of([*parts[:15], *bodies, *parts[15:]]))
    with caplog.at_level(logging.ERROR):
        async with running(analytics.reader(reaction, queue).run):
            await analytics.publish(mixed.message, letter(*good[30:]).message)
            await eventually(lambda: analytics.counted("inbox_buried_total") == 1)
            await eventually(lambda: analytics.counted("inbox_handled_total") == len(good))
    await assert_counted(analytics, good)
    [dead] = await analytics.dead(queue)
    assert dead.message.body == array_of(bodies)
    assert dead.message.message_id == mixed.message.message_id
    assert dead.reason.startswith(f"{len(bodies)} of {30 + len(bodies)} events: url.clicked: ")
    [record] = [one for one in caplog.records if one.name.startswith("refract")]
    assert (record.getMessage(), vars(record)["reason"]) == ("message moved to dead letters", dead.reason)


async def test_whatever_else_is_odd_is_counted(analytics: Between) -> None:
    [reaction] = clicks(ingesting(analytics.clock), readers=1)
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    bodies = [changed(event_id=f"odd-{number}", **fields) for number, fields in enumerate(ODD.values())]
    async with running(analytics.reader(reaction, queue).run):
        await analytics.publish(letter(body=array_of(bodies)).message)
        await eventually(lambda: analytics.counted("inbox_handled_total") == len(bodies))
    assert await analytics.dead(queue) == []
    assert len(await analytics.rows(CLICKS)) == len(bodies)
