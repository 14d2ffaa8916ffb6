"""The statements about edges: short stretches of a link's time that no row knows, and only its clicks tell."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from refract.runtime.statements import Statement
from refract.services.analytics.domain.periods import microseconds_of
from refract.services.analytics.queries.moments import Edge

FEW = 4
"""So many edges, as nearly every answer has, are asked for by name: the planner then knows which days they lie in, and
looks at no others. It looks at all days between the first edge and the last where edges come in a list, and at 40 of
them it takes a millisecond."""

Asking = Callable[[int], Statement]
"""The statement for so many edges: `edge_parameters` are its parameters, and its rows tell the `number` of the edge."""


def count_edges(*, value: str = "") -> Asking:
    """Counts clicks, by value if wanted."""
    return partial(_count, value=value)


@cache
def _count(edges: int, *, value: str) -> Statement:
    group = f"{value}, bot" if value else "bot"
    shown = f"{value} AS value, bot" if value else "bot"
    return _statement(
        "count_edges",
        "Counts clicks of a link in short stretches.",
        edges,
        columns=f"{shown}, count(*) AS clicks",
        group=f" GROUP BY {group}",
    )


@cache
def edge_visitors(edges: int) -> Statement:
    """Reads who clicked, each visitor once in each: those whose names have the same length one after the other.

    SQLite, which sends nothing, gives them one by one.
    """
    return _statement(
        "edge_visitors",
        "Reads who clicked in short stretches, each visitor once.",
        edges,
        columns="bot, octet_length(visitor) AS length, string_agg(DISTINCT visitor, ''::bytea) AS visitors",
        group=" GROUP BY bot, octet_length(visitor)",
        sqlite=("bot, length(visitor) AS length, visitor AS visitors", " GROUP BY visitor, bot"),
    )


def edge_parameters(short_code: str, edges: Sequence[Edge]) -> dict[str, Any]:
    """What a statement about these edges is given."""
    if len(edges) <= FEW:
        bounds = {f"start_{number}": start for number, (_, start, _) in enumerate(edges, start=1)}
        bounds |= {f"end_{number}": end for number, (_, _, end) in enumerate(edges, start=1)}
        return {"short_code": short_code, **bounds}
    return {
        "short_code": short_code,
        "starts": [microseconds_of(start) for _, start, _ in edges],
        "ends": [microseconds_of(end) for _, _, end in edges],
        # Before and after all of them: by these the planner knows which partitions it can leave out.
        "first": min(start for _, start, _ in edges),
        "last": max(end for _, _, end in edges),
    }


def _statement(
    name: str, sentence: str, edges: int, *, columns: str, group: str, sqlite: tuple[str, str] | None = None
) -> Statement:
    columns_sqlite, group_sqlite = sqlite or (columns, group)
    if edges <= FEW:
        return Statement(
            name,
            sentence,
            _one_by_one(edges, columns, "clicks", group),
            sqlite=_one_by_one(edges, columns_sqlite, _CLICKS_SQLITE, group_sqlite),
        )
    return Statement(
        name,
        sentence,
        f"SELECT edge.number, told.* FROM {_EDGES} "  # noqa: S608  # names, not values
        f"CROSS JOIN LATERAL (SELECT {columns} FROM clicks WHERE {_IN_EDGE}{group}) AS told",
        sqlite=f"SELECT edge.key + 1 AS number, {columns_sqlite} FROM {_EDGES_SQLITE}{group_sqlite}, edge.key",  # noqa: S608
    )


def _one_by_one(edges: int, columns: str, clicks: str, group: str) -> str:
    return " UNION ALL ".join(
        f"SELECT {number} AS number, {columns} FROM {clicks} WHERE short_code = :short_code "  # noqa: S608
        f"AND clicked_at >= :start_{number} AND clicked_at < :end_{number}{group}"
        for number in range(1, edges + 1)
    )


_CLICKS_SQLITE = "clicks INDEXED BY clicks_by_link"
_EDGES = "unnest(:starts::bigint[], :ends::bigint[]) WITH ORDINALITY AS edge(starts, ends, number)"
_IN_EDGE = (
    "short_code = :short_code AND clicked_at >= :first AND clicked_at < :last "
    "AND clicked_at >= timestamptz 'epoch' + edge.starts * interval '1 microsecond' "
    "AND clicked_at < timestamptz 'epoch' + edge.ends * interval '1 microsecond'"
)
# CROSS is SQLite's word for "in this order": edge by edge, and of each what the index has between its ends.
_EDGES_SQLITE = (
    f"json_each(:starts) AS edge CROSS JOIN {_CLICKS_SQLITE} "
    "ON clicks.short_code = :short_code AND clicks.clicked_at >= edge.value "
    "AND clicks.clicked_at < json_extract(:ends, '$[' || edge.key || ']')"
)
