"""Counting clicks, on both modes: each once, in its period, whatever comes, how often and in which order."""

import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Unavailable
from refract.kernel.events import Event
from refract.runtime import inbox
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.commands import ingesting as commands
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.reactions import CLICKS as QUEUE
from refract.services.analytics.reactions import QUEUES, ClickDecoder, clicks
from refract.services.analytics.store.rollups import save_rollups
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.counting import (
    BOT,
    CLICKS,
    OUTBOX,
    ROLLUPS,
    STALE,
    click_inbox,
    clicked,
    clicks_of,
    count_of,
    counted_again,
    enricher,
    hand_over,
    hours_in,
    ingesting,
    letter,
    random_clicks,
    totals_again,
    totals_in,
)
from tests.support.following import Between, analytics
from tests.support.waiting import eventually
from tests.support.worlds import INBOX, running

__all__ = ["analytics"]

MOVE_WATERMARK = Statement(
    "move_watermark",
    "Says how far periods are closed and expired.",
    "UPDATE folding SET closed = :closed, until = :closed, expired = :expired WHERE span = :span",
)
ADD_FORGOTTEN = Statement(
    "add_forgotten",
    "Notes that an account is gone.",
    "INSERT INTO forgotten_users (user_id, forgotten_at) VALUES (:user_id, :now)",
)
LINKS = Statement("links", "Reads links.", "SELECT short_code, user_id, user_email, order_number FROM links ORDER BY 1")
CHANGES = Statement("changes", "Reads what is to be announced.", "SELECT short_codes FROM totals_changes ORDER BY id")


async def ingest(analytics: Between, *events: UrlClicked) -> None:
    """Count clicks as one batch of one letter."""
    reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
    desk = await hand_over(reader, letter(*events))
    assert len(desk.acknowledged) == 1


async def mark_and_ingest(analytics: Between, event: UrlClicked) -> None:
    """What the inbox does, without its patience."""
    async with analytics.database.transaction() as tx:
        await tx.fetch(inbox.MARK, reader=QUEUE.name, event_ids=[event.event_id], now=START)
        await ingesting(analytics.clock).ingest(tx, [event])


async def assert_counted(analytics: Between, events: Sequence[Event]) -> None:
    """Everything in the database is what a naive count of these gives."""
    clicks = clicks_of(events, analytics.clock)
    assert await hours_in(analytics.database) == counted_again(clicks)
    assert await totals_in(analytics.database) == totals_again(clicks)
    rows = await analytics.database.fetch(CLICKS)
    assert sorted(row["event_id"] for row in rows) == sorted(click.event_id for click in clicks)


class TestRows:
    async def test_a_click_is_kept_with_everything_known_of_it(self, analytics: Between) -> None:
        event = clicked(
            at=START - timedelta(microseconds=1),
            referer="https://news.example/today",
            query="utm_source=letter",
            accept_language="de-DE",
            ip_anonymized="198.51.100.0",
        )
        await ingest(analytics, event)
        [row] = await analytics.database.fetch(CLICKS)
        [click] = clicks_of([event], analytics.clock)
        elsewhere = {"user_id", "user_email", "correlation_id", "occurred_at"}
        expected = {field: getattr(click, field) or None for field in set(Click.__struct_fields__) - elsewhere}
        assert dict(row) == {**expected, "bot": False, "clicked_at": event.occurred_at}
        assert row["visitor"] == bytes.fromhex(event.ip_hash)
        assert row["referrer"] == "news.example"

    async def test_what_is_not_known_is_null(self, analytics: Between) -> None:
        await ingest(analytics, clicked(user_agent="", ip_hash=""))
        [row] = await analytics.database.fetch(CLICKS)
        assert row["referer"] is row["user_agent"] is row["country"] is row["utm_term"] is None
        assert row["visitor"] == b"", "somebody it was"
        [rollup] = await analytics.database.fetch(ROLLUPS)
        assert rollup["by_referer"] is rollup["by_utm_term"] is rollup["bot_visitors"] is None

    async def test_a_referer_is_kept_as_it_came(self, analytics: Between) -> None:
        await ingest(analytics, clicked(referer="HTTPS://News.example/Today?q=1#x"))
        [row] = await analytics.database.fetch(CLICKS)
        assert row["referer"] == "HTTPS://News.example/Today?q=1#x"

    async def test_nobody_is_named_in_a_click(self, analytics: Between) -> None:
        await ingest(analytics, clicked())
        [row] = await analytics.database.fetch(CLICKS)
        assert "owner" not in str(dict(row))


class TestOnce:
    async def test_single_clicks_and_arrays_count_alike(self, analytics: Between) -> None:
        events = random_clicks(random.Random(5), 60, codes=["a", "b", "c"])
        reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
        await hand_over(reader, *map(letter, events[:20]), letter(*events[20:50]), letter(*events[50:]))
        await assert_counted(analytics, events)

    async def test_a_click_that_comes_twice_counts_once(self, analytics: Between) -> None:
        event = clicked()
        reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
        first = await hand_over(reader, letter(event))
        second = await hand_over(reader, letter(event), letter(event, event))
        assert len(first.acknowledged) == 1
        assert len(second.acknowledged) == 2, "a duplicate is settled"
        assert len(await analytics.database.fetch(INBOX)) == 1
        await assert_counted(analytics, [event])

    async def test_clicks_without_an_id_go_by_their_request(self, analytics: Between) -> None:
        events = [clicked(event_id="", visitor=visitor) for visitor in (1, 2, 1)]
        await ingest(analytics, *events)
        assert {row["event_id"] for row in await analytics.database.fetch(CLICKS)} == {
            "url.clicked:request-1",
            "url.clicked:request-2",
        }

    async def test_a_failure_leaves_nothing(self, analytics: Between, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whichever step fails, the transaction takes the mark back with everything else, and the click comes again."""
        steps = ("add_clicks", "add_totals", "add_links", "lock_rollups", "save_rollups", "note_changes")
        event = clicked()

        async def fail(*_: Any, **__: Any) -> None:
            raise Unavailable("database", "for a moment")

        for step in steps:
            with monkeypatch.context() as patched:
                patched.setattr(commands, step, fail)
                with pytest.raises(Unavailable):
                    await mark_and_ingest(analytics, event)
            for statement in (INBOX, CLICKS, ROLLUPS, LINKS, CHANGES, OUTBOX):
                assert await analytics.database.fetch(statement) == [], f"{statement.name} after {step}"
        await ingest(analytics, event)
        await assert_counted(analytics, [event])

    async def test_a_batch_that_fails_for_a_moment_is_counted_once(
        self, analytics: Between, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events, failures = [clicked(code) for code in "abc"], 2

        async def sometimes(*arguments: Any) -> None:
            nonlocal failures
            await save_rollups(*arguments)
            failures -= 1
            if failures >= 0:
                raise Unavailable("database", "gone for a moment")

        async def at_once(*_: Any) -> float:
            return 0.0

        monkeypatch.setattr(commands, "save_rollups", sometimes)
        monkeypatch.setattr(inbox.Inbox, "_wait_for_dependency", at_once)
        await ingest(analytics, *events)
        await assert_counted(analytics, events)


class TestPeriods:
    async def test_clicks_land_in_their_periods_in_any_order(self, analytics: Between) -> None:
        events = random_clicks(random.Random(7), 300, codes=["a", "b"], days=3)
        for first in range(0, 300, 50):
            await ingest(analytics, *events[first : first + 50])
        await assert_counted(analytics, events)

    async def test_an_hour_ends_where_the_next_begins(self, analytics: Between) -> None:
        edge = START.replace(minute=0)
        moments = [
            edge - timedelta(microseconds=1),
            edge,
            edge + timedelta(minutes=59, seconds=59, microseconds=999_999),
        ]
        analytics.clock.advance(3_600)
        await ingest(analytics, *(clicked(at=moment) for moment in moments))
        hours = await hours_in(analytics.database)
        assert {hour: count.clicks for (_, hour), count in hours.items()} == {edge - timedelta(hours=1): 1, edge: 2}
        assert hours["abc", edge].parts[0][59] == hours["abc", edge].parts[0][0] == 1

    async def test_an_offset_is_no_other_time(self, analytics: Between) -> None:
        """In a zone that is half an hour off, hours begin in the middle of ours."""
        kolkata = timezone(timedelta(hours=5, minutes=30))
        await ingest(analytics, clicked(at=START.astimezone(kolkata)))
        assert set(await hours_in(analytics.database)) == {("abc", START)}

    async def test_a_click_from_the_future_counts_now(self, analytics: Between) -> None:
        soon, later = START + timedelta(seconds=60), START + timedelta(seconds=61)
        await ingest(analytics, clicked("soon", soon), clicked("later", later))
        assert {code: total[3] for code, total in (await totals_in(analytics.database)).items()} == {
            "soon": soon,
            "later": START,
        }

    async def test_a_click_of_another_age_is_counted(self, analytics: Between) -> None:
        """Watermarks begin in 1970, and so do clicks: what a clock says that is not set, every chart can show."""
        events = [clicked(at=datetime(1, 1, 1, tzinfo=UTC)), clicked(at=datetime(1969, 12, 31, 23, 59, tzinfo=UTC))]
        await ingest(analytics, *events)
        assert (await totals_in(analytics.database))["abc"][0] == 2
        rows = await analytics.database.fetch(ROLLUPS)
        assert [(row["span"], row["starts_at"].year, row["clicks"]) for row in rows] == [(HOUR, 1970, 2)]

    async def test_first_and_last_are_by_time_and_not_by_arrival(self, analytics: Between) -> None:
        for minutes in (30, 10, 50, 20):
            await ingest(analytics, clicked(at=START - timedelta(minutes=minutes)))
        total = (await totals_in(analytics.database))["abc"]
        assert total[2:] == (START - timedelta(minutes=50), START - timedelta(minutes=10))


async def move_watermarks(analytics: Between, **watermarks: datetime) -> None:
    """Move each to the beginning of a day; what is not named stays in 1970."""
    never = datetime(1970, 1, 1, tzinfo=UTC)
    for name, span in (("hour", HOUR), ("day", DAY), ("month", MONTH)):
        async with analytics.database.transaction() as tx:
            await tx.execute(
                MOVE_WATERMARK,
                span=span,
                closed=watermarks.get(f"{name}_closed", never),
                expired=watermarks.get(f"{name}_expired", never),
            )


def spans(rows: Sequence[Any]) -> dict[int, tuple[int, bool]]:
    """By span: how many clicks, and whether it is known of which kind."""
    return {row["span"]: (row["clicks"], row["by_browser"] is not None) for row in rows}


class TestFoldedPeriods:
    """The clock says the first of March, noon; what is older may be folded, or have lost its dimensions."""

    today = START.replace(hour=0)
    month = today

    async def test_what_is_not_folded_is_not_marked(self, analytics: Between) -> None:
        await move_watermarks(analytics, day_closed=self.today, month_closed=self.month)
        await ingest(analytics, clicked(at=self.today))
        assert await analytics.database.fetch(STALE) == []

    async def test_a_late_click_marks_its_day_and_its_month(self, analytics: Between) -> None:
        late = self.today - timedelta(microseconds=1)
        await move_watermarks(analytics, day_closed=self.today, month_closed=self.month)
        await ingest(analytics, clicked(at=late), clicked(at=late))
        february = [("abc", DAY, datetime(2026, 2, 28, tzinfo=UTC)), ("abc", MONTH, datetime(2026, 2, 1, tzinfo=UTC))]
        assert [tuple(row.values()) for row in await analytics.database.fetch(STALE)] == february
        assert spans(await analytics.database.fetch(ROLLUPS)) == {HOUR: (2, True)}
        await ingest(analytics, clicked(at=late))
        assert len(await analytics.database.fetch(STALE)) == 4, "whoever folds sees that one more has come"

    async def test_where_hours_are_thin_the_day_takes_the_click(self, analytics: Between) -> None:
        old = datetime(2026, 1, 20, 15, 30, tzinfo=UTC)
        await move_watermarks(
            analytics, hour_expired=self.today - timedelta(days=30), day_closed=self.today, month_closed=self.month
        )
        events = [clicked(at=old), clicked(at=old + timedelta(hours=2), user_agent=BOT)]
        await ingest(analytics, *events)
        rows = await analytics.database.fetch(ROLLUPS)
        assert spans(rows) == {HOUR: (1, False), DAY: (2, True)}
        [day] = [count_of(row) for row in rows if row["span"] == DAY]
        assert (day.clicks, day.bot_clicks, day.visitors, day.bot_visitors) == (2, 1, 1, 1)
        quarters = [15 * 4 + 2, 17 * 4 + 2]
        assert [quarter for quarter, clicks in enumerate(day.parts[0]) if clicks] == quarters
        assert day.parts[1][quarters[1]] == 1
        january = ("abc", MONTH, datetime(2026, 1, 1, tzinfo=UTC))
        assert [tuple(row.values()) for row in await analytics.database.fetch(STALE)] == [january]

    async def test_where_days_are_thin_the_month_takes_the_click(self, analytics: Between) -> None:
        old = datetime(2024, 7, 31, 15, 30, tzinfo=UTC)
        await move_watermarks(
            analytics,
            hour_expired=self.today,
            day_closed=self.today,
            day_expired=datetime(2025, 3, 1, tzinfo=UTC),
            month_closed=self.month,
        )
        await ingest(analytics, clicked(at=old))
        await ingest(analytics, clicked(at=old), clicked(at=old))
        rows = await analytics.database.fetch(ROLLUPS)
        assert spans(rows) == {HOUR: (3, False), DAY: (3, False), MONTH: (3, True)}
        [month] = [count_of(row) for row in rows if row["span"] == MONTH]
        assert month.parts[0][30] == 3
        assert await analytics.database.fetch(STALE) == [], "there is nothing left to fold it from"

    async def test_where_months_are_thin_only_numbers_stay(self, analytics: Between) -> None:
        old = datetime(2019, 7, 31, 15, 30, tzinfo=UTC)
        marks = dict.fromkeys(
            ("hour_expired", "day_closed", "day_expired", "month_closed", "month_expired"), self.today
        )
        await move_watermarks(analytics, **marks)
        await ingest(analytics, clicked(at=old))
        assert spans(await analytics.database.fetch(ROLLUPS)) == dict.fromkeys((HOUR, DAY, MONTH), (1, False))
        assert (await totals_in(analytics.database))["abc"][0] == 1

    async def test_an_hour_that_has_lost_its_dimensions_keeps_its_count(self, analytics: Between) -> None:
        hour = START - timedelta(days=40)
        await ingest(analytics, clicked(at=hour))
        await move_watermarks(analytics, hour_expired=self.today, day_closed=self.today)
        await ingest(analytics, clicked(at=hour), clicked(at=hour, user_agent=BOT))
        rows = await analytics.database.fetch(ROLLUPS)
        assert [(row["span"], row["clicks"], row["bot_clicks"]) for row in rows] == [(HOUR, 3, 1), (DAY, 2, 1)]


class TestLinks:
    async def test_an_owner_is_known_from_the_first_click(self, analytics: Between) -> None:
        await ingest(analytics, clicked("a"), clicked("b", user_id="other", user_email="other@example.com"))
        await ingest(analytics, clicked("a", user_id="somebody else"))
        assert [tuple(row.values()) for row in await analytics.database.fetch(LINKS)] == [
            ("a", "owner", "owner@example.com", -1),
            ("b", "other", "other@example.com", -1),
        ]

    async def test_who_has_left_is_not_named_again(self, analytics: Between) -> None:
        async with analytics.database.transaction() as tx:
            await tx.execute(ADD_FORGOTTEN, user_id="owner", now=START)
        await ingest(analytics, *(clicked() for _ in range(10)))
        [link] = await analytics.database.fetch(LINKS)
        assert (link["user_id"], link["user_email"]) == ("", "")
        assert await analytics.database.fetch(OUTBOX) == [], "nobody is told of a milestone"

    async def test_totals_that_changed_are_noted_once(self, analytics: Between) -> None:
        await ingest(analytics, clicked("b"), clicked("a"), clicked("b"))
        [change] = await analytics.database.fetch(CHANGES)
        assert change["short_codes"] == ["a", "b"]


class TestReader:
    """As the service reads: from a real bus."""

    async def test_poison_is_kept_and_the_rest_is_counted(
        self, analytics: Between, caplog: pytest.LogCaptureFixture
    ) -> None:
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
        self, analytics: Between, monkeypatch: pytest.MonkeyPatch
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

    async def test_several_readers_share_the_work(self, analytics: Between) -> None:
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

    def test_the_queue_is_the_documented_one(self) -> None:
        assert QUEUE in QUEUES
        assert (QUEUE.name, QUEUE.dead, QUEUE.prefetch) == ("analytics.clicks", "analytics.clicks.dead", 500)
        assert [(binding.exchange, binding.pattern) for binding in QUEUE.bindings] == [("url-shortener", "url.clicked")]

    def test_a_click_that_carries_more_than_we_know_is_read(self) -> None:
        body = msgspec.json.decode(clicked().encode()) | {"added_in_2030": True}
        [event] = ClickDecoder().decode("url.clicked", msgspec.json.encode(body))
        assert isinstance(event, UrlClicked)
