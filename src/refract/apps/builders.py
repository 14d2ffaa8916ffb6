"""Which function builds which service, for both modes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from refract.apps.own_settings import Settings
from refract.runtime.messages import Queue
from refract.runtime.ports import Cache, RateLimiter, StateStore
from refract.runtime.service import Foundation, Service
from refract.services.analytics import reactions as analytics
from refract.services.analytics.service import build_analytics
from refract.services.analytics.settings import AnalyticsSettings
from refract.services.identity import reactions as identity
from refract.services.identity.service import build_identity
from refract.services.identity.settings import IdentitySettings
from refract.services.links import reactions as links
from refract.services.links.service import build_links
from refract.services.notifications import reactions as notifications
from refract.services.notifications.service import build_notifications
from refract.services.notifications.settings import NotificationSettings
from refract.services.projects.service import build_projects
from refract.services.sms.service import build_sms
from refract.services.sms.settings import SmsSettings

_PLAIN: Mapping[str, Callable[[Foundation], Service]] = {
    "projects": build_projects,
}

NAMES = ("links", "analytics", "identity", "notifications", "sms", "projects")
"""Every service with a database, in the order in which embedded mode starts them."""

QUEUES: tuple[Queue, ...] = (*links.QUEUES, *analytics.QUEUES, *identity.QUEUES, *notifications.QUEUES)
"""Every durable queue there is, for the command line."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What some services need beside their foundation: a cache, a limiter, the secret that signs tokens, a state store
    that may be away."""

    cache: Cache | None
    limiter: RateLimiter | None
    secret: str = field(repr=False)
    state: StateStore | None = None


async def build(foundation: Foundation, name: str, settings: Settings | None, extras: Extras) -> Service:
    """A service by its name, with the settings that were read for it."""
    if settings is None:
        return _PLAIN[name](foundation)
    if isinstance(settings, AnalyticsSettings):
        return await build_analytics(foundation, settings)
    if isinstance(settings, NotificationSettings):
        return build_notifications(foundation, settings)
    if isinstance(settings, SmsSettings):
        return build_sms(foundation, settings, extras.state)
    assert extras.limiter is not None, "the others with settings have one, in both modes"
    if isinstance(settings, IdentitySettings):
        return await build_identity(foundation, settings, extras.limiter, extras.secret)
    assert extras.cache is not None, "and links has one of these"
    return await build_links(foundation, settings, extras.cache, extras.limiter)
