"""All routes of analytics."""

from typing import Any

from litestar import Router

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.tokens import TokenVerifier
from refract.runtime.web import WANTS_TOKEN
from refract.services.analytics.http.callers import reader_from
from refract.services.analytics.http.owners import owner_routes, summary_routes
from refract.services.analytics.http.public import public_routes
from refract.services.analytics.http.streams import click_routes, live_routes
from refract.services.analytics.queries.clicks import ClickQueries
from refract.services.analytics.queries.live import LiveWatch
from refract.services.analytics.queries.merging import Merging
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.stats import StatsQueries
from refract.services.analytics.queries.summary import SummaryQueries


def analytics_routes(
    database: Database, clock: Clock, tokens: TokenVerifier, watch: LiveWatch, *, stats_public: bool
) -> list[Any]:
    """The handlers on one database. Two are open to all, the others want a token."""
    reader = Reader(database)
    merging = Merging(reader)
    own = [
        *owner_routes(OwnerQueries(reader, merging), clock),
        *summary_routes(SummaryQueries(database, clock)),
        *click_routes(ClickQueries(database, reader)),
        *live_routes(reader, watch, clock),
    ]
    public = public_routes(StatsQueries(reader, clock, stats_public=stats_public, merging=merging))
    return [
        Router("/", route_handlers=public, dependencies={"reader": reader_from(tokens)}),
        Router("/", route_handlers=own, security=WANTS_TOKEN),
    ]
