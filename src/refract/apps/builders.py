"""Which function builds which service, for both modes."""

from collections.abc import Callable, Mapping

from refract.runtime.messages import Queue
from refract.runtime.service import Foundation, Service
from refract.services.analytics import reactions as analytics
from refract.services.analytics.service import build_analytics
from refract.services.identity.service import build_identity
from refract.services.links.service import build_links
from refract.services.notifications import reactions as notifications
from refract.services.notifications.service import build_notifications
from refract.services.projects.service import build_projects
from refract.services.sms.service import build_sms

BUILDERS: Mapping[str, Callable[[Foundation], Service]] = {
    "links": build_links,
    "analytics": build_analytics,
    "identity": build_identity,
    "notifications": build_notifications,
    "sms": build_sms,
    "projects": build_projects,
}

QUEUES: tuple[Queue, ...] = (*analytics.QUEUES, *notifications.QUEUES)
"""Every durable queue there is, for the command line."""
