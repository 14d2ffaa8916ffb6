"""Who was seen in which quarter of an hour of a day, so that a day of any zone is told by two days of UTC.

No zone shifts its days by less than a quarter. There is an entry for each visitor of each quarter: first the places of
all entries in rising order, a byte each, then their hashes in the same order. So the visitors of any stretch of a day
stand side by side, and are taken out as they are.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.sketches import HASH, hash_visitor, list_of

MOST_CLICKS = 8_192
"""A day with more of them has no quarters, and is told by its hours. These would be as long by then, and folding reads
the clicks of a day for its quarters."""

_FORM = b"\x01"
_BOTS = 128
"""What is added to the place of a bot, so that bots stand behind all people."""

_NO_QUARTERS = "not the visitors of a day's quarters"


def place_of(moment: datetime, *, bot: bool) -> int:
    """Where a click stands in its day."""
    return moment.hour * 4 + moment.minute // 15 + _BOTS * bot


def pack_quarters(hashes: Mapping[int, Collection[bytes]]) -> bytes:
    """Visitors, as they are hashed, by their places."""
    each = sorted(hashes.items())
    return b"".join(
        (_FORM, *[bytes((place,)) * len(some) for place, some in each], *[b"".join(some) for _, some in each])
    )


def quarters_of(clicks: Sequence[Click]) -> bytes | None:
    """The same of all clicks of a day; None where these are too many."""
    if len(clicks) > MOST_CLICKS:
        return None
    hashes: dict[int, set[bytes]] = {}
    for click in clicks:
        hashes.setdefault(place_of(click.occurred_at, bot=click.bot), set()).add(hash_visitor(click.visitor))
    return pack_quarters(hashes)


class Quarters:
    """The quarters of a day, as they were stored."""

    __slots__ = ("_places", "_stored")

    def __init__(self, stored: bytes) -> None:
        count, rest = divmod(len(stored) - 1, 1 + HASH)
        if stored[:1] != _FORM or rest or not count:
            raise ValueError(_NO_QUARTERS)
        self._stored = stored
        self._places = stored[1 : 1 + count]
        """In rising order."""

    def between(self, first: int, end: int, *, bots: bool) -> list[bytes]:
        """Lists of who was seen from a quarter up to another one; somebody may be named once for each quarter."""
        return [
            some
            for begin in ((0, _BOTS) if bots else (0,))
            if (some := self._listed(begin + first, begin + end)) is not None
        ]

    def _listed(self, first: int, end: int) -> bytes | None:
        places = self._places
        begin = bisect_left(places, first)
        last = bisect_left(places, end, begin)
        hashes = 1 + len(places)
        return list_of(self._stored[hashes + HASH * begin : hashes + HASH * last]) if begin < last else None
