"""What is known of a link before anything is counted: whose it is, its totals, and which of its rows tell what."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from refract.runtime.ports import Row
from refract.services.analytics.domain.access import Visibility
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import (
    CLICK,
    DAY,
    HOUR,
    MONTH,
    end_of,
    first_kept,
    minute_of,
    moment_of,
    nearest_minute,
    start_of,
)
from refract.services.analytics.queries.covering import Folded

_MICROSECOND = timedelta(microseconds=1)


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
    clicks_from: datetime
    """From when on clicks are surely kept themselves."""
    hours_from: datetime
    days_from: datetime
    months_from: datetime
    """From when on hours, days and months know more than counts."""

    @classmethod
    def of(cls, short_code: str, rows: Sequence[Row]) -> "KnownLink":
        """From the rows of FIND_LINK."""
        marks = {row["span"]: row for row in rows if row["stale"] is None}
        stale = {(row["span"], row["stale"]) for row in rows if row["stale"] is not None}
        # A day that is to be folded again is missing clicks, and so is its month.
        stale |= {(MONTH, start_of(start, MONTH)) for _, start in stale}
        expired = {span: row["expired"] for span, row in marks.items()}
        found, days_until, months_until = marks[DAY], marks[DAY]["until"], marks[MONTH]["until"]
        return cls(
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
            clicks_from=first_kept(expired[CLICK]),
            # One more period is left out than is expired, because the next one may expire while we read.
            hours_from=end_of(start_of(expired[HOUR], DAY), DAY),
            days_from=end_of(start_of(expired[DAY], MONTH), MONTH),
            months_from=expired[MONTH],
        )

    def settled(self, span: Range) -> Range:
        """A range of which rows know dimensions and visitors: the further back, the coarser are its edges.

        An edge is moved to the nearest one, unless that would leave nothing; then the range is made wider. Nothing is
        told of months that know only counts: of a range of these an end without a beginning is left.
        """
        start, end = self._settled(span.start), self._settled(span.end)
        if start >= end:
            unit = self._unit(span.start)
            start, end = start_of(span.start, unit), end_of(start_of(span.end - _MICROSECOND, unit), unit)
        return Range(min(max(start, self.months_from), end), end)

    def _settled(self, moment: datetime) -> datetime:
        if moment >= self.clicks_from and moment >= self.hours_from:
            return moment
        unit = self._unit(moment)
        before = start_of(moment, unit)
        after = end_of(before, unit)
        return before if moment - before <= after - moment else after

    def _unit(self, moment: datetime) -> int:
        """Of which rows those are made that know a moment whose clicks are gone."""
        if moment >= self.hours_from:
            return HOUR
        return DAY if moment >= self.days_from else MONTH

    def in_minutes(self, span: Range) -> Range:
        """A range of which rows know counts: of whole minutes, where the clicks between these are gone.

        The nearest; and the minutes that it lies in, if that would leave nothing.
        """
        start, end = map(self.in_minute, span)
        if start < end:
            return Range(start, end)
        return Range(
            moment_of(minute_of(span.start)),
            moment_of(minute_of(span.end - _MICROSECOND) + 1),
        )

    def in_minute(self, moment: datetime) -> datetime:
        """The same moment, or the nearest whole minute where the clicks around it are gone."""
        return moment if moment >= self.clicks_from else nearest_minute(moment)

    def needed(self, span: Range) -> Range | None:
        """What of a range has to be read: where it reaches beyond the first or last click, to the edge of their row.

        So a range that ends now needs no clicks of this hour: there are none after now.
        """
        clicked = self.clicked
        if clicked is None or not (span.start < span.end and clicked.start < span.end and span.start <= clicked.end):
            return None
        start, end = span
        if start <= clicked.start:
            start = moment_of(self.folded.around(minute_of(clicked.start))[0])
        if end > clicked.end:
            end = moment_of(self.folded.around(minute_of(clicked.end))[1])
        return Range(start, end)
