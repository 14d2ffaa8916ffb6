"""Sends messages, each once: for now that is a line in the log, as the specification has it."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from refract.kernel.clock import Clock
from refract.kernel.errors import PoisonMessage
from refract.runtime.correlation import accept_correlation_id, correlated
from refract.runtime.ports import Database
from refract.runtime.records import ReceivedRecord
from refract.services.sms.store.sent_messages import mark_sent

log = logging.getLogger(__name__)

MESSAGE_ID = "message-id"
CORRELATION_ID = "correlation-id"

_VALUE = re.compile(r"[0-9]{1,19}: .+", re.DOTALL)
_SOUND_ID = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as it is to be sent; `text` begins with the user's number."""

    message_id: str
    text: str
    correlation_id: str


class Delivering:
    """Sends what the topic brings."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sent: set[str] = set()
        """What was sent by a transaction that has not been kept: it comes again, and is only to be marked then."""

    async def send(self, messages: Sequence[Outgoing]) -> int:
        """Send those that were not sent before, and mark them; returns how many that were.

        They are sent before the marks are kept: a process that dies in between sends them again, and loses none.
        """
        async with self._database.transaction() as tx:
            new = await mark_sent(tx, [message.message_id for message in messages], self._clock.now())
            for message in messages:
                if message.message_id in new and message.message_id not in self._sent:
                    self._sent.add(message.message_id)
                    with correlated(message.correlation_id):
                        log.info("SMS Sent: %s", message.text)
        # Only these: of a batch that failed as a whole, the other parts are still to come.
        self._sent.difference_update(message.message_id for message in messages)
        return len(new)


def message_in(record: ReceivedRecord) -> Outgoing:
    """The message in a record; raises PoisonMessage where there is none.

    One without an id that is fit to be kept is known by its place in the topic, which is never another one's.
    """
    try:
        text = record.value.decode()
    except UnicodeDecodeError:
        raise PoisonMessage("the value is not UTF-8") from None
    if _VALUE.fullmatch(text) is None:
        raise PoisonMessage('the value is not "{userId}: {message}"')
    offered = record.headers.get(MESSAGE_ID, "")
    sound = _SOUND_ID.fullmatch(offered) is not None
    return Outgoing(
        offered if sound else f"{record.topic}/{record.partition}/{record.offset}",
        text,
        accept_correlation_id(record.headers.get(CORRELATION_ID)),
    )
