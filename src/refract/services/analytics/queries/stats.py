"""The two public answers (M4): the numbers of a link, and its timeline."""

import asyncio
from datetime import timedelta
from typing import Literal

from refract.kernel.clock import Clock
from refract.services.analytics.domain.calendars import Range, day_name, hour_names
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, start_of
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
        moments = Moments.of((*map(link.in_minute, (now - WEEK_AGO, now - DAY_AGO)), after_all(link, now)))
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
        minutes = sorted(counted)
        names = hour_names(minutes) if interval == "hour" else [day_name(minute // DAY_MINUTES) for minute in minutes]
        points = [Point(name, *counted[minute]) for name, minute in zip(names, minutes, strict=True)]
        return TimelineView(short_code=short_code, interval=interval, points=points)

    async def _find(self, user_id: str | None, short_code: str) -> KnownLink:
        link = await self._reader.find(short_code)
        link.visibility.check_reader(user_id, instance_is_public=self._stats_public)
        return link

    async def _top_referers(self, link: KnownLink) -> list[RefererCount]:
        if link.clicked is None:
            return []
        life = Range(start_of(link.clicked.start, MONTH), end_of(start_of(link.clicked.end, MONTH), MONTH))
        _, top = await self._merging.top(link, link.settled(life), "referer", TOP_REFERERS, bots=True)
        return [RefererCount(referer=referer, count=count) for referer, count in top.values]
