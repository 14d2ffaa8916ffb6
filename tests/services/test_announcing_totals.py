"""Totals on their way to links: soon, together, none lost by a kill, and each link once a second; on both modes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest

from refract.kernel.errors import NotPublished, Unavailable, Unroutable
from refract.kernel.events import EventDecoder
from refract.runtime.messages import Message, Queue
from refract.runtime.statements import Statement
from refract.services.analytics.api import StatsTotals
from refract.services.analytics.commands import announcing
from refract.services.analytics.commands.announcing import LEASE, Announcer, note_changes
from tests.support.buses import drain
from tests.support.following import COUNT_UP, Between, analytics, moment

__all__ = ["analytics"]

pytestmark = pytest.mark.usefixtures("patient_bus")

NOTES = Statement("notes", "Reads the notes.", "SELECT id, short_codes FROM totals_changes ORDER BY id")
TURNS = Statement("turns", "Reads the turns.", "SELECT next_at FROM announcing")
PUT_OFF = Statement("put_off", "Puts the next turn off.", "UPDATE announcing SET next_at = :next_at")

_decoder = EventDecoder(StatsTotals)
_seconds = count()


class _Killed(BaseException):
    """What ends a process here, at the worst moment."""


@pytest.fixture
async def queue(analytics: Between) -> Queue:
    """Somebody who takes what is announced."""
    queue = analytics.buses.queue("totals", StatsTotals.routing_key())
    await analytics.bus.declare(queue)
    return queue


def announcer(analytics: Between, **changes: Any) -> Announcer:
    return Announcer(**{"database": analytics.database, "bus": analytics.own, "clock": analytics.clock, **changes})


async def click(analytics: Between, *codes: str, at: datetime | None = None) -> None:
    """One transaction in which each of these links is clicked once more."""
    async with analytics.database.transaction() as tx:
        for code in codes:
            await tx.execute(COUNT_UP, short_code=code, clicks=1, at=at or moment(next(_seconds)))
        await note_changes(tx, codes)


def told(messages: Sequence[Message]) -> list[dict[str, int]]:
    """The totals of each message."""
    found = []
    for message in messages:
        [event] = _decoder.decode(message.routing_key, message.body)
        assert isinstance(event, StatsTotals)
        assert event.event_id
        found.append({total.short_code: total.total_clicks for total in event.totals})
    return found


async def noted(analytics: Between) -> list[list[str]]:
    """The codes of the notes that are left."""
    return [row["short_codes"] for row in await analytics.rows(NOTES)]


async def test_what_changed_is_announced_once(analytics: Between, queue: Queue) -> None:
    await click(analytics, "abc", "xyz", at=moment(5))
    await click(analytics, "abc", at=moment(9))
    assert await announcer(analytics).announce() == 2
    async with analytics.bus.reader(queue) as reader:
        [message] = await drain(reader, 1)
    [event] = _decoder.decode(message.routing_key, message.body)
    assert isinstance(event, StatsTotals)
    assert {(one.short_code, one.total_clicks, one.last_clicked_at) for one in event.totals} == {
        ("abc", 2, moment(9)),
        ("xyz", 1, moment(5)),
    }
    assert await noted(analytics) == []
    analytics.clock.advance(60)
    assert await announcer(analytics).announce() == 0
    assert len(analytics.own.published) == 1


async def test_where_nothing_changed_nothing_is_written(analytics: Between) -> None:
    assert await announcer(analytics).announce() == 0
    assert await analytics.rows(TURNS) == []


async def test_a_change_that_is_rolled_back_is_not_announced(analytics: Between, queue: Queue) -> None:
    with suppress(_Killed):
        async with analytics.database.transaction() as tx:
            await note_changes(tx, ["abc"])
            raise _Killed
    assert await announcer(analytics).announce() == 0


async def test_a_link_is_announced_once_a_second_by_however_many(analytics: Between, queue: Queue) -> None:
    processes = [announcer(analytics) for _ in range(3)]
    announced = {}
    for tenth in range(30):
        await click(analytics, "abc")
        for process in processes:
            if await process.announce():
                announced[tenth] = told(analytics.own.published[-1:])
        analytics.clock.advance(0.1)
    assert announced == {0: [{"abc": 1}], 10: [{"abc": 11}], 20: [{"abc": 21}]}
    await processes[0].announce()
    assert told(analytics.own.published[-1:]) == [{"abc": 30}]


async def test_two_at_the_same_moment_take_one_turn(analytics: Between, queue: Queue) -> None:
    await click(analytics, "abc")
    assert sorted(await asyncio.gather(*(announcer(analytics).announce() for _ in range(8)))) == [0] * 7 + [1]
    assert len(analytics.own.published) == 1


class _Busy:
    """A bus that takes so long that something else is done meanwhile."""

    def __init__(self, analytics: Between, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._bus = analytics.own
        self._meanwhile = meanwhile

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        await self._meanwhile()
        outcomes: list[NotPublished | None] = await self._bus.publish_all(messages)
        return outcomes


async def test_where_more_links_are_used_than_a_turn_takes_none_is_left_behind(
    analytics: Between, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "TOTALS_A_TURN", 3)
    monkeypatch.setattr(announcing, "TOTALS_A_MESSAGE", 2)
    monkeypatch.setattr(announcing, "CODES_A_NOTE", 2)
    codes = [f"link-{number}" for number in range(8)]
    waited: dict[str, int] = {}
    await click(analytics, *codes)

    async def click_on() -> None:
        await click(analytics, *codes[:3])  # also while a turn goes on, so that their notes are older than what is left

    for turn in range(3):
        await click_on()
        assert await announcer(analytics, bus=_Busy(analytics, click_on)).announce() == 3
        analytics.clock.advance(1)
        for totals in told(analytics.own.published):
            for code in totals:
                waited.setdefault(code, turn)
    assert waited == {code: place // 3 for place, code in enumerate(codes)}
    assert [len(totals) for totals in told(analytics.own.published)] == [2, 1] * 3
    *gathered, _ = await noted(analytics)  # the last one came in mid-turn
    assert [code for note in gathered for code in note] == codes[1:3], "notes are not gathered"
    while await noted(analytics):
        await announcer(analytics).announce()
        analytics.clock.advance(1)
    newest: dict[str, int] = {}
    for totals in told(analytics.own.published):
        newest |= totals
    assert newest == {code: 7 if place < 3 else 1 for place, code in enumerate(codes)}


async def test_one_long_note_is_cut_and_loses_nothing(
    analytics: Between, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "TOTALS_A_TURN", 2)
    monkeypatch.setattr(announcing, "CODES_A_NOTE", 3)
    await click(analytics, *(f"link-{number}" for number in range(11)))
    await announcer(analytics).announce()
    assert [len(note) for note in await noted(analytics)] == [9]
    await click(analytics, "link-0")
    await click(analytics, "link-1")
    analytics.clock.advance(1)
    await announcer(analytics).announce()
    assert [len(note) for note in await noted(analytics)] == [3, 3, 3]
    for _ in range(5):
        analytics.clock.advance(1)
        await announcer(analytics).announce()
    assert await noted(analytics) == []
    assert {code for totals in told(analytics.own.published) for code in totals} == {f"link-{n}" for n in range(11)}


async def test_a_note_of_a_link_without_clicks_is_dropped(analytics: Between, queue: Queue) -> None:
    async with analytics.database.transaction() as tx:
        await note_changes(tx, ["nothing"])
    assert await announcer(analytics).announce() == 0
    assert await noted(analytics) == []
    assert analytics.own.published == []


async def test_where_another_has_just_announced_everything_nothing_is_left_to_do(
    analytics: Between, queue: Queue
) -> None:
    class Late(Announcer):
        async def _took_turn(self, now: datetime, until: datetime) -> bool:
            await announcer(analytics).announce()
            analytics.clock.advance(1)
            return await super()._took_turn(analytics.clock.now(), until)

    await click(analytics, "abc")
    assert await Late(analytics.database, analytics.own, analytics.clock).announce() == 0
    await click(analytics, "abc")
    analytics.clock.advance(1)
    assert await announcer(analytics).announce() == 1
    assert told(analytics.own.published) == [{"abc": 1}, {"abc": 2}]


# Trouble.


async def test_while_nobody_reads_notes_are_gathered_and_kept(analytics: Between) -> None:
    for _ in range(5):
        await click(analytics, "abc", "xyz")
        with pytest.raises(Unroutable):
            await announcer(analytics).announce()
        analytics.clock.advance(1)
        assert await noted(analytics) == [["abc", "xyz"]]
    queue = analytics.buses.queue("totals", StatsTotals.routing_key())
    await analytics.bus.declare(queue)
    assert await announcer(analytics).announce() == 2
    assert told(analytics.own.published) == [{"abc": 5, "xyz": 5}]
    assert await noted(analytics) == []


async def test_killed_between_the_commit_and_the_announcement(analytics: Between, queue: Queue) -> None:
    await click(analytics, "abc")  # by a process that is killed right after
    assert await announcer(analytics).announce() == 1
    assert told(analytics.own.published) == [{"abc": 1}]


class _Deadly:
    """A bus with which the process dies, before it has taken the messages or after."""

    def __init__(self, analytics: Between, *, takes: bool) -> None:
        self._bus = analytics.own
        self._takes = takes

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        if self._takes:
            await self._bus.publish_all(messages)
        raise _Killed


@pytest.mark.parametrize("takes", [False, True])
async def test_killed_in_its_turn_it_is_followed_by_another(analytics: Between, queue: Queue, takes: bool) -> None:
    await click(analytics, "abc")
    with pytest.raises(_Killed):
        await announcer(analytics, bus=_Deadly(analytics, takes=takes)).announce()
    await click(analytics, "abc")
    assert await announcer(analytics).announce() == 0  # it may be at it still
    analytics.clock.advance(LEASE.total_seconds())
    assert await announcer(analytics).announce() == 1
    assert told(analytics.own.published) == [{"abc": 1}, {"abc": 2}][not takes :]
    assert await noted(analytics) == []


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(days=3650), -timedelta(hours=1)])
async def test_a_clock_that_was_wrong_stops_no_turn(analytics: Between, queue: Queue, off: timedelta) -> None:
    await click(analytics, "abc")
    await announcer(analytics).announce()
    async with analytics.database.transaction() as tx:
        await tx.execute(PUT_OFF, next_at=analytics.clock.now() + off)
    await click(analytics, "abc")
    assert await announcer(analytics).announce() == 1


class _Slow:
    """A bus that takes the messages when it is told to."""

    def __init__(self, analytics: Between) -> None:
        self._bus = analytics.own
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        self.asked.set()
        await self.go_on.wait()
        outcomes: list[NotPublished | None] = await self._bus.publish_all(messages)
        return outcomes


async def test_whoever_outlasts_its_turn_settles_nothing_of_the_next_one(
    analytics: Between, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes that the next one has gathered lie under ids that the slow one has read too."""
    monkeypatch.setattr(announcing, "TOTALS_A_TURN", 1)
    slow = _Slow(analytics)
    await click(analytics, "a", "b")
    turn = asyncio.create_task(announcer(analytics, bus=slow).announce())
    await slow.asked.wait()
    await click(analytics, "c")
    analytics.clock.advance(LEASE.total_seconds())
    await announcer(analytics).announce()
    assert await noted(analytics) == [["b", "c"]]
    slow.go_on.set()
    await turn
    assert await noted(analytics) == [["b", "c"]]


async def test_it_goes_on_after_trouble(analytics: Between, queue: Queue) -> None:
    rounds: list[float] = []
    troubles: list[Exception] = [Unavailable("database", "away"), Unroutable("url-shortener", "stats.totals")]
    working = announcer(analytics)

    class Troubled(Announcer):
        async def announce(self) -> int:
            if troubles:
                raise troubles.pop(0)
            return await working.announce()

    async def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise _Killed

    await click(analytics, "abc")
    with pytest.raises(_Killed):
        await Troubled(analytics.database, analytics.own, analytics.clock, pause=pause).run()
    assert rounds == [1.0] * 3
    assert told(analytics.own.published) == [{"abc": 1}]
