"""Builds the gateway's rooms into one object."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.runtime.client_address import Network
from refract.runtime.edge import Application
from refract.runtime.metrics import Metrics
from refract.runtime.readiness import Check
from refract.services.gateway.http import Limits, build_http
from refract.services.gateway.ports import Services

logger = logging.getLogger("refract.gateway")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The front door: an application to serve, a look around at the start, and what to give back at the end."""

    application: Application
    services: Services

    async def check_services(self) -> None:
        """Say of each service whether it answers. Nobody has to wait for this: a service may come up later."""
        places = self.services.places
        answers = await asyncio.gather(*map(self.services.healthy, places))
        for place, healthy in zip(places.values(), answers, strict=True):
            if healthy:
                logger.info("downstream healthy", extra={"upstream": place})
            else:
                logger.warning("downstream health check failed on startup", extra={"upstream": place})

    async def stop(self, _seconds: float = 0.0) -> None:
        """Close the connections to the services."""
        await self.services.close()


def build_gateway(
    services: Services,
    *,
    ready: Mapping[str, Check] | None = None,
    metrics: Metrics | None = None,
    show_metrics: bool = True,
    trusted_proxies: Sequence[Network] = (),
    limits: Limits | None = None,
) -> Gateway:
    """The gateway before services that are reached in one of the two ways; `ready` are its own dependencies."""
    application = build_http(
        services,
        limits=limits,
        ready=ready or {},
        metrics=metrics,
        show_metrics=show_metrics,
        trusted_proxies=trusted_proxies,
    )
    return Gateway(application, services)
