"""That a search finds the same by every road, keeps to its workspace, and nobody else's links are looked at."""

import itertools
import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from refract.runtime import migrations
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.domain.link import Link, Status
from refract.services.links.queries.paging import PageRequest, Sort
from refract.services.links.queries.statements import (
    FOUND,
    MANY,
    MANY_TAGGED,
    Shape,
    page_parameters,
    page_statement,
)
from tests.support.clocks import START
from tests.support.databases import Location, open_database
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link

CAROL = "550e8400-e29b-41d4-a716-446655440002"
VISITED = Statement(
    "visited",
    "Counts the links that the trigrams lead to.",
    "SELECT count(*) AS links FROM links WHERE workspace_id = :workspace_id AND title LIKE :pattern",
    sqlite=f"SELECT count(*) AS links FROM links_search WHERE {FOUND}",  # ours, not values
)
RENAME = Statement("rename", "Gives links a title.", "UPDATE links SET title = :title WHERE id = :id")
MOVE = Statement("move", "Gives a link away.", "UPDATE links SET workspace_id = :workspace_id WHERE id = :id")
REMOVE = Statement("remove", "Takes a link away.", "DELETE FROM links WHERE id = :id")


async def visited(database: Database, text: str, workspace_id: str = ALICE.workspace_id) -> Any:
    [row] = await database.fetch(VISITED, workspace_id=workspace_id, **page_parameters(PageRequest(text=text)))
    return row["links"]


async def found(database: Database, workspace_id: str = ALICE.workspace_id, **request: Any) -> list[int]:
    """The ids of a page. Greek letters are looked for by their trigrams, however few links there are."""
    asked = PageRequest(**{"limit": 100, **request})
    rows = await database.fetch(
        page_statement(Shape.of(asked)), workspace_id=workspace_id, now=START, **page_parameters(asked)
    )
    return [row["id"] for row in rows]


def crowd(title: str, *tags: str, after: int = 0) -> list[Link]:
    """So many links, with so many tags, that another road is shorter; older ones than all others, or younger ones."""
    numbers = range(after + 1, after + (MANY_TAGGED if tags else MANY) + 1)
    return [some_link(number, title=title, original_url="d:", tags=tags) for number in numbers]


async def keep_crowd(database: Database, links: list[Link]) -> None:
    """A statement has ten seconds, on a busy machine too."""
    for first in range(0, len(links), 2_000):
        await keep(database, *links[first : first + 2_000])


WORDS = (
    "campaign",
    "CAMPAIGN",
    "skip",
    "SKIP",
    "\N{LATIN SMALL LETTER LONG S}KIP",
    "s\N{KELVIN SIGN}ip",
    "[k]*",
    "ma\\s?",
)


EVERYTHING = "campaign skip SKIP [k]* ЖУК ångström GRÖßE 東京タワー"
CROWDS = {
    "few matches": [""],
    "many matches": [EVERYTHING],
    "many tags": ["", "red"],
    "many of both": [EVERYTHING, "red"],
}
TEXTS = ("campaign", "Skip", "kip", "[K]", "s?", "a skip b", "e-1", "nowhere", "com/1", "жУК", "ångs", "röß", "京タワ")


@pytest.mark.parametrize("others", CROWDS.values(), ids=CROWDS.keys())
async def test_what_is_found_does_not_depend_on_the_road(database: Database, others: list[str]) -> None:
    chance = random.Random(3)
    made = [
        some_link(
            number,
            title=f"a {word} b" if number % 3 else "",
            status=chance.choice(list(Status)),
            tags=chance.choice(((), ("red",))),
            total_clicks=chance.randrange(10, 20),
        )
        for number, word in enumerate(WORDS * 8, MANY_TAGGED + 1)
    ]
    await keep(database, *made)
    requests = [
        {"text": text, "tag": tag, "status": status, "sort": sort, "limit": 200}
        for text, tag, status, sort in itertools.product((*TEXTS, "", "c"), ("", "red"), (None, *Status), Sort)
    ]
    among_few = [await found(database, **request) for request in requests]
    assert sum(map(bool, among_few)) > len(requests) / 3
    await keep_crowd(database, crowd(*others))
    for request, before in zip(requests, among_few, strict=True):
        # The crowd is older and was never clicked, so that it comes after all others.
        assert [one for one in await found(database, **request) if one > MANY_TAGGED] == before, request


async def test_what_lies_behind_the_newest_of_a_tag_is_found(database: Database) -> None:
    made = [
        some_link(number, title=f"a {word} b" if number % 3 else "", tags=("red",) if number % 2 else ())
        for number, word in enumerate(WORDS * 8, 1)
    ]
    await keep(database, *made)
    texts = [text for text in TEXTS if text != "e-1"]  # which stands in codes of the crowd
    requests: list[dict[str, Any]] = [{"text": text, "tag": "red", "limit": n} for text in texts for n in (3, 200)]
    among_few = [await found(database, **request) for request in requests]
    assert sum(map(bool, among_few)) >= len(requests) / 2
    await keep_crowd(database, crowd("", "red", after=len(made)))
    assert [await found(database, **request) for request in requests] == among_few
    some = [some_link(MANY_TAGGED + 1_000 + number, title="a campaign b", tags=("red",)) for number in range(2)]
    await keep(database, *some)
    for limit in (1, 2, 3, 200):  # a page that begins among the newest, and ends behind them
        ids = [link.id for link in reversed(some)] + among_few[1]
        assert TEXTS[0] == "campaign"
        assert await found(database, text="campaign", tag="red", limit=limit) == ids[: limit + 1]


def test_of_plain_letters_patterns_find_what_trigrams_find() -> None:
    everything = [chr(number) for number in range(32, 0x11000) if not 0xD800 <= number < 0xE000]
    plain = [letter for letter in everything if Shape.of(PageRequest(text=letter * 3)).text == "plain"]
    assert len(plain) > 20_000
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE kept USING fts5 (letter, tokenize='trigram')")
        connection.executemany("INSERT INTO kept (rowid, letter) VALUES (?, ?)", ((ord(x), x * 3) for x in everything))
        for letter in plain:
            phrase, pattern = parameters(letter * 3)
            by_trigrams = connection.execute("SELECT rowid FROM kept WHERE kept MATCH ?", (phrase,)).fetchall()
            # All that might be taken for it: to look at every letter for each of them would take minutes.
            near = {one for (one,) in by_trigrams} | {ord(one) for one in pattern if one not in "*[]"} | {ord(letter)}
            kept = json.dumps([[one, chr(one) * 3] for one in near])
            by_pattern = "SELECT value ->> 0 FROM json_each(?) WHERE lower(value ->> 1) GLOB ? ORDER BY 1"
            assert connection.execute(by_pattern, (kept, pattern)).fetchall() == by_trigrams, letter


def parameters(text: str) -> tuple[str, str]:
    found = page_parameters(PageRequest(text=text))
    return str(found["phrase"]), str(found["spellings"])


async def test_pages_follow_one_another_by_every_road(links: LinksWorld) -> None:
    for title in ("", "campaign"):
        await keep(links.database, *(some_link(MANY + number, title="my campaign") for number in range(1, 8)))
        await keep(links.database, *crowd(title))
        for sort in Sort:
            seen: list[str] = []
            after = ""
            while len(seen) < 7:
                query = urlencode({"q": "paign", "sort": sort, "limit": 3, "after": after})
                answer = await links.call("GET", f"/urls?{query}")
                assert answer.status == 200, answer.body
                seen += [link["short_code"] for link in answer.json["urls"]]
                after = answer.json.get("next_cursor", "")
            assert seen[:7] == [f"code-{MANY + number}" for number in range(7, 0, -1)], (title, sort)
        async with links.database.transaction() as tx:
            await tx.execute(Statement("clear", "Takes all links away.", "DELETE FROM links"))


async def test_trigrams_lead_to_no_links_of_others(database: Database) -> None:
    mine = [some_link(number, title="a campaign") for number in range(1, 200, 20)]
    await keep(database, *mine, *(some_link(n, BOB, title="a campaign") for n in range(1, 201) if n % 20 != 1))
    assert await visited(database, "campaign") == len(mine)
    assert await visited(database, "campaign", BOB.workspace_id) == 190
    assert await visited(database, "campaign", CAROL) == 0
    for text in ("campaign", "γάτα"):  # who has no links yet
        assert await found(database, CAROL, text=text) == await found(database, CAROL, text=text, tag="red") == []


async def test_trigrams_follow_a_link_that_changes(database: Database) -> None:
    await keep(database, some_link(1, title="γάτα"), some_link(2, title="γάτα"), some_link(3, BOB, title="γάτα"))
    assert await found(database, text="ΓΆΤΑ") == [2, 1]
    async with database.transaction() as tx:
        await tx.execute(RENAME, id=1, title="μέλι")
        await tx.execute(RENAME, id=3, title="άλλη γάτα")
        await tx.execute(MOVE, id=2, workspace_id=CAROL)
    assert await found(database, text="γάτα") == []
    assert await found(database, text="Μέλι") == [1]
    assert await found(database, CAROL, text="γάτα") == [2]
    assert await found(database, BOB.workspace_id, text="λη γάτα") == [3]
    async with database.transaction() as tx:
        await tx.execute(REMOVE, id=3)
    assert await found(database, BOB.workspace_id, text="γάτα") == []
    if database.dialect == "sqlite":
        check = "INSERT INTO links_search (links_search, rank) VALUES ('integrity-check', 1)"
        async with database.transaction() as tx:
            await tx.execute(Statement("check", "Compares the trigrams with the links.", check))


async def test_a_text_that_no_link_is_as_long_as_finds_nothing(database: Database) -> None:
    await keep(database, some_link(1, title="k" * 200))
    for letter in "k*[жåλ":
        for length in (201, 2_048, 20_000):
            assert await found(database, text=letter * length) == []
    assert await found(database, text="K" * 200) == [1]


async def test_links_from_before_are_found(
    empty_database: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = migrations._folder("links")
    before = tmp_path / "links" / "migrations"
    before.mkdir(parents=True)
    for file in now.glob("000[1-6]_*.py"):
        shutil.copy(file, before)
    with monkeypatch.context() as earlier:
        earlier.setattr(migrations, "_folder", lambda _: before)
        await migrate("links", empty_database)
    database = await open_database(empty_database)
    await keep(database, *(some_link(n, (ALICE, BOB)[n % 2], title=f"γάτα {n}") for n in range(1, 7)))
    await database.close()
    await migrate("links", empty_database)
    database = await open_database(empty_database)
    assert await found(database, text="γάτα") == [6, 4, 2]
    assert await found(database, BOB.workspace_id, text="γάτα") == [5, 3, 1]
    async with database.transaction() as tx:
        await tx.execute(RENAME, id=2, title="μέλι")
    assert await found(database, text="γάτα") == [6, 4]
    assert await visited(database, "γάτα") == 2
    await database.close()
