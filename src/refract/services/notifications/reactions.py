"""What notifications reads: what owners of links are told about, mails that others ask for, and who left."""

from collections.abc import Sequence

from refract.kernel.events import LINK_EXCHANGE, PLATFORM_EXCHANGE, Event, EventDecoder
from refract.runtime.messages import Binding, Queue
from refract.runtime.ports import Transaction
from refract.runtime.service import Reaction
from refract.services.identity.api import UserDeleted
from refract.services.notifications.commands.forgetting import forget_users
from refract.services.notifications.commands.mailing import Mailing, mail_decoder
from refract.services.notifications.commands.telling import Telling
from refract.services.notifications.domain.notices import TOLD, NoticeDecoder, notice_of

EVENTS = Queue(
    "notifications.events",
    tuple(Binding(LINK_EXCHANGE, event.routing_key()) for event in TOLD),
)

# The name that the specification has for it (002): the mail server's old queue, which had the legacy exchange, lacks
# the ending.
MAILS = Queue("smtp_send_email_v2", (Binding(PLATFORM_EXCHANGE, "email.#"),))

USERS = Queue("notifications.users", (Binding(PLATFORM_EXCHANGE, UserDeleted.routing_key()),))

QUEUES = (EVENTS, MAILS, USERS)


def link_events(telling: Telling) -> Reaction:
    """Tells the owners of links what happened to them."""

    async def tell(tx: Transaction, events: Sequence[Event]) -> None:
        await telling.tell(tx, [notice_of(event) for event in events if isinstance(event, TOLD)])

    return Reaction(EVENTS, NoticeDecoder(), tell)


def mail_requests(mailing: Mailing) -> Reaction:
    """Puts the mails of other services on their way."""
    return Reaction(MAILS, mail_decoder(), mailing)


def departures() -> Reaction:
    """Forgets those whose accounts are deleted."""
    return Reaction(USERS, EventDecoder(UserDeleted), forget_users)
