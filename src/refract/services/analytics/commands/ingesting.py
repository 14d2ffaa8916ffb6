"""Counts clicks: one transaction for the clicks themselves, their totals, their rollups and their milestones.

Locks are taken in one order by everybody, so that nobody waits for somebody who waits for them: the marks of the
inbox, the watermarks, totals, links, rollups; and of each kind in the order of their keys.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

from refract.kernel.clock import Clock
from refract.kernel.events import Event
from refract.kernel.ids import new_event_id
from refract.runtime.courtesy import Courtesy
from refract.runtime.ports import Transaction
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.commands.announcing import note_changes
from refract.services.analytics.commands.milestones import record_milestones
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.milestones import THRESHOLDS
from refract.services.analytics.domain.periods import Watermarks, start_of
from refract.services.analytics.domain.rollups import Period, row_with
from refract.services.analytics.store.clicks import Owner, add_clicks, add_links, add_totals
from refract.services.analytics.store.periods import HOLD_PERIODS, MARK_STALE, READ_WATERMARKS, stale_marks
from refract.services.analytics.store.rollups import lock_rollups, save_rollups
from refract.services.links.api import UrlClicked

TOGETHER = 32
"""Clicks that are looked at in one go: about a millisecond, for which whoever follows a link waits."""

_SECONDS = 3_600


class Ingesting:
    """Takes clicks that nobody has counted yet. Any number of these may work on one database."""

    def __init__(
        self,
        enricher: Enricher,
        clock: Clock,
        thresholds: Sequence[int] = THRESHOLDS,
        *,
        courtesy: Courtesy | None = None,
    ) -> None:
        self._enricher = enricher
        self._clock = clock
        self._courtesy = courtesy or Courtesy(clock)
        self._thresholds = thresholds

    async def ingest(self, tx: Transaction, events: Sequence[Event]) -> None:
        """Count clicks in the transaction that marks their events."""
        await self._enricher.prepare()
        now = self._clock.now()
        clicks = await self._enriched([event for event in events if isinstance(event, UrlClicked)], now)
        by_code, by_hour = _grouped(clicks)
        # Before the first lock that others wait for: these rows are in nobody's way.
        await add_clicks(tx, clicks)
        await tx.execute(HOLD_PERIODS)
        watermarks = Watermarks.of(await tx.fetch(READ_WATERMARKS))
        totals = await add_totals(tx, by_code)
        await _add_new_links(tx, totals, by_code)
        await _roll_up(tx, by_hour, watermarks, self._courtesy)
        await record_milestones(tx, totals, by_code, self._thresholds, now)
        await note_changes(tx, sorted(totals))

    async def _enriched(self, events: Sequence[UrlClicked], now: datetime) -> list[Click]:
        clicks: list[Click] = []
        ahead: list[UrlClicked] = []
        for first in range(0, len(events), TOGETHER):
            clicks += self._enricher.enrich_some(events[first : first + TOGETHER], now, ahead)
            await self._courtesy.breathe()
        self._enricher.mention(ahead, now)
        return clicks


Grouped = tuple[dict[str, list[Click]], dict[tuple[str, float], list[Click]]]


def _grouped(clicks: Sequence[Click]) -> Grouped:
    """Clicks by their link, and by link and hour."""
    by_code: dict[str, list[Click]] = {}
    by_hour: dict[tuple[str, float], list[Click]] = {}
    for click in clicks:
        code = click.short_code
        hour = code, click.occurred_at.timestamp() // _SECONDS
        if hour in by_hour:
            by_hour[hour].append(click)
        else:
            by_hour[hour] = [click]
        if code in by_code:
            by_code[code].append(click)
        else:
            by_code[code] = [click]
    return by_code, by_hour


async def _add_new_links(tx: Transaction, totals: Mapping[str, int], by_code: Mapping[str, Sequence[Click]]) -> None:
    """A link that has no more clicks than these has none of before, and may not be known."""
    new = [code for code, total in totals.items() if total == len(by_code[code])]
    await add_links(tx, {code: Owner(by_code[code][0].user_id, by_code[code][0].user_email) for code in new})


async def _roll_up(
    tx: Transaction,
    by_hour: Mapping[tuple[str, float], Sequence[Click]],
    watermarks: Watermarks,
    courtesy: Courtesy,
) -> None:
    """Put clicks into the rows of their periods, and mark the longer ones that are folded and now lack them."""
    rows: dict[Period, tuple[list[Click], bool]] = {}
    stale: set[tuple[str, int, datetime]] = set()
    places: dict[float, _Place] = {}
    for (code, hour), clicks in by_hour.items():
        place = places.get(hour)
        if place is None:
            place = places[hour] = _Place.of(watermarks, clicks[0].occurred_at)
        for span, starts_at, is_whole in place.rows:
            period = Period(code, span, starts_at)
            if period in rows:
                rows[period][0].extend(clicks)
            else:
                rows[period] = [*clicks], is_whole
        stale.update((code, span, starts_at) for span, starts_at in place.stale)
    if stale:
        await tx.execute_many(MARK_STALE, stale_marks(stale, new_event_id()))
    stored = await lock_rollups(tx, rows)
    changes: dict[Period, dict[str, Any]] = {}
    for period, (clicks, is_whole) in rows.items():
        changes[period] = row_with(clicks, period.span, stored.get(period), whole=is_whole)
        await courtesy.breathe()
    await save_rollups(tx, changes)


class _Place(NamedTuple):
    """Where the clicks of an hour go: which rows, whether each takes more than their number, and what becomes stale."""

    rows: tuple[tuple[int, datetime, bool], ...]
    stale: tuple[tuple[int, datetime], ...]

    @classmethod
    def of(cls, watermarks: Watermarks, moment: datetime) -> Self:
        """The same for all moments of an hour, and so for many links at once."""
        place = watermarks.place(moment)
        whole = () if place.whole is None else ((place.whole, start_of(moment, place.whole), True),)
        return cls((*whole, *((span, start_of(moment, span), False) for span in place.counted)), place.stale)
