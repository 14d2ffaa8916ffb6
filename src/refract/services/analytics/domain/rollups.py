"""A period of a link: what its row holds, and what clicks add to it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.parts import NO_CLICKS, PARTS, pack_entries, part_entries, with_one_more
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.domain.sketches import stored_with
from refract.services.analytics.domain.tallies import MOST_IN_HOUR, MOST_IN_LONGER, tally_with, tally_with_one

COLUMNS = ("clicks", "bot_clicks", "parts", "visitors", "bot_visitors", *(f"by_{name}" for name in DIMENSIONS))
"""Of a row in `rollups`, after its key."""

_TALLIES = COLUMNS[-len(DIMENSIONS) :]
_NOTHING: tuple[tuple[str, ...], ...] = ((),) * len(DIMENSIONS)

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
    stored = _EMPTY if stored is None else stored
    row = _UNCHANGED.copy()
    row["clicks"] = stored["clicks"] + len(clicks)
    bots = [click for click in clicks if click.bot]
    row["bot_clicks"] = stored["bot_clicks"] + len(bots)
    people = [click for click in clicks if not click.bot] if bots else clicks
    row["parts"] = _parts_with(people, bots, span, stored["parts"])
    if whole:
        row["visitors"] = _visitors_with(people, stored["visitors"])
        row["bot_visitors"] = _visitors_with(bots, stored["bot_visitors"])
        _count_values(row, people, bots, stored, MOST_IN_HOUR if span == HOUR else MOST_IN_LONGER)
    return row


def _count_values(
    row: dict[str, Any], people: Sequence[Click], bots: Sequence[Click], stored: Mapping[str, Any], most: int
) -> None:
    if len(people) + len(bots) == 1:
        [click] = people or bots
        for column, value in zip(_TALLIES, _values_of(click), strict=True):
            row[column] = tally_with_one(value, bot=click.bot, most=most, stored=stored[column])
        return
    by_people = zip(*map(_values_of, people), strict=True) if people else _NOTHING
    by_bots = zip(*map(_values_of, bots), strict=True) if bots else _NOTHING
    for column, of_people, of_bots in zip(_TALLIES, by_people, by_bots, strict=True):
        row[column] = tally_with(of_people, of_bots, most, stored[column])


_UNCHANGED: dict[str, Any] = dict.fromkeys(COLUMNS)
_EMPTY: Mapping[str, Any] = {**_UNCHANGED, "clicks": 0, "bot_clicks": 0}


def _visitors_with(clicks: Sequence[Click], stored: bytes | None) -> bytes | None:
    return stored_with(stored, set(map(_visitor_of, clicks))) if clicks else None


def _parts_with(people: Sequence[Click], bots: Sequence[Click], span: int, stored: bytes | None) -> bytes | None:
    part_of = _PART_OF[span]
    if len(people) == 1 and not bots and (changed := with_one_more(stored, part_of(people[0]), span)) is not None:
        return changed
    counts = part_entries(stored, span)
    for group, of_bots in ((people, 0), (bots, 1)):
        for part, count in Counter(map(part_of, group)).items() if len(group) > 1 else ((part_of(c), 1) for c in group):
            clicks, bot_clicks = counts.get(part, NO_CLICKS)
            counts[part] = clicks + count, bot_clicks + of_bots * count
    return pack_entries(counts, PARTS[span])


_PART_OF: Mapping[int, Callable[[Click], int]] = {
    HOUR: attrgetter("occurred_at.minute"),
    DAY: lambda click: click.occurred_at.hour * 4 + click.occurred_at.minute // 15,
    MONTH: lambda click: click.occurred_at.day - 1,
}
