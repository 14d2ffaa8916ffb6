"""A world of clicks with a moved clock: counted as the product does it, kept in a list, and asked for both ways."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.commands.keeping import Housekeeping
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.parts import PARTS, unpack_parts
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
from refract.services.analytics.domain.quarters import Quarters
from refract.services.analytics.domain.sketches import Sketch, merge_sketches
from refract.services.analytics.domain.tallies import Tally
from refract.services.links.api import UrlClicked
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, furnish, open_database

TODAY = datetime(2026, 3, 1, tzinfo=UTC)
YESTERDAY = datetime(2026, 2, 28, tzinfo=UTC)
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)
HOURS = timedelta(hours=1)
DAYS = timedelta(days=1)

ROLLUPS = Statement("rollups", "Reads all rollups.", "SELECT * FROM rollups ORDER BY short_code, span, starts_at")
STALE = Statement("stale", "Reads all marks.", "SELECT * FROM stale ORDER BY short_code, span, starts_at, mark")
FOLDING = Statement("folding", "Reads how far it is.", "SELECT * FROM folding ORDER BY span")
RAW = Statement("raw", "Reads all clicks.", "SELECT short_code, clicked_at FROM clicks ORDER BY clicked_at, short_code")
EMPTY = [
    Statement(f"empty_{table}", "Empties a table.", f"DELETE FROM {table}")
    for table in ("clicks", "rollups", "stale", "totals", "totals_changes", "links", "milestones", "outbox")
]
BEGIN_AGAIN = Statement(
    "begin_again",
    "As if nothing had been folded.",
    "UPDATE folding SET closed = :epoch, until = :epoch, expired = :epoch, at = NULL, code = ''",
)


@dataclass
class Answer:
    """What there was in a stretch of time."""

    clicks: int = 0
    bot_clicks: int = 0
    tallies: dict[str, tuple[Counter[str], Counter[str]]] = field(
        default_factory=lambda: {dimension: (Counter(), Counter()) for dimension in DIMENSIONS}
    )
    visitors: int = 0
    bot_visitors: int = 0


def a_click(moment: datetime, code: str = "abc", *, visitor: int = 0, bot: bool = False, **values: Any) -> Click:
    """A click with an id of its own."""
    return Click(
        event_id=new_event_id(),
        short_code=code,
        user_id="owner",
        user_email="owner@example.com",
        occurred_at=moment,
        visitor=visitor.to_bytes(8, "big"),
        bot=bot,
        **values,
    )


def event_of(click: Click) -> UrlClicked:
    """The event that a click came as, as far as it matters here."""
    return UrlClicked(
        occurred_at=click.occurred_at,
        event_id=click.event_id,
        short_code=click.short_code,
        user_id=click.user_id,
        ip_hash="",
        user_agent="",
    )


class KnownClicks(Enricher):
    """Knows all about these clicks beforehand."""

    def __init__(self, clicks: Iterable[Click]) -> None:
        self._by_id = {click.event_id: click for click in clicks}

    async def prepare(self) -> None:
        """Nothing to look up."""

    def enrich_some(self, events: Sequence[UrlClicked], now: datetime, ahead: list[UrlClicked]) -> list[Click]:
        """The clicks that these events are of."""
        return [self._by_id[event.event_id] for event in events]


@dataclass
class PeriodsWorld:
    """A database of analytics, a clock to turn, and every click that was counted."""

    location: Location
    database: Database
    clock: ManualClock
    kept: dict[str, Any]
    counted: list[Click] = field(default_factory=list)

    def house(self, database: Database | None = None) -> Housekeeping:
        """A house of its own, as another process has it."""
        return Housekeeping(database or self.database, self.clock, **self.kept)

    async def fold(self) -> int:
        """Fold what is due; how many rows were written."""
        return await self.house().folding.fold()

    async def count(self, *clicks: Click) -> None:
        """Count clicks in one transaction."""
        ingesting = Ingesting(KnownClicks(clicks), self.clock)
        async with self.database.transaction() as tx:
            await ingesting.ingest(tx, [event_of(click) for click in clicks])
        self.counted.extend(clicks)

    def pass_to(self, moment: datetime) -> None:
        """Turn the clock to a moment."""
        self.clock.advance((moment - self.clock.now()).total_seconds())

    async def rows(self, span: int | None = None, code: str | None = None) -> list[Row]:
        """Rows of the rollups."""
        rows = await self.database.fetch(ROLLUPS)
        return [
            row for row in rows if (span is None or row["span"] == span) and (code is None or row["short_code"] == code)
        ]

    async def marks(self) -> list[tuple[str, int, datetime]]:
        """What is marked, each period once."""
        marks = {(row["short_code"], row["span"], row["starts_at"]) for row in await self.database.fetch(STALE)}
        return sorted(marks)

    async def folding(self) -> dict[int, Row]:
        """How far each span is."""
        return {row["span"]: row for row in await self.database.fetch(FOLDING)}

    async def raw(self) -> list[datetime]:
        """When the clicks happened that are kept themselves."""
        return [row["clicked_at"] for row in await self.database.fetch(RAW)]

    async def begin_again(self) -> None:
        """Forget everything."""
        async with self.database.transaction() as tx:
            for statement in EMPTY:
                await tx.execute(statement)
            await tx.execute(BEGIN_AGAIN, epoch=datetime.fromtimestamp(0, START.tzinfo))
        self.counted.clear()

    def recount(self, code: str, begin: datetime, end: datetime) -> Answer:
        """The answer by the list of clicks."""
        answer = Answer()
        seen: tuple[set[bytes], set[bytes]] = set(), set()
        for click in self.counted:
            if click.short_code != code or not begin <= click.occurred_at < end:
                continue
            answer.clicks += 1
            answer.bot_clicks += click.bot
            seen[click.bot].add(click.visitor)
            for dimension in DIMENSIONS:
                if value := getattr(click, dimension):
                    answer.tallies[dimension][click.bot][value] += 1
        answer.visitors, answer.bot_visitors = map(len, seen)
        return answer

    async def answer(self, code: str, begin: datetime, end: datetime) -> Answer:
        """The answer by rows, the longest that may be trusted; the stretch is of whole hours."""
        until = {span: row["until"] for span, row in (await self.folding()).items()}
        stale = {(span, starts_at) for marked, span, starts_at in await self.marks() if marked == code}

        def trusted(span: int, moment: datetime) -> bool:
            """Whether the period that a moment lies in has a row that tells all of it, and lies in the stretch."""
            start = start_of(moment, span)
            inside = begin <= start and end_of(start, span) <= end
            return inside and (span == HOUR or (start < until[span] and (span, start) not in stale))

        used = [
            row
            for row in await self.rows(code=code)
            if trusted(row["span"], row["starts_at"])
            and not any(trusted(longer, row["starts_at"]) for longer in range(row["span"] + 1, MONTH + 1))
        ]
        return _added_up(used)


def _added_up(rows: Iterable[Row]) -> Answer:
    answer = Answer()
    sketches: tuple[list[Any], list[Any]] = [], []
    for row in rows:
        clicks, bot_clicks = unpack_parts(row["parts"], row["span"])
        assert (sum(clicks), sum(bot_clicks)) == (row["clicks"], row["bot_clicks"])
        answer.clicks += row["clicks"]
        answer.bot_clicks += row["bot_clicks"]
        sketches[0].append(row["visitors"])
        sketches[1].append(row["bot_visitors"])
        for dimension in DIMENSIONS:
            tally = Tally.decode(row[f"by_{dimension}"])
            answer.tallies[dimension][0].update(tally.people)
            answer.tallies[dimension][1].update(tally.bots)
    answer.visitors, answer.bot_visitors = (merge_sketches(each).estimate() for each in sketches)
    return answer


def people_of(row: Row, dimension: str) -> dict[str, int]:
    """How often people had each value, by a row."""
    return Tally.decode(row[f"by_{dimension}"]).people


def visitors_of(row: Row) -> int:
    """How many visitors a row counts."""
    return Sketch.decode(row["visitors"]).estimate()


def quarters_of(row: Row) -> dict[int, set[bytes]] | None:
    """Who was seen in each quarter of a day, and who with the bots; None where its row does not say."""
    if row["quarter_visitors"] is None:
        return None
    quarters = Quarters(row["quarter_visitors"])
    seen = {
        (quarter, bots): merge_sketches(quarters.between(quarter, quarter + 1, bots=bots)).exact
        for quarter in range(PARTS[DAY])
        for bots in (False, True)
    }
    return {2 * quarter + bots: visitors for (quarter, bots), visitors in seen.items() if visitors}


KEPT = {
    "clicks_kept": timedelta(days=1826),
    "hours_kept": timedelta(days=30),
    "days_kept": timedelta(days=365),
    "months_kept": timedelta(days=1826),
}


@asynccontextmanager
async def open_periods(location: Location) -> AsyncIterator[PeriodsWorld]:
    """A world on an empty database, and later in another process on the same."""
    await furnish("analytics", location)
    database = await open_database(location)
    yield PeriodsWorld(location, database, ManualClock(START), dict(KEPT))
    await database.close()


@pytest.fixture
async def periods(empty_location: Location) -> AsyncIterator[PeriodsWorld]:
    """A database of analytics without clicks; it is noon on the first of March."""
    async with open_periods(empty_location) as world:
        yield world
