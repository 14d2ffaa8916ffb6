"""Arrays of events that leave together leave as one: a broker's price is for the message, whatever is in it."""

from collections.abc import Iterator, Sequence

import msgspec

from refract.runtime.messages import Message
from refract.runtime.ports import Row

JOINED_BYTES = 32 * 1024
"""What a message should have at most that is put together from several: a reader holds hundreds of them."""

_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ADDRESS = ("exchange", "event_type", "mandatory", "correlation_id")


def in_messages(rows: Sequence[Row]) -> Iterator[tuple[Message, Sequence[Row]]]:
    """The messages that rows of the outbox come to, in their order, each with its rows.

    A body that is an array is some events of one type, such as clicks; two of them are one array as well. Readers know
    events by ids of their own, so that nothing depends on who shares a message.
    """
    group: list[Row] = []
    size = 0
    for row in rows:
        length = len(row["payload"] or "")
        joins = _is_array(row["payload"])
        if group and not (
            joins and size and size + length <= JOINED_BYTES and all(row[name] == group[0][name] for name in _ADDRESS)
        ):
            yield _message(group), group
            group, size = [], 0
        group.append(row)
        size = size + length if joins else 0
    if group:
        yield _message(group), group


def _is_array(payload: str | None) -> bool:
    """Whether it is one to its last byte, and not empty: what a disk has spoilt must not spoil its neighbours."""
    if not payload or not payload.startswith("["):
        return False
    try:
        return bool(_elements(payload))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False


def _message(rows: Sequence[Row]) -> Message:
    """One that is put together has an id that tells it from its first part alone, by which attempts are counted."""
    row = rows[0]
    # What is empty SQLite gives nobody to unpack.
    payload, message_id = row["payload"] or "", row["message_id"]
    if len(rows) > 1:
        payload = f"[{','.join(row['payload'].strip()[1:-1] for row in rows)}]"
        message_id = f"{message_id}+{len(rows) - 1}"
    return Message(
        exchange=row["exchange"],
        routing_key=row["event_type"],
        body=payload.encode(),
        message_id=message_id,
        correlation_id=row["correlation_id"],
        mandatory=row["mandatory"],
    )
