"""Totals that links is told: shown in lists, never going back, and nobody who follows a link notices; on both modes."""

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pytest

from refract.kernel.events import LINK_EXCHANGE
from refract.runtime.caching import CacheEntry
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.messages import Binding, Message
from refract.runtime.statements import Statement
from refract.services.analytics.api import LinkTotal, StatsTotals
from refract.services.links.commands.totalling import keep_totals
from refract.services.links.domain.link import Change, Status
from refract.services.links.reactions import INVALIDATIONS, QUEUES, TOTALS, totals
from tests.support.clocks import START
from tests.support.following import Between, moment, of_links
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["of_links"]

LINKS = Statement(
    "links",
    "Reads what changes with a link, and what does not.",
    "SELECT short_code, total_clicks, last_clicked_at, version, updated_at FROM links ORDER BY short_code",
)
OUTBOX = Statement("outbox", "Counts what was announced.", "SELECT count(*) AS events FROM outbox")


def event_of(*named: tuple[str, int, datetime], event_id: str = "") -> StatsTotals:
    listed = tuple(LinkTotal(short_code=code, total_clicks=clicks, last_clicked_at=at) for code, clicks, at in named)
    return StatsTotals(occurred_at=START, event_id=event_id or StatsTotals.new_id(), totals=listed)


async def hear(world: LinksWorld | Between, *events: StatsTotals) -> None:
    async with world.database.transaction() as tx:
        await keep_totals(tx, events)


async def known(world: LinksWorld | Between) -> dict[str, tuple[int, datetime | None]]:
    rows = await world.database.fetch(LINKS)
    return {row["short_code"]: (row["total_clicks"], row["last_clicked_at"]) for row in rows}


def test_the_queue_is_bound_to_totals_and_the_hot_path_is_not() -> None:
    assert TOTALS in QUEUES
    assert (TOTALS.name, TOTALS.bindings) == ("links.totals", (Binding(LINK_EXCHANGE, "stats.totals"),))
    assert not any(binding.matches(LINK_EXCHANGE, "stats.totals") for binding in INVALIDATIONS.bindings)


async def test_a_list_shows_totals_and_sorts_by_them(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number) for number in range(1, 5)), some_link(9, BOB))
    await hear(links, event_of(("code-2", 40, moment(7)), ("code-4", 3, moment(8)), ("code-9", 99, moment(9))))
    shown = (await links.call("GET", "/urls?sort=clicks")).json["urls"]
    assert [(link["short_code"], link["total_clicks"], link.get("last_clicked_at")) for link in shown] == [
        ("code-2", 40, "2026-03-01T12:00:07Z"),
        ("code-4", 3, "2026-03-01T12:00:08Z"),
        ("code-3", 0, None),
        ("code-1", 0, None),
    ]
    one = (await links.call("GET", "/urls/code-2")).json
    assert (one["total_clicks"], one["last_clicked_at"]) == (40, "2026-03-01T12:00:07Z")


async def test_totals_never_go_back(links: LinksWorld) -> None:
    await keep(links.database, some_link(1))
    steps: list[tuple[tuple[int, float], tuple[int, float]]] = [
        ((5, 10), (5, 10)),
        ((4, 10), (5, 10)),
        ((5, 9), (5, 10)),
        ((4, 12), (5, 12)),  # the last click may be known before clicks of which the event came late
        ((6, 11), (6, 12)),
        ((0, 0), (6, 12)),
        ((2**63 - 1, 12), (2**63 - 1, 12)),
    ]
    for (clicks, at), (total, last) in steps:
        await hear(links, event_of(("code-1", clicks, moment(at))))
        assert await known(links) == {"code-1": (total, moment(last))}


async def test_what_is_known_is_not_written_again(links: LinksWorld) -> None:
    """A row that is written again is a row with all its indexes."""
    if links.database.dialect == "sqlite":
        return  # which does not tell
    await keep(links.database, some_link(1))
    await hear(links, event_of(("code-1", 5, moment(10))))
    written = Statement("written", "Reads who wrote a row last.", "SELECT xmin::text AS by FROM links")
    before = await links.database.fetch(written)
    await hear(links, event_of(("code-1", 5, moment(10))), event_of(("code-1", 4, moment(9))))
    assert await links.database.fetch(written) == before


async def test_every_event_three_times_and_shuffled_makes_no_difference(of_links: Between) -> None:
    chance = random.Random(3)
    await keep(of_links.database, *(some_link(number) for number in range(30)))
    clicks = dict.fromkeys(range(30), 0)
    events = []
    for turn in range(40):
        named = chance.sample(range(30), 12)
        for number in named:
            clicks[number] += chance.randrange(1, 9)
        events.append(event_of(*((f"code-{number}", clicks[number], moment(turn)) for number in named)))
    await hear(of_links, *events)
    in_order = await known(of_links)
    assert {code: total for code, (total, _) in in_order.items()} == {f"code-{n}": c for n, c in clicks.items()}
    again = [*events, *events, *(msgspec.structs.replace(one, event_id=one.new_id()) for one in events)]
    for _ in range(3):
        chance.shuffle(again)
        rest = list(again)
        while rest:
            size = chance.randrange(1, 30)
            await hear(of_links, *rest[:size])
            del rest[:size]
        assert await known(of_links) == in_order


async def test_over_the_bus_three_times_and_shuffled_from_nothing(of_links: Between) -> None:
    reaction = totals()
    queue = of_links.queue_of(reaction)
    await of_links.bus.declare(queue)
    await keep(of_links.database, *(some_link(number) for number in range(20)))
    turns, codes = range(1, 31), [f"code-{number}" for number in range(20)]
    events = [event_of(*((code, turn, moment(turn)) for code in codes)) for turn in turns] * 3
    random.Random(4).shuffle(events)
    async with running(of_links.reader(reaction, queue).run, of_links.reader(reaction, queue).run):
        for first in range(0, len(events), 10):
            await of_links.publish(*events[first : first + 10])
        await eventually(lambda: of_links.counted("inbox_handled_total") == 30)
        await eventually(lambda: of_links.counted("inbox_repeated_total") == 60)
    assert await known(of_links) == {code: (30, moment(30)) for code in codes}
    assert await of_links.dead(queue) == []


async def test_links_that_are_unknown_or_deleted(links: LinksWorld) -> None:
    await keep(links.database, some_link(1, status=Status.DELETED))
    await hear(links, event_of(("code-1", 3, moment(1)), ("unknown", 5, moment(1)), ("", 1, moment(1))))
    assert await known(links) == {"code-1": (3, moment(1))}


async def test_nobody_who_follows_the_link_notices(links: LinksWorld, redis_namespace: str) -> None:
    """The version stays, nothing is announced, and no copy is dropped, neither here nor in another process."""
    code = redis_namespace.replace(":", "-")
    await keep(links.database, some_link(1, short_code=code))
    before = [dict(row) for row in await links.database.fetch(LINKS)]
    heard: list[str] = []
    gaps: list[bool] = []
    links.cache.on_invalidation(heard.extend, lambda: gaps.append(True))
    await links.cache.set_many([CacheEntry(f"url:{code}", 1, b"a copy", 600.0)])
    if isinstance(links.database, EmbeddedDatabase):
        await links.database.changed_elsewhere()
    gaps.clear()
    await hear(links, event_of((code, 3, moment(1))))
    after = [dict(row) for row in await links.database.fetch(LINKS)]
    assert after == [before[0] | {"total_clicks": 3, "last_clicked_at": moment(1)}]
    assert await links.database.fetch_one(OUTBOX) == {"events": 0}
    assert await links.cache.get_many([f"url:{code}"]) == [b"a copy"]
    if isinstance(links.database, EmbeddedDatabase):
        assert not await links.database.changed_elsewhere()
    # A drop that is meant is heard after this one would have been.
    await links.cache.drop({f"url:{code}-other": 1})
    await eventually(lambda: heard)
    assert (heard, gaps) == ([f"url:{code}-other"], [])


async def test_a_change_of_the_link_and_its_total_keep_out_of_each_others_way(links: LinksWorld) -> None:
    await keep(links.database, some_link(1))

    async def change() -> None:
        for number in range(20):
            await links.managing.change(ALICE, "code-1", Change(title=f"Title {number}"))

    async def count() -> None:
        for number in range(1, 21):
            await hear(links, event_of(("code-1", number, moment(number))))

    await asyncio.gather(change(), count())
    shown = (await links.call("GET", "/urls/code-1")).json
    assert (shown["title"], shown["total_clicks"]) == ("Title 19", 20)


async def test_two_readers_with_the_same_links_do_not_block_each_other(of_links: Between) -> None:
    await keep(of_links.database, *(some_link(number) for number in range(200)))
    named = [f"code-{number}" for number in range(200)]

    async def go(codes: Sequence[str], clicks: int) -> None:
        await hear(of_links, event_of(*((code, clicks, moment(clicks)) for code in codes)))

    async with asyncio.timeout(60):
        for turn in range(5):
            await asyncio.gather(go(named, 2 * turn + 1), go(named[::-1], 2 * turn + 2))
    assert set((await known(of_links)).values()) == {(10, moment(10))}


GOOD = {"short_code": "code-1", "total_clicks": 1, "last_clicked_at": "2026-03-01T12:00:00Z"}
BAD: dict[str, Any] = {
    "no list": None,
    "a text": "code-1",
    "negative": [GOOD | {"total_clicks": -1}],
    "too many": [GOOD | {"total_clicks": 2**63}],
    "no number": [GOOD | {"total_clicks": "1"}],
    "no offset": [GOOD | {"last_clicked_at": "2026-03-01T12:00:00"}],
    "no moment": [GOOD | {"last_clicked_at": None}],
    "no code": [{name: value for name, value in GOOD.items() if name != "short_code"}],
    "a code with NUL": [GOOD, GOOD | {"short_code": "a\x00b"}],
}


async def test_bad_totals_are_buried_and_the_others_are_kept(of_links: Between) -> None:
    reaction = totals()
    queue = of_links.queue_of(reaction)
    await of_links.bus.declare(queue)
    await keep(of_links.database, some_link(1), some_link(2))
    envelope = {"event_type": "stats.totals", "occurred_at": "2026-03-01T12:00:00Z"}
    bodies = {
        name: msgspec.json.encode(
            envelope | {"event_id": name, "correlation_id": ""} | ({"totals": value} if value else {})
        )
        for name, value in BAD.items()
    }
    bodies["no JSON"] = b"{"
    messages = [Message(LINK_EXCHANGE, "stats.totals", body, name) for name, body in bodies.items()]
    async with running(of_links.reader(reaction, queue).run):
        await of_links.publish(event_of(("code-2", 7, moment(7))), *messages, event_of(("code-2", 8, moment(8))))
        await eventually(lambda: of_links.counted("inbox_buried_total") == len(bodies), timeout=60)
        await eventually(lambda: of_links.counted("inbox_handled_total") == 2)  # the last may be in another batch
    assert {letter.message.message_id for letter in await of_links.dead(queue)} == bodies.keys()
    assert await known(of_links) == {"code-1": (0, None), "code-2": (8, moment(8))}


async def test_an_empty_list_of_totals_changes_nothing(of_links: Between) -> None:
    await keep(of_links.database, some_link(1))
    await hear(of_links, event_of())
    assert await known(of_links) == {"code-1": (0, None)}


@pytest.mark.parametrize("clicks", [0, 1])
async def test_the_event_comes_back_as_it_went(clicks: int) -> None:
    event = event_of(("code-1", clicks, moment(1)))
    assert totals().decoder.decode("stats.totals", event.encode()) == [event]
