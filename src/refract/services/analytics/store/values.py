"""The values of a dimension, counted from the clicks themselves where a row had no room for all of them."""

from datetime import datetime

from refract.runtime.ports import Reads
from refract.runtime.statements import Statement
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.tallies import OTHER

COUNT_VALUES = {
    f"by_{dimension}": Statement(
        f"count_{dimension}",
        "The most frequent values of a dimension in the clicks themselves, and how many clicks have any.",
        f"""
        SELECT {dimension} AS value, count(*) AS clicks, CAST(sum(count(*)) OVER () AS BIGINT) AS total FROM clicks
        WHERE short_code = :code AND clicked_at >= :begin AND clicked_at < :end
            AND {dimension} IS NOT NULL AND bot = :bots
        GROUP BY {dimension} ORDER BY count(*) DESC, {dimension} LIMIT :most
        """,  # noqa: S608  # names, not values
    )
    for dimension in DIMENSIONS
}
"""By the column of a row that knows them."""


async def count_values(
    reads: Reads, column: str, code: str, begin: datetime, end: datetime, *, most: int, bots: bool
) -> dict[str, int]:
    """How often each value was seen by people, or by bots; those for which there is no room are one under OTHER."""
    scope = {"code": code, "begin": begin, "end": end, "bots": bots}
    rows = await reads.fetch(COUNT_VALUES[column], most=most + 1, **scope)
    kept = rows if len(rows) <= most else rows[: most - 1]
    counts = {row["value"]: row["clicks"] for row in kept}
    if rest := (rows[0]["total"] if rows else 0) - sum(counts.values()):
        counts[OTHER] = counts.get(OTHER, 0) + rest
    return counts
