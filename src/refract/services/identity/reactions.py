"""What identity tells itself: a wish for a new password, which is answered when nobody waits for it."""

from collections.abc import Sequence

from refract.kernel.events import PLATFORM_EXCHANGE, Event, EventDecoder
from refract.runtime.messages import Binding, Queue
from refract.runtime.ports import Transaction
from refract.runtime.service import Reaction
from refract.services.identity.commands.resetting import AskingForReset
from refract.services.identity.domain.one_time import ResetAsked

RESETS = Queue("identity.resets", (Binding(PLATFORM_EXCHANGE, ResetAsked.routing_key()),))

QUEUES = (RESETS,)


def reset_requests(asking: AskingForReset) -> Reaction:
    """Sends the mail to everybody who asked for it and has an account."""

    async def answer(tx: Transaction, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ResetAsked):
                await asking.answer(tx, event)

    return Reaction(RESETS, EventDecoder(ResetAsked), answer)
