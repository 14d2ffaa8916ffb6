"""Statements of expiry: what may still be needed, what is forgotten, and which clicks are over their time."""

from collections.abc import Sequence

from refract.runtime.statements import Statement
from refract.services.analytics.store.folding import DETAILS, QUARTERS

FIRST_MARK = Statement(
    "first_mark",
    "The first period of a span that has to be folded again.",
    "SELECT starts_at FROM stale WHERE span = :span ORDER BY starts_at LIMIT 1",
)

EXPIRE = Statement(
    "expire",
    "From now on the rows of a span before this moment have no details: writers put none there, readers expect none.",
    "UPDATE folding SET expired = :moment WHERE span = :span",
)

EXPIRE_CLICKS = Statement(
    "expire_clicks",
    "From now on nobody expects to find clicks before this moment; also not when they are to be kept longer again.",
    "UPDATE folding SET expired = :moment WHERE span = 0 AND expired < :moment",
)

READ_PAGE = Statement(
    "read_rollup_page",
    "The last of the next rows between two moments, and how many those are.",
    """
    SELECT starts_at, short_code FROM rollups
    WHERE span = :span AND starts_at >= :at AND starts_at < :end AND (starts_at, short_code) > (:at, :code)
    ORDER BY starts_at, short_code LIMIT :page
    """,
)

_PAGE = """
    span = :span AND starts_at >= :at AND starts_at <= :last_at
    AND (starts_at, short_code) > (:at, :code) AND (starts_at, short_code) <= (:last_at, :last_code)
"""


def _forget(name: str, sentence: str, columns: Sequence[str]) -> Statement:
    """A statement that takes columns from a page of rows."""
    nothing = ", ".join(f"{column} = NULL" for column in columns)
    page = f"{_PAGE} AND ({' OR '.join(f'{column} IS NOT NULL' for column in columns)})"
    return Statement(
        name,
        sentence,
        # Locked in the order of the codes, as writers of clicks do.
        f"""
        WITH held AS (
            SELECT short_code, starts_at FROM rollups WHERE {page} ORDER BY short_code, starts_at FOR UPDATE
        )
        UPDATE rollups SET {nothing} FROM held
        WHERE rollups.short_code = held.short_code AND rollups.span = :span AND rollups.starts_at = held.starts_at
        """,  # noqa: S608  # names, not values
        sqlite=f"UPDATE rollups SET {nothing} WHERE {page}",  # noqa: S608
    )


FORGET_DETAILS = _forget("forget_details", "Takes the details from a page of rows; their counts stay.", DETAILS)

FORGET_QUARTERS = _forget(
    "forget_quarters", "Takes from a page of days who was seen in which of their quarters.", (QUARTERS,)
)

PARTITIONS = Statement(
    "partitions",
    "The names of the tables that clicks are divided into; SQLite has one for all.",
    """
    SELECT relname AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'clicks'::regclass ORDER BY relname
    """,
    sqlite="SELECT '' AS name LIMIT 0",
)

IN_DEFAULT = Statement(
    "clicks_in_default",
    "How many clicks of a day lie in the partition that takes what has no other; no more than `most` are counted.",
    """
    SELECT count(*) AS clicks FROM (
        SELECT 1 FROM clicks_default WHERE clicked_at >= :begin AND clicked_at < :end LIMIT :most
    ) AS early
    """,
    sqlite="SELECT 0 AS clicks",
)

KEEP_OTHERS_OUT = Statement(
    "keep_others_out",
    # Whoever had already looked up the partitions, and then waited, would miss clicks that have moved meanwhile.
    "Nobody reads or counts clicks until this transaction is over.",
    "LOCK TABLE ONLY clicks IN ACCESS EXCLUSIVE MODE",
    sqlite="SELECT 1",
)

OLD_CLICKS = Statement(
    "old_clicks",
    "The next links, and whether they have clicks over their time that no partition takes with it when it goes.",
    """
    SELECT short_code, EXISTS (
        SELECT 1 FROM clicks_default WHERE clicks_default.short_code = totals.short_code AND clicked_at < :before
    ) AS old
    FROM totals WHERE short_code > :code ORDER BY short_code LIMIT :page
    """,
    sqlite="""
    SELECT short_code, EXISTS (
        SELECT 1 FROM clicks WHERE clicks.short_code = totals.short_code AND clicked_at < :before
    ) AS old
    FROM totals WHERE short_code > :code ORDER BY short_code LIMIT :page
    """,
)

DELETE_CLICKS = Statement(
    "delete_clicks",
    "Deletes a batch of a link's clicks that are over their time.",
    """
    DELETE FROM clicks_default WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM clicks_default WHERE short_code = :code AND clicked_at < :before LIMIT :batch
    ))
    """,
    sqlite="""
    DELETE FROM clicks WHERE rowid IN (
        SELECT rowid FROM clicks WHERE short_code = :code AND clicked_at < :before LIMIT :batch
    )
    """,
)


def make_partition(name: str, begin: str, end: str) -> tuple[Statement, Statement]:
    """The statements that make a partition; the words are our own, and DDL takes no parameters."""
    return (
        Statement(
            "make_partition",
            "Makes a table like that of all clicks.",
            f"CREATE TABLE IF NOT EXISTS {name} (LIKE clicks INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
        ),
        Statement(
            "attach_partition",
            # Made as a part at once, it would keep every reader and writer off all clicks meanwhile.
            "Makes it take the clicks of a day; only the default partition is locked for it.",
            f"ALTER TABLE clicks ATTACH PARTITION {name} FOR VALUES FROM ('{begin}') TO ('{end}')",
        ),
    )


def move_clicks(name: str) -> Statement:
    """The statement that moves the clicks of a day from the default partition into the table that will be theirs."""
    return Statement(
        "move_clicks",
        "Moves clicks: no partition can be attached while the default one holds what belongs there.",
        f"""
        WITH moved AS (DELETE FROM clicks_default WHERE clicked_at >= :begin AND clicked_at < :end RETURNING *)
        INSERT INTO {name} SELECT * FROM moved
        """,  # noqa: S608  # our own words
    )


def drop_partition(name: str) -> Statement:
    """The statement that drops a partition."""
    return Statement("drop_partition", "Drops a day of clicks that is over its time.", f"DROP TABLE IF EXISTS {name}")
