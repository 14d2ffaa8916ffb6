"""Whether a lookup, a page of the list and a new link take as long among millions of links as among 100,000."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import wait_until_quiet
from benchmarks.links import EMAIL, OWNER, SEED
from benchmarks.listing import pages
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

DIGITS = 7
STEP = 500_000_000_023
"""Times the number of a link, modulo all codes: no two numbers below 62**7 give the same, and neighbours lie apart."""

_DIGIT = f"substr('{ALPHABET}', (n * {STEP} % {62**DIGITS} / {{power}} % 62)::int + 1, 1)"
_CODE = " || ".join(_DIGIT.format(power=62**place) for place in reversed(range(DIGITS)))
_URL = "'https://example.com/articles/' || n || '?utm_source=newsletter&utm_medium=mail'"
FILL = f"""
INSERT INTO links (id, short_code, original_url, workspace_id, created_by, owner_email, created_at, updated_at, url_key)
SELECT 200000000000000000 + n * 4194304, {_CODE}, {_URL}, owner, owner, '{EMAIL}', moment, moment,
       sha256(convert_to({_URL}, 'UTF8'))
FROM generate_series(0::bigint, $1::bigint - 1) AS n,
     LATERAL (SELECT CASE n % 2 WHEN 0 THEN '{OWNER}' ELSE md5((n % 1999)::text)::uuid::text END AS owner,
                     timestamptz '2025-01-01' + n * interval '1 second' AS moment) AS made
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
    seen: dict[str, list[Reached]] = field(default_factory=lambda: {"lookup": [], "page": [], "shorten": []})

    def play(self, folder: Path, number: int) -> None:
        """One round: links that were not asked for before, pages of the list, and new links."""
        asked = self.numbers[number * LOOKUPS : (number + 1) * LOOKUPS]
        # HEAD is looked up and not counted: a click costs the same in both.
        lookups = (f"HEAD /{code_of(one)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for one in asked)
        self.seen["lookup"].append(send_once(self.ready, write_requests(folder / "lookups", lookups), connections=64))
        file = pages(self.ready, folder / f"pages-{self.links}", {})
        self.seen["page"].append(send(self.ready, file, connections=10, seconds=LIST_SECONDS))
        new = new_urls(self.ready, folder / "new", SHORTENED)
        self.seen["shorten"].append(send_once(self.ready, new, connections=32))
        wait_until_quiet([self.ready.pid])


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    many = workshop.options.links
    rounds = min(ROUNDS_AT_MOST, workshop.options.rounds)
    print(f"scale: {many:,} links in PostgreSQL beside {FEW:,}, half of them of one owner; {rounds} rounds in turns")
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
        _show(*databases)


def _show(few: Database, many: Database) -> None:
    rows, figures = [], {}
    times: Mapping[str, Rounds] = {
        what: Rounds.of(one.rate / other.rate for one, other in zip(few.seen[what], many.seen[what], strict=True))
        for what in few.seen
    }
    for what, ratio in times.items():
        rates = [Rounds.of(reached.rate for reached in each.seen[what]) for each in (few, many)]
        tails = [Rounds.of(reached.p99 for reached in each.seen[what]) for each in (few, many)]
        shown = (*(rate.shown(",.0f") for rate in rates), *(f"{tail.median:.1f}" for tail in tails))
        rows.append((what, *shown, ratio.shown()))
        figures[what] = {
            "times": ratio.as_json(),
            "rps": [rate.as_json() for rate in rates],
            "p99_ms": [tail.as_json() for tail in tails],
        }
    header = ("", f"a second of {few.links:,}", f"of {many.links:,}", "p99 ms", "p99 ms", "times as long")
    print(table(header, rows))
    met = all(ratio.median <= TIMES for ratio in times.values())
    print(verdict(f"within {TIMES:g} times the figures at {few.links:,}", met=met))
    print(json_line("scale", {"links": many.links, **figures}))


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
        await connection.execute("VACUUM ANALYZE links")
        await read_once(connection, "links")
        return int(await connection.fetchval("SELECT pg_total_relation_size('links')"))
    finally:
        await connection.close()
