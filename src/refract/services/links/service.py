"""Builds the rooms of links into one service."""

from collections.abc import Mapping

from refract.runtime.client_address import ClientAddresses
from refract.runtime.handover import Handover
from refract.runtime.ports import Cache, RateLimiter
from refract.runtime.request_log import RequestLog
from refract.runtime.service import Foundation, Service, Task, compose
from refract.services.links.adapters.blocklist import Blocklist
from refract.services.links.adapters.safe_browsing import SafeBrowsing
from refract.services.links.adapters.safety import Safety
from refract.services.links.api import WIRE_NAME, UrlClicked
from refract.services.links.commands.bulk import BulkShortening
from refract.services.links.commands.leasing import WorkerLease
from refract.services.links.commands.leaving import Leaving
from refract.services.links.commands.making import LinkMaker
from refract.services.links.commands.managing import Managing
from refract.services.links.commands.merging import SearchMerging
from refract.services.links.commands.shortening import Shortening
from refract.services.links.commands.sweeping import Sweeper
from refract.services.links.domain.codes import code_source
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.http.routes import link_routes
from refract.services.links.ports import SafetyCheck
from refract.services.links.queries.links import LinkQueries
from refract.services.links.queries.views import LinkViews
from refract.services.links.reactions import QUEUES, departures, hear_changes, invalidations, totals
from refract.services.links.redirect.clicks import ClickWriter
from refract.services.links.redirect.engine import BYTES_IN_MEMORY, LINKS_IN_MEMORY, Prepared, Redirects
from refract.services.links.redirect.fast import FastRedirect
from refract.services.links.redirect.lookup import Lookup
from refract.services.links.redirect.memory import Memory
from refract.services.links.redirect.routes import REDIRECT_PATH, redirect_route
from refract.services.links.redirect.spool import Spool
from refract.services.links.redirect.visitors import Visitors
from refract.services.links.settings import LinksSettings
from refract.services.links.store import kept_secret


async def build_links(foundation: Foundation, settings: LinksSettings, cache: Cache, limiter: RateLimiter) -> Service:
    """The service on the foundation it is given."""
    database, clock = foundation.database, foundation.clock
    lease = WorkerLease(database, clock)
    await lease.acquire()
    safety = await _safety(foundation, settings)
    sweeper, leaving = Sweeper(database, cache, clock), Leaving(database, cache, clock)
    handover = _handover(foundation)
    clicks = ClickWriter(database, clock, foundation.metrics, Spool(settings.spool, settings.spool_bytes), handover)
    sample = settings.redirect_log_sample
    log = RequestLog(WIRE_NAME, sample, metrics=foundation.metrics, route=REDIRECT_PATH)
    redirects = await _redirects(foundation, settings, cache, clicks)
    addresses = ClientAddresses(foundation.trusted_proxies)

    async def settle() -> None:
        """What the hot path has not finished when the last request is answered."""
        await clicks.drain()
        await redirects.lookup.drain()
        log.flush()

    return compose(
        WIRE_NAME,
        foundation,
        routes=[*_routes(foundation, settings, cache, limiter, lease, safety), redirect_route(redirects, addresses)],
        queues=QUEUES,
        reactions=[invalidations(cache), totals(), departures(leaving)],
        tasks=[
            # Before those that save clicks, and so stopped after them.
            *([] if handover is None else [Task("handover", handover.run, handover.drain)]),
            Task("worker lease", lease.run, lease.release),
            Task("sweeper", sweeper.run, safety.close),
            Task("search merging", SearchMerging(database).run),
            Task("clicks", clicks.run, settle),
            Task("leaving", leaving.run),
        ],
        fast_path=FastRedirect(redirects, log, addresses),
        can_wait=UrlClicked.routing_key(),
        log_samples={REDIRECT_PATH: sample},
    )


def _handover(foundation: Foundation) -> Handover | None:
    if not foundation.hands_over:
        return None
    return Handover(
        WIRE_NAME,
        database=foundation.database,
        bus=foundation.bus,
        clock=foundation.clock,
        metrics=foundation.metrics,
    )


def _routes(
    foundation: Foundation,
    settings: LinksSettings,
    cache: Cache,
    limiter: RateLimiter,
    lease: WorkerLease,
    safety: Safety,
) -> list[object]:
    database, clock, metrics = foundation.database, foundation.clock, foundation.metrics
    own = OwnDomains.of(settings.base_url, settings.short_domains)
    views = LinkViews(settings.base_url, clock)
    maker = LinkMaker(
        own=own,
        normalization=settings.url_normalization,
        stats_public=settings.stats_public,
        ids=lease.next_id,
        codes=code_source(settings.code_strategy),
        clock=clock,
    )
    return link_routes(
        shortening=Shortening(
            database=database, cache=cache, maker=maker, safety=safety, metrics=metrics, render=views.render
        ),
        bulk=BulkShortening(
            database=database,
            cache=cache,
            maker=maker,
            safety=safety,
            metrics=metrics,
            base_url=settings.base_url,
            limiter=limiter,
            limit=settings.bulk_limit,
        ),
        managing=Managing(database, cache, clock, safety),
        queries=LinkQueries(database, clock, views),
        views=views,
        own=own,
        clock=clock,
        tokens=foundation.tokens,
    )


async def _safety(foundation: Foundation, settings: LinksSettings) -> Safety:
    checks: list[SafetyCheck] = []
    if settings.blocklist is not None:
        blocklist = Blocklist(settings.blocklist, foundation.clock)
        await blocklist.load()  # now, so that a wrong path ends the start and does not block nothing
        checks.append(blocklist)
    if settings.safe_browsing_key is not None:
        checks.append(SafeBrowsing(settings.safe_browsing_key, foundation.clock))
    return Safety(checks, fails_open=settings.safety_fails_open)


async def _redirects(foundation: Foundation, settings: LinksSettings, cache: Cache, clicks: ClickWriter) -> Redirects:
    salt = settings.click_salt or await kept_secret(foundation.database, "CLICK_SALT")
    memory: Memory[Prepared] = Memory(LINKS_IN_MEMORY, foundation.clock.monotonic, capacity_bytes=BYTES_IN_MEMORY)
    memory.listen(cache)
    lookup = Lookup(cache, foundation.database, foundation.clock)

    def changed(orders: Mapping[str, int]) -> None:
        memory.hear(list(orders))
        lookup.hear_orders(orders)

    def gap() -> None:
        memory.empty()
        lookup.hear_gap()

    await hear_changes(foundation.bus, changed, gap)
    return Redirects(
        lookup,
        memory,
        clicks,
        Visitors(salt),
        foundation.clock,
        settings.click_durability,
    )
