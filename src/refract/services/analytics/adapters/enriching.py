"""Enrichment: what a click's own words say about it, found out here and never in the redirect."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from prometheus_client import Counter

from refract.runtime.metrics import Metrics
from refract.services.analytics.adapters.agents import Agent, Agents
from refract.services.analytics.adapters.geography import Geography, Place
from refract.services.analytics.adapters.remembering import Remembered
from refract.services.analytics.domain.addresses import network_of
from refract.services.analytics.domain.campaigns import campaign_of
from refract.services.analytics.domain.clicks import (
    EARLIEST,
    FUTURE_SKEW,
    LONG_TEXT_LENGTH,
    TEXT_LENGTH,
    Click,
    bounded,
    counted_at,
    visitor_of,
)
from refract.services.analytics.domain.languages import language_of
from refract.services.analytics.domain.referrers import host_of
from refract.services.links.api import UrlClicked

logger = logging.getLogger("refract.enriching")


class Enricher:
    """Makes clicks of events. What a batch repeats is found out once; what no list knows stays unknown."""

    def __init__(self, geography: Geography, metrics: Metrics) -> None:
        self._geography = geography
        self._lists: Agents | None = None
        self._loading = asyncio.Lock()
        self._agents = Remembered(self._agent, capacity=8_192, longest=1_024)
        self._referers = Remembered(_referer, capacity=8_192, longest=1_024)
        self._places = Remembered(self._place, capacity=32_768, longest=64)
        self._campaigns = Remembered(campaign_of, capacity=4_096, longest=1_024)
        self._languages = Remembered(language_of, capacity=2_048, longest=256)
        self._ahead = Counter(
            "clicks_ahead_of_time",
            "Clicks whose own time was more than a minute ahead, counted when they were read",
            registry=metrics.registry,
        )

    async def prepare(self) -> None:
        """Read the lists, without keeping others waiting for it; `enrich` does so itself where nobody asked before."""
        async with self._loading:
            if self._lists is None:
                self._lists = await asyncio.to_thread(Agents)

    def enrich(self, events: Sequence[UrlClicked], now: datetime) -> list[Click]:
        """The events as clicks, in their order and each with its own time, unless that is yet to come."""
        ahead: list[UrlClicked] = []
        clicks = self.enrich_some(events, now, ahead)
        self.mention(ahead, now)
        return clicks

    def enrich_some(self, events: Sequence[UrlClicked], now: datetime, ahead: list[UrlClicked]) -> list[Click]:
        """The same of a part of a batch; those whose time is yet to come are added to `ahead`, to be mentioned."""
        if self._geography.renew():
            self._places.clear()
        latest = now + FUTURE_SKEW
        agents, referers, places = self._agents, self._referers, self._places
        campaigns, languages = self._campaigns, self._languages
        clicks: list[Click] = []
        for event in events:
            occurred_at = event.occurred_at
            if occurred_at.tzinfo is not UTC or not EARLIEST <= occurred_at <= latest:
                occurred_at, is_ahead = counted_at(occurred_at, now)
                if is_ahead:
                    ahead.append(event)
            names = event.event_id or event.identity, event.short_code, event.user_id, event.user_email
            together = "".join((*names, event.correlation_id))
            if len(together) <= TEXT_LENGTH and together.isprintable():
                event_id, short_code, user_id, user_email = names
                correlation_id = event.correlation_id
            else:
                event_id, short_code, user_id, user_email = map(bounded, names)
                correlation_id = bounded(event.correlation_id)
            user_agent, (browser, system, device, bot) = agents[event.user_agent]
            referer, referrer = referers[event.referer]
            network, (country, region, city, latitude, longitude) = places[event.ip_anonymized]
            source, medium, campaign, term, content = campaigns[event.query]
            # By their places, in the order of a click: to name them would take as long as to find them out.
            click = Click(
                event_id, short_code, user_id, user_email, occurred_at, visitor_of(event.ip_hash), network,
                user_agent, referer, referrer, country, region, city, latitude, longitude, browser, system, device, bot,
                languages[event.accept_language], source, medium, campaign, term, content, correlation_id,
            )  # fmt: skip
            clicks.append(click)
        return clicks

    def mention(self, ahead: Sequence[UrlClicked], now: datetime) -> None:
        """Counted one by one, said once a batch: a wrong clock says the same of every click."""
        if not ahead:
            return
        self._ahead.inc(len(ahead))
        first = ahead[0]
        logger.warning(
            "clicks ahead of their time are counted now",
            extra={
                "clicks": len(ahead),
                "ahead_seconds": round((first.occurred_at - now).total_seconds()),
                "short_code": bounded(first.short_code),
                "correlation_id": bounded(first.correlation_id),
            },
        )

    def _agent(self, user_agent: str) -> tuple[str, Agent]:
        if self._lists is None:
            self._lists = Agents()
        text = bounded(user_agent, LONG_TEXT_LENGTH)
        return text, self._lists.agent_of(text)

    def _place(self, address: str) -> tuple[str, Place]:
        network = network_of(address)
        return network, self._geography.place_of(network)


def _referer(referer: str) -> tuple[str, str]:
    text = bounded(referer, LONG_TEXT_LENGTH)
    return text, bounded(host_of(text))
