"""All links of a user together."""

import asyncio
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.analytics.domain.parts import PARTS, unpack_parts
from refract.services.analytics.domain.periods import (
    CLICK,
    DAY,
    HOUR,
    end_of,
    first_kept,
    minute_of,
    nearest_minute,
    start_of,
)
from refract.services.analytics.queries.views import SummaryView, TopLink

TOP_LINKS = 10
_MICROSECOND = timedelta(microseconds=1)

SUM_LINKS = Statement(
    "sum_links",
    "Adds up the totals of a user's links; of deleted ones too, though they are not counted among the links.",
    "SELECT count(CASE WHEN links.status <> 'deleted' THEN 1 END) AS links, "
    "coalesce(sum(totals.clicks), 0) AS clicks, coalesce(sum(totals.bot_clicks), 0) AS bot_clicks "
    "FROM links LEFT JOIN totals ON totals.short_code = links.short_code WHERE links.user_id = :user_id",
)

TOP = Statement(
    "top_links",
    "Reads the most clicked links of a user.",
    "SELECT links.short_code, links.title, totals.clicks, totals.bot_clicks, totals.last_clicked_at "
    "FROM links JOIN totals ON totals.short_code = links.short_code "
    "WHERE links.user_id = :user_id AND links.status <> 'deleted' "
    "ORDER BY totals.clicks DESC, links.short_code LIMIT :limit",
)

READ_KEPT = Statement(
    "read_kept",
    "Reads how far days are folded, and how far back clicks are kept.",
    "SELECT span, until, expired FROM folding WHERE span IN (0, 2)",
)

READ_MINUTES = Statement(
    "read_minutes",
    "Reads the minutes of an hour in which a user's links were clicked.",
    "SELECT rollups.parts FROM links JOIN rollups ON rollups.short_code = links.short_code "
    "WHERE links.user_id = :user_id AND rollups.span = 1 AND rollups.starts_at = :hour",
)


def _count_recent(day: str) -> str:
    """In the order of time: the clicks of the first hour, which is not a whole one; the hours up to the first whole
    day; whole days, or the hours of those that have to be folded again; the hours of days that are not folded yet."""
    rows = "SELECT rollups.clicks FROM links JOIN rollups ON rollups.short_code = links.short_code"
    mine = "links.user_id = :user_id"
    return f"""
SELECT sum(clicks) AS clicks FROM (
    SELECT count(*) AS clicks FROM links JOIN clicks ON clicks.short_code = links.short_code
    WHERE {mine} AND clicks.clicked_at >= :since AND clicks.clicked_at < :first_hour
    UNION ALL {rows}
    WHERE {mine} AND rollups.span = 1 AND rollups.starts_at >= :first_hour AND rollups.starts_at < :first_day
    UNION ALL {rows}
    WHERE {mine} AND rollups.span = 2 AND rollups.starts_at >= :first_day AND rollups.starts_at < :last_day
    AND NOT EXISTS (SELECT 1 FROM stale WHERE stale.short_code = rollups.short_code
                    AND stale.span = 2 AND stale.starts_at = rollups.starts_at)
    UNION ALL {rows} JOIN (
        SELECT DISTINCT short_code, starts_at FROM stale
        WHERE span = 2 AND starts_at >= :first_day AND starts_at < :last_day
    ) AS marked ON marked.short_code = links.short_code
    WHERE {mine} AND rollups.span = 1
    AND rollups.starts_at >= marked.starts_at AND rollups.starts_at < marked.starts_at + {day}
    UNION ALL {rows}
    WHERE {mine} AND rollups.span = 1 AND rollups.starts_at >= :last_day
) AS recent"""  # noqa: S608  # names, not values


COUNT_RECENT = Statement(
    "count_recent",
    "Counts the clicks of a user's links since a moment.",
    _count_recent("interval '1 day'"),
    sqlite=_count_recent("86400000000"),
)


class SummaryQueries:
    """What a user sees first: how all links do."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def summary(self, user_id: str) -> SummaryView:
        """All links of a user; of somebody who has none everything is 0."""
        now = self._clock.now()
        kept = {row["span"]: row for row in await self._database.fetch(READ_KEPT)}
        until, clicks_from = kept[DAY]["until"], first_kept(kept[CLICK]["expired"])
        summed, top, last_day, last_week = await asyncio.gather(
            self._database.fetch_one(SUM_LINKS, user_id=user_id),
            self._database.fetch(TOP, user_id=user_id, limit=TOP_LINKS),
            self._recent(user_id, now - timedelta(days=1), until, clicks_from),
            self._recent(user_id, now - timedelta(days=7), until, clicks_from),
        )
        assert summed is not None, "a sum is always a row"
        return SummaryView(
            links=summed["links"],
            total_clicks=int(summed["clicks"]),
            bot_clicks=int(summed["bot_clicks"]),
            clicks_last_24h=last_day,
            clicks_last_7d=last_week,
            top_links=[
                TopLink(
                    short_code=row["short_code"],
                    title=row["title"],
                    total_clicks=row["clicks"],
                    bot_clicks=row["bot_clicks"],
                    last_clicked_at=row["last_clicked_at"],
                )
                for row in top
            ],
        )

    async def _recent(self, user_id: str, since: datetime, until: datetime, clicks_from: datetime) -> int:
        first_hour = end_of(start_of(since - _MICROSECOND, HOUR), HOUR)
        first_day = end_of(start_of(since - _MICROSECOND, DAY), DAY)
        first_day = max(first_hour, min(first_day, until))
        row = await self._database.fetch_one(
            COUNT_RECENT,
            user_id=user_id,
            # Where some of the clicks of this hour are gone, they are not counted one by one.
            since=since if since >= clicks_from else first_hour,
            first_hour=first_hour,
            first_day=first_day,
            last_day=max(first_day, until),
        )
        assert row is not None, "a sum is always a row"
        return int(row["clicks"]) + (0 if since >= clicks_from else await self._by_minutes(user_id, since, first_hour))

    async def _by_minutes(self, user_id: str, since: datetime, first_hour: datetime) -> int:
        """What of the first hour its minutes know, where its clicks are gone."""
        rows = await self._database.fetch(READ_MINUTES, user_id=user_id, hour=first_hour - timedelta(hours=1))
        first = minute_of(nearest_minute(since)) - minute_of(first_hour) + PARTS[HOUR]
        return sum(sum(unpack_parts(row["parts"], HOUR)[0][first:]) for row in rows)
