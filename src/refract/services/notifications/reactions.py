"""The queue of notifications: what owners of links are told about."""

from refract.kernel.events import LINK_EXCHANGE
from refract.runtime.messages import Binding, Queue
from refract.services.analytics.api import MilestoneReached
from refract.services.links.api import UrlCreated, UrlDeleted

EVENTS = Queue(
    "notifications.events",
    tuple(Binding(LINK_EXCHANGE, event.routing_key()) for event in (UrlCreated, UrlDeleted, MilestoneReached)),
)

QUEUES = (EVENTS,)
