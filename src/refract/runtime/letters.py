"""Letters: what a reader finds in a delivery, and what of an array is left over when the others are handled."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import Event, EventDecoder, array_of, parts_of
from refract.runtime.messages import Delivery


@dataclass(frozen=True, slots=True)
class Letter:
    """A delivery and the events in it, or what is wrong with it."""

    delivery: Delivery
    events: list[Event]
    unreadable: str = ""
    rest: "Letter | None" = None
    """What came in one array with the events and is none: to be buried by itself, once they are handled."""

    @property
    def correlation_id(self) -> str:
        """Whose story it belongs to: that of its event, or of the message where that has another number of them."""
        return (self.events[0] if len(self.events) == 1 else self.delivery.message).correlation_id


def open_letter(delivery: Delivery, decoder: EventDecoder) -> Letter:
    """Read a delivery. One bad event does not spoil those that it was packed with."""
    message = delivery.message
    try:
        events, unreadable = decoder.sort_out(message.routing_key, message.body)
    except PoisonMessage as error:
        return Letter(delivery, [], unreadable=str(error))
    if not unreadable:
        return Letter(delivery, events)
    reason = f"{len(unreadable)} of {len(events) + len(unreadable)} events: {unreadable[0].reason}"
    return Letter(delivery, events, rest=_rest(delivery, [part for part, _ in unreadable], reason))


def left_over(letter: Letter, decoder: EventDecoder, unhandled: Collection[str], reason: str) -> Letter | None:
    """What of an array is to be buried: the events with these identities, and what is no event; None if nothing is."""
    if not unhandled:
        return letter.rest
    message = letter.delivery.message
    parts = parts_of(message.body)
    left = [part for part in parts if not _is_handled(decoder, message.routing_key, part, unhandled)]
    if len(left) == len(parts):  # or it was never divided
        return replace(letter, unreadable=reason, rest=None)
    return _rest(letter.delivery, left, f"{len(left)} of {len(parts)} events: {reason}")


def _is_handled(decoder: EventDecoder, routing_key: str, part: bytes, unhandled: Collection[str]) -> bool:
    try:
        return all(event.identity not in unhandled for event in decoder.decode_part(routing_key, part))
    except PoisonMessage:
        return False


def _rest(delivery: Delivery, parts: Sequence[bytes], reason: str) -> Letter:
    # With the others in it, it would count them twice if it were replayed when their marks are long gone.
    message = replace(delivery.message, body=array_of(parts))
    return Letter(replace(delivery, message=message), [], unreadable=reason)


def in_pieces(letters: Sequence[Letter], most: int) -> Iterator[list[Letter]]:
    """Letters in their order, as many together as have that many events, and at least one."""
    piece: list[Letter] = []
    events = 0
    for letter in letters:
        if piece and events + len(letter.events) > most:
            yield piece
            piece, events = [], 0
        piece.append(letter)
        events += len(letter.events)
    if piece:
        yield piece
