"""The statements of the readers: each goes down one index, and says which columns it wants."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from refract.runtime.statements import Statement
from refract.services.analytics.domain.sketches import HASH, LONGEST_LIST

COUNTS = ("clicks", "bot_clicks", "parts")
PEOPLE, EVERYBODY = ("visitors",), ("visitors", "bot_visitors")

_OF_LINK = (
    "links.user_id, links.stats_public, links.status, totals.clicks, totals.bot_clicks, totals.first_clicked_at, "
    "totals.last_clicked_at FROM folding LEFT JOIN links ON links.short_code = :short_code "
    "LEFT JOIN totals ON totals.short_code = :short_code"
)

FIND_LINK = Statement(
    "find_link",
    "Reads whose a link is and all its clicks together, with how far periods of each span are folded and expired; "
    "and which periods of it have to be folded again.",
    f"SELECT folding.span, until, expired, NULL::timestamptz AS stale, {_OF_LINK} "  # noqa: S608  # names, not values
    "UNION ALL SELECT DISTINCT span, NULL::timestamptz, NULL::timestamptz, starts_at, NULL, NULL::boolean, NULL, "
    "NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::timestamptz FROM stale WHERE short_code = :short_code",
    sqlite=f'SELECT folding.span, until, expired, NULL AS "stale [TIMESTAMP]", {_OF_LINK} '  # noqa: S608
    "UNION ALL SELECT DISTINCT span, NULL, NULL, starts_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM stale "
    "WHERE short_code = :short_code",
    steady=True,
)
"""One statement, though it says of the link three times what could be said once: it is asked for every answer."""

WATCH = Statement(
    "watch_totals",
    "Reads the totals of all links that somebody watches.",
    "SELECT short_code, clicks, bot_clicks, last_clicked_at FROM totals WHERE short_code = ANY(:short_codes)",
    sqlite="SELECT short_code, clicks, bot_clicks, last_clicked_at FROM totals "
    "WHERE short_code IN (SELECT value FROM json_each(:short_codes))",
)


@cache
def read_rows(columns: Sequence[str]) -> Statement:
    """Reads some columns of the rows of a link: of `days` and `months` by their beginnings, and all hours of stretches.

    Those are from `firsts` up to `lasts`, in microseconds.
    """
    names = ", ".join(columns)
    return Statement(
        "read_rows",
        "Reads rows of a link by span and beginning.",
        f"SELECT span, starts_at, {names} FROM {_STRETCHES} "  # noqa: S608  # names, not values
        f"UNION ALL {_of_each_span(names, _IS_ANY, _LONGER)}",
        sqlite=f"SELECT span, starts_at, {names} FROM {_STRETCHES_SQLITE} "  # noqa: S608
        f"UNION ALL {_of_each_span(names, _IN_LIST, _LONGER)}",
        steady=True,
    )


@cache
def read_visitors(columns: Sequence[str], *, cut: bool = False, counted: bool = False) -> Statement:
    """Reads who was seen in such rows, by the sketches in some columns; and of days that are `cut` by their quarters.

    These are made of no `sketches`, and NULL where the day does not know them. Of days that are only `counted` the
    first of the columns tells how many were seen; or all it has, if it has no list of them.

    The lists of a stretch of hours come as one, made of so many `sketches`, and may name somebody twice: to send each
    by itself costs more than what is in it. SQLite, which sends nothing, gives them one by one.
    """
    days = [("cut", _QUARTERS, "")] if cut else []
    if counted:
        days.append(("counted", _COUNTED.format(column=columns[0]), _KNOWN.format(column=columns[0])))
    return Statement(
        "read_visitors",
        "Reads the sketches of a link's visitors by span and beginning.",
        _of_each_column(columns, _LISTS, _IS_ANY) + _of_days(days, _IS_ANY),
        sqlite=_of_each_column(columns, _LISTS_SQLITE, _IN_LIST) + _of_days(days, _IN_LIST),
        steady=True,
    )


_PLURALS = {1: "hours", 2: "days", 3: "months"}
_LONGER = (2, 3)
_STRETCH = "unnest(:firsts::bigint[], :lasts::bigint[]) AS stretch(first, last)"
_IN_STRETCH = (
    "short_code = :short_code AND span = 1 "
    "AND starts_at >= timestamptz 'epoch' + stretch.first * interval '1 microsecond' "
    "AND starts_at < timestamptz 'epoch' + stretch.last * interval '1 microsecond'"
)
# OFFSET 0 keeps the planner from reading all hours of a link first and choosing among them afterwards.
_STRETCHES = f"{_STRETCH} CROSS JOIN LATERAL (SELECT * FROM rollups WHERE {_IN_STRETCH} OFFSET 0) AS hours"  # noqa: S608
_STRETCHES_SQLITE = (
    "json_each(:firsts) AS stretch CROSS JOIN rollups ON short_code = :short_code AND span = 1 "
    "AND starts_at >= stretch.value AND starts_at < json_extract(:lasts, '$[' || stretch.key || ']')"
)
_IS_ANY = "starts_at = ANY(:{list})"
_IN_LIST = "starts_at IN (SELECT CAST(strftime('%s', value) AS INTEGER) * 1000000 FROM json_each(:{list}))"

_SKETCH = "1 AS sketches, 0 AS counted, {column} AS seen"
_QUARTERS = "0 AS sketches, 0 AS counted, quarter_visitors AS seen"
# The length of what is stored beside its row is known without a look at it.
_COUNTED = (
    f"1 AS sketches, CASE WHEN length({{column}}) <= {LONGEST_LIST} THEN length({{column}}) / {HASH} ELSE 0 END "
    f"AS counted, CASE WHEN length({{column}}) > {LONGEST_LIST} THEN {{column}} END AS seen"
)
_KNOWN = "AND {column} IS NOT NULL"
# Lists have the same first byte, and one is made of them; of those that are no lists, each stays by itself. What is
# stored beside its row is fetched whenever it is looked at: here once, as the end of an empty one.
_HOURS = f"SELECT starts_at, ''::bytea || {{column}} AS sketch FROM rollups WHERE {_IN_STRETCH} {_KNOWN} OFFSET 0"  # noqa: S608
_LISTS = (
    f"SELECT 1 AS span, told.* FROM {_STRETCH} CROSS JOIN LATERAL ("  # noqa: S608  # names, not values
    "SELECT min(starts_at) AS starts_at, count(*) AS sketches, 0 AS counted, "
    f"substr(sketch, 1, 1) || string_agg(substr(sketch, 2), ''::bytea) AS seen FROM ({_HOURS}) AS hours "
    r"GROUP BY substr(sketch, 1, 1), CASE WHEN substr(sketch, 1, 1) <> '\x01'::bytea THEN starts_at END) AS told"
)
_LISTS_SQLITE = f"SELECT span, starts_at, {_SKETCH} FROM {_STRETCHES_SQLITE} {_KNOWN}"  # noqa: S608  # names, not values


def _of_each_column(columns: Sequence[str], hours: str, condition: str) -> str:
    longer = _of_each_span(_SKETCH, f"{condition} {_KNOWN}", _LONGER)
    return " UNION ALL ".join(f"{hours} UNION ALL {longer}".format(column=column) for column in columns)


def _of_days(wanted: Sequence[tuple[str, str, str]], condition: str) -> str:
    """What is wanted of days: by the name of their list, what, and if what."""
    return "".join(
        f" UNION ALL {_of_span(names, 2, condition.replace('{list}', days))} {further}"
        for days, names, further in wanted
    )


@cache
def read_stretches(columns: Sequence[str]) -> Statement:
    """Reads some columns of the rows of a link in one stretch for each span, from `…_from` up to `…_to`."""
    names = ", ".join(columns)
    return Statement(
        "read_stretches",
        "Reads rows of a link, of each span one after the other.",
        _of_each_span(names, "starts_at >= :{list}_from AND starts_at < :{list}_to"),
        steady=True,
    )


def _of_each_span(names: str, condition: str, spans: Sequence[int] = tuple(_PLURALS)) -> str:
    return " UNION ALL ".join(_of_span(names, span, condition.replace("{list}", _PLURALS[span])) for span in spans)


def _of_span(names: str, span: int, condition: str) -> str:
    return (
        f"SELECT span, starts_at, {names} FROM rollups "  # noqa: S608  # names, not values
        f"WHERE short_code = :short_code AND span = {span} AND {condition}"
    )


CLICK_COLUMNS = (
    "event_id",
    "clicked_at",
    "bot",
    "referer",
    "referrer",
    "country",
    "region",
    "city",
    "latitude",
    "longitude",
    "browser",
    "os",
    "device",
    "language",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
    "user_agent",
)

Direction = Literal["newest", "oldest"]


@cache
def page_of_clicks(direction: Direction, *, bots: bool) -> Statement:
    """Reads clicks of a link between `first` and `last`, beyond the one at the cursor, in the order of time."""
    compare, order = ("<", "DESC") if direction == "newest" else (">", "ASC")
    people = "" if bots else "AND NOT bot "
    return Statement(
        "page_of_clicks",
        "Reads a page of a link's clicks.",
        f"SELECT {', '.join(CLICK_COLUMNS)} FROM clicks "  # noqa: S608  # names, not values
        "WHERE short_code = :short_code AND clicked_at >= :first AND clicked_at < :last "
        f"AND (clicked_at, event_id) {compare} (:clicked_at, :event_id) {people}"
        f"ORDER BY clicked_at {order}, event_id {order} LIMIT :limit",
    )
