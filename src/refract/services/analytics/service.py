"""Builds the rooms of analytics into one service."""

from refract.runtime.service import Foundation, Service, Task, compose
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.adapters.geography import Geography
from refract.services.analytics.api import WIRE_NAME
from refract.services.analytics.commands.announcing import Announcer
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.commands.keeping import Housekeeping
from refract.services.analytics.http.routes import analytics_routes
from refract.services.analytics.queries.live import LiveWatch
from refract.services.analytics.reactions import QUEUES, clicks, link_changes
from refract.services.analytics.settings import AnalyticsSettings


async def build_analytics(foundation: Foundation, settings: AnalyticsSettings) -> Service:
    """The service on the foundation it is given."""
    database, clock = foundation.database, foundation.clock
    watch = LiveWatch(database)
    enricher = Enricher(Geography(settings.geoip_db, clock), foundation.metrics)
    ingesting = Ingesting(enricher, clock, settings.milestones)
    house = Housekeeping(
        database,
        clock,
        clicks_kept=settings.clicks_kept,
        hours_kept=settings.hours_kept,
        days_kept=settings.days_kept,
        months_kept=settings.months_kept,
    )
    await house.prepare()
    return compose(
        WIRE_NAME,
        foundation,
        routes=analytics_routes(database, clock, foundation.tokens, watch, stats_public=settings.stats_public),
        queues=QUEUES,
        reactions=[*clicks(ingesting, settings.readers), link_changes()],
        tasks=[
            Task("totals announcer", Announcer(database, foundation.bus, clock, rush=foundation.rush).run),
            Task("housekeeping", house.run),
            Task("live watch", watch.run, watch.end),
        ],
    )
