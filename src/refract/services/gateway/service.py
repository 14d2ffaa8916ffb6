"""Builds the gateway's rooms into one object."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.kernel.clock import SystemClock
from refract.runtime.client_address import ClientAddresses, Network
from refract.runtime.edge import Application
from refract.runtime.fast_path import FastPath
from refract.runtime.metrics import Metrics
from refract.runtime.readiness import Check
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.api import REDIRECT, ROUTES
from refract.services.gateway.domain.callers import Origins
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.revocations import Revocations
from refract.services.gateway.http.counting import Counting, Limits
from refract.services.gateway.http.dispatch import Checks
from refract.services.gateway.http.door import build_http
from refract.services.gateway.http.fast import FastRefusals
from refract.services.gateway.http.guarding import Breakers, Guard
from refract.services.gateway.http.identifying import Callers
from refract.services.gateway.http.keys import Keys
from refract.services.gateway.http.places import CAPACITY, Places
from refract.services.gateway.ports import Services

logger = logging.getLogger("refract.gateway")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The front door: an application to serve, a look around at the start, and what to give back at the end.

    The fast path goes to the same server. It says nothing that the application would not say.
    """

    application: Application
    services: Services
    keys: Keys
    fast_path: FastRefusals

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
        """Log what was refused last, tell identity of the last uses of keys, and close the connections."""
        self.fast_path.flush()
        await self.keys.stop()
        await self.services.close()


def build_gateway(  # noqa: PLR0913  # all that a gateway is made of
    services: Services,
    *,
    tokens: TokenVerifier,
    revocations: Revocations | None = None,
    known_keys: KnownKeys | None = None,
    breakers: Breakers | None = None,
    limits: Limits | None = None,
    capacity: int = CAPACITY,
    base_url: str = "",
    redirects: FastPath | None = None,
    ready: Mapping[str, Check] | None = None,
    metrics: Metrics | None = None,
    show_metrics: bool = True,
    trusted_proxies: Sequence[Network] = (),
    redirect_log_sample: float = 1.0,
) -> Gateway:
    """The gateway before services that are reached in one of the two ways; `ready` are its own dependencies.

    `redirects` are those of links in the same process, and `base_url` is one more address under which we are known.
    Of redirects that part is logged.
    """
    guard, counting = Guard(services, breakers), Counting(limits)
    checks = Checks(
        places=Places(capacity),
        callers=Callers(tokens, revocations, Origins(base_url)),
        keys=Keys(guard, counting, KnownKeys(SystemClock()) if known_keys is None else known_keys, tokens),
        counting=counting,
        guard=guard,
    )
    log_samples = {route.path: redirect_log_sample for route in ROUTES if route.limit is REDIRECT}
    application = build_http(
        checks,
        ready=ready or {},
        metrics=metrics,
        show_metrics=show_metrics,
        trusted_proxies=trusted_proxies,
        log_samples=log_samples,
    )
    fast_path = FastRefusals(checks, ClientAddresses(trusted_proxies), metrics, redirects, log_samples)
    return Gateway(application, services, checks.keys, fast_path)
