"""Clicks for the tests of ingest, their count made naively, and the same count as the database has it."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any

from refract.kernel.clock import Clock, SystemClock
from refract.kernel.events import Event, encode_batch
from refract.kernel.ids import new_event_id
from refract.runtime.inbox import Inbox
from refract.runtime.messages import Delivery, Message
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.adapters.geography import Geography
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.parts import unpack_parts
from refract.services.analytics.domain.periods import HOUR
from refract.services.analytics.domain.sketches import Sketch
from refract.services.analytics.domain.tallies import Tally
from refract.services.analytics.reactions import clicks as click_reactions
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.following import Between

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
FIREFOX = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:121.0) Gecko/20100101 Firefox/121.0"
BOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
AGENTS = (CHROME, FIREFOX, BOT, "curl/8.4.0", "")
REFERERS = ("", "https://news.example/today", "https://news.example/yesterday", "https://search.example/?q=x")
QUERIES = ("", "utm_source=letter&utm_medium=email", "utm_source=poster&utm_campaign=spring&utm_content=a")
LANGUAGES = ("", "de-DE,de;q=0.9", "en")

TOTALS = Statement("totals", "Reads the totals.", "SELECT * FROM totals ORDER BY short_code")
ROLLUPS = Statement("rollups", "Reads the rollups.", "SELECT * FROM rollups ORDER BY short_code, span, starts_at")
CLICKS = Statement("clicks", "Reads the clicks.", "SELECT * FROM clicks ORDER BY clicked_at, event_id")
MILESTONES = Statement("milestones", "Reads milestones.", "SELECT * FROM milestones ORDER BY short_code, milestone")
STALE = Statement("stale", "Reads marks.", "SELECT short_code, span, starts_at FROM stale ORDER BY 1, 2, 3")


def clicked(code: str = "abc", at: datetime = START, *, visitor: int = 0, **fields: Any) -> UrlClicked:
    """A click with an id of its own."""
    defaults: dict[str, Any] = {
        "event_id": new_event_id(),
        "correlation_id": f"request-{visitor}",
        "user_id": "owner",
        "user_email": "owner@example.com",
        "ip_hash": sha256(b"%d" % visitor).hexdigest(),
        "user_agent": CHROME,
    }
    return UrlClicked(occurred_at=at, short_code=code, **(defaults | fields))


def random_clicks(
    chance: random.Random, count: int, *, codes: Sequence[str], days: float = 1.0, until: datetime = START
) -> list[UrlClicked]:
    """Clicks of all kinds on these links, over some days before a moment, in no order."""
    return [
        clicked(
            chance.choice(codes),
            until - timedelta(microseconds=chance.randrange(round(days * 86_400_000_000))),
            visitor=chance.randrange(50),
            user_agent=chance.choice(AGENTS),
            referer=chance.choice(REFERERS),
            query=chance.choice(QUERIES),
            accept_language=chance.choice(LANGUAGES),
            ip_anonymized=f"198.51.{chance.randrange(4)}.0",
        )
        for _ in range(count)
    ]


@dataclass
class Count:
    """What the row of an hour, or of the whole life of a link, is made of."""

    clicks: int = 0
    bot_clicks: int = 0
    visitors: int = 0
    bot_visitors: int = 0
    parts: tuple[list[int], list[int]] = field(default_factory=lambda: ([0] * 60, [0] * 60))
    people: dict[str, dict[str, int]] = field(default_factory=dict)
    bots: dict[str, dict[str, int]] = field(default_factory=dict)


def counted_again(clicks: Iterable[Click]) -> dict[tuple[str, datetime], Count]:
    """Each hour of each link, counted one click after the other."""
    hours: dict[tuple[str, datetime], list[Click]] = {}
    for click in clicks:
        hour = click.occurred_at.replace(minute=0, second=0, microsecond=0)
        hours.setdefault((click.short_code, hour), []).append(click)
    return {key: _counted(clicks) for key, clicks in hours.items()}


def _counted(clicks: Sequence[Click]) -> Count:
    people, bots = [click for click in clicks if not click.bot], [click for click in clicks if click.bot]
    count = Count(len(clicks), len(bots), _visitors(people), _visitors(bots))
    for click in clicks:
        count.parts[0][click.occurred_at.minute] += 1
        count.parts[1][click.occurred_at.minute] += click.bot
    for name in DIMENSIONS:
        for group, tallies in ((people, count.people), (bots, count.bots)):
            values = Counter(value for click in group if (value := getattr(click, name)))
            if values:
                tallies[name] = dict(values)
    return count


def _visitors(clicks: Sequence[Click]) -> int:
    return len({click.visitor for click in clicks})


async def hours_in(database: Database) -> dict[tuple[str, datetime], Count]:
    """The rows of hours in the database, in the same form."""
    return {
        (row["short_code"], row["starts_at"]): count_of(row)
        for row in await database.fetch(ROLLUPS)
        if row["span"] == HOUR
    }


def count_of(row: Any) -> Count:
    """The row of a period, decoded."""
    tallies = {name: Tally.decode(row[f"by_{name}"]) for name in DIMENSIONS}
    return Count(
        row["clicks"],
        row["bot_clicks"],
        Sketch.decode(row["visitors"]).estimate(),
        Sketch.decode(row["bot_visitors"]).estimate(),
        unpack_parts(row["parts"], row["span"]),
        {name: tally.people for name, tally in tallies.items() if tally.people},
        {name: tally.bots for name, tally in tallies.items() if tally.bots},
    )


async def totals_in(database: Database) -> dict[str, tuple[int, int, datetime, datetime]]:
    """The totals of links: clicks, those of bots, the first and the last."""
    return {
        row["short_code"]: (row["clicks"], row["bot_clicks"], row["first_clicked_at"], row["last_clicked_at"])
        for row in await database.fetch(TOTALS)
    }


def totals_again(clicks: Iterable[Click]) -> dict[str, tuple[int, int, datetime, datetime]]:
    """The totals, counted naively."""
    by_code: dict[str, list[Click]] = {}
    for click in clicks:
        by_code.setdefault(click.short_code, []).append(click)
    return {
        code: (
            len(clicks),
            sum(click.bot for click in clicks),
            min(click.occurred_at for click in clicks),
            max(click.occurred_at for click in clicks),
        )
        for code, clicks in by_code.items()
    }


@cache
def enricher() -> Enricher:
    """The real one, without a map: it reads its lists once for all tests."""
    return Enricher(Geography(None, SystemClock()), Metrics())


def ingesting(clock: Clock, **options: Any) -> Ingesting:
    """What counts clicks, with the real enrichment."""
    return Ingesting(enricher(), clock, **options)


class Desk:
    """A reader's hold on letters that a test hands over by itself."""

    def __init__(self) -> None:
        self.acknowledged: list[Delivery] = []
        self.buried: list[tuple[Delivery, str]] = []

    async def next_batch(self) -> list[Delivery]:
        """There is nothing but what is handed over."""
        raise NotImplementedError

    def holds(self, delivery: Delivery) -> bool:
        """Always."""
        return True

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Note it."""
        self.acknowledged += deliveries

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Nobody does."""
        raise NotImplementedError

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Note it."""
        self.buried.append((delivery, reason))


def click_inbox(database: Database, clock: Clock, ingesting: Ingesting) -> Inbox:
    """The reader of clicks as the service has it, for letters that are handed over."""
    [reaction] = click_reactions(ingesting, readers=1)
    unused: Any = None
    return Inbox(
        reaction.queue,
        reaction.decoder,
        reaction.handle,
        database=database,
        bus=unused,
        clock=clock,
        metrics=Metrics(),
    )


def letter(*events: UrlClicked, body: bytes | None = None) -> Delivery:
    """One message with one click, or an array of them, or a body of any kind."""
    if body is None:
        body = events[0].encode() if len(events) == 1 else encode_batch(events)
    return Delivery(Message("exchange", UrlClicked.routing_key(), body, new_event_id()), redelivered=False)


async def hand_over(inbox: Inbox, *letters: Delivery) -> Desk:
    """Have letters settled as one batch, and those that fail one by one."""
    desk = Desk()
    for failed in await inbox.settle(desk, letters):
        await inbox.settle_alone(desk, failed)
    return desk


def clicks_of(events: Iterable[Event], clock: Clock) -> list[Click]:
    """Events enriched, each once however often it is there."""
    unique = {event.identity: event for event in events if isinstance(event, UrlClicked)}
    return enricher().enrich(list(unique.values()), clock.now())


async def ingest(analytics: Between, *events: UrlClicked) -> None:
    """Count clicks as one batch of one letter."""
    reader = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
    desk = await hand_over(reader, letter(*events))
    assert len(desk.acknowledged) == 1


async def assert_counted(analytics: Between, events: Sequence[Event]) -> None:
    """Everything in the database is what a naive count of these gives."""
    clicks = clicks_of(events, analytics.clock)
    assert await hours_in(analytics.database) == counted_again(clicks)
    assert await totals_in(analytics.database) == totals_again(clicks)
    rows = await analytics.database.fetch(CLICKS)
    assert sorted(row["event_id"] for row in rows) == sorted(click.event_id for click in clicks)
