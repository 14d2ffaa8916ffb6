"""The routes that are the owner's alone: numbers over any range."""

from typing import Any

from litestar import HttpMethod, route
from litestar.types import ASGIApp

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid
from refract.runtime.describing import answers
from refract.runtime.paging import read_limit
from refract.runtime.web import json_answer
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.http import parameters
from refract.services.analytics.http.describing import BREAKDOWN, SERIES, SUMMARY, TAGS, VISITORS, errors
from refract.services.analytics.http.parameters import Caller, Code
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest, read_flag
from refract.services.analytics.queries.summary import SummaryQueries
from refract.services.analytics.queries.views import BreakdownView, SeriesView, SummaryView, VisitorsView

READING = (HttpMethod.GET, HttpMethod.HEAD)
VALUES = 20
MOST_VALUES = 1_000


def owner_routes(queries: OwnerQueries, clock: Clock) -> list[Any]:
    """GET /stats/{code}/series, /breakdown and /visitors."""

    @route(
        "/stats/{code:str}/series",
        http_method=READING,
        summary="Clicks over time",
        description="Every period of a range, also those without a click, at most 1,000. A period that the range cuts "
        "counts as far as it is in it.",
        tags=TAGS,
        responses={200: answers(SeriesView, "The series.", SERIES), **errors(404)},
    )
    async def show_series(
        caller: Caller,
        code: Code,
        interval: parameters.Length = None,
        from_: parameters.From = None,
        to: parameters.To = None,
        tz: parameters.Zone = None,
        bots: parameters.Bots = None,
    ) -> ASGIApp:
        request = RangeRequest.read(clock.now(), start=from_ or "", end=to or "", tz=tz or "", interval=interval or "")
        with_bots = read_flag("bots", bots or "")
        return json_answer(await queries.series(caller.subject, code, request, bots=with_bots))

    @route(
        "/stats/{code:str}/breakdown",
        http_method=READING,
        summary="Clicks by country, browser, campaign, …",
        description="The most frequent values of a dimension. A range that reaches far back is moved to whole days or "
        "months (of UTC): `from` and `to` of the answer say what was counted.",
        tags=TAGS,
        responses={200: answers(BreakdownView, "The values.", BREAKDOWN), **errors(404)},
    )
    async def show_breakdown(
        caller: Caller,
        code: Code,
        by: parameters.By = None,
        from_: parameters.From = None,
        to: parameters.To = None,
        tz: parameters.Zone = None,
        limit: parameters.MostValues = None,
        bots: parameters.Bots = None,
    ) -> ASGIApp:
        if by not in DIMENSIONS:
            raise Invalid(f"by must be one of {', '.join(DIMENSIONS)}")
        request = RangeRequest.read(clock.now(), start=from_ or "", end=to or "", tz=tz or "")
        most = read_limit(limit or "", VALUES, MOST_VALUES)
        with_bots = read_flag("bots", bots or "")
        return json_answer(await queries.breakdown(caller.subject, code, request, by, limit=most, bots=with_bots))

    @route(
        "/stats/{code:str}/visitors",
        http_method=READING,
        summary="Unique visitors",
        description="How many visitors a range had, and each of its periods; exact for a few thousand, within 2 % "
        "above. Periods far back are moved to whole days or months (of UTC).",
        tags=TAGS,
        responses={200: answers(VisitorsView, "The visitors.", VISITORS), **errors(404)},
    )
    async def show_visitors(
        caller: Caller,
        code: Code,
        interval: parameters.Length = None,
        from_: parameters.From = None,
        to: parameters.To = None,
        tz: parameters.Zone = None,
        bots: parameters.Bots = None,
    ) -> ASGIApp:
        request = RangeRequest.read(clock.now(), start=from_ or "", end=to or "", tz=tz or "", interval=interval or "")
        with_bots = read_flag("bots", bots or "")
        return json_answer(await queries.visitors(caller.subject, code, request, bots=with_bots))

    return [show_series, show_breakdown, show_visitors]


def summary_routes(queries: SummaryQueries) -> list[Any]:
    """GET /stats/summary."""

    @route(
        "/stats/summary",
        http_method=READING,
        summary="All one's links together",
        description="The clicks of all links of the caller, deleted ones too, and the ten most clicked.",
        tags=TAGS,
        responses={200: answers(SummaryView, "The summary.", SUMMARY), **errors()},
    )
    async def show_summary(caller: Caller) -> ASGIApp:
        return json_answer(await queries.summary(caller.subject))

    return [show_summary]
