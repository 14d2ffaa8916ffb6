"""Statements of folding: whose turn it is, what is due, what is read, what is written."""

from refract.runtime.statements import Statement
from refract.services.analytics.domain.dimensions import DIMENSIONS

TALLIES = tuple(f"by_{dimension}" for dimension in DIMENSIONS)
SKETCHES = ("visitors", "bot_visitors")
DETAILS = (*SKETCHES, *TALLIES)
"""The columns of a rollup that expire."""

QUARTERS = "quarter_visitors"
"""Of days alone. It is of no use when the hours of its day have expired, and goes with these."""


def _among_codes(name: str, sentence: str, sql: str) -> Statement:
    """A statement about a list of codes, which stands as AMONG in its text."""
    sqlite = sql.replace("AMONG", "IN (SELECT value FROM json_each(:codes))")
    return Statement(name, sentence, sql.replace("AMONG", "= ANY(:codes)"), sqlite=sqlite)


READ_FOLDING = Statement(
    "read_folding",
    "How far folding has come, where it is in the period it is at, and whose turn is next.",
    "SELECT span, closed, until, expired, at, code, turn FROM folding",
)

TAKE_TURN = Statement(
    "take_turn",
    "Takes the turn that was seen, which touches no row if another process has taken it meanwhile.",
    "UPDATE folding SET turn = turn + 1 WHERE span = 1 AND turn = :turn",
)

CLOSE_PERIOD = Statement(
    "close_period",
    "From now on clicks before this moment leave a mark; the walk over the period begins.",
    "UPDATE folding SET closed = :closed, at = :at, code = '' WHERE span = :span",
)

MOVE_ON = Statement(
    "move_on",
    "Keeps how far the walk over a period has come, for whoever goes on.",
    "UPDATE folding SET at = :at, code = :code WHERE span = :span",
)

TRUST_PERIOD = Statement(
    "trust_period",
    "The walk is over: readers may use the rows of everything that is closed.",
    "UPDATE folding SET until = closed, at = NULL, code = '' WHERE span = :span",
)

LIFT_FOLDED = Statement(
    "lift_folded",
    "Closes and trusts everything before a moment, where nothing is left to fold.",
    "UPDATE folding SET closed = greatest(closed, :moment), until = greatest(until, :moment) WHERE span = :span",
    sqlite="UPDATE folding SET closed = max(closed, :moment), until = max(until, :moment) WHERE span = :span",
)

FIRST_ROW = Statement(
    "first_row",
    "When the first period of a span begins that is not before a moment.",
    "SELECT starts_at FROM rollups WHERE span = :span AND starts_at >= :moment ORDER BY starts_at LIMIT 1",
)

WALK = Statement(
    "walk_period",
    "The next links that have a row at a moment, and whether it is their first in the period: then their turn is here.",
    """
    SELECT short_code, NOT EXISTS (
        SELECT 1 FROM rollups AS earlier
        WHERE earlier.short_code = rollups.short_code AND earlier.span = :span
            AND earlier.starts_at >= :begin AND earlier.starts_at < :at
    ) AS first
    FROM rollups WHERE span = :span AND starts_at = :at AND short_code > :code ORDER BY short_code LIMIT :page
    """,
)

MARKED_PERIODS = Statement(
    "marked_periods",
    "The periods of a span that have marks.",
    "SELECT DISTINCT starts_at FROM stale WHERE span = :span ORDER BY starts_at",
)

# A month waits until its days are folded: one mark of a day would be lost in it.
READ_MARKS = Statement(
    "read_marks",
    "The next marks of a period, of links that have none inside the period.",
    """
    SELECT short_code, mark FROM stale
    WHERE span = :span AND starts_at = :begin AND short_code > :code AND NOT EXISTS (
        SELECT 1 FROM stale AS inner_mark
        WHERE inner_mark.short_code = stale.short_code AND inner_mark.span = :finer
            AND inner_mark.starts_at >= :begin AND inner_mark.starts_at < :end
    )
    ORDER BY short_code LIMIT :page
    """,
)

DROP_MARKS = Statement(
    "drop_marks",
    "Removes marks that were seen before their period was read.",
    """
    DELETE FROM stale
    WHERE span = :span AND starts_at = :begin AND short_code = ANY(:codes) AND mark = ANY(:marks)
    """,
    sqlite="""
    DELETE FROM stale
    WHERE span = :span AND starts_at = :begin AND short_code IN (SELECT value FROM json_each(:codes))
        AND mark IN (SELECT value FROM json_each(:marks))
    """,
)

PASS_MARKS_ON = Statement(
    "pass_marks_on",
    "Marks a period that is being closed for the links that have a mark inside it.",
    """
    INSERT INTO stale (short_code, span, starts_at, mark)
    SELECT DISTINCT short_code, :span::smallint, :begin::timestamptz, :mark::text FROM stale
    WHERE span = :finer AND starts_at >= :begin AND starts_at < :end
    """,
    sqlite="""
    INSERT INTO stale (short_code, span, starts_at, mark)
    SELECT DISTINCT short_code, :span, :begin, :mark FROM stale
    WHERE span = :finer AND starts_at >= :begin AND starts_at < :end
    """,
)

WEIGH = _among_codes(
    "weigh_links",
    "How many clicks some links have in a period.",
    """
    SELECT short_code, CAST(sum(clicks) AS BIGINT) AS clicks FROM rollups
    WHERE short_code AMONG AND span = :finer AND starts_at >= :begin AND starts_at < :end
    GROUP BY short_code ORDER BY short_code
    """,
)

READ_COUNTS = _among_codes(
    "read_counts",
    "The counts of the rows that a period is made of.",
    """
    SELECT short_code, starts_at, clicks, bot_clicks, parts FROM rollups
    WHERE short_code AMONG AND span = :finer AND starts_at >= :begin AND starts_at < :end
    ORDER BY short_code, starts_at
    """,
)

READ_DETAILS = _among_codes(
    "read_details",
    "All else of the rows that a period is made of.",
    f"""
    SELECT short_code, starts_at, {", ".join(DETAILS)} FROM rollups
    WHERE short_code AMONG AND span = :finer AND starts_at >= :begin AND starts_at < :end
    ORDER BY short_code, starts_at
    """,  # noqa: S608  # names, not values
)

READ_DETAIL = {
    column: _among_codes(
        f"read_{column}",
        "The same of one column alone.",
        f"""
        SELECT short_code, starts_at, {column} FROM rollups
        WHERE short_code AMONG AND span = :finer AND starts_at >= :begin AND starts_at < :end
            AND {column} IS NOT NULL
        ORDER BY short_code, starts_at
        """,  # noqa: S608  # names, not values
    )
    for column in DETAILS
}

READ_VISITORS = _among_codes(
    "read_who_clicked",
    "Who clicked on some links in a period, and when.",
    """
    SELECT short_code, clicked_at, bot, visitor FROM clicks
    WHERE short_code AMONG AND clicked_at >= :begin AND clicked_at < :end
    """,
)

_COLUMNS = ("short_code", "span", "starts_at", "clicks", "bot_clicks", "parts", *DETAILS, QUARTERS)

# Whole, and never an increment: whoever folds twice writes the same row twice.
WRITE_ROW = Statement(
    "write_rollup",
    "Writes a folded row, in place of the one that was there.",
    f"""
    INSERT INTO rollups ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{column}" for column in _COLUMNS)})
    ON CONFLICT (short_code, span, starts_at) DO UPDATE
    SET {", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[3:])}
    """,  # noqa: S608  # names, not values
)

CORRECT_TALLY = {
    column: Statement(
        f"correct_{column}",
        "Puts the exact tally into the row of an hour that has had no click since it was read.",
        f"""
        UPDATE rollups SET {column} = :tally
        WHERE short_code = :short_code AND span = 1 AND starts_at = :starts_at AND clicks = :clicks
        """,  # noqa: S608  # names, not values
    )
    for column in TALLIES
}
