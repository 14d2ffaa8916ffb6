"""How the engines answer: every statement of the readers goes down an index, however much there is."""

import random
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, end_of, microseconds_of, start_of
from refract.services.analytics.queries import statements, summary
from refract.services.analytics.queries.edges import FEW, count_edges, edge_parameters, edge_visitors
from tests.support.clocks import START
from tests.support.databases import Location
from tests.support.periods import a_click, open_periods

HOT = "code-7"
ANALYZE = Statement("analyze", "Lets the planner know.", "ANALYZE")
EDGE = (START - timedelta(days=6), START - timedelta(days=6) + timedelta(minutes=1))

MANY = FEW + 1

ONE_LINK: dict[str, Any] = {
    "short_code": HOT,
    "firsts": [microseconds_of(start_of(START, HOUR) - timedelta(days=number)) for number in range(5)],
    "lasts": [microseconds_of(start_of(START, HOUR) - timedelta(days=number, hours=-3)) for number in range(5)],
    "days": [start_of(START, DAY) - timedelta(days=number) for number in range(5)],
    "months": [start_of(START, MONTH)],
    "cut": [start_of(START, DAY) - timedelta(days=number) for number in range(5)],
    **{f"{plural}_from": START - timedelta(days=20) for plural in ("hours", "days", "months")},
    **{f"{plural}_to": START for plural in ("hours", "days", "months")},
    **edge_parameters(HOT, [(0, *EDGE)]),
    **edge_parameters(HOT, [(0, *EDGE)] * MANY),
    "clicked_at": EDGE[1],
    "event_id": "",
    "limit": 20,
    "short_codes": [HOT, "code-8"],
}
ONE_USER: dict[str, Any] = {
    "user_id": "user-7",
    "limit": 10,
    "since": START - timedelta(days=7),
    "first_hour": end_of(start_of(START - timedelta(days=7), HOUR), HOUR),
    "first_day": start_of(START, DAY) - timedelta(days=6),
    "last_day": start_of(START, DAY),
}
STATEMENTS: dict[str, Statement] = {
    "find_link": statements.FIND_LINK,
    "watch": statements.WATCH,
    "rows": statements.read_rows(statements.COUNTS),
    "visitors": statements.read_visitors(statements.EVERYBODY, cut=False),
    "visitors by quarters": statements.read_visitors(statements.PEOPLE, cut=True),
    "stretches": statements.read_stretches(statements.COUNTS),
    "edge": count_edges()(1),
    "edge by value": count_edges(value="country")(1),
    "visitors at an edge": edge_visitors(1),
    "edges": count_edges()(MANY),
    "edges by value": count_edges(value="country")(MANY),
    "visitors at edges": edge_visitors(MANY),
    "newest": statements.page_of_clicks("newest", bots=False),
    "oldest": statements.page_of_clicks("oldest", bots=True),
    "sum_links": summary.SUM_LINKS,
    "top": summary.TOP,
    "recent": summary.COUNT_RECENT,
}

USERS = (summary.SUM_LINKS, summary.TOP, summary.COUNT_RECENT)
"""Those that are about all links of a user."""


@pytest.fixture
async def crowded(empty_location: Location) -> AsyncIterator[Database]:
    """Links of many users, with rows and clicks."""
    chance = random.Random(5)
    async with open_periods(empty_location) as periods:
        await periods.house().prepare()
        clicks = [
            a_click(START - timedelta(minutes=chance.randrange(8 * 1440)), f"code-{number % 400}", visitor=number % 9)
            for number in range(4_000)
        ]
        await periods.count(*clicks)
        raw = [
            (f"event-{number}", f"link-{number % 6_000}", START - timedelta(seconds=number * 23), b"v", False)
            for number in range(30_000)
        ]
        links = [(f"link-{number}", f"user-{number % 300}") for number in range(6_000)]
        totals = [(code, 5, 0, START, START) for code, _ in links]
        rows = [
            (code, span, start_of(START, span) - timedelta(days=day), 1, 0)
            for code, _ in links
            for span in (HOUR, DAY)
            for day in range(3)
        ]
        async with periods.database.transaction() as tx:
            await tx.insert_many("clicks", ("event_id", "short_code", "clicked_at", "visitor", "bot"), raw)
            await tx.insert_many("links", ("short_code", "user_id"), links)
            names = ("short_code", "clicks", "bot_clicks", "first_clicked_at", "last_clicked_at")
            await tx.insert_many("totals", names, totals)
            await tx.insert_many("rollups", ("short_code", "span", "starts_at", "clicks", "bot_clicks"), rows)
        async with periods.database.transaction() as tx:
            await tx.execute(ANALYZE)
        yield periods.database


async def plan_of(database: Database, statement: Statement, parameters: dict[str, Any]) -> list[str]:
    """The lines of a plan, as the engine tells it."""
    asked = {name: parameters[name] for name in statement.for_postgresql()[1]}
    explained = Statement(
        "explain",
        "Tells how a statement is run.",
        f"EXPLAIN {statement.sql}",
        sqlite=f"EXPLAIN QUERY PLAN {statement.for_sqlite()}",
        steady=statement.steady,
    )
    rows = await database.fetch(explained, **asked)
    return [str(row.get("QUERY PLAN", row.get("detail"))) for row in rows]


def walks_a_table(line: str) -> bool:
    """Whether a line of a plan means that a table is read as a whole; `folding` has three rows, and marks are few."""
    words = line.replace("->", "").split()
    if "Seq Scan on" in line:
        return not any(f"Seq Scan on {small}" in line for small in ("folding", "stale"))
    return words[:1] == ["SCAN"] and words[1] in {"links", "totals", "rollups", "clicks"} and "USING" not in words


def finds_by_index(line: str) -> bool:
    """Whether a line says what is looked for in an index."""
    return "Index Cond:" in line or (line.startswith("SEARCH") and "folding" not in line)


def partitions(plan: list[str]) -> set[str]:
    """Those of the clicks that a plan reads."""
    return {part for line in plan for part in re.findall(r" on (clicks_\w+)", line)}


async def test_every_statement_goes_down_an_index_and_into_few_partitions(crowded: Database) -> None:
    plans = {
        name: await plan_of(crowded, statement, ONE_USER if statement in USERS else ONE_LINK)
        for name, statement in STATEMENTS.items()
    }
    walking = {name: plan for name, plan in plans.items() if any(map(walks_a_table, plan))}
    assert walking == {}
    for name, statement in STATEMENTS.items():
        if statement not in USERS:  # it is about one link, and reads nothing of another
            assert all("short_code" in line for line in plans[name] if finds_by_index(line)), plans[name]
    if crowded.dialect == "postgresql":
        for name in ("edge", "edge by value", "visitors at an edge", "edges", "newest"):
            assert len(partitions(plans[name])) <= 1, plans[name]


async def test_of_a_few_edges_only_their_own_days_are_planned(crowded: Database) -> None:
    edges = [(0, START + timedelta(days=days), START + timedelta(days=days, minutes=1)) for days in (0, 2)]
    for statement in (count_edges()(2), count_edges(value="country")(2), edge_visitors(2)):
        plan = await plan_of(crowded, statement, edge_parameters(HOT, edges))
        if crowded.dialect == "postgresql":
            assert len(partitions(plan)) == 2, plan  # both empty, and so read as a whole
        else:
            assert sum("SEARCH clicks USING" in line for line in plan) == 2, plan


async def test_no_plan_is_for_all_values_of_a_table_with_partitions() -> None:
    """It would open them all, and there are 1,826 after five years."""
    steady = [statement for statement in STATEMENTS.values() if statement.steady]
    assert len(steady) >= 4
    assert not [statement.name for statement in steady if re.search(r"\b(FROM|JOIN) clicks\b", statement.sql)]


@pytest.mark.parametrize("steady", [False, True])
async def test_no_plan_is_compiled(crowded: Database, *, steady: bool) -> None:
    """That takes a tenth of a second for the edges of a busy link, which are read in ten milliseconds."""
    compiling = Statement(
        "compiling",
        "Tells whether plans may be compiled.",
        "SELECT current_setting('jit') AS compiling",
        sqlite="SELECT 'off' AS compiling",
        steady=steady,
    )
    assert [row["compiling"] for row in await crowded.fetch(compiling)] == ["off"]
