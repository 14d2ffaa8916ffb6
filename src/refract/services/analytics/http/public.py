"""The routes that are public while a link is open (M4)."""

from typing import Any

from litestar import HttpMethod, route
from litestar.types import ASGIApp

from refract.kernel.errors import Invalid
from refract.runtime.describing import answers
from refract.runtime.tokens import Claims
from refract.runtime.web import json_answer
from refract.services.analytics.http import parameters
from refract.services.analytics.http.describing import STATS, TAGS, TIMELINE, errors
from refract.services.analytics.http.parameters import Code
from refract.services.analytics.queries.stats import StatsQueries, TimelineInterval
from refract.services.analytics.queries.views import StatsView, TimelineView

READING = (HttpMethod.GET, HttpMethod.HEAD)


def public_routes(queries: StatsQueries) -> list[Any]:
    """GET /stats/{code} and GET /stats/{code}/timeline."""

    @route(
        "/stats/{code:str}",
        http_method=READING,
        summary="The numbers of a link",
        description="Every click counts, bots too. Open to all unless the link or the instance is closed; the owner "
        "always reads them, after a deletion too. A code of which nothing is known has no clicks.",
        tags=TAGS,
        responses={200: answers(StatsView, "The numbers.", STATS), **errors(404, 410)},
    )
    async def show_stats(reader: parameters.Reader, code: Code) -> ASGIApp:
        return json_answer(await queries.stats(_user(reader), code))

    @route(
        "/stats/{code:str}/timeline",
        http_method=READING,
        summary="The timeline of a link",
        description="The days or hours (in UTC) of its whole life that have clicks, the oldest first.",
        tags=TAGS,
        responses={200: answers(TimelineView, "The timeline.", TIMELINE), **errors(404, 410)},
    )
    async def show_timeline(
        reader: parameters.Reader, code: Code, interval: parameters.TimelineInterval = None
    ) -> ASGIApp:
        return json_answer(await queries.timeline(_user(reader), code, _interval(interval or "day")))

    return [show_stats, show_timeline]


def _user(reader: Claims | None) -> str | None:
    return None if reader is None else reader.subject


def _interval(text: str) -> TimelineInterval:
    match text:
        case "day":
            return "day"
        case "hour":
            return "hour"
        case _:
            raise Invalid("interval must be 'day' or 'hour'")
