"""The queues of notifications: what owners of links are told about, and the mails that other services ask for."""

from refract.kernel.events import LINK_EXCHANGE, PLATFORM_EXCHANGE
from refract.runtime.messages import Binding, Queue
from refract.services.analytics.api import MilestoneReached
from refract.services.links.api import UrlCreated, UrlDeleted

EVENTS = Queue(
    "notifications.events",
    tuple(Binding(LINK_EXCHANGE, event.routing_key()) for event in (UrlCreated, UrlDeleted, MilestoneReached)),
)

# The name that the specification has for it (002): the mail server's old queue, which had the legacy exchange, lacks
# the ending. Declared before anybody reads it, so that no mail is lost.
MAILS = Queue("smtp_send_email_v2", (Binding(PLATFORM_EXCHANGE, "email.#"),))

QUEUES = (EVENTS, MAILS)
