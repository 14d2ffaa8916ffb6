"""Tallies and visitors of a link: of what is over, put together once and remembered; of now, read at every look."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from weakref import WeakValueDictionary

from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import DAY, MONTH, minute_of, moment_of, start_of
from refract.services.analytics.domain.rankings import Ranking, Top
from refract.services.analytics.domain.sketches import (
    MOST_EXACT,
    Sketch,
    count_stored,
    count_together,
    list_together,
    merge_sketches,
)
from refract.services.analytics.domain.tallies import add_counts
from refract.services.analytics.queries.links import Counts, KnownLink
from refract.services.analytics.queries.reading import Reader, Seen
from refract.services.analytics.queries.remembering import MOST_BYTES, Remembered, Versions

WORTH_REMEMBERING = 5_000
"""Clicks of a link: with fewer, it is read faster than it is looked up."""

LATELY = 256
"""So many questions that were asked last are known again. Of whatever is asked for the first time nothing is
remembered: it would be put together twice, with and without the last hour, for somebody who may never come back."""

ALWAYS_REMEMBERED = 500_000
"""Clicks of a link that takes a tenth of a second to be put together: that is spent once, whoever asks between."""

KEY_BYTES = 500
"""About what a key takes."""

BREATH = 64 * 1024
"""After so many bytes of sketches others may run: a millisecond or so."""

MOST_LISTED = 8_192
"""So many visitors of a stretch stay a list, which takes a third of the time that registers take to make, and three
times their room at most."""

VISITOR_BYTES = 40
"""A single visitor, who has to be hashed first, takes as long as so many of these."""

STRETCH_BYTES = 200
"""About what one more stretch takes in it."""

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Merged:
    """One sketch in the place of many: how many it counts, and its stored form."""

    count: int
    stored: bytes | None

    @classmethod
    def of(cls, seen: Seen) -> "Merged":
        """All who were seen. A sketch that tells it alone, as that of a day does, stays as it is."""
        if seen.count:
            return cls(seen.count, None)
        if seen.sources == 1 and not seen.visitors:
            return cls(count_stored(seen.sketches[0]), seen.sketches[0])
        listed = list_together(seen.sketches, seen.visitors, MOST_LISTED)
        if listed is not None:
            count, stored = listed
            return cls(count, stored or None)
        sketch = merge_sketches(seen.sketches)
        sketch.add_many(seen.visitors)
        return cls(sketch.estimate(), sketch.encode())

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return KEY_BYTES + len(self.stored or b"")

    def packed(self) -> "Merged":
        """The same, no longer a list if that is a long one: registers take more time to make, and less to add to."""
        if self.stored is None or self.count <= MOST_EXACT:
            return self
        return Merged(self.count, merge_sketches([self.stored]).encode())


@dataclass(frozen=True, slots=True)
class Past:
    """Stretches that are over: how many visitors each has, the last of them, and all of them as one."""

    counts: Sequence[int]
    last: Merged
    everybody: Merged

    @property
    def size(self) -> int:
        """About how many bytes it takes, with its key."""
        return STRETCH_BYTES * len(self.counts) + self.last.size + self.everybody.size


class Merging:
    """Answers about dimensions and visitors, with a memory of its own."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rankings: Remembered[tuple[Counts, Ranking]] = Remembered(2 * MOST_BYTES)
        self._visitors: Remembered[Merged] = Remembered()
        self._pasts: Remembered[Past] = Remembered()
        self._asked: Remembered[str] = Remembered(LATELY)
        """What was asked of which links lately."""
        self._looks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        """By key, while somebody puts it together: whoever comes meanwhile waits for what comes of it."""

    async def top(self, link: KnownLink, span: Range, dimension: str, most: int, *, bots: bool) -> tuple[Counts, Top]:
        """The most frequent values of a dimension in a settled range, and all clicks of the range."""
        over, now = _divided(link, span)
        if over is None or self._is_first(link, dimension):
            counts, values = await self._reader.tally(link, span, dimension, bots=bots)
            return counts, Top.of(values, most)
        versions, (counts, more) = await asyncio.gather(
            self._reader.versions(link, over), self._reader.tally(link, now, dimension, bots=bots)
        )
        key = _key(link, (dimension, bots), over, versions)

        async def read() -> tuple[Counts, Mapping[str, int]]:
            return await self._reader.tally(link, over, dimension, bots=bots)

        before, top = await self._top_with(more, most, key, read)
        return Counts(before.clicks + counts.clicks, before.bot_clicks + counts.bot_clicks), top

    async def _top_with(
        self,
        more: Mapping[str, int],
        most: int,
        key: Hashable | None,
        read: Callable[[], Awaitable[tuple[Counts, Mapping[str, int]]]],
    ) -> tuple[Counts, Top]:
        """The clicks of what is over, and its most frequent values with some more clicks."""
        if key is None:
            before, values = await read()
            together = dict(values)
            add_counts(together, more)
            return before, Top.of(together, most)
        async with self._looks.setdefault(key, asyncio.Lock()):
            known = self._rankings.find(key)
            if known is None:
                before, values = await read()
                known = before, Ranking(values)
                self._rankings.keep(key, known, KEY_BYTES + known[1].size)
            before, ranking = known
            top = ranking.top(most, more)
            if top is None:
                ranking.learn(more, (await read())[1])
                top = ranking.top(most, more)
                assert top is not None, "whoever knows all values is sure"
            return before, top

    async def visitors(self, link: KnownLink, stretches: Sequence[Range], *, bots: bool) -> tuple[int, list[int]]:
        """How many visitors there are in all settled stretches together, one after the other, and in each."""
        over, _ = _divided(link, Range(stretches[0].start, stretches[-1].end))
        if over is None:
            each = list(map(Merged.of, await self._reader.visitors(link, stretches, bots=bots)))
            counts = [one.count for one in each]
            return max(count_together(one.stored for one in each), *counts), counts
        if self._is_first(link, "visitors"):
            each, sketch = await self._each(link, stretches, None, bots=bots)
            counts = [one.count for one in each]
            return max(sketch.estimate(), *counts), counts
        pasts = [Range(one.start, min(one.end, over.end)) for one in stretches if one.start < over.end]
        nows = [Range(max(one.start, over.end), one.end) for one in stretches if one.end > over.end]
        versions, seen = await asyncio.gather(
            self._reader.versions(link, over), self._reader.visitors(link, nows, bots=bots)
        )
        past = await self._past(link, over, pasts, versions, bots=bots)
        after = list(map(Merged.of, seen))
        counts = [*past.counts, *(one.count for one in after)]
        if len(counts) > len(stretches):  # one is partly over
            place = len(past.counts)
            counts[place - 1 : place + 1] = [_both(past.last, after[0])]
        return _both(past.everybody, *after), counts

    async def _past(
        self, link: KnownLink, over: Range, stretches: Sequence[Range], versions: Versions, *, bots: bool
    ) -> Past:
        key = _key(link, (bots, *stretches), over, versions)
        if key is None:
            return await self._put_together(link, stretches, versions, bots=bots)
        async with self._looks.setdefault(key, asyncio.Lock()):
            past = self._pasts.find(key)
            if past is None:
                past = await self._put_together(link, stretches, versions, bots=bots)
                self._pasts.keep(key, past, past.size)
            return past

    async def _put_together(
        self, link: KnownLink, stretches: Sequence[Range], versions: Versions, *, bots: bool
    ) -> Past:
        merged, sketch = await self._each(link, stretches, versions, bots=bots)
        counts = [one.count for one in merged]
        # Whoever is counted exactly in a stretch is among all, however these are estimated.
        everybody = Merged(max(sketch.estimate(), *counts), sketch.encode()) if len(merged) > 1 else merged[0].packed()
        return Past(counts, merged[-1].packed(), everybody)

    async def _each(
        self, link: KnownLink, stretches: Sequence[Range], versions: Versions | None, *, bots: bool
    ) -> tuple[list[Merged], Sketch]:
        """Stretch by stretch, and all of them in one sketch; without versions nothing is looked up or remembered."""
        keys = [None if versions is None else _key(link, bots, stretch, versions) for stretch in stretches]
        known = [None if key is None else self._visitors.find(key) for key in keys]
        missing = [stretch for stretch, one in zip(stretches, known, strict=True) if one is None]
        everybody, size = Sketch(), 0
        seen: Iterator[Seen] = iter(())
        if missing:
            each, months = await self._reader.visitors_by_months(link, missing, bots=bots)
            seen = iter(each)
            everybody = merge_sketches(months)
        merged: list[Merged] = []
        for key, remembered in zip(keys, known, strict=True):
            if remembered is None:
                some = next(seen)
                one, is_told = Merged.of(some), some.is_told
                if not is_told:
                    self._keep(key, one)
                size += sum(map(len, some.sketches)) + VISITOR_BYTES * len(some.visitors)
            else:
                one, is_told = remembered, False
                size += one.size
            if one.stored is not None and not is_told:
                everybody.merge_stored(one.stored)
            merged.append(one)
            if size > BREATH:
                size = 0
                await asyncio.sleep(0)
        return merged, everybody

    def _keep(self, key: Hashable | None, merged: Merged) -> None:
        if key is not None:
            self._visitors.keep(key, merged, merged.size)

    def _is_first(self, link: KnownLink, what: str) -> bool:
        """Whether nobody has asked this of a link lately; whoever asks next has."""
        if link.total.clicks >= ALWAYS_REMEMBERED:
            return False
        key = link.short_code, what
        is_first = self._asked.find(key) is None
        if is_first:
            self._asked.keep(key, what, 1)
        return is_first


def _divided(link: KnownLink, span: Range) -> tuple[Range | None, Range]:
    """What of a range is over, and what is not: the last row that has clicks. Of a link with few, nothing is over.

    Where that is a day or a month, it is not taken apart: values that did not fit into its hours are counted in it.
    """
    if link.clicked is None or link.total.clicks < WORTH_REMEMBERING:
        return None, span
    now = moment_of(link.folded.around(minute_of(link.clicked.end))[0])
    if now < link.hours_from:  # its hours are only counts by now
        now = start_of(now, DAY if now >= link.days_from else MONTH)
    now = min(now, span.end)
    return (Range(span.start, now), Range(now, span.end)) if span.start < now else (None, span)


def _key(link: KnownLink, what: object, span: Range, versions: Versions) -> Hashable | None:
    """By what something is remembered; None for what must not be."""
    version = versions.of(minute_of(span.start), minute_of(span.end - _MICROSECOND) + 1)
    if version is None:
        return None
    # What rows know no more depends on when they are asked, and what months know on whether they may be asked: in these
    # values are counted again that did not fit into days.
    stale = tuple(sorted(start for unit, start in link.folded.stale if unit == MONTH))
    return link.short_code, what, span, link.months_from, link.folded.months_until, stale, version


def _both(one: Merged, *others: Merged) -> int:
    all_of_them = [one, *others]
    some = [each.stored for each in all_of_them if each.stored is not None]
    counts = [each.count for each in all_of_them]
    return max(_count_stored_together(*some), *counts) if len(some) > 1 else sum(counts)


@lru_cache(maxsize=128)
def _count_stored_together(*stored: bytes) -> int:
    """Remembered, because whoever looks at a link looks again, and until it is clicked there is nothing new to count.

    Two of them take 65 KB at most, and so all of these some 8 MB.
    """
    return merge_sketches(stored).estimate()
