"""The routes that show single clicks: a page, a file, and a stream of what comes in."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.response import Stream

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid
from refract.runtime.describing import answers
from refract.runtime.paging import read_limit
from refract.services.analytics.http import parameters
from refract.services.analytics.http.describing import CLICK, FILE, TAGS, errors
from refract.services.analytics.http.parameters import Caller, Code
from refract.services.analytics.queries.clicks import ClickQueries, ClicksRequest, Place
from refract.services.analytics.queries.exporting import Format, write_file
from refract.services.analytics.queries.live import LiveWatch, Viewer
from refract.services.analytics.queries.owners import find_own
from refract.services.analytics.queries.ranges import choice, read_flag, read_moment, read_zone
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.views import ClickPage, LiveView

READING = (HttpMethod.GET, HttpMethod.HEAD)
CLICKS = 20
MOST_CLICKS = 100

HEARTBEAT = 15.0
"""Seconds of silence after which a stream says that it is still there, so that nobody between us closes it."""
LONGEST_STREAM = timedelta(hours=1)
"""After that a browser has to come again, with a token that is still good."""

_NO_BUFFER = {"cache-control": "no-store", "x-accel-buffering": "no"}


def click_routes(queries: ClickQueries) -> list[Any]:
    """GET /stats/{code}/clicks and /stats/{code}/export."""

    @route(
        "/stats/{code:str}/clicks",
        http_method=READING,
        summary="List clicks",
        description="The clicks of a link one by one, the newest first, page by page.",
        tags=TAGS,
        responses={200: answers(ClickPage, "A page.", {"clicks": [CLICK], "next_cursor": "MTc3"}), **errors(404)},
    )
    async def list_clicks(
        caller: Caller,
        code: Code,
        after: parameters.After = None,
        limit: parameters.Limit = None,
        from_: parameters.FromOrAll = None,
        to: parameters.To = None,
        tz: parameters.Zone = None,
        bots: parameters.Bots = None,
    ) -> ClickPage:
        request = _request(from_, to, tz, bots)
        place = Place.read(after) if after else None
        return await queries.page(
            caller.subject, code, request, after=place, limit=read_limit(limit or "", CLICKS, MOST_CLICKS)
        )

    @route(
        "/stats/{code:str}/export",
        http_method=READING,
        summary="Export clicks",
        description="All clicks of a link as a file, the oldest first. A text that a spreadsheet would take for a "
        "formula has a `'` before it.",
        tags=TAGS,
        responses={200: FILE, **errors(404)},
    )
    async def export_clicks(
        request: Request[Any, Any, Any],
        caller: Caller,
        code: Code,
        form: parameters.FileFormat = None,
        from_: parameters.FromOrAll = None,
        to: parameters.To = None,
        tz: parameters.Zone = None,
        bots: parameters.Bots = None,
    ) -> Response[Any]:
        chosen = choice("format", form or Format.CSV, Format)
        pages = await queries.export(caller.subject, code, _request(from_, to, tz, bots))
        name = f'attachment; filename="clicks-{code}.{chosen}"'
        return _stream(request, write_file(pages, chosen), chosen.media_type, {"content-disposition": name})

    return [list_clicks, export_clicks]


def live_routes(reader: Reader, watch: LiveWatch, clock: Clock) -> list[Any]:
    """GET /stats/{code}/live."""

    @route(
        "/stats/{code:str}/live",
        http_method=READING,
        summary="Watch a link",
        response_description="The stream.",
        description="Server-sent events: the totals of a link at once, and within a second of every change. A stream "
        "ends after an hour, or with its token or key.",
        tags=TAGS,
        media_type="text/event-stream",
        responses=errors(404, 429),
    )
    async def watch_link(request: Request[Any, Any, Any], caller: Caller, code: Code) -> Response[Any]:
        link = await find_own(reader, caller.subject, code)
        seen = LiveView(
            short_code=code,
            total_clicks=link.total.clicks,
            bot_clicks=link.total.bot_clicks,
            last_clicked_at=None if link.clicked is None else link.clicked.end,
        )
        seconds = min(LONGEST_STREAM, caller.expires_at - clock.now()).total_seconds()
        viewer = watch.enter(caller.subject, seen)  # before the answer begins, which cannot be taken back
        events = _events(watch, viewer, clock, clock.monotonic() + seconds)
        return _stream(request, events, "text/event-stream", {})

    return [watch_link]


def _stream(
    request: Request[Any, Any, Any], pieces: AsyncIterator[bytes], media_type: str, headers: dict[str, str]
) -> Response[Any]:
    """An answer in pieces; to a HEAD none of them is made."""
    headers = {**headers, **_NO_BUFFER}
    if request.method == HttpMethod.HEAD:
        return Response(b"", media_type=media_type, headers=headers)
    return Stream(pieces, media_type=media_type, headers=headers)


async def _events(watch: LiveWatch, viewer: Viewer, clock: Clock, end: float) -> AsyncIterator[bytes]:
    try:
        yield b"retry: 1000\n\n"
        while (left := end - clock.monotonic()) > 0 and not viewer.is_over:
            view = await viewer.next(min(HEARTBEAT, left))
            yield b":\n\n" if view is None else b"event: totals\ndata: %b\n\n" % msgspec.json.encode(view)
    finally:
        watch.leave(viewer)


def _request(start: str | None, end: str | None, tz: str | None, bots: str | None) -> ClicksRequest:
    zone = read_zone(tz or "")
    request = ClicksRequest(
        start=read_moment("from", start, zone) if start else None,
        end=read_moment("to", end, zone, next_day=True) if end else None,
        bots=read_flag("bots", bots or ""),
    )
    if request.start is not None and request.end is not None and request.start >= request.end:
        raise Invalid("from must be before to")
    return request
