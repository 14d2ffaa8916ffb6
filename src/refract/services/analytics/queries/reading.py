"""Reads rollups of one link: the rows that cover what is asked, and the few clicks at its edges, added up."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.parts import PART_MINUTES
from refract.services.analytics.domain.periods import (
    DAY,
    EPOCH,
    HOUR,
    MONTH,
    end_of,
    microseconds_of,
    minute_of,
    moment_of,
    start_of,
)
from refract.services.analytics.domain.quarters import Quarters
from refract.services.analytics.domain.tallies import MOST_IN_HOUR, OTHER, Tally, add_counts, add_stored
from refract.services.analytics.queries import statements
from refract.services.analytics.queries.counting import Sweep
from refract.services.analytics.queries.covering import (
    DAY_MINUTES,
    HOUR_MINUTES,
    Cover,
    Piece,
    Wanted,
    month_around,
)
from refract.services.analytics.queries.edges import Asking, count_edges, edge_parameters, edge_visitors
from refract.services.analytics.queries.links import Counts, KnownLink
from refract.services.analytics.queries.moments import Edge, Moments
from refract.services.analytics.queries.remembering import Versions
from refract.services.analytics.store.values import count_values

BREATH = 256 * 1024
"""After so many bytes of tallies others may run: two milliseconds or so."""

MOST_RECOUNTED = 200_000
"""Clicks that are counted again for one answer, where hours had no room for all their values: a tenth of a second."""

BY_QUARTERS = 2
"""Whoever came in two quarters is named twice, as if by two sketches."""

_OTHER = OTHER.encode()
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_SHORTEST_MONTH = 28
_MINUTE = 60_000_000
"""In microseconds."""


@dataclass(slots=True)
class Seen:
    """Who was seen in a stretch: sketches as they are stored, or lists that are made of several, and single visitors
    at its edges."""

    sketches: list[bytes] = field(default_factory=list)
    visitors: set[bytes] = field(default_factory=set)
    sources: int = 0
    """How many sketches all of these are made of: what comes from more than one may name somebody twice."""
    is_told: bool = False
    """Whether a month tells who these are: then it may be that only their number is known here."""
    count: int = 0
    """That number."""

    def add(self, sketch: bytes, sources: int) -> None:
        """Those in a sketch, too."""
        self.sketches.append(sketch)
        self.sources += sources


class Reader:
    """Reads one database; an answer takes two rounds of statements, or three where something can be remembered."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, short_code: str) -> KnownLink:
        """What is known of a link; of one that was never heard of, too."""
        return KnownLink.of(short_code, await self._database.fetch(statements.FIND_LINK, short_code=short_code))

    async def counts(self, link: KnownLink, moments: Moments) -> tuple[list[int], list[int]]:
        """The clicks from each of some moments up to the next one, and those of bots; exact, however far back."""
        size = len(moments.minutes) - 1
        needed = link.needed(moments.span)
        if needed is None:
            return [0] * size, [0] * size
        moments = moments.within(needed)
        edges = moments.edges()
        sweep = Sweep(link.folded, moments.points())
        rows, counted = await asyncio.gather(
            self._rows(link, sweep.wanted, statements.read_rows(statements.COUNTS)),
            self._edges(link, edges, count_edges()),
        )
        every, of_bots = (moments.differences(sweep.points, counts) for counts in sweep.counts(rows))
        for bucket, row in counted:
            every[bucket] += row["clicks"]
            of_bots[bucket] += row["clicks"] if row["bot"] else 0
        return every, of_bots

    async def tally(self, link: KnownLink, span: Range, dimension: str, *, bots: bool) -> tuple[Counts, dict[str, int]]:
        """How often each value of a dimension was seen in a settled range, and all clicks of the range.

        The values are those of people; with those of bots among them, if they are wanted.
        """
        cover, edges = _cover(link, [span], {})
        column = f"by_{dimension}"
        rows, counted = await asyncio.gather(
            self._rows(link, cover.wanted, statements.read_rows(("clicks", "bot_clicks", column))),
            self._edges(link, edges, count_edges(value=dimension)),
        )
        values: dict[str, int] = {}
        clicks = bot_clicks = size = 0
        for row in await self._with_exact_hours(link, rows, column, bots=bots):
            clicks += row["clicks"]
            bot_clicks += row["bot_clicks"]
            if row[column] is not None:
                add_stored(values, row[column], bots=bots)
                size += len(row[column])
                if size > BREATH:
                    size = 0
                    await asyncio.sleep(0)
        for _, row in counted:
            count, bot, value = row["clicks"], row["bot"], row["value"]
            clicks += count
            bot_clicks += count if bot else 0
            if value is not None and (bots or not bot):
                add_counts(values, {value: count})
        return Counts(clicks, bot_clicks), values

    async def _with_exact_hours(
        self, link: KnownLink, rows: Sequence[Row], column: str, *, bots: bool
    ) -> Sequence[Row]:
        """The rows; but of hours that had no room for all values, the most frequent are counted from their clicks.

        Until its day is folded such an hour does not know how often a value had come that it dropped and met again.
        """
        told: list[Row] = []
        countable = MOST_RECOUNTED
        for row in rows:
            if row["span"] == HOUR and row[column] is not None and _OTHER in row[column] and row["clicks"] <= countable:
                countable -= row["clicks"]
                told.append(await self._recounted(link, row, column, bots=bots))
            else:
                told.append(row)
        return told

    async def _recounted(self, link: KnownLink, row: Row, column: str, *, bots: bool) -> Row:
        stored = Tally.decode(row[column])
        hour = (column, link.short_code, row["starts_at"], end_of(row["starts_at"], HOUR))
        exact = Tally(await count_values(self._database, *hour, most=MOST_IN_HOUR, bots=False), stored.bots)
        if bots:
            exact.bots = await count_values(self._database, *hour, most=MOST_IN_HOUR, bots=True)
        # Clicks may have come since the row was read; or some are gone, and then the row knows better.
        people = sum(exact.people.values()) - sum(stored.people.values())
        of_bots = sum(exact.bots.values()) - sum(stored.bots.values())
        if people < 0 or of_bots < 0:
            return row
        counts = {"clicks": row["clicks"] + people + of_bots, "bot_clicks": row["bot_clicks"] + of_bots}
        return {**counts, column: exact.encode()}

    async def visitors(self, link: KnownLink, stretches: Sequence[Range], *, bots: bool) -> list[Seen]:
        """The visitors of each settled stretch; with the bots among them, if they are wanted."""
        return (await self._seen(link, stretches, {}, bots=bots))[:-1]

    async def visitors_by_months(
        self, link: KnownLink, stretches: Sequence[Range], *, bots: bool
    ) -> tuple[list[Seen], list[bytes]]:
        """The same; but where stretches are the days of a month, its sketch tells who came, and theirs how many."""
        months = {} if bots else _months_of_days(link, stretches)
        *each, together = await self._seen(link, stretches, months, bots=bots)
        return each, together.sketches

    async def _seen(
        self, link: KnownLink, stretches: Sequence[Range], months: Mapping[int, int], *, bots: bool
    ) -> list[Seen]:
        """Those of each stretch, and then those of the months."""
        seen = [Seen() for _ in range(len(stretches) + 1)]
        cut = await self._see(link, _cover(link, stretches, months, by_quarters=True), seen, bots=bots)
        if cut:  # days that have no quarters; what is left of them is told by their hours
            pieces = [Range(moment_of(piece.start), moment_of(piece.end)) for piece in cut]
            await self._see(link, _cover(link, pieces, {}), [seen[piece.bucket] for piece in cut], bots=bots)
        return seen

    async def _see(
        self, link: KnownLink, covered: tuple[Cover, Sequence[Edge]], seen: Sequence[Seen], *, bots: bool
    ) -> list[Piece]:
        """Add who was seen in some rows and edges; returns what of days is not known by their quarters."""
        cover, edges = covered
        columns, wanted = statements.EVERYBODY if bots else statements.PEOPLE, cover.wanted
        statement = statements.read_visitors(columns, cut=bool(wanted.cut), counted=bool(wanted.counted))
        rows, clicked = await asyncio.gather(
            self._rows(link, wanted, statement),
            self._edges(link, edges, edge_visitors),
        )
        for bucket in cover.told:
            seen[bucket].is_told = True
        unknown: list[Piece] = []
        for row in rows:
            start = minute_of(row["starts_at"])
            if row["counted"]:
                seen[cover.bucket((DAY, start))].count = row["counted"]
            elif row["sketches"]:
                seen[cover.bucket((row["span"], start))].add(row["seen"], row["sketches"])
            elif row["seen"] is None:
                unknown += cover.pieces[start]
            else:
                _add_quarters(Quarters(row["seen"]), cover.pieces[start], seen, bots=bots)
        for bucket, row in clicked:
            if bots or not row["bot"]:
                seen[bucket].visitors.update(_cut(row["visitors"], row["length"]))
        # In the order of time, as stretches are covered.
        return sorted(unknown, key=_start_of)

    async def versions(self, link: KnownLink, span: Range) -> Versions:
        """The clicks of the rows that a range lies in: while these stay, so does everything that can be said of it."""
        folded = link.folded
        start, end = minute_of(span.start), minute_of(span.end - _MICROSECOND) + 1
        month = month_around(start)[0]
        # A month that waits to be folded again is told by its days; and so are all others then, which is seldom.
        months_until = month if folded.stale else folded.months_until
        stretches = {
            MONTH: Range(moment_of(month), moment_of(months_until)),
            DAY: Range(
                moment_of(max(start - start % DAY_MINUTES, months_until)), moment_of(min(end, folded.days_until))
            ),
            HOUR: Range(moment_of(max(start - start % HOUR_MINUTES, folded.days_until)), moment_of(end)),
        }
        return Versions(folded, await self.stretch_rows(link, stretches, ("clicks",)))

    async def stretch_rows(
        self, link: KnownLink, stretches: dict[int, Range], columns: tuple[str, ...] = statements.COUNTS
    ) -> list[Row]:
        """The counts of all rows of each span in its stretch."""
        nothing = Range(EPOCH, EPOCH)
        bounds = {
            f"{plural}_{side}": getattr(stretches.get(span, nothing), end)
            for span, plural in ((HOUR, "hours"), (DAY, "days"), (MONTH, "months"))
            for side, end in (("from", "start"), ("to", "end"))
        }
        statement = statements.read_stretches(columns)
        return await self._database.fetch(statement, short_code=link.short_code, **bounds)

    async def _rows(self, link: KnownLink, wanted: Wanted, statement: Statement) -> list[Row]:
        if wanted.is_nothing:
            return []
        days = {"cut": wanted.cut, "counted": wanted.counted}
        return await self._database.fetch(
            statement,
            short_code=link.short_code,
            firsts=[start * _MINUTE for start, _ in wanted.hours],
            lasts=[end * _MINUTE for _, end in wanted.hours],
            days=list(map(moment_of, wanted.days)),
            months=list(map(moment_of, wanted.months)),
            **{name: list(map(moment_of, some)) for name, some in days.items() if some},
        )

    async def _edges(self, link: KnownLink, edges: Sequence[Edge], asking: Asking) -> list[tuple[int, Row]]:
        """The rows of a statement about edges, each with its bucket."""
        if not edges:
            return []
        rows = await self._database.fetch(asking(len(edges)), **edge_parameters(link.short_code, edges))
        return [(edges[row["number"] - 1][0], row) for row in rows]


def _cover(
    link: KnownLink, stretches: Sequence[Range], months: Mapping[int, int], *, by_quarters: bool = False
) -> tuple[Cover, list[Edge]]:
    """Rows and edges of settled stretches: their edges lie in hours that still know everything, or beside rows.

    Days of some months, which are given by their first minute and their end, are only counted; the months follow them.
    """
    cover = Cover(link.folded, by_quarters)
    edges: list[Edge] = []
    for bucket, stretch in enumerate(stretches):
        needed = link.needed(stretch)
        if needed is None:
            continue
        start, end = microseconds_of(needed.start), microseconds_of(needed.end)
        if months and month_around(start // _MINUTE)[0] in months:
            cover.count(bucket, minute_of(stretch.start))
            continue
        unit, last_unit = cover.unit(start // _MINUTE), cover.unit((end - 1) // _MINUTE)
        first, last = -(-start // (_MINUTE * unit)) * unit, end // (_MINUTE * last_unit) * last_unit
        if first <= last:
            if start < first * _MINUTE:
                edges.append((bucket, needed.start, moment_of(first)))
            if last * _MINUTE < end:
                edges.append((bucket, moment_of(last), needed.end))
            cover.add(bucket, first, last)
        else:
            edges.append((bucket, needed.start, needed.end))
    for month, month_end in months.items():
        cover.add(len(stretches), month, month_end)
    return cover, edges


def _months_of_days(link: KnownLink, stretches: Sequence[Range]) -> dict[int, int]:
    """Months that may be trusted and whose days are stretches, by their first minute: where each ends.

    Not with the last stretch, of which the rest may be added to it. A day that is marked marks its month, too.
    """
    if len(stretches) <= _SHORTEST_MONTH:
        return {}
    days = Counter(
        month_around(minute_of(one.start))
        for one in stretches[:-1]
        if one.end - one.start == _DAY and one.start == start_of(one.start, DAY)
    )
    return {
        month: end
        for (month, end), count in days.items()
        if count * DAY_MINUTES == end - month and link.folded.has_month(month)
    }


def _start_of(piece: Piece) -> int:
    return piece.start


def _add_quarters(quarters: Quarters, pieces: Sequence[Piece], seen: Sequence[Seen], *, bots: bool) -> None:
    length = PART_MINUTES[DAY]
    for piece in pieces:
        first, end = piece.start % DAY_MINUTES, piece.start % DAY_MINUTES + piece.end - piece.start
        for some in quarters.between(first // length, end // length, bots=bots):
            seen[piece.bucket].add(some, BY_QUARTERS)


def _cut(names: bytes, length: int) -> list[bytes]:
    """Visitors whose names stand one after the other; one who has none is a visitor, too."""
    return [names[place : place + length] for place in range(0, len(names), length)] if length else [names]
