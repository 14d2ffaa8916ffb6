"""Answers as clients see them."""

from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from refract.services.analytics.domain.calendars import Interval


class RefererCount(Struct, frozen=True, kw_only=True):
    """A page that a link was clicked on, as browsers name it, and how often."""

    referer: str
    count: int


class StatsView(Struct, frozen=True, kw_only=True):
    """What is public of a link: every click counts here, bots and command-line clients too."""

    short_code: str
    total_clicks: int
    clicks_last_24h: int
    clicks_last_7d: int
    top_referers: list[RefererCount]
    bot_clicks: int


class Point(Struct, frozen=True, gc=False):
    """A period that has clicks: a date, or the moment in which the hour begins. An answer may have a thousand."""

    period: str
    clicks: int
    bot_clicks: int


class TimelineView(Struct, frozen=True, kw_only=True):
    """The whole life of a link, the oldest first, without the periods in which nothing happened."""

    short_code: str
    interval: str
    points: list[Point]


class SeriesView(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Every period of a range, those without clicks too. `clicks` are those of people, unless bots were asked for."""

    short_code: str
    interval: Interval
    tz: str
    from_: datetime
    to: datetime
    clicks: int
    bot_clicks: int
    points: list[Point]


class Share(Struct, frozen=True, gc=False):
    """A value, and how many clicks have it."""

    value: str
    clicks: int


class BreakdownView(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The values of a dimension, the most frequent first.

    `other` are the clicks with any other value, `unknown` those without one: all of them together are `clicks`. Of
    months that are over their time nothing is told, and `from` is after them.
    """

    short_code: str
    by: str
    from_: datetime
    to: datetime
    clicks: int
    values: list[Share]
    other: int
    unknown: int


class VisitorsPoint(Struct, frozen=True, gc=False):
    """The visitors of a period, each once."""

    period: str
    visitors: int


class VisitorsView(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The visitors of a range, each once, which are fewer than those of its periods together.

    Of periods that are over their time nothing is told: `from` is after them, and there is no point for them.
    """

    short_code: str
    interval: Interval
    tz: str
    from_: datetime
    to: datetime
    visitors: int
    points: list[VisitorsPoint]


class ClickView(Struct, frozen=True, kw_only=True):
    """One click, as far as anybody may know; what is not known is null."""

    id: str
    clicked_at: datetime
    bot: bool
    referer: str | None
    referrer: str | None
    country: str | None
    region: str | None
    city: str | None
    latitude: float | None
    longitude: float | None
    browser: str | None
    os: str | None
    device: str | None
    language: str | None
    utm_source: str | None
    utm_medium: str | None
    utm_campaign: str | None
    utm_term: str | None
    utm_content: str | None
    user_agent: str | None


class ClickPage(Struct, frozen=True, kw_only=True):
    """Some clicks, the newest first, and where the next ones begin."""

    clicks: list[ClickView]
    next_cursor: str | UnsetType = UNSET


class TopLink(Struct, frozen=True, kw_only=True):
    """One of the most clicked links of a user."""

    short_code: str
    title: str
    total_clicks: int
    bot_clicks: int
    last_clicked_at: datetime


class SummaryView(Struct, frozen=True, kw_only=True):
    """All links of a user together; every click counts, as in the statistics of each."""

    links: int
    total_clicks: int
    bot_clicks: int
    clicks_last_24h: int
    clicks_last_7d: int
    top_links: list[TopLink]


class LiveView(Struct, frozen=True, kw_only=True):
    """What a stream tells of a link whenever it changes."""

    short_code: str
    total_clicks: int
    bot_clicks: int
    last_clicked_at: datetime | None
