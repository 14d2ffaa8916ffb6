"""Arrays of events that leave together leave as one: a broker's price is for the message, whatever is in it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from refract.runtime.messages import Message
from refract.runtime.ports import Row

T = TypeVar("T")

JOINED_BYTES = 32 * 1024
"""What a message should have at most that is put together from several: a reader holds hundreds of them."""

_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def in_messages(rows: Sequence[Row]) -> Iterator[tuple[Message, Sequence[Row]]]:
    """The messages that rows of the outbox come to, in their order, each with its rows."""
    return joined(((_message(row), row) for row in rows), is_sound_array)


def joined(
    messages: Iterable[tuple[Message, T]], joins: Callable[[bytes], bool]
) -> Iterator[tuple[Message, Sequence[T]]]:
    """Messages in their order, those that follow one another and whose bodies `join` in one, each with what it is of.

    A body that is an array is some events of one type, such as clicks; two of them are one array as well. Readers know
    events by ids of their own, so that nothing depends on who shares a message.
    """
    group: list[Message] = []
    owners: list[T] = []
    size = 0
    for message, owner in messages:
        length, may_join = len(message.body), joins(message.body)
        fits = may_join and size and size + length <= JOINED_BYTES and _address(message) == _address(group[0])
        if group and not fits:
            yield _together(group), owners
            group, owners, size = [], [], 0
        group.append(message)
        owners.append(owner)
        size = size + length if may_join else 0
    if group:
        yield _together(group), owners


def is_sound_array(body: bytes) -> bool:
    """Whether it is one to its last byte, and not empty: what a disk has spoilt must not spoil its neighbours."""
    if not body.startswith(b"["):
        return False
    try:
        return bool(_elements(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _address(message: Message) -> tuple[str, str, str, bool]:
    return message.exchange, message.routing_key, message.correlation_id, message.mandatory


def _message(row: Row) -> Message:
    return Message(
        exchange=row["exchange"],
        routing_key=row["event_type"],
        # What is empty SQLite gives nobody to unpack; what no UTF-8 can say is still sent, and buried by its reader.
        body=(row["payload"] or "").encode(errors="surrogatepass"),
        message_id=row["message_id"],
        correlation_id=row["correlation_id"],
        mandatory=row["mandatory"],
    )


def _together(messages: Sequence[Message]) -> Message:
    """One that is put together has an id that tells it from its first part alone, by which attempts are counted."""
    first = messages[0]
    if len(messages) == 1:
        return first
    body = b"[%b]" % b",".join([message.body.strip()[1:-1] for message in messages])
    return replace(first, body=body, message_id=f"{first.message_id}+{len(messages) - 1}")
