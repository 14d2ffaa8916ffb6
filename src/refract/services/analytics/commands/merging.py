"""Puts a period together: a day from its hours, a month from its days, and from the clicks what did not fit there."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from refract.kernel.clock import Clock
from refract.kernel.errors import TimedOut
from refract.runtime.ports import Database, Row
from refract.services.analytics.domain.parts import NO_CLICKS, PART_MINUTES, PARTS, Pair, pack_entries, part_entries
from refract.services.analytics.domain.periods import DAY, HOUR, end_of
from refract.services.analytics.domain.quarters import MOST_CLICKS, pack_quarters, place_of
from refract.services.analytics.domain.sketches import hash_visitor, merge_sketches
from refract.services.analytics.domain.tallies import MOST_IN_HOUR, MOST_IN_LONGER, OTHER, Tally, merge_tallies
from refract.services.analytics.store.folding import (
    DETAILS,
    QUARTERS,
    READ_COUNTS,
    READ_DETAIL,
    READ_DETAILS,
    READ_VISITORS,
    SKETCHES,
    TALLIES,
)
from refract.services.analytics.store.values import count_values

log = logging.getLogger(__name__)

EXACT_CLICKS = 1_000_000
"""Up to so many clicks of a link are counted again where its values did not fit: about a second's work."""

MUCH = 50_000
"""From so many clicks on, columns are read one by one."""

BREATH = 32 * 1024
"""After so many bytes of rows others may run: a millisecond or two."""

ROW_BYTES = 60
"""As if each row had so many more: the smallest takes its time, too."""

CLICKS_AT_ONCE = 500
"""After so many that are put to their quarters others may run, too: a millisecond or so."""

Piece = tuple[datetime, bytes]
"""A column of the row that begins then."""

_OTHER = OTHER.encode()
_BY_CODE = itemgetter("short_code")
_ROW_OF = attrgetter("short_code", "starts_at")


@dataclass(frozen=True, slots=True)
class Correction:
    """The exact tally of an hour that had `clicks` when it was counted, and is only good if it still has."""

    column: str
    short_code: str
    starts_at: datetime
    clicks: int
    tally: bytes | None

    @property
    def parameters(self) -> dict[str, Any]:
        """For CORRECT_TALLY."""
        return {name: getattr(self, name) for name in ("short_code", "starts_at", "clicks", "tally")}


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows to write for a period of some links, in the order of their codes, and hours to make exact."""

    rows: list[dict[str, Any]]
    corrections: list[Correction]


@dataclass(frozen=True, slots=True)
class _Link:
    """One link's counts in a period; by the start of each finer one."""

    short_code: str
    span: int
    begin: datetime
    end: datetime
    clicks: Mapping[datetime, int]
    corrections: list[Correction] = field(default_factory=list)


class Merging:
    """Reads what a period is made of; column by column where that is much, so that little is in memory at a time."""

    def __init__(self, database: Database, clock: Clock, clicks_kept: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._kept = clicks_kept
        self._bytes = 0

    async def merge(self, span: int, begin: datetime, codes: Sequence[str]) -> Merged:
        """The rows of these links for the period of this span that begins here; a link without clicks has none."""
        end = end_of(begin, span)
        scope = {"codes": list(codes), "finer": span - 1, "begin": begin, "end": end}
        # The counts first: whatever comes later shows in them, where an hour is made exact only if it has them still.
        rows, links = {}, {}
        for code, counts in _grouped(await self._database.fetch(READ_COUNTS, **scope)):
            rows[code] = _counted(code, span, begin, counts)
            links[code] = _Link(code, span, begin, end, {row["starts_at"]: row["clicks"] for row in counts})
        is_much = sum(row["clicks"] for row in rows.values()) > MUCH
        read = [] if is_much else _grouped(await self._database.fetch(READ_DETAILS, **scope))
        for column in DETAILS:
            if is_much:
                read = _grouped(await self._database.fetch(READ_DETAIL[column], **scope))
            for code, details in read:
                pieces = [(row["starts_at"], row[column]) for row in details if row[column] is not None]
                if pieces and code in rows:
                    rows[code][column] = await self._merged(column, links[code], pieces)
        if span == DAY:
            await self._add_quarters(begin, rows)
        corrections = [one for link in links.values() for one in link.corrections]
        # In the order in which writers of clicks lock hours, whatever the column.
        return Merged(list(rows.values()), sorted(corrections, key=_ROW_OF))

    async def _merged(self, column: str, link: _Link, pieces: Sequence[Piece]) -> bytes | None:
        if column in TALLIES:
            overflowed = [hour for hour, stored in pieces if _OTHER in stored]
            if overflowed and link.span == DAY:
                await self._correct_hours(column, link, overflowed)
            clicks = sum(link.clicks.values())
            if overflowed and (exact := await self._exact(column, link, link.begin, link.span, clicks)):
                return exact.encode()
        if len(pieces) == 1:
            return pieces[0][1]
        await self._breathe(sum(len(stored) + ROW_BYTES for _, stored in pieces))
        stored = [piece for _, piece in pieces]
        if column in SKETCHES:
            return merge_sketches(stored).encode()
        tally = merge_tallies(stored)
        tally.cap(MOST_IN_LONGER)
        return tally.encode()

    async def _add_quarters(self, begin: datetime, rows: Mapping[str, dict[str, Any]]) -> None:
        """Say who was seen in which quarter of a day, as far as the clicks are still there and not too many."""
        codes = [code for code, row in rows.items() if row["clicks"] <= MOST_CLICKS]
        if not codes or begin <= self._clock.now() - self._kept:
            return
        scope = {"codes": codes, "begin": begin, "end": end_of(begin, DAY)}
        try:
            clicks = await self._database.fetch(READ_VISITORS, **scope)
        except TimedOut:
            log.warning("quarters not told", extra={"day": begin.isoformat(), "links": len(codes)})
            return
        seen: dict[str, dict[int, set[bytes]]] = {code: {} for code in codes}
        read: Counter[str] = Counter()
        for number, click in enumerate(clicks):
            place = place_of(click["clicked_at"], bot=click["bot"])
            seen[click["short_code"]].setdefault(place, set()).add(hash_visitor(click["visitor"]))
            read[click["short_code"]] += 1
            if number % CLICKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        for code, hashes in seen.items():
            # Some may be gone: dropped by a shorter retention of before, or missing from a backup.
            if read[code] == rows[code]["clicks"]:
                rows[code][QUARTERS] = packed = pack_quarters(hashes)
                await self._breathe(len(packed))

    async def _correct_hours(self, column: str, link: _Link, overflowed: Sequence[datetime]) -> None:
        for hour in overflowed:
            clicks = link.clicks.get(hour, 0)
            if exact := await self._exact(column, link, hour, HOUR, clicks):
                link.corrections.append(Correction(column, link.short_code, hour, clicks, exact.encode()))

    async def _exact(self, column: str, link: _Link, begin: datetime, span: int, clicks: int) -> Tally | None:
        """The tally of a period, counted from the clicks; None where they are gone, or too many."""
        if clicks > EXACT_CLICKS or begin <= self._clock.now() - self._kept:
            return None
        most = MOST_IN_HOUR if span == HOUR else MOST_IN_LONGER
        scope = (column, link.short_code, begin, end_of(begin, span))
        try:
            people, bots = [await count_values(self._database, *scope, most=most, bots=bots) for bots in (False, True)]
        except TimedOut:
            log.warning("values not counted again", extra={"short_code": link.short_code, "column": column})
            return None
        tally = Tally(people, bots)
        tally.cap(most)
        return tally

    async def _breathe(self, size: int) -> None:
        """Let others run every now and then: tens of thousands of rows are put together in one go."""
        self._bytes += size
        if self._bytes >= BREATH:
            self._bytes = 0
            await asyncio.sleep(0)


def _grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(code, list(group)) for code, group in groupby(rows, _BY_CODE)]


def _counted(code: str, span: int, begin: datetime, counts: Sequence[Row]) -> dict[str, Any]:
    """A row with its counts, and without any details yet."""
    return {
        "short_code": code,
        "span": span,
        "starts_at": begin,
        "clicks": sum(row["clicks"] for row in counts),
        "bot_clicks": sum(row["bot_clicks"] for row in counts),
        "parts": pack_entries(_quarters(counts) if span == DAY else _days(counts), PARTS[span]),
        **dict.fromkeys((*DETAILS, QUARTERS)),
    }


def _days(counts: Sequence[Row]) -> dict[int, Pair]:
    return {row["starts_at"].day - 1: (row["clicks"], row["bot_clicks"]) for row in counts}


def _quarters(counts: Sequence[Row]) -> dict[int, Pair]:
    """The quarters of a day from the minutes of its hours."""
    quarters: dict[int, Pair] = {}
    length = PART_MINUTES[DAY]
    for row in counts:
        first = row["starts_at"].hour * PARTS[HOUR]
        for minute, (clicks, bot_clicks) in part_entries(row["parts"], HOUR).items():
            quarter = (first + minute) // length
            before = quarters.get(quarter, NO_CLICKS)
            quarters[quarter] = before[0] + clicks, before[1] + bot_clicks
    return quarters
