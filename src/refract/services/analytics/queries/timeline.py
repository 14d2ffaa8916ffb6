"""The periods of a link's life that have clicks, from as few rows as know them."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from refract.runtime.ports import Row
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.parts import NO_CLICKS, PART_MINUTES, Pair, unpack_parts
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, minute_of, moment_of, start_of
from refract.services.analytics.queries.covering import HOUR_MINUTES
from refract.services.analytics.queries.links import KnownLink
from refract.services.analytics.queries.moments import Moments
from refract.services.analytics.queries.reading import Reader


async def clicked_periods(reader: Reader, link: KnownLink, size: int) -> dict[int, Pair]:
    """The days or hours (by span) that have clicks, by their first minute. Longer rows know them as their parts."""
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
        [*_inside(moment_of(minute), span, size), end_of(moment_of(minute), span)]
        for span, minute in folded.stale
        if span in stretches
    ]
    rows, corrected = await asyncio.gather(
        reader.stretch_rows(link, stretches),
        asyncio.gather(*(reader.counts(link, Moments.of(moments)) for moments in again)),
    )
    counted = _by_period(rows, size)
    # What the rows of marked periods say is too little, and is put right here.
    for moments, (every, of_bots) in zip(again, corrected, strict=True):
        right = zip(map(minute_of, moments), zip(every, of_bots, strict=True), strict=False)
        counted.update({minute: pair for minute, pair in right if pair[0]})
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


def _by_period(rows: Iterable[Row], size: int) -> dict[int, Pair]:
    """The counts of rows by period: shorter rows are added up, longer ones are taken apart."""
    counted: dict[int, Pair] = {}
    for row in rows:
        if row["span"] > size:
            counted.update(_taken_apart(row["span"], row["starts_at"], row["parts"]))
        elif row["span"] == size:
            counted[minute_of(row["starts_at"])] = row["clicks"], row["bot_clicks"]
        else:
            period = minute_of(start_of(row["starts_at"], size))
            clicks, bot_clicks = counted.get(period, NO_CLICKS)
            counted[period] = clicks + row["clicks"], bot_clicks + row["bot_clicks"]
    return counted


@lru_cache(maxsize=1_024)
def _taken_apart(span: int, starts_at: datetime, parts: bytes | None) -> Mapping[int, Pair]:
    """The hours of a day, or the days of a month, that have clicks.

    Remembered, because whoever watches a link asks again and again, and its past stays; some 6 MB at most.
    """
    start, (clicks, bot_clicks) = minute_of(starts_at), unpack_parts(parts, span)
    length = PART_MINUTES[span]
    if span == DAY:
        length, clicks, bot_clicks = HOUR_MINUTES, _fours(clicks), _fours(bot_clicks)
    pairs = zip(clicks, bot_clicks, strict=True)
    return {start + number * length: pair for number, pair in enumerate(pairs) if pair[0]}


def _fours(quarters: Sequence[int]) -> list[int]:
    return [a + b + c + d for a, b, c, d in zip(*[iter(quarters)] * 4, strict=True)]
