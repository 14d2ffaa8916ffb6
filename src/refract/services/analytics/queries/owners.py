"""What only the owner of a link may read of its numbers: series, breakdowns and visitors over any range."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from operator import sub

from refract.kernel.errors import Forbidden
from refract.services.analytics.domain.calendars import Period, Range
from refract.services.analytics.queries.links import KnownLink
from refract.services.analytics.queries.merging import Merging
from refract.services.analytics.queries.moments import Moments
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.views import (
    BreakdownView,
    Point,
    SeriesView,
    Share,
    VisitorsPoint,
    VisitorsView,
)

log = logging.getLogger(__name__)


async def find_own(reader: Reader, user_id: str, short_code: str) -> KnownLink:
    """A link of this user; NotFound, or Forbidden where it is another's."""
    link = await reader.find(short_code)
    try:
        link.visibility.check_owner(user_id)
    except Forbidden:
        log.warning("another's statistics asked for", extra={"user_id": user_id, "short_code": short_code})
        raise
    return link


class OwnerQueries:
    """The numbers of one link. Bots are left out unless they are asked for."""

    def __init__(self, reader: Reader, merging: Merging | None = None) -> None:
        self._reader = reader
        self._merging = merging or Merging(reader)

    async def series(self, user_id: str, short_code: str, request: RangeRequest, *, bots: bool) -> SeriesView:
        """Every period of the range, with its clicks."""
        division = request.divided()
        link = await find_own(self._reader, user_id, short_code)
        span = link.in_minutes(request.span)
        if span != request.span:
            division = replace(request, span=span).divided()
        every, of_bots = await self._reader.counts(link, Moments.of_division(division))
        clicks = every if bots else list(map(sub, every, of_bots))
        return SeriesView(
            short_code=short_code,
            interval=request.interval,
            tz=request.zone.key,
            from_=span.start,
            to=span.end,
            clicks=sum(clicks),
            bot_clicks=sum(of_bots),
            points=list(map(Point, division.names, clicks, of_bots)),
        )

    async def breakdown(
        self, user_id: str, short_code: str, request: RangeRequest, by: str, *, limit: int, bots: bool
    ) -> BreakdownView:
        """The values of a dimension in the range, the most frequent first."""
        link = await find_own(self._reader, user_id, short_code)
        span = link.settled(request.span)
        total, top = await self._merging.top(link, span, by, limit, bots=bots)
        clicks = total.shown(bots=bots)
        return BreakdownView(
            short_code=short_code,
            by=by,
            from_=span.start,
            to=span.end,
            clicks=clicks,
            values=[Share(value, count) for value, count in top.values],
            other=top.known - sum(count for _, count in top.values),
            unknown=clicks - top.known,
        )

    async def visitors(self, user_id: str, short_code: str, request: RangeRequest, *, bots: bool) -> VisitorsView:
        """The visitors of the range, each once, and those of its periods."""
        periods = request.divided().periods()
        link = await find_own(self._reader, user_id, short_code)
        settled = _settled(link, periods)
        stretches = [Range(one.start, one.end) for one in settled]
        everybody, each = await self._merging.visitors(link, stretches, bots=bots) if stretches else (0, [])
        span = Range(stretches[0].start, stretches[-1].end) if stretches else link.settled(request.span)
        return VisitorsView(
            short_code=short_code,
            interval=request.interval,
            tz=request.zone.key,
            from_=span.start,
            to=span.end,
            visitors=everybody,
            points=[VisitorsPoint(period.name, visitors) for period, visitors in zip(settled, each, strict=True)],
        )


def _settled(link: KnownLink, periods: Sequence[Period]) -> list[Period]:
    """The periods as rows know them, without those of which these know nothing any more.

    Of periods that became one, the first gives its name.
    """
    settled: list[Period] = []
    for period in periods:
        span = link.settled(Range(period.start, period.end))
        if span.start == span.end:
            continue
        if settled and span.start < settled[-1].end:
            if span.end <= settled[-1].end:
                continue
            span = Range(settled[-1].end, span.end)
        settled.append(Period(period.name, span.start, span.end))
    return settled
