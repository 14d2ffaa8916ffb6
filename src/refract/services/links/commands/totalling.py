"""Keeps with each link how often it was clicked, as analytics tells it: a list need not ask there."""

from collections.abc import Sequence

from refract.kernel.events import Event
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.api import LinkTotal, StatsTotals

# Events come in any order, and none of them takes a click back. The version stays: who follows a link sees no total.
KEEP_TOTAL = Statement(
    "keep_total",
    "Raises the clicks of a link and the moment of the last one; what is not above what is known changes nothing.",
    """
    UPDATE links
    SET total_clicks = CASE WHEN total_clicks < :total_clicks THEN :total_clicks ELSE total_clicks END,
        last_clicked_at = CASE WHEN last_clicked_at > :last_clicked_at THEN last_clicked_at ELSE :last_clicked_at END
    WHERE short_code = :short_code
        AND (total_clicks < :total_clicks OR last_clicked_at IS NULL OR last_clicked_at < :last_clicked_at)
    """,
)


async def keep_totals(tx: Transaction, events: Sequence[Event]) -> None:
    """Take the totals of events, each link once."""
    highest: dict[str, LinkTotal] = {}
    for event in events:
        if isinstance(event, StatsTotals):
            for total in event.totals:
                known = highest.get(total.short_code)
                highest[total.short_code] = total if known is None else _merged(known, total)
    # In the order of their codes, so that two readers wait for each other instead of deadlocking.
    totals = [highest[short_code] for short_code in sorted(highest)]
    if totals:
        await tx.execute_many(
            KEEP_TOTAL,
            [
                {
                    "short_code": total.short_code,
                    "total_clicks": total.total_clicks,
                    "last_clicked_at": total.last_clicked_at,
                }
                for total in totals
            ],
        )


def _merged(one: LinkTotal, other: LinkTotal) -> LinkTotal:
    """The higher of two totals and the later of their moments."""
    return LinkTotal(
        short_code=one.short_code,
        total_clicks=max(one.total_clicks, other.total_clicks),
        last_clicked_at=max(one.last_clicked_at, other.last_clicked_at),
    )
