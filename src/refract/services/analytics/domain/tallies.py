"""How often each value of a dimension was seen, by people and by bots."""

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Self

import msgspec

OTHER = "(other)"
"""Stands for all values for which there was no room."""

MOST_IN_HOUR = 2_000
MOST_IN_LONGER = 5_000
"""How many values a row keeps of people, and as many of bots."""

ROOM = 100
"""Bytes for each of them, on average: a referer may have 2,048, and every batch of clicks reads and writes its row."""

_decoder = msgspec.msgpack.Decoder(tuple[dict[str, int], dict[str, int]])
_halves = msgspec.msgpack.Decoder(tuple[dict[str, int], msgspec.Raw])
_half = msgspec.msgpack.Decoder(dict[str, int])
_encode = msgspec.msgpack.Encoder().encode


class Tally:
    """Counts by value, which grow as clicks come and as tallies are put together."""

    __slots__ = ("bots", "people")

    def __init__(self, people: dict[str, int] | None = None, bots: dict[str, int] | None = None) -> None:
        self.people = {} if people is None else people
        self.bots = {} if bots is None else bots

    @classmethod
    def decode(cls, stored: bytes | None) -> Self:
        """A tally as it was stored; None is an empty one. What is none is a ValueError."""
        if stored is None:
            return cls()
        try:
            return cls(*_decoder.decode(stored))
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a tally: {error}") from error

    def encode(self) -> bytes | None:
        """The form to store; None for an empty one."""
        return _encode((self.people, self.bots)) if self.people or self.bots else None

    def merge(self, other: "Tally") -> None:
        """Add the counts of another."""
        add_counts(self.people, other.people)
        add_counts(self.bots, other.bots)

    def cap(self, most: int) -> None:
        """Keep the most frequent values there is room for; the rest becomes OTHER, so that the sum stays what it is."""
        self.people = _capped(self.people, most)
        self.bots = _capped(self.bots, most)


def tally_with(of_people: Iterable[str], of_bots: Iterable[str], most: int, stored: bytes | None) -> bytes | None:
    """A stored tally with the values of more clicks in it; None where it stays as it is. A value may be unknown: ""."""
    seen, by_bots = list(filter(None, of_people)), list(filter(None, of_bots))
    if not seen and not by_bots:
        return None
    # Not by way of a Tally: a batch of clicks comes through here some ten thousand times.
    people, bots = _decoder.decode(stored) if stored is not None else ({}, {})
    for counts, values in ((people, seen), (bots, by_bots)):
        for value in values:
            counts[value] = counts.get(value, 0) + 1
    return _encoded(people, bots, most)


def tally_with_one(value: str, *, bot: bool, most: int, stored: bytes | None) -> bytes | None:
    """The same with the value of one click, which is all that most rows get."""
    if not value:
        return None
    people, bots = _decoder.decode(stored) if stored is not None else ({}, {})
    counts = bots if bot else people
    counts[value] = counts.get(value, 0) + 1
    return _encoded(people, bots, most)


def _encoded(people: dict[str, int], bots: dict[str, int], most: int) -> bytes:
    encoded = _encode((people, bots))
    if len(people) > most or len(bots) > most or len(encoded) > most * ROOM:
        encoded = _encode((_capped(people, most), _capped(bots, most)))
    return encoded


def merge_tallies(stored: Iterable[bytes | None]) -> Tally:
    """One tally of all these, without a limit: `cap` it to store it."""
    merged = Tally()
    for one in stored:
        if one is not None:
            merged.merge(Tally.decode(one))
    return merged


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts to counts."""
    if not counts:
        counts.update(more)
        return
    get = counts.get
    for value, count in more.items():
        counts[value] = get(value, 0) + count


def add_stored(counts: dict[str, int], stored: bytes, *, bots: bool) -> None:
    """Add the counts of people in a stored tally, and with `bots` those of bots; others are not even looked at."""
    try:
        people, rest = _halves.decode(stored)
        add_counts(counts, people)
        if bots:
            add_counts(counts, _half.decode(rest))
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a tally: {error}") from error


def most_frequent(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The values with the highest counts, the highest first; of equal ones the first in their order."""
    items: Iterable[tuple[str, int]] = counts.items()
    equal: list[tuple[str, int]] = []
    if len(counts) > most:
        # Numbers alone are sorted much faster than what they belong to, and so are names: many may have the least.
        least = sorted(counts.values())[-most]
        items = [item for item in items if item[1] >= least]
        if len(items) > 2 * most:
            equal = [(value, least) for value in sorted(value for value, count in items if count == least)]
            items = [item for item in items if item[1] > least]
    ordered = sorted(items, key=lambda item: (-item[1], item[0]))
    return (ordered + equal)[:most]


def _capped(counts: dict[str, int], most: int) -> dict[str, int]:
    # The collective name is one of the values, and has its place for good.
    room = most * ROOM
    if len(counts) <= most and sum(map(_size, counts)) <= room:
        return counts
    rest = counts.pop(OTHER, 0)
    kept = {}
    for value, count in nlargest(most - 1, counts.items(), key=lambda item: item[1]):
        room -= _size(value)
        if room < 0:
            break
        kept[value] = count
    rest += sum(counts.values()) - sum(kept.values())
    kept[OTHER] = rest
    return kept


def _size(value: str) -> int:
    return len(value.encode())
