"""Whether a lookup, pages of the list and a new link take as long among millions of links as among 100,000."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.figures import Rounds, json_line, short_form, table, verdict
from benchmarks.instances import wait_until_quiet
from benchmarks.links import EMAIL, OWNER, SEED
from benchmarks.listing import AT_ONCE, CONNECTIONS, VIEWS, pages
from benchmarks.shorten import new_urls
from benchmarks.warming import read_once
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, send_once, write_requests
from refract.kernel.ids import ALPHABET

FEW = 100_000
LOOKUPS = 10_000
SHORTENED = 4_000
LIST_SECONDS = 2
ROUNDS_AT_MOST = 5
TIMES = 1.5
FULL = 10_000_000
"""Links that the target speaks of: fewer of them lie closer together, and fit into memory."""

LOOKUP, PAGE, SHORTEN = JUDGED = ("lookup", "page", "shorten")
OWNERS = 2
"""Every second link is of the owner whose list is read; the others are of many."""
TAG, TAGGED_EVERY = "spring", 100
PAGES = {
    PAGE: VIEWS["newest first"],
    "page by clicks": VIEWS["by clicks"],
    "page by tag": {"tag": TAG},
    "page by text": VIEWS["text"],
}
"""Of the first a figure is asked for; the others are shown. Of the owner's links one in a hundred has the tag, and
about one in nine hundred the text."""

DIGITS = 7
STEP = 500_000_000_023
"""Times the number of a link, modulo all codes: no two numbers below 62**7 give the same, and neighbours lie apart."""

_DIGIT = f"substr('{ALPHABET}', (n * {STEP} % {62**DIGITS} / {{power}} % 62)::int + 1, 1)"
_ID = "200000000000000000 + n * 4194304"
_CODE = " || ".join(_DIGIT.format(power=62**place) for place in reversed(range(DIGITS)))
_URL = "'https://example.com/articles/' || n || '?utm_source=newsletter&utm_medium=mail'"
FILL = f"""
INSERT INTO links (id, short_code, original_url, workspace_id, created_by, owner_email, created_at, updated_at, url_key,
                   total_clicks)
SELECT {_ID}, {_CODE}, {_URL}, owner, owner, '{EMAIL}', moment, moment,
       sha256(convert_to({_URL}, 'UTF8')), n * {STEP} % 1009
FROM generate_series(0::bigint, $1::bigint - 1) AS n,
     LATERAL (SELECT CASE n % {OWNERS} WHEN 0 THEN '{OWNER}' ELSE md5((n % 1999)::text)::uuid::text END AS owner,
                     timestamptz '2025-01-01' + n * interval '1 second' AS moment) AS made
"""

FILL_TAGS = f"""
INSERT INTO link_tags (workspace_id, tag, link_id)
SELECT '{OWNER}', '{TAG}', {_ID} FROM generate_series(0::bigint, $1::bigint - 1, {OWNERS * TAGGED_EVERY}) AS n
"""


def code_of(number: int) -> str:
    """The code that FILL gives to a link."""
    value = number * STEP % 62**DIGITS
    return "".join(ALPHABET[value // 62**place % 62] for place in reversed(range(DIGITS)))


@dataclass
class Database:
    """A service over so many links, and what was seen of it."""

    links: int
    ready: Ready
    numbers: Sequence[int]
    seen: dict[str, list[Reached]] = field(
        default_factory=lambda: {LOOKUP: [], **{view: [] for view in PAGES}, SHORTEN: []}
    )
    refused: dict[str, str] = field(default_factory=dict)
    """What it gave no pages of, and what it said."""

    def play(self, folder: Path, number: int) -> None:
        """One round: links that were not asked for before, pages of the list, and new links."""
        asked = self.numbers[number * LOOKUPS : (number + 1) * LOOKUPS]
        # HEAD is looked up and not counted: a click costs the same in both.
        lookups = (f"HEAD /{code_of(one)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for one in asked)
        self.seen[LOOKUP].append(send_once(self.ready, write_requests(folder / "lookups", lookups), connections=64))
        for view in PAGES:
            self._list(view, folder)
        new = new_urls(self.ready, folder / "new", SHORTENED)
        self.seen[SHORTEN].append(send_once(self.ready, new, connections=32))
        wait_until_quiet([self.ready.pid])

    def _list(self, view: str, folder: Path) -> None:
        """Pages of a view. One that is not judged may be refused: an hour of filling is not to be lost to that."""
        name = f"pages-{self.links}-{view.replace(' ', '-')}"
        at_once = AT_ONCE["text"] if "q" in PAGES[view] else CONNECTIONS
        try:
            file = pages(self.ready, folder / name, PAGES[view])
            self.seen[view].append(send(self.ready, file, connections=at_once, seconds=LIST_SECONDS))
        except RuntimeError as error:
            if view in JUDGED:
                raise
            self.refused[view] = str(error)


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    many = workshop.options.links
    rounds = min(ROUNDS_AT_MOST, workshop.options.rounds)
    print(f"scale: {many:,} links in PostgreSQL beside {FEW:,}, half of them of one owner; {rounds} rounds in turns")
    print(f"  {workshop.storage}")
    with ExitStack() as stack:
        databases = []
        for links in (FEW, many):
            dsn = stack.enter_context(workshop.database())
            begun = time.monotonic()
            size = asyncio.run(_fill(dsn, links))
            print(
                f"  {links:,} links made in {time.monotonic() - begun:.0f} s, {size / 1e6:,.0f} MB with their indexes"
            )
            numbers = random.Random(SEED).sample(range(links), rounds * LOOKUPS)
            databases.append(Database(links, stack.enter_context(workshop.links_service(dsn)), numbers))
        for number in range(rounds):
            for database in databases:
                workshop.empty_cache()
                database.play(workshop.folder, number)
    figures, times = _show(*databases)
    told = f"{', '.join(JUDGED)} within {TIMES:g} times the figures at {FEW:,}"
    if many < FULL:
        print(short_form(f"{told}, of {FULL:,} links", f"scale --links {FULL}"))
    else:
        print(verdict(told, met=all(times[what].median <= TIMES for what in JUDGED)))
    print(
        json_line("scale", {"links": many, "full": many >= FULL, **figures, "postgresql": workshop.storage.as_json()})
    )


def _show(few: Database, many: Database) -> tuple[dict[str, Any], dict[str, Rounds]]:
    """Print the table; returns the figures, and how many times as long each takes among many."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    times: dict[str, Rounds] = {}
    for what in few.seen:
        if refused := {f"{each.links:,}": each.refused[what] for each in (few, many) if what in each.refused}:
            print("".join(f"  {what} of {links} links gave none: {said}\n" for links, said in refused.items()), end="")
            figures[what] = {"refused": refused}
            continue
        pairs = zip(few.seen[what], many.seen[what], strict=True)
        ratio = times[what] = Rounds.of(one.rate / other.rate for one, other in pairs)
        rates = [Rounds.of(reached.rate for reached in each.seen[what]) for each in (few, many)]
        tails = [Rounds.of(reached.p99 for reached in each.seen[what]) for each in (few, many)]
        shown = (*(rate.shown(",.0f") for rate in rates), *(f"{tail.median:.2f}" for tail in tails))
        rows.append((what, *shown, ratio.shown()))
        figures[what] = {
            "times": ratio.as_json(),
            "rps": [rate.as_json() for rate in rates],
            "p99_ms": [tail.as_json() for tail in tails],
        }
    header = (
        "",
        f"a second of {few.links:,}",
        f"of {many.links:,}",
        f"p99 ms of {few.links:,}",
        f"of {many.links:,}",
        "times as long",
    )
    print(table(header, rows))
    return figures, times


async def _fill(dsn: str, links: int) -> int:
    """Bytes of the table after so many links were made; indexes are built afterwards, which is far quicker."""
    connection = await asyncpg.connect(dsn, command_timeout=4 * 3600)
    try:
        rows = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'links' AND indexname != 'links_pkey'"
        )
        for row in rows:
            await connection.execute(f'DROP INDEX "{row["indexname"]}"')
        await connection.execute(FILL, links)
        await connection.execute("SET maintenance_work_mem = '1GB'")
        for row in rows:
            await connection.execute(row["indexdef"])
        await connection.execute(FILL_TAGS, links)
        for table_name in ("links", "link_tags"):
            await connection.execute(f"VACUUM ANALYZE {table_name}")
        await read_once(connection, "links", "link_tags")
        return int(await connection.fetchval("SELECT pg_total_relation_size('links')"))
    finally:
        await connection.close()
