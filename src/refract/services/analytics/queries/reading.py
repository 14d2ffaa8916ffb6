"""Reads rollups of one link: the rows that cover what is asked, and the few clicks at its edges, added up."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.analytics.domain.access import Visibility
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import DAY, EPOCH, HOUR, MONTH, end_of, start_of
from refract.services.analytics.domain.rollups import unpack_parts
from refract.services.analytics.domain.tallies import Tally, add_counts
from refract.services.analytics.queries import statements
from refract.services.analytics.queries.covering import Cover, Folded, RowKey, Share, minute_of, moment_of
from refract.services.analytics.queries.merging import Seen

_MICROSECOND = timedelta(microseconds=1)
_HOUR = timedelta(hours=1)

Edge = tuple[int, datetime, datetime]
"""A stretch that only the clicks themselves tell: its bucket, and from when to when."""


class Counts(NamedTuple):
    """Clicks of people and bots together, and those of bots."""

    clicks: int = 0
    bot_clicks: int = 0

    def shown(self, *, bots: bool) -> int:
        """What a reader is shown who wants the bots, or does not."""
        return self.clicks if bots else self.clicks - self.bot_clicks


@dataclass(frozen=True, slots=True)
class KnownLink:
    """What is known of a link before anything is counted."""

    short_code: str
    visibility: Visibility
    total: Counts
    clicked: Range | None
    """From the first click to the last; None where there is none."""
    folded: Folded
    hours_from: datetime
    days_from: datetime
    months_from: datetime
    """From when on hours, days and months know more than counts."""

    def settled(self, span: Range) -> Range:
        """A range of which rows know dimensions and visitors: the further back, the coarser are its edges.

        An edge is moved to the nearest one, unless that would leave nothing; then the range is made wider.
        """
        start, end = self._settled(span.start), self._settled(span.end)
        if start < end:
            return Range(start, end)
        unit = DAY if span.start >= self.days_from else MONTH
        last = start_of(span.end - _MICROSECOND, unit)
        return Range(start_of(span.start, unit), end_of(last, unit))

    def _settled(self, moment: datetime) -> datetime:
        if moment >= self.hours_from:
            return moment
        unit = DAY if moment >= self.days_from else MONTH
        before = start_of(moment, unit)
        after = end_of(before, unit)
        return before if moment - before <= after - moment else after


class Reader:
    """Reads one database; every answer takes two rounds of statements, whatever is asked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, short_code: str) -> KnownLink:
        """What is known of a link; of one that was never heard of, too."""
        found, folded = await asyncio.gather(
            self._database.fetch_one(statements.FIND_LINK, short_code=short_code),
            self._database.fetch(statements.READ_FOLDED, short_code=short_code),
        )
        assert found is not None, "it is one row for any code"
        return _known(short_code, found, folded)

    async def counts(self, link: KnownLink, stretches: Sequence[Range]) -> list[Counts]:
        """The clicks of each stretch, exact to the microsecond, however far back."""
        cover, edges = _cover_to_the_minute(link, stretches)
        rows, counted = await asyncio.gather(
            self._rows(link, cover, statements.COUNTS),
            self._edges(link, edges, statements.count_edges()),
        )
        clicks, bot_clicks = [0] * len(stretches), [0] * len(stretches)
        for key, shares in cover.rows.items():
            row = rows.get(key)
            if row is not None:
                _add_shares(row, shares, clicks, bot_clicks)
        for bucket, row in counted:
            clicks[bucket] += row["clicks"]
            bot_clicks[bucket] += row["clicks"] if row["bot"] else 0
        return list(map(Counts, clicks, bot_clicks))

    async def tally(self, link: KnownLink, span: Range, dimension: str) -> tuple[Counts, Tally]:
        """How often each value of a dimension was seen in a settled range, and all clicks of the range."""
        cover, edges = _cover_details(link, [span])
        column = f"by_{dimension}"
        rows, counted = await asyncio.gather(
            self._rows(link, cover, ("clicks", "bot_clicks", column)),
            self._edges(link, edges, statements.count_edges(value=dimension)),
        )
        tally = Tally()
        clicks = bot_clicks = 0
        for row in rows.values():
            clicks += row["clicks"]
            bot_clicks += row["bot_clicks"]
            if row[column] is not None:
                tally.merge(Tally.decode(row[column]))
        for _, row in counted:
            count, bot, value = row["clicks"], row["bot"], row["value"]
            clicks += count
            bot_clicks += count if bot else 0
            if value is not None:
                add_counts(tally.bots if bot else tally.people, {value: count})
        return Counts(clicks, bot_clicks), tally

    async def visitors(self, link: KnownLink, stretches: Sequence[Range], *, bots: bool) -> list[Seen]:
        """The visitors of each settled stretch; with the bots among them, if they are wanted."""
        cover, edges = _cover_details(link, stretches)
        columns = statements.VISITORS if bots else statements.VISITORS[:1]
        rows, clicked = await asyncio.gather(
            self._rows(link, cover, columns),
            self._edges(link, edges, statements.EDGE_VISITORS),
        )
        seen = [Seen() for _ in stretches]
        for key, row in rows.items():
            stored = [row[column] for column in columns if row[column] is not None]
            for share in cover.rows[key]:
                seen[share.bucket].sketches.extend(stored)
        for bucket, row in clicked:
            if bots or not row["bot"]:
                seen[bucket].visitors.add(bytes(row["visitor"]))
        return seen

    async def stretch_rows(self, link: KnownLink, stretches: dict[int, Range]) -> list[Row]:
        """The counts of all rows of each span in its stretch."""
        nothing = Range(EPOCH, EPOCH)
        bounds = {
            f"{plural}_{side}": getattr(stretches.get(span, nothing), end)
            for span, plural in ((HOUR, "hours"), (DAY, "days"), (MONTH, "months"))
            for side, end in (("from", "start"), ("to", "end"))
        }
        statement = statements.read_stretches(statements.COUNTS)
        return await self._database.fetch(statement, short_code=link.short_code, **bounds)

    async def _rows(self, link: KnownLink, cover: Cover, columns: tuple[str, ...]) -> dict[RowKey, Row]:
        if not cover.rows:
            return {}
        wanted: dict[int, list[datetime]] = {HOUR: [], DAY: [], MONTH: []}
        for span, minute in cover.rows:
            wanted[span].append(moment_of(minute))
        rows = await self._database.fetch(
            statements.read_rows(columns),
            short_code=link.short_code,
            hours=wanted[HOUR],
            days=wanted[DAY],
            months=wanted[MONTH],
        )
        return {(row["span"], minute_of(row["starts_at"])): row for row in rows}

    async def _edges(self, link: KnownLink, edges: Sequence[Edge], statement: Statement) -> list[tuple[int, Row]]:
        """The rows of a statement about edges, each with its bucket."""
        if not edges:
            return []
        rows = await self._database.fetch(
            statement,
            short_code=link.short_code,
            starts=[microseconds_of(start) for _, start, _ in edges],
            ends=[microseconds_of(end) for _, _, end in edges],
            first=min(start for _, start, _ in edges),
            last=max(end for _, _, end in edges),
        )
        return [(edges[row["number"] - 1][0], row) for row in rows]


def _known(short_code: str, found: Row, rows: Iterable[Row]) -> KnownLink:
    marks = {row["span"]: row for row in rows if row["stale"] is None}
    stale = {(row["span"], row["stale"]) for row in rows if row["stale"] is not None}
    # A day that is to be folded again is missing clicks, and so is its month.
    stale |= {(MONTH, start_of(start, MONTH)) for _, start in stale}
    expired = {span: row["expired"] for span, row in marks.items()}
    days_until, months_until = marks[DAY]["until"], marks[MONTH]["until"]
    return KnownLink(
        short_code=short_code,
        visibility=Visibility(
            is_known=found["user_id"] is not None,
            user_id=found["user_id"] or "",
            stats_public=found["stats_public"] is not False,
            is_deleted=found["status"] == "deleted",
        ),
        total=Counts(found["clicks"] or 0, found["bot_clicks"] or 0),
        clicked=Range(found["first_clicked_at"], found["last_clicked_at"]) if found["clicks"] else None,
        folded=Folded(
            days_until=minute_of(days_until),
            months_until=minute_of(min(months_until, start_of(days_until, MONTH))),
            stale=frozenset((span, minute_of(start)) for span, start in stale),
        ),
        # One more period is left out than is expired, because the next one may expire while we read.
        hours_from=end_of(start_of(expired[HOUR], DAY), DAY),
        days_from=end_of(start_of(expired[DAY], MONTH), MONTH),
        months_from=expired[MONTH],
    )


def _cover_to_the_minute(link: KnownLink, stretches: Sequence[Range]) -> tuple[Cover, list[Edge]]:
    """Rows for whole minutes, and what is left at both ends of each stretch."""
    cover = Cover(link.folded, by_parts=True)
    edges: list[Edge] = []
    for bucket, needed in _needed(link, stretches):
        # All but the first and the last of a series begin and end with a minute.
        first, last = _minute_from(needed.start), minute_of(needed.end)
        if first <= last:
            _add_edge(edges, bucket, needed.start, moment_of(first))
            _add_edge(edges, bucket, moment_of(last), needed.end)
            cover.add(bucket, first, last)
        else:
            _add_edge(edges, bucket, needed.start, needed.end)
    return cover, edges


def _cover_details(link: KnownLink, stretches: Sequence[Range]) -> tuple[Cover, list[Edge]]:
    """Rows and edges of settled stretches: their edges lie in hours that still know everything, or beside rows."""
    cover = Cover(link.folded, by_parts=False)
    edges: list[Edge] = []
    kept = [Range(max(stretch.start, link.months_from), stretch.end) for stretch in stretches]
    for bucket, needed in _needed(link, kept):
        first, last = start_of(needed.start + _HOUR - _MICROSECOND, HOUR), start_of(needed.end, HOUR)
        if first <= last:
            _add_edge(edges, bucket, needed.start, first)
            _add_edge(edges, bucket, last, needed.end)
            cover.add(bucket, minute_of(first), minute_of(last))
        else:
            _add_edge(edges, bucket, needed.start, needed.end)
    return cover, edges


def _add_edge(edges: list[Edge], bucket: int, start: datetime, end: datetime) -> None:
    if start < end:
        edges.append((bucket, start, end))


def _needed(link: KnownLink, stretches: Sequence[Range]) -> Iterator[tuple[int, Range]]:
    """The stretches that have to be read: where one reaches beyond the first or the last click, to the edge of a row.

    So a range that ends now needs no clicks of this hour: there are none after now.
    """
    clicked = link.clicked
    if clicked is None:
        return
    edges = link.folded.around(minute_of(clicked.start))[0], link.folded.around(minute_of(clicked.end))[1]
    begin, end = map(moment_of, edges)
    for bucket, stretch in enumerate(stretches):
        if stretch.end > clicked.start and stretch.start <= clicked.end and stretch.start < stretch.end:
            start = begin if stretch.start <= clicked.start else stretch.start
            yield bucket, Range(start, end if stretch.end > clicked.end else stretch.end)


def _minute_from(moment: datetime) -> int:
    """The first whole minute from a moment on."""
    minute = minute_of(moment)
    return minute if moment.second == 0 and moment.microsecond == 0 else minute + 1


def _add_shares(row: Row, shares: Sequence[Share], clicks: list[int], bot_clicks: list[int]) -> None:
    parts: tuple[list[int], list[int]] | None = None
    for share in shares:
        if share.is_whole:
            clicks[share.bucket] += row["clicks"]
            bot_clicks[share.bucket] += row["bot_clicks"]
        else:
            parts = parts or unpack_parts(row["parts"], row["span"])
            clicks[share.bucket] += sum(parts[0][share.first : share.last])
            bot_clicks[share.bucket] += sum(parts[1][share.first : share.last])


def microseconds_of(moment: datetime) -> int:
    """A moment as whole microseconds since 1970."""
    return (moment - EPOCH) // _MICROSECOND
