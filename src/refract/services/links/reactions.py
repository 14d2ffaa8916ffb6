"""What links hears: changes as they come back from the bus, which drop copies that outlived them; totals; farewells."""

from collections.abc import Callable, Collection, Mapping, Sequence

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import LINK_EXCHANGE, PLATFORM_EXCHANGE, Event, EventDecoder
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.ports import Cache, EventBus, Transaction
from refract.runtime.service import Reaction
from refract.services.analytics.api import StatsTotals
from refract.services.identity.api import UserDeleted
from refract.services.links.api import UrlDeleted, UrlUpdated
from refract.services.links.commands.leaving import Leaving
from refract.services.links.commands.totalling import keep_totals

INVALIDATIONS = Queue(
    "links.invalidations",
    tuple(Binding(LINK_EXCHANGE, event.routing_key()) for event in (UrlUpdated, UrlDeleted)),
)

# One message at a time: together they would be one long transaction, and clicks would wait for it.
TOTALS = Queue("links.totals", (Binding(LINK_EXCHANGE, StatsTotals.routing_key()),), prefetch=1)

USERS = Queue("links.users", (Binding(PLATFORM_EXCHANGE, UserDeleted.routing_key()),))

QUEUES = (INVALIDATIONS, TOTALS, USERS)

_decoder = EventDecoder(UrlUpdated, UrlDeleted)


def invalidations(cache: Cache) -> Reaction:
    """Drops the copy of every link that was changed or deleted, and goes on trying until the cache has heard it."""

    async def drop(_tx: Transaction, events: Sequence[Event]) -> None:
        await cache.drop(_orders(events))
        # A drop fails nobody; whether it was heard is seen by whether the cache answers. If not, these come again.
        await cache.ping()

    return Reaction(INVALIDATIONS, _decoder, drop)


def totals() -> Reaction:
    """Keeps how often links were clicked. No copy is dropped for it: none has a total in it."""
    return Reaction(TOTALS, EventDecoder(StatsTotals), keep_totals)


def departures(leaving: Leaving) -> Reaction:
    """Notes whose accounts are deleted; a task of its own clears up after them."""
    return Reaction(USERS, EventDecoder(UserDeleted), leaving.note)


async def hear_changes(
    bus: EventBus,
    changed: Callable[[Mapping[str, int]], None],
    gap: Callable[[], None],
    *,
    bindings: Collection[Binding] = INVALIDATIONS.bindings,
) -> None:
    """Tell this process of every change, by cache key and order: the second road of a drop, while the cache is away."""

    def hear(message: Message) -> None:
        try:
            events = _decoder.decode(message.routing_key, message.body)
        except PoisonMessage:
            gap()  # something changed, in a form that we do not know
        else:
            changed(_orders(events))

    await bus.listen(bindings, hear, gap)


def _orders(events: Sequence[Event]) -> dict[str, int]:
    """The cache keys of the links that events are about, each with the highest order."""
    orders: dict[str, int] = {}
    for event in events:
        if isinstance(event, UrlUpdated | UrlDeleted):
            key = f"url:{event.short_code}"
            orders[key] = max(event.order, orders.get(key, 0))
    return orders
