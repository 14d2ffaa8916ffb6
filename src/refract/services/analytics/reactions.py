"""The queues of analytics: every click of every link, the life of every link, and the end of accounts."""

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import LINK_EXCHANGE, PLATFORM_EXCHANGE, Event, EventDecoder
from refract.runtime.messages import Binding, Queue
from refract.runtime.service import Reaction
from refract.services.analytics.commands.following import follow
from refract.services.analytics.commands.ingesting import Ingesting
from refract.services.analytics.domain.clicks import TEXT_LENGTH
from refract.services.identity.api import UserDeleted
from refract.services.links.api import UrlClicked, UrlCreated, UrlDeleted, UrlUpdated

CLICKS = Queue("analytics.clicks", (Binding(LINK_EXCHANGE, UrlClicked.routing_key()),))

LINKS = Queue(
    "analytics.links",
    (
        *(Binding(LINK_EXCHANGE, event.routing_key()) for event in (UrlCreated, UrlUpdated, UrlDeleted)),
        Binding(PLATFORM_EXCHANGE, UserDeleted.routing_key()),
    ),
)

QUEUES = (CLICKS, LINKS)


class ClickDecoder(EventDecoder):
    """Reads clicks, single or in an array; one that names no link is poison."""

    def __init__(self) -> None:
        super().__init__(UrlClicked)

    def decode(self, routing_key: str, body: bytes) -> list[Event]:
        """The clicks in a body, at least one; raises PoisonMessage that says what is wrong."""
        events = super().decode(routing_key, body)
        for event in events:
            assert isinstance(event, UrlClicked), "the decoder knows no others"
            code = event.short_code
            if not code:
                raise PoisonMessage(f"{routing_key}: a click without a short_code")
            if len(code) > TEXT_LENGTH or not code.isprintable():
                raise PoisonMessage(f"{routing_key}: a short_code of {len(code)} characters that no link has")
        return events


def clicks(ingesting: Ingesting, readers: int) -> list[Reaction]:
    """Counts every click once. Several readers share the queue: while one waits for the database another has work."""
    return [Reaction(CLICKS, ClickDecoder(), ingesting.ingest, can_wait=True) for _ in range(readers)]


def link_changes() -> Reaction:
    """Keeps what is known of each link: whose it is, until they leave, and who may see its stats."""
    return Reaction(LINKS, EventDecoder(UrlCreated, UrlUpdated, UrlDeleted, UserDeleted), follow)
