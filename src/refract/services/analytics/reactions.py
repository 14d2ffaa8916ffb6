"""The queue of analytics: every click of every link."""

from refract.kernel.events import LINK_EXCHANGE
from refract.runtime.messages import Binding, Queue
from refract.services.links.api import UrlClicked

CLICKS = Queue("analytics.clicks", (Binding(LINK_EXCHANGE, UrlClicked.routing_key()),))

QUEUES = (CLICKS,)
