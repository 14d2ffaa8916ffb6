"""How many clicks each part of a period has: an hour knows its minutes, a day its quarter hours, a month its days.

Quarters, because no zone shifts its hours by less: every hour of every zone is a few parts of a day's row.
"""

import struct
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH

PARTS = {HOUR: 60, DAY: 96, MONTH: 31}
"""Into how many parts a period is divided, by span."""

PART_MINUTES = {HOUR: 1, DAY: 15, MONTH: 24 * 60}

Pair = tuple[int, int]
"""All clicks, and those of bots."""

NO_CLICKS: Pair = (0, 0)

_WIDTHS = (("B", 1), ("H", 2), ("I", 4))
"""A number takes one byte, two or four, whatever the largest of its row needs."""

_SPARSE, _PEOPLE, _BOTH = 0, 1, 2
"""Either the parts that have any clicks, each with its number; or all of them, those of bots only if there are some."""

_KINDS = {
    bytes((1 + form * len(_WIDTHS) + width,)): (form, width) for form in range(3) for width in range(len(_WIDTHS))
}
_HEADS = {kind: head for head, kind in _KINDS.items()}
_ENTRIES = tuple(struct.Struct(f"<B{letter}{letter}") for letter, _ in _WIDTHS)
_FULL = 255
"""What a number of one byte holds at most."""


def pack_parts(clicks: Sequence[int], bot_clicks: Sequence[int]) -> bytes | None:
    """Counts of all clicks and of those of bots, part by part, in as few bytes as they need; None for no clicks."""
    pairs = zip(clicks, bot_clicks, strict=True)
    return pack_entries({part: pair for part, pair in enumerate(pairs) if pair[0]}, len(clicks))


def pack_entries(counts: Mapping[int, Pair], size: int) -> bytes | None:
    """The same of the parts that have any clicks, of so many."""
    if not counts:
        return None
    largest = max(counts.values())[0]
    width = 0 if largest < 1 << 8 else 1 if largest < 1 << 16 else 2
    letter, length = _WIDTHS[width]
    entry = _ENTRIES[width]
    if len(counts) * entry.size < size * length:
        return _HEADS[_SPARSE, width] + b"".join([entry.pack(part, *counts[part]) for part in sorted(counts)])
    clicks, bot_clicks = zip(*[counts.get(part, NO_CLICKS) for part in range(size)], strict=True)
    if not any(bot_clicks):
        return _HEADS[_PEOPLE, width] + struct.pack(f"<{size}{letter}", *clicks)
    if len(counts) * entry.size < 2 * size * length:
        return _HEADS[_SPARSE, width] + b"".join([entry.pack(part, *counts[part]) for part in sorted(counts)])
    return _HEADS[_BOTH, width] + struct.pack(f"<{2 * size}{letter}", *clicks, *bot_clicks)


def with_one_more(stored: bytes | None, part: int, span: int) -> bytes | None:
    """Stored counts with one more click of people in a part, where no other byte depends on it; None where one does.

    Most rows that a batch touches get one click: to unpack sixty minutes and to pack them took longer than all else.
    """
    if stored is None:
        return None
    form, width = _kind(stored)
    size, entry = PARTS[span], _ENTRIES[0].size
    place = 0
    if width > 0:
        return None
    if form == _SPARSE:
        listed = stored[1::entry]
        if len(stored) % entry != 1 or max(listed, default=size) >= size:
            return None  # whoever unpacks it says what is wrong with it
        place = entry * listed.find(part) + 2
        if place < 0 and len(stored) - 1 + entry < size:  # with a part more it is still the shortest form
            after = 1 + entry * bisect(listed, part)
            return stored[:after] + _ENTRIES[0].pack(part, 1, 0) + stored[after:]
    elif len(stored) == 1 + form * size:
        place = 1 + part
    if place <= 0 or stored[place] == _FULL:
        return None
    return stored[:place] + (stored[place] + 1).to_bytes() + stored[place + 1 :]


def unpack_parts(stored: bytes | None, span: int) -> tuple[list[int], list[int]]:
    """The counts of all clicks and of those of bots, part by part; what is none is a ValueError."""
    size = PARTS[span]
    clicks, bot_clicks = [0] * size, [0] * size
    if stored is None:
        return clicks, bot_clicks
    form, width = _kind(stored)
    if form != _SPARSE:
        return _dense(stored, form, width, size)
    for part, count, bots in _sparse(stored, width, size):
        clicks[part], bot_clicks[part] = count, bots
    return clicks, bot_clicks


def part_entries(stored: bytes | None, span: int) -> dict[int, Pair]:
    """The parts that have clicks, with their counts."""
    if stored is None:
        return {}
    form, width = _kind(stored)
    if form == _SPARSE:
        return {part: (count, bots) for part, count, bots in _sparse(stored, width, PARTS[span])}
    pairs = zip(*_dense(stored, form, width, PARTS[span]), strict=True)
    return {part: pair for part, pair in enumerate(pairs) if pair[0]}


def _kind(stored: bytes) -> tuple[int, int]:
    kind = _KINDS.get(stored[:1])
    if kind is None:
        raise ValueError(_NO_PARTS)
    return kind


def _sparse(stored: bytes, width: int, size: int) -> Iterable[tuple[int, int, int]]:
    with suppress(struct.error):
        entries = list(_ENTRIES[width].iter_unpack(stored[1:]))
        if entries and max(entries)[0] < size:
            return entries
    raise ValueError(_NO_PARTS)


def _dense(stored: bytes, form: int, width: int, size: int) -> tuple[list[int], list[int]]:
    """The counts of a row that has one for each part."""
    letter, _ = _WIDTHS[width]
    with suppress(struct.error):
        if form == _PEOPLE:
            return [*struct.unpack(f"<{size}{letter}", stored[1:])], [0] * size
        both = [*struct.unpack(f"<{2 * size}{letter}", stored[1:])]
        return both[:size], both[size:]
    raise ValueError(_NO_PARTS)


_NO_PARTS = "not the parts of a period"
