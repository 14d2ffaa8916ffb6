"""Which function builds which service, for both modes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from refract.runtime.environment import Environment
from refract.runtime.messages import Queue
from refract.runtime.ports import Cache, RateLimiter
from refract.runtime.service import Foundation, Service
from refract.services.analytics import reactions as analytics
from refract.services.analytics.service import build_analytics
from refract.services.identity.service import build_identity
from refract.services.links import reactions as links
from refract.services.links.service import build_links
from refract.services.links.settings import LinksSettings
from refract.services.notifications import reactions as notifications
from refract.services.notifications.service import build_notifications
from refract.services.projects.service import build_projects
from refract.services.sms.service import build_sms


@dataclass(frozen=True, slots=True)
class Defaults:
    """What embedded mode knows by itself, and distributed mode has to be told."""

    base_url: str | None = None
    click_salt: str | None = None
    spool: Path | None = None


_PLAIN: Mapping[str, Callable[[Foundation], Service]] = {
    "analytics": build_analytics,
    "identity": build_identity,
    "notifications": build_notifications,
    "sms": build_sms,
    "projects": build_projects,
}

NAMES = ("links", *_PLAIN)
"""Every service with a database, in the order in which embedded mode starts them."""

QUEUES: tuple[Queue, ...] = (*links.QUEUES, *analytics.QUEUES, *notifications.QUEUES)
"""Every durable queue there is, for the command line."""


def read_settings(name: str, environment: Environment, defaults: Defaults) -> LinksSettings | None:
    """The settings of a service that has its own, read before anything is connected."""
    if name != "links":
        return None
    return LinksSettings.from_environment(
        environment, base_url=defaults.base_url, click_salt=defaults.click_salt, spool=defaults.spool
    )


async def build(
    foundation: Foundation,
    name: str,
    settings: LinksSettings | None,
    cache: Cache | None,
    limiter: RateLimiter | None,
) -> Service:
    """A service by its name; only links has settings, a cache and a limiter."""
    if name != "links":
        return _PLAIN[name](foundation)
    assert settings is not None, "they were read at the start"
    assert cache is not None, "both modes have one"
    assert limiter is not None, "and one of these"
    return await build_links(foundation, settings, cache, limiter)
