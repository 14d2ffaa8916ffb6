"""That every question about links keeps to an index: told by the plans of both engines."""

import ast
import itertools
import random
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services import links
from refract.services.links.commands.leaving import (
    ERASE_LINK,
    ERASE_TAGS,
    FORGET_DEPARTURE,
    FORGET_REQUESTS,
    IS_DUE,
    KEYS_BATCH,
    LEFT_BEHIND,
    LOOKED,
    RENEW_LEASE,
    TAKE_DEPARTURE,
)
from refract.services.links.commands.managing import FIND_DESTINATION
from refract.services.links.commands.remembering import KEEP, PRUNE, PRUNE_BATCH, RECALL
from refract.services.links.commands.sweeping import DUE_LINKS, MARK_LINK
from refract.services.links.commands.totalling import KEEP_TOTAL
from refract.services.links.domain.link import Link, Status
from refract.services.links.queries.paging import PageRequest, Sort
from refract.services.links.queries.statements import FIND_VIEW, Shape, page_parameters, page_statement
from refract.services.links.redirect.lookup import FIND_RECORDS
from refract.services.links.store import (
    FIND_BY_KEY,
    FIND_BY_KEYS,
    FIND_LINK,
    FIND_TAGS,
    REMOVE_TAGS,
    SAVE_LINK,
    parameters_of,
)
from tests.support.clocks import START
from tests.support.links import ALICE, keep, some_link

YESTERDAY = START - timedelta(days=1)
TOMORROW = START + timedelta(days=1)

SHAPES = [
    PageRequest(sort=sort, text=text, tag=tag, status=status)
    for sort, text, tag, status in itertools.product(Sort, ("", "ab", "campaign", "---"), ("", "red"), (None, *Status))
]


def crowd() -> list[Link]:
    """Twenty thousand links: a quarter in one workspace, the others in many; some have expired without being marked."""
    chance = random.Random(5)
    statuses = [Status.ACTIVE] * 17 + [Status.EXPIRED, Status.DISABLED, Status.DELETED]
    made = []
    for number in range(1, 20_001):
        workspace = "crowded" if number % 4 == 1 else f"workspace-{number % 40}"
        if number % 40 == 0:
            workspace = ALICE.workspace_id
        made.append(
            some_link(
                number,
                workspace_id=workspace,
                title=f"campaign {number}" if number % 50 == 0 else "",
                status=chance.choice(statuses),
                tags=("red",) if number % 10 == 0 else ("blue",),
                expires_at=chance.choice([None] * 18 + [YESTERDAY, TOMORROW]) if number % 20 == 0 else None,
                total_clicks=chance.randrange(1000),
                url_key=number.to_bytes(32, "big") if number % 2 else None,
            )
        )
    return made


REMEMBERED = ("caller", "key", "part", "fingerprint", "status", "answer", "created_at")


def remembered() -> list[tuple[Any, ...]]:
    """As many answers as come together between two rounds of the pruning: one in twenty has had its time."""
    return [
        (
            f"caller-{number % 40}",
            f"key-{number}",
            0,
            b"\x00" * 32,
            201,
            '{"short_code":"code"}',
            START - timedelta(hours=number % 20 + 5.5),
        )
        for number in range(10_000)
    ]


async def plan_of(
    database: Database, statement: Statement, parameters: dict[str, Any], how: str = "EXPLAIN"
) -> list[str]:
    """The lines of a plan, as the engine tells it."""
    explained = Statement(
        "explain",
        "Tells how a statement is run.",
        f"{how} {statement.sql}",
        sqlite=f"EXPLAIN QUERY PLAN {statement.for_sqlite()}",
    )
    async with database.transaction() as tx:
        rows = await tx.fetch(explained, **{"workspace_id": ALICE.workspace_id, "now": START, **parameters})
    return [str(row.get("QUERY PLAN", row.get("detail"))) for row in rows]


def departed() -> list[tuple[Any, ...]]:
    """Accounts that were deleted long ago: nobody is due."""
    return [(f"departed-{number}", 3, TOMORROW) for number in range(2_000)]


OF_EVERYBODY = "links|link_tags|idempotency_keys|departures"
"""The tables in which the rows of all owners lie together."""


def walks_the_table(line: str) -> bool:
    """Whether a line of a plan means that the rows of all owners are read, in whatever order."""
    return (
        re.search(rf"Seq Scan on ({OF_EVERYBODY})\b|Scan Backward using links_pkey", line) is not None
        or re.fullmatch(rf"SCAN ({OF_EVERYBODY})( .*)?", line.strip()) is not None
    )


TIDY = Statement(
    "tidy",
    "Does what the server does by and by: puts what was just written where it belongs.",
    "SELECT gin_clean_pending_list('links_search')",
    sqlite="SELECT 1",
)

ANALYZE = Statement("analyze", "Counts what is there.", "ANALYZE")


async def keep_known(database: Database, made: list[Link]) -> None:
    """Keep links, and let the planner know them; a statement has ten seconds, on a busy machine too."""
    for first in range(0, len(made), 2_000):
        await keep(database, *made[first : first + 2_000])
    async with database.transaction() as tx:
        await tx.execute(TIDY)
        await tx.execute(ANALYZE)


KEYS = [number.to_bytes(32, "big") for number in range(1, 40, 2)]

RARE = PageRequest(text="campaign 77")

SAVED = parameters_of(some_link(77))

INDEXES: list[tuple[Statement, dict[str, Any], str, str]] = [
    (FIND_VIEW, {"short_code": "code-77"}, "links_short_code", "links_short_code (short_code=?)"),
    (FIND_LINK, {"short_code": "code-77"}, "links_short_code", "links_short_code (short_code=?)"),
    (FIND_BY_KEY, {"url_key": b"\x00" * 32}, "links_url_key", "links_url_key (workspace_id=? AND url_key=?)"),
    (
        FIND_RECORDS,
        {"codes": [f"code-{number}" for number in range(20)]},
        "links_short_code",
        "links_short_code (short_code=?)",
    ),
    (FIND_DESTINATION, {"short_code": "code-77"}, "links_short_code", "links_short_code (short_code=?)"),
    (
        FIND_BY_KEYS,
        {"url_keys": KEYS, "places": [place * 32 + 1 for place in range(len(KEYS))], "digests": b"".join(KEYS)},
        "links_url_key",
        "links_url_key (workspace_id=? AND url_key=?)",
    ),
    (
        RECALL,
        {"caller": "caller-7", "key": "key-77", "oldest": YESTERDAY},
        "idempotency_keys_pkey",
        "sqlite_autoindex_idempotency_keys_1 (caller=? AND key=?)",
    ),
    (
        PRUNE,
        {"before": YESTERDAY, "batch": PRUNE_BATCH},
        "idempotency_keys_created_at",
        "idempotency_keys_created_at (created_at<?)",
    ),
    (DUE_LINKS, {"batch": 200}, "links_to_expire", "links_to_expire (expires_at<?)"),
    (FIND_TAGS, {"link_id": 77}, "link_tags_link_id", "link_tags_link_id (link_id=?)"),
    (REMOVE_TAGS, {"link_id": 77}, "link_tags_link_id", "link_tags_link_id (link_id=?)"),
    (ERASE_TAGS, {"ids": [77, 78]}, "link_tags_link_id", "link_tags_link_id (link_id=?)"),
    (
        KEEP_TOTAL,
        {"short_code": "code-77", "total_clicks": 7, "last_clicked_at": START},
        "links_short_code",
        "links_short_code (short_code=?)",
    ),
    (
        LEFT_BEHIND,
        {"user_id": "workspace-7", "after": 0, "batch": 100},
        "links_by_creation",
        "links_by_creation (workspace_id=? AND id>?)",
    ),
    (SAVE_LINK, SAVED, "links_pkey", "links USING INTEGER PRIMARY KEY (rowid=?)"),
    (MARK_LINK, SAVED, "links_pkey", "links USING INTEGER PRIMARY KEY (rowid=?)"),
    (ERASE_LINK, SAVED, "links_pkey", "links USING INTEGER PRIMARY KEY (rowid=?)"),
    (
        KEEP,
        {"caller": "caller-7", "key": "key-7", "part": 0, "status": 201, "answer": "{}"},
        "idempotency_keys_pkey",
        "sqlite_autoindex_idempotency_keys_1 (caller=? AND key=? AND part=?)",
    ),
    (
        FORGET_REQUESTS,
        {"user_id": "caller-7", "batch": KEYS_BATCH},
        "idempotency_keys_pkey",
        "sqlite_autoindex_idempotency_keys_1 (caller=?)",
    ),
    (RENEW_LEASE, {"user_id": "departed-7", "leased_until": TOMORROW}, "departures_pkey", "(user_id=?)"),
    (LOOKED, {"user_id": "departed-7", "looks": 4, "next_at": TOMORROW}, "departures_pkey", "(user_id=?)"),
    (FORGET_DEPARTURE, {"user_id": "departed-7"}, "departures_pkey", "(user_id=?)"),
    (IS_DUE, {}, "departures_next_at", "departures_next_at (next_at<?)"),
    (TAKE_DEPARTURE, {"leased_until": TOMORROW}, "departures_next_at", "departures_next_at (next_at<?)"),
    (
        page_statement(Shape.of(RARE)),
        {**page_parameters(RARE), "workspace_id": "crowded"},
        "links_search",
        "SCAN links_search VIRTUAL TABLE INDEX",
    ),
    *(
        (page_statement(Shape.of(request)), page_parameters(request), there, here)
        for request, there, here in (
            (PageRequest(), "links_by_creation", "links_by_creation (workspace_id=? AND id<?)"),
            (PageRequest(sort=Sort.CLICKS), "links_by_clicks", "links_by_clicks (workspace_id=? AND total_clicks<?)"),
            (PageRequest(tag="red"), "link_tags_pkey", "(workspace_id=? AND tag=? AND link_id<?)"),
            (
                PageRequest(status=Status.ACTIVE),
                "links_by_status",
                "links_by_status (workspace_id=? AND status=? AND id<?)",
            ),
            (PageRequest(status=Status.EXPIRED), "links_to_expire", "links_by_creation (workspace_id=? AND id<?)"),
            (PageRequest(text="77"), "links_by_creation", "links_by_creation (workspace_id=? AND id<?)"),
        )
    ),
]


NEW = "it adds rows, and looks for none but by the keys that a conflict is about"
SMALL = "it is about a table that has as many rows as there are numbers of processes, whoever has links"
EXCUSED = {
    "insert_link": NEW,
    "insert_links": NEW,
    "claim_key": NEW,
    "note_departure": NEW,
    "offer_secret": NEW,
    "write_numbers": SMALL,
    "take_number": SMALL,
    "renew_number": SMALL,
    "free_number": SMALL,
    "find_secret": "the instance has one secret or two",
    "merge_search": "it works on an index and on no table",
}
"""Statements without a plan of theirs here, and why."""


def named_in(source: str) -> set[str]:
    """The names of all statements that a module makes, wherever in it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = set()
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id == "Statement":
            first = call.args[0]
            assert isinstance(first, ast.Constant), "a name is written out, so that it can be found"
            names.add(str(first.value))
    return names


def test_every_statement_is_listed_or_excused() -> None:
    modules = Path(links.__file__).parent.rglob("*.py")
    names = set().union(*(named_in(module.read_text()) for module in modules))
    listed = {statement.name for statement, *_ in INDEXES}
    assert listed | EXCUSED.keys() == names
    assert not listed & EXCUSED.keys()


async def test_every_statement_has_its_index_and_none_walks_the_table(database: Database) -> None:
    everybody = crowd()
    for first in range(0, len(everybody), 2_000):  # a statement has ten seconds, on a busy machine too
        await keep(database, *everybody[first : first + 2_000])
    async with database.transaction() as tx:
        await tx.insert_many("idempotency_keys", REMEMBERED, remembered())
        await tx.insert_many("departures", ("user_id", "looks", "next_at"), departed())
        await tx.execute(TIDY)
        await tx.execute(ANALYZE)
    for statement, parameters, there, here in INDEXES:
        plan = await plan_of(database, statement, parameters)
        index = here if database.dialect == "sqlite" else there
        assert any(index in line for line in plan), "\n".join([index, statement.sql, *plan])
        assert not any(map(walks_the_table, plan)), (statement.sql, plan)
    for request in SHAPES:
        plan = await plan_of(database, page_statement(Shape.of(request)), page_parameters(request))
        assert not any(map(walks_the_table, plan)), (request, plan)


async def test_nobody_passes_over_the_links_that_others_made_since(database: Database) -> None:
    """Of an owner with half of all links, and the older half: to the planner the way down all of them looks short."""
    others = range(10_001, 20_001)
    everybody = [some_link(number, workspace_id="newcomer", tags=("red", "blue")) for number in others]
    for number in range(1, 10_001):
        tags = ("red",) if number % 10 == 0 else ()
        expires_at = YESTERDAY if number % 5 == 0 else None
        everybody.append(some_link(number, title=f"campaign {number}", tags=tags, expires_at=expires_at))
    await keep_known(database, everybody)
    for request in SHAPES:
        plan = await plan_of(database, page_statement(Shape.of(request)), page_parameters(request))
        downwards = [line for line in plan if re.search(r"Scan Backward using links_pkey|SCAN links\b", line)]
        assert not downwards, "\n".join([str(request), *plan])


async def test_nobody_is_read_once_for_each_tag_because_the_planner_does_not_know_them_yet(database: Database) -> None:
    """A workspace that came after the tables were analysed has one link and one tag, as far as the planner knows."""
    everybody = crowd()
    newcomers = [some_link(number, workspace_id="newcomer", tags=("red",)) for number in range(30_001, 31_501)]
    await keep_known(database, everybody)
    await keep(database, *newcomers)
    for request in SHAPES:
        names = {**page_parameters(request), "workspace_id": "newcomer"}
        plan = await plan_of(database, page_statement(Shape.of(request)), names)
        each = [line for line in plan if re.search(r"Join Filter|Rows Removed|SCAN (links|link_tags)\b", line)]
        assert not each, "\n".join([str(request), *plan])


async def test_an_old_tag_is_no_walk_through_all_that_came_since(database: Database) -> None:
    made = [some_link(n, title="my campaign", tags=("old",) if n <= 2_500 else ()) for n in range(1, 20_001)]
    await keep_known(database, made)
    for sort in Sort:
        request = PageRequest(sort=sort, text="campaign", tag="old")
        how = "EXPLAIN (ANALYZE)"
        plan = await plan_of(database, page_statement(Shape.of(request)), page_parameters(request), how)
        removed = [int(number) for line in plan for number in re.findall(r"Rows Removed by Filter: (\d+)", line)]
        assert max(removed, default=0) < 1_000, "\n".join(plan)
        asked = {"workspace_id": ALICE.workspace_id, "now": START, **page_parameters(request)}
        assert len(await database.fetch(page_statement(Shape.of(request)), **asked)) == request.limit + 1


def test_what_may_look_at_many_links_is_planned_with_its_values() -> None:
    """A plan for all values is made without the text, and takes a word that all links have for a rare one."""
    for request in SHAPES:
        assert page_statement(Shape.of(request)).varied is request.searches, request


async def test_a_walk_would_be_seen(database: Database) -> None:
    await keep(database, *crowd()[:5_000])
    everybody = "SELECT short_code FROM links"
    keys = "SELECT key FROM idempotency_keys WHERE answer = :text"
    tags = "SELECT count(*) FROM link_tags WHERE link_id + :limit > 0"
    for sql in (f"{everybody} WHERE notes = :text", f"{everybody} ORDER BY id DESC LIMIT :limit", keys, tags):
        plan = await plan_of(database, Statement("walk", "Reads every row.", sql), {"text": "x", "limit": 3})
        assert any(map(walks_the_table, plan)), plan


PORTION = Statement(
    "portion",
    "Reads how much waits for the index of the search before somebody has to put it in.",
    "SELECT array_to_string(reloptions, ',') AS options FROM pg_class WHERE relname = 'links_search'",
    sqlite="SELECT 'gin_pending_list_limit=65536' AS options",
)


async def test_nobody_who_makes_a_link_waits_for_the_index(database: Database) -> None:
    assert await database.fetch(PORTION) == [{"options": "gin_pending_list_limit=65536"}]
