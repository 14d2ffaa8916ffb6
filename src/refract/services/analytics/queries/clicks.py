"""The clicks of a link one by one: a page of them, or all of them as they are read."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from msgspec import UNSET

from refract.kernel.errors import Invalid
from refract.runtime.ports import Database, Row
from refract.services.analytics.domain.calendars import Range
from refract.services.analytics.domain.periods import DAY, EPOCH, microseconds_of, moment_of
from refract.services.analytics.queries.links import KnownLink
from refract.services.analytics.queries.owners import find_own
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.statements import CLICK_COLUMNS, Direction, page_of_clicks
from refract.services.analytics.queries.timeline import clicked_periods
from refract.services.analytics.queries.views import ClickPage, ClickView

ROWS_AT_ONCE = 1_000
LONGEST_WINDOW = timedelta(days=31)
"""A statement looks into no more days than that: each is a partition, which costs the planner something."""

_ONE_DAY = timedelta(days=1)
_CURSOR_LENGTH = 600
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """Behind which click a page begins."""

    clicked_at: datetime
    event_id: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """A cursor that `write` wrote; anything else is Invalid."""
        try:
            if len(text) > _CURSOR_LENGTH:
                raise ValueError("too long")
            when, _, event_id = (
                urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode().partition(":")
            )
            place = cls(EPOCH + timedelta(microseconds=int(when)), event_id)
            if place.write() != text or place.clicked_at > _LATEST:
                raise ValueError("not in our words")
        except (ValueError, OverflowError):
            raise Invalid("after is not a cursor") from None
        return place

    def write(self) -> str:
        """A text that can stand in a URL as it is."""
        return urlsafe_b64encode(f"{microseconds_of(self.clicked_at)}:{self.event_id}".encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ClicksRequest:
    """Which clicks: from when to when, all of the link's life by default, and whether bots are among them."""

    start: datetime | None = None
    end: datetime | None = None
    bots: bool = False


class ClickQueries:
    """Reads raw clicks, day by day of those days that have any."""

    def __init__(self, database: Database, reader: Reader) -> None:
        self._database = database
        self._reader = reader

    async def page(
        self, user_id: str, short_code: str, request: ClicksRequest, *, after: Place | None, limit: int
    ) -> ClickPage:
        """Clicks of the user's link, the newest first."""
        link = await find_own(self._reader, user_id, short_code)
        rows: list[Row] = []
        async for some in self._walk(link, request, "newest", after, limit + 1):
            rows += some[: limit + 1 - len(rows)]
            if len(rows) > limit:
                break
        shown = rows[:limit]
        return ClickPage(
            clicks=[_view(row) for row in shown],
            next_cursor=_place(shown[-1]).write() if len(rows) > limit else UNSET,
        )

    async def export(self, user_id: str, short_code: str, request: ClicksRequest) -> AsyncIterator[list[Row]]:
        """All clicks of the user's link in pieces, the oldest first. What comes in meanwhile may be missing.

        Nothing is held between two pieces: whoever reads slowly keeps no connection and no lock.
        """
        link = await find_own(self._reader, user_id, short_code)
        return self._walk(link, request, "oldest", None, ROWS_AT_ONCE)

    async def _walk(
        self, link: KnownLink, request: ClicksRequest, direction: Direction, after: Place | None, limit: int
    ) -> AsyncIterator[list[Row]]:
        """Clicks in the order of time, at most `limit` at once."""
        counted = await clicked_periods(self._reader, link, DAY)
        days = [
            (moment_of(minute), clicks if request.bots else clicks - bot_clicks)
            for minute, (clicks, bot_clicks) in counted.items()
        ]
        statement = page_of_clicks(direction, bots=request.bots)
        for window in _windows(days, direction, limit):
            span = _cut(window, request, after, direction)
            place = after or _beyond(span, direction)
            while span.start < span.end:
                rows = await self._database.fetch(
                    statement,
                    short_code=link.short_code,
                    first=span.start,
                    last=span.end,
                    clicked_at=place.clicked_at,
                    event_id=place.event_id,
                    limit=limit,
                )
                if rows:
                    yield rows
                    place = after = _place(rows[-1])
                if len(rows) < limit:
                    break


def _windows(days: Iterable[tuple[datetime, int]], direction: Direction, enough: int) -> Iterator[Range]:
    """Stretches of whole days with clicks, each with enough of them for a page or as long as it may be."""
    window: Range | None = None
    found = 0
    for day, clicks in sorted(days, reverse=direction == "newest"):
        if not clicks:
            continue
        wider = Range(min(day, window.start), max(day + _ONE_DAY, window.end)) if window else Range(day, day + _ONE_DAY)
        if window is not None and (found >= enough or wider.end - wider.start > LONGEST_WINDOW):
            yield window
            wider, found = Range(day, day + _ONE_DAY), 0
        window, found = wider, found + clicks
    if window is not None:
        yield window


def _cut(window: Range, request: ClicksRequest, after: Place | None, direction: Direction) -> Range:
    """What of a window is wanted and lies beyond the cursor."""
    start = window.start if request.start is None else max(window.start, request.start)
    end = window.end if request.end is None else min(window.end, request.end)
    if after is not None and direction == "newest":
        end = min(end, after.clicked_at + timedelta(microseconds=1))
    elif after is not None:
        start = max(start, after.clicked_at)
    return Range(start, end)


def _beyond(span: Range, direction: Direction) -> Place:
    """A place before the first click of a stretch."""
    return Place(span.end if direction == "newest" else span.start - timedelta(microseconds=1))


def _place(row: Row) -> Place:
    return Place(row["clicked_at"], row["event_id"])


def _view(row: Row) -> ClickView:
    fields: dict[str, Any] = {name: row[name] for name in CLICK_COLUMNS if name != "event_id"}
    return ClickView(id=row["event_id"], **fields)
