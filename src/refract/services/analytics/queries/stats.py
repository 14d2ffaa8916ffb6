"""The two public answers (M4): the numbers of a link, and its timeline."""

import asyncio
from datetime import timedelta
from typing import Literal

from refract.kernel.clock import Clock
from refract.services.analytics.domain.calendars import Range, names_of_day
from refract.services.analytics.domain.parts import PART_MINUTES
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
from refract.services.analytics.domain.tallies import OTHER, add_counts, most_frequent
from refract.services.analytics.queries.covering import DAY_MINUTES
from refract.services.analytics.queries.links import KnownLink
from refract.services.analytics.queries.merging import Merging
from refract.services.analytics.queries.moments import Moments
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.timeline import after_all, clicked_periods
from refract.services.analytics.queries.views import Point, RefererCount, StatsView, TimelineView

TOP_REFERERS = 5
DAY_AGO = timedelta(days=1)
WEEK_AGO = timedelta(days=7)

TimelineInterval = Literal["day", "hour"]

_DATE = len("2026-03-02")


class StatsQueries:
    """What everybody may read of a link, while it is open."""

    def __init__(self, reader: Reader, clock: Clock, *, stats_public: bool, merging: Merging | None = None) -> None:
        self._reader = reader
        self._merging = merging or Merging(reader)
        self._clock = clock
        self._stats_public = stats_public

    async def stats(self, user_id: str | None, short_code: str) -> StatsView:
        """The numbers of a link; of one without clicks they are 0."""
        link = await self._find(user_id, short_code)
        now = self._clock.now()
        moments = Moments.of((now - WEEK_AGO, now - DAY_AGO, after_all(link, now)))
        (every, of_bots), referers = await asyncio.gather(self._reader.counts(link, moments), self._top_referers(link))
        return StatsView(
            short_code=short_code,
            # Clicks may have come since the total was read: no week has more of them than a life.
            total_clicks=max(link.total.clicks, sum(every)),
            clicks_last_24h=every[1],
            clicks_last_7d=sum(every),
            top_referers=referers,
            bot_clicks=max(link.total.bot_clicks, sum(of_bots)),
        )

    async def timeline(self, user_id: str | None, short_code: str, interval: TimelineInterval) -> TimelineView:
        """The days or the hours of a link's life that have clicks."""
        link = await self._find(user_id, short_code)
        counted = await clicked_periods(self._reader, link, DAY if interval == "day" else HOUR)
        points = [
            Point(period=_name(minute, interval), clicks=clicks, bot_clicks=bot_clicks)
            for minute, (clicks, bot_clicks) in sorted(counted.items())
        ]
        return TimelineView(short_code=short_code, interval=interval, points=points)

    async def _find(self, user_id: str | None, short_code: str) -> KnownLink:
        link = await self._reader.find(short_code)
        link.visibility.check_reader(user_id, instance_is_public=self._stats_public)
        return link

    async def _top_referers(self, link: KnownLink) -> list[RefererCount]:
        if link.clicked is None:
            return []
        life = Range(start_of(link.clicked.start, MONTH), end_of(start_of(link.clicked.end, MONTH), MONTH))
        _, tally = await self._merging.tally(link, life, "referer")
        counts = tally.people
        add_counts(counts, tally.bots)
        counts.pop(OTHER, None)
        top = most_frequent(counts, TOP_REFERERS)
        return [RefererCount(referer=referer, count=count) for referer, count in top]


def _name(minute: int, interval: TimelineInterval) -> str:
    name = names_of_day(minute // DAY_MINUTES)[minute % DAY_MINUTES // PART_MINUTES[DAY]]
    return name if interval == "hour" else name[:_DATE]
