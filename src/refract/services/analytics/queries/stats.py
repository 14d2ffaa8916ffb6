"""The two public answers (M4): the numbers of a link, and its timeline."""

import asyncio
from datetime import timedelta
from heapq import nsmallest
from typing import Literal

from refract.kernel.clock import Clock
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
from refract.services.analytics.domain.tallies import OTHER, add_counts
from refract.services.analytics.queries.reading import Counts, KnownLink, Reader
from refract.services.analytics.queries.timeline import after_all, clicked_periods
from refract.services.analytics.queries.views import Point, RefererCount, StatsView, TimelineView

TOP_REFERERS = 5
DAY_AGO = timedelta(days=1)
WEEK_AGO = timedelta(days=7)

TimelineInterval = Literal["day", "hour"]

_DATE, _MINUTES = len("2026-03-02"), len("2026-03-02T14:00")


class StatsQueries:
    """What everybody may read of a link, while it is open."""

    def __init__(self, reader: Reader, clock: Clock, *, stats_public: bool) -> None:
        self._reader = reader
        self._clock = clock
        self._stats_public = stats_public

    async def stats(self, user_id: str | None, short_code: str) -> StatsView:
        """The numbers of a link; of one without clicks they are 0."""
        link = await self._find(user_id, short_code)
        now = self._clock.now()
        last_week, last_day = Range(now - WEEK_AGO, now - DAY_AGO), Range(now - DAY_AGO, after_all(link, now))
        (before, last), referers = await asyncio.gather(
            self._reader.counts(link, (last_week, last_day)), self._top_referers(link)
        )
        week = Counts(before.clicks + last.clicks, before.bot_clicks + last.bot_clicks)
        return StatsView(
            short_code=short_code,
            # Clicks may have come since the total was read: no week has more of them than a life.
            total_clicks=max(link.total.clicks, week.clicks),
            clicks_last_24h=last.clicks,
            clicks_last_7d=week.clicks,
            top_referers=referers,
            bot_clicks=max(link.total.bot_clicks, week.bot_clicks),
        )

    async def timeline(self, user_id: str | None, short_code: str, interval: TimelineInterval) -> TimelineView:
        """The days or the hours of a link's life that have clicks."""
        link = await self._find(user_id, short_code)
        counted = await clicked_periods(self._reader, link, DAY if interval == "day" else HOUR)
        length, rest = (_DATE, "") if interval == "day" else (_MINUTES, ":00Z")
        points = [
            Point(period=start.isoformat()[:length] + rest, clicks=counts.clicks, bot_clicks=counts.bot_clicks)
            for start, counts in sorted(counted.items())
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
        _, tally = await self._reader.tally(link, life, "referer")
        counts = dict(tally.people)
        add_counts(counts, tally.bots)
        counts.pop(OTHER, None)
        top = nsmallest(TOP_REFERERS, counts.items(), key=lambda item: (-item[1], item[0]))
        return [RefererCount(referer=referer, count=count) for referer, count in top]
