"""Hours, days and months in UTC, and the watermarks that say how far they are closed, folded and expired."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

HOUR, DAY, MONTH = SPANS = (1, 2, 3)
"""The spans of a rollup row, as the database numbers them."""

CLICK = 0
"""What is no span: how far back the clicks themselves are kept, which is told with what is kept of each span."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Where every watermark begins: nothing is older."""

_MINUTE = timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)


def minute_of(moment: datetime) -> int:
    """The minute that a moment lies in, counted from 1970: the boundaries of all rows and zones are whole minutes."""
    return (moment - EPOCH) // _MINUTE


def moment_of(minute: int) -> datetime:
    """The first moment of a minute."""
    return EPOCH + minute * _MINUTE


def nearest_minute(moment: datetime) -> datetime:
    """The whole minute next to a moment."""
    before = moment.replace(second=0, microsecond=0)
    return before if moment - before <= _MINUTE / 2 else before + _MINUTE


def microseconds_of(moment: datetime) -> int:
    """A moment as whole microseconds since 1970."""
    return (moment - EPOCH) // _MICROSECOND


def start_of(moment: datetime, span: int) -> datetime:
    """The beginning of the period of this span that a moment in UTC lies in."""
    if span == HOUR:
        return moment.replace(minute=0, second=0, microsecond=0)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if span == DAY else midnight.replace(day=1)


def end_of(start: datetime, span: int) -> datetime:
    """The first moment after the period of this span that begins here."""
    if span == MONTH:
        return (start + timedelta(days=32)).replace(day=1)
    return start + (timedelta(hours=1) if span == HOUR else timedelta(days=1))


def first_kept(expired: datetime) -> datetime:
    """From when on clicks are surely kept: a day later than is said, because the next one may go while we read."""
    return end_of(start_of(expired, DAY), DAY)


class Place(NamedTuple):
    """Where the clicks of an hour go: which row takes all of them, which only their number, and what is to refold."""

    whole: int | None
    """The span whose row takes dimensions, visitors and counts; None where no row has them any more."""
    counted: tuple[int, ...]
    """The spans whose rows have lost their dimensions, and take the counts."""
    stale: tuple[tuple[int, datetime], ...]
    """Folded periods that these clicks are missing from: span and start."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How far folding and expiry have come. Whoever writes holds them still while it does (see store/periods.py)."""

    closed: Mapping[int, datetime]
    """By span: a click before this moment marks its period as stale."""
    until: Mapping[int, datetime]
    """By span: rows before this moment are folded, so that readers may use them unless they are marked."""
    expired: Mapping[int, datetime]
    """By span: rows before this moment have no dimensions and sketches any more; their counts stay for ever."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """From the rows of `folding`."""
        known = {row["span"]: row for row in rows}
        return cls(*({span: known[span][name] for span in SPANS} for name in ("closed", "until", "expired")))

    def place(self, moment: datetime) -> Place:
        """Where a click of this moment goes; the same for all of its hour."""
        day, month = start_of(moment, DAY), start_of(moment, MONTH)
        refold_month = ((MONTH, month),) if month < self.closed[MONTH] else ()
        if day >= self.expired[HOUR]:
            refold_day = ((DAY, day),) if day < self.closed[DAY] else ()
            return Place(HOUR, (), (*refold_day, *refold_month))
        if month >= self.expired[DAY]:
            return Place(DAY, (HOUR,), refold_month)
        if month >= self.expired[MONTH]:
            return Place(MONTH, (HOUR, DAY), ())
        return Place(None, SPANS, ())
