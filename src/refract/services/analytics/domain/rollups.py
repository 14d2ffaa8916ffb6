"""A period of a link: what its row holds, and what clicks add to it."""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.domain.sketches import Sketch
from refract.services.analytics.domain.tallies import MOST_IN_HOUR, MOST_IN_LONGER, tally_with

PARTS = {HOUR: 60, DAY: 24, MONTH: 31}
"""Into how many parts a period is divided, by span: an hour's row knows its minutes, a day's its hours."""

COLUMNS = ("clicks", "bot_clicks", "parts", "visitors", "bot_visitors", *(f"by_{name}" for name in DIMENSIONS))
"""Of a row in `rollups`, after its key."""

_TALLIES = COLUMNS[-len(DIMENSIONS) :]
_NOTHING: tuple[tuple[str, ...], ...] = ((),) * len(DIMENSIONS)

_SPARSE, _PEOPLE, _BOTH = b"\1", b"\2", b"\3"
_ENTRY = struct.Struct("<BII")

_values_of = attrgetter(*DIMENSIONS)
_visitor_of = attrgetter("visitor")


class Period(NamedTuple):
    """The key of a row. Rows are locked in the order of their keys, whoever writes them."""

    short_code: str
    span: int
    starts_at: datetime


def row_with(clicks: Sequence[Click], span: int, stored: Mapping[str, Any] | None, *, whole: bool) -> dict[str, Any]:
    """The columns of a row with clicks added to what is stored; without `whole` only their numbers are counted.

    A column that stays as it is, is None.
    """
    people = [click for click in clicks if not click.bot]
    bots = [click for click in clicks if click.bot] if len(people) < len(clicks) else []
    stored = _EMPTY if stored is None else stored
    row = _UNCHANGED.copy()
    row["clicks"] = stored["clicks"] + len(clicks)
    row["bot_clicks"] = stored["bot_clicks"] + len(bots)
    row["parts"] = _parts_with(people, bots, span, stored["parts"])
    if whole:
        row["visitors"] = _visitors_with(people, stored["visitors"])
        row["bot_visitors"] = _visitors_with(bots, stored["bot_visitors"])
        most = MOST_IN_HOUR if span == HOUR else MOST_IN_LONGER
        by_people = zip(*map(_values_of, people), strict=True) if people else _NOTHING
        by_bots = zip(*map(_values_of, bots), strict=True) if bots else _NOTHING
        for column, of_people, of_bots in zip(_TALLIES, by_people, by_bots, strict=True):
            row[column] = tally_with(of_people, of_bots, most, stored[column])
    return row


_UNCHANGED: dict[str, Any] = dict.fromkeys(COLUMNS)
_EMPTY: Mapping[str, Any] = {**_UNCHANGED, "clicks": 0, "bot_clicks": 0}


def _visitors_with(clicks: Sequence[Click], stored: bytes | None) -> bytes | None:
    if not clicks:
        return None
    sketch = Sketch.decode(stored)
    sketch.add_many(map(_visitor_of, clicks))
    return sketch.encode()


def _parts_with(people: Sequence[Click], bots: Sequence[Click], span: int, stored: bytes | None) -> bytes | None:
    part_of = _PART_OF[span]
    counts: dict[int, tuple[int, int]] = _entries(stored, span)
    for group, of_bots in ((people, 0), (bots, 1)):
        for part, count in Counter(map(part_of, group)).items() if len(group) > 1 else ((part_of(c), 1) for c in group):
            clicks, bot_clicks = counts.get(part, _NO_CLICKS)
            counts[part] = clicks + count, bot_clicks + of_bots * count
    return _packed(counts, PARTS[span])


_PART_OF: Mapping[int, Callable[[Click], int]] = {
    HOUR: attrgetter("occurred_at.minute"),
    DAY: attrgetter("occurred_at.hour"),
    MONTH: lambda click: click.occurred_at.day - 1,
}
_NO_CLICKS = (0, 0)


def pack_parts(clicks: Sequence[int], bot_clicks: Sequence[int]) -> bytes | None:
    """Counts of all clicks and of those of bots, part by part, in as few bytes as they need; None for no clicks.

    Either the parts that have any, each with its number; or all of them, and those of bots only where there are some.
    """
    pairs = zip(clicks, bot_clicks, strict=True)
    return _packed({part: pair for part, pair in enumerate(pairs) if pair[0]}, len(clicks))


def _packed(counts: Mapping[int, tuple[int, int]], size: int) -> bytes | None:
    if not counts:
        return None
    if len(counts) * _ENTRY.size < size * 4:
        return _SPARSE + b"".join([_ENTRY.pack(part, *counts[part]) for part in sorted(counts)])
    clicks, bot_clicks = zip(*[counts.get(part, _NO_CLICKS) for part in range(size)], strict=True)
    if any(bot_clicks):
        return _BOTH + struct.pack(f"<{2 * size}I", *clicks, *bot_clicks)
    return _PEOPLE + struct.pack(f"<{size}I", *clicks)


def unpack_parts(stored: bytes | None, span: int) -> tuple[list[int], list[int]]:
    """The counts of all clicks and of those of bots, part by part; what is none is a ValueError."""
    size = PARTS[span]
    if stored is not None and stored[:1] != _SPARSE:
        return _dense(stored, size)
    clicks, bot_clicks = [0] * size, [0] * size
    for part, (count, bots) in _entries(stored, span).items():
        clicks[part], bot_clicks[part] = count, bots
    return clicks, bot_clicks


def _entries(stored: bytes | None, span: int) -> dict[int, tuple[int, int]]:
    """The parts that have clicks, with their counts."""
    if stored is None:
        return {}
    size = PARTS[span]
    if stored[:1] != _SPARSE:
        pairs = zip(*_dense(stored, size), strict=True)
        return {part: pair for part, pair in enumerate(pairs) if pair[0]}
    with suppress(struct.error):
        entries = {part: (count, bots) for part, count, bots in _ENTRY.iter_unpack(stored[1:])}
        if entries and max(entries) < size:
            return entries
    raise ValueError(_NO_PARTS)


def _dense(stored: bytes, size: int) -> tuple[list[int], list[int]]:
    """The counts of a row that has one for each part."""
    with suppress(struct.error):
        if stored[:1] == _PEOPLE:
            return [*struct.unpack(f"<{size}I", stored[1:])], [0] * size
        if stored[:1] == _BOTH:
            both = [*struct.unpack(f"<{2 * size}I", stored[1:])]
            return both[:size], both[size:]
    raise ValueError(_NO_PARTS)


_NO_PARTS = "not the parts of a period"
