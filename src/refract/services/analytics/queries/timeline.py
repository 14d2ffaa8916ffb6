"""The periods of a link's life that have clicks, from as few rows as know them."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from refract.runtime.ports import Row
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
from refract.services.analytics.domain.rollups import unpack_parts
from refract.services.analytics.queries.covering import moment_of
from refract.services.analytics.queries.reading import Counts, KnownLink, Reader


async def clicked_periods(reader: Reader, link: KnownLink, size: int) -> dict[datetime, Counts]:
    """The days or hours (by span) that have clicks. Rows that are longer know them as one of their parts."""
    if link.clicked is None:
        return {}
    folded, first, end = link.folded, link.clicked.start, after_all(link, link.clicked.end)
    days_until = moment_of(folded.days_until)
    stretches = {HOUR: Range(max(days_until, start_of(first, DAY)), end)}
    days_from = start_of(first, DAY)
    if size == DAY:
        stretches[MONTH] = Range(start_of(first, MONTH), moment_of(folded.months_until))
        days_from = max(days_from, moment_of(folded.months_until))
    stretches[DAY] = Range(days_from, days_until)
    again = [
        Range(start, end_of(start, size))
        for span, minute in folded.stale
        if span in stretches
        for start in _inside(moment_of(minute), span, size)
    ]
    rows, stale = await asyncio.gather(reader.stretch_rows(link, stretches), reader.counts(link, again))
    counted = _by_period(rows, size)
    # What the rows of marked periods say is too little, and is put right here.
    counted.update({part.start: counts for part, counts in zip(again, stale, strict=True) if counts.clicks})
    return counted


def after_all(link: KnownLink, moment: datetime) -> datetime:
    """A whole hour after a moment and after every click, of which some may be a little ahead of us."""
    last = moment if link.clicked is None else max(moment, link.clicked.end)
    return end_of(start_of(last, HOUR), HOUR)


def _inside(start: datetime, span: int, size: int) -> Iterator[datetime]:
    end = end_of(start, span)
    while start < end:
        yield start
        start = end_of(start, size)


def _by_period(rows: Iterable[Row], size: int) -> dict[datetime, Counts]:
    """The counts of rows by period: shorter rows are added up, longer ones are taken apart."""
    counted: dict[datetime, Counts] = {}
    step = timedelta(days=1) if size == DAY else timedelta(hours=1)
    for row in rows:
        start: datetime = row["starts_at"]
        if row["span"] > size:
            for number, (clicks, bot_clicks) in enumerate(zip(*unpack_parts(row["parts"], row["span"]), strict=True)):
                if clicks:
                    counted[start + number * step] = Counts(clicks, bot_clicks)
        else:
            period = start_of(start, size)
            before = counted.get(period, Counts())
            counted[period] = Counts(before.clicks + row["clicks"], before.bot_clicks + row["bot_clicks"])
    return counted
