"""Commits of gathered links that fail, on the engines themselves: nobody is told of a link that is not there."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from refract.kernel.errors import RefractError, Unavailable
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.links.commands.gathering import Gathering
from refract.services.links.commands.remembering import Answer
from refract.services.links.commands.shortening import Shortening
from refract.services.links.domain.drafts import Wish
from tests.support.shortening import ANNA, Workshop

SPOILT = "https://example.com/spoilt/"
GOOD = "https://example.com/good/"

RAISE = "RAISE EXCEPTION 'not in this database' USING ERRCODE = 'integrity_constraint_violation'"
HANG_UP = "PERFORM pg_terminate_backend(pg_backend_pid())"

POSTGRESQL = (
    "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NULL; END $$",
    """
    CREATE CONSTRAINT TRIGGER spoilt AFTER INSERT ON links DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.original_url LIKE '%/spoilt/%') EXECUTE FUNCTION spoil()
    """,
)
SQLITE = (
    "CREATE TABLE nobody (id INTEGER PRIMARY KEY)",
    "CREATE TABLE debts (owed INTEGER REFERENCES nobody (id) DEFERRABLE INITIALLY DEFERRED)",
    """
    CREATE TRIGGER spoilt AFTER INSERT ON links WHEN NEW.original_url LIKE '%/spoilt/%'
    BEGIN INSERT INTO debts VALUES (1); END
    """,
)
DROP = Statement("drop", "Lets all links in again.", "DROP TRIGGER spoilt ON links", sqlite="DROP TRIGGER spoilt")


async def spoil_commits(database: Database, what: str = RAISE) -> None:
    """From now on a transaction with a link to a spoilt URL fails, and not before its commit."""
    sqls = SQLITE if database.dialect == "sqlite" else [sql.format(what=what) for sql in POSTGRESQL]
    async with database.transaction() as tx:
        for sql in sqls:
            await tx.execute(Statement("spoil", "Makes what is looked at in the commit.", sql))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many came together each time."""
    found: list[int] = []
    write = Gathering._write_together

    async def counted(self: Gathering, batch: Sequence[Any]) -> set[int]:
        found.append(len(batch))
        return await write(self, batch)

    monkeypatch.setattr(Gathering, "_write_together", counted)
    return found


async def shorten(
    shortening: Shortening, urls: Sequence[str], tags: Sequence[str] = ("red",)
) -> list[Answer | BaseException]:
    """All at once; those with a tag are links of their own whatever stands for the URL."""
    wishes = [Wish(url=url, tags=list(tags)) for url in urls]
    return await asyncio.gather(*(shortening.answer(ANNA, wish) for wish in wishes), return_exceptions=True)


async def check_nothing_is_half(
    workshop: Workshop, outcomes: Sequence[Answer | BaseException], *, tagged: bool = True
) -> None:
    """Whoever was told of a link has it, each link has its one event and its tag, and nothing else is there."""
    rows = await workshop.links()
    codes = {row["short_code"] for row in rows}
    told = {json.loads(outcome.body)["short_code"] for outcome in outcomes if isinstance(outcome, Answer)}
    assert told <= codes
    assert [tag["link_id"] for tag in await workshop.tags()] == [row["id"] for row in rows if tagged]
    await workshop.check_each_link_was_announced_once()


def statuses(outcomes: Sequence[Answer | BaseException]) -> list[Any]:
    """What each was told."""
    return [outcome.status if isinstance(outcome, Answer) else type(outcome) for outcome in outcomes]


async def test_where_the_commit_of_all_fails_each_is_told_so_and_nothing_is_left(
    database: Database, sizes: list[int]
) -> None:
    await spoil_commits(database)
    workshop = Workshop(database)
    shortening = workshop.shortening
    urls = [f"{SPOILT}{number}" for number in range(8)]
    outcomes = await shorten(shortening, urls)
    assert sizes == [8], "they were not gathered"
    assert all(isinstance(outcome, RefractError) for outcome in outcomes), outcomes
    assert await workshop.links() == await workshop.tags() == await workshop.events() == []
    async with database.transaction() as tx:
        await tx.execute(DROP)
    outcomes = await shorten(shortening, urls)
    assert statuses(outcomes) == [201] * 8
    await check_nothing_is_half(workshop, outcomes)


async def test_of_those_whose_commit_one_spoils_each_other_has_its_link(database: Database, sizes: list[int]) -> None:
    await spoil_commits(database)
    workshop = Workshop(database)
    urls = [f"{SPOILT if number == 3 else GOOD}{number}" for number in range(8)]
    outcomes = await shorten(workshop.shortening, urls)
    assert sizes == [8], "they were not gathered"
    assert isinstance(outcomes.pop(3), RefractError)
    assert statuses(outcomes) == [201] * 7
    assert sorted(row["original_url"] for row in await workshop.links()) == sorted(urls[:3] + urls[4:])
    await check_nothing_is_half(workshop, outcomes)


async def test_where_the_server_hangs_up_in_the_commit_each_is_told_so_and_nothing_is_left(
    database: Database, sizes: list[int]
) -> None:
    if database.dialect == "sqlite":
        pytest.skip("nobody is at the other end of a line there")
    await spoil_commits(database, HANG_UP)
    workshop = Workshop(database)
    outcomes = await shorten(workshop.shortening, [f"{SPOILT if number == 3 else GOOD}{number}" for number in range(8)])
    assert sizes == [8], "they were not gathered"
    assert statuses(outcomes) == [Unavailable] * 8
    assert await workshop.links() == await workshop.tags() == await workshop.events() == []


class Unheard:
    """A database that commits once without a word, as when the line breaks behind the commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._breaks = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield tx
        breaks, self._breaks = self._breaks, False
        if breaks:
            raise Unavailable("database", "the line is broken")


async def test_a_commit_of_which_nobody_hears_is_an_error_for_each_and_a_repetition_finds_the_link(
    database: Database, sizes: list[int]
) -> None:
    workshop = Workshop(Unheard(database))
    shortening = workshop.shortening
    urls = [f"{GOOD}{number}" for number in range(8)]
    outcomes = await shorten(shortening, urls, ())
    assert sizes == [8], "they were not gathered"
    assert statuses(outcomes) == [Unavailable] * 8
    assert len(await workshop.links()) == 8
    outcomes = await shorten(shortening, urls, ())
    assert statuses(outcomes) == [200] * 8
    assert len(await workshop.links()) == 8
    await check_nothing_is_half(workshop, outcomes, tagged=False)
