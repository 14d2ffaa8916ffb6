"""A link stands for the URL when another is inserted, and no more when it is looked for: the wish is granted anew."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.links.domain.link import Status
from refract.services.links.store import FIND_BY_KEY, FIND_BY_KEYS, Links
from tests.support.shortening import Workshop

URL = "https://example.com/in-the-way"
OTHERS = ["https://example.com/a", "https://example.com/z"]


class Between:
    """A database in which somebody deletes a link just before it is looked for by its URL, and commits that."""

    def __init__(self, database: Database, code: str) -> None:
        self._database = database
        self._code = code
        self.looked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            looking: Any = Looking(tx, self)
            yield looking

    async def look(self) -> None:
        """Here it comes, for the first time or again."""
        self.looked += 1
        if self.looked > 1:
            return
        async with self._database.transaction() as tx:
            before = await Links().get(tx, self._code)
            after, event = before.retired(before.updated_at)
            assert event is not None
            await Links().save(tx, before, after)
            await tx.announce(event)


class Looking:
    """A transaction that says when it is about to look for links by their URLs."""

    def __init__(self, tx: Transaction, between: Between) -> None:
        self._tx = tx
        self._between = between

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        if statement is FIND_BY_KEY:
            await self._between.look()
        return await self._tx.fetch_one(statement, **parameters)

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        if statement is FIND_BY_KEYS:
            await self._between.look()
        return await self._tx.fetch(statement, **parameters)


@pytest.fixture
async def workshop(database: Database) -> Workshop:
    if database.dialect == "sqlite":
        pytest.skip("there nobody else writes between two statements of a transaction")
    return Workshop(database)


async def check_a_new_link_stands_for_the_url(workshop: Workshop, old: str, new: str, others: int = 0) -> None:
    """It is there once, beside the one that was deleted, and nothing else is."""
    links = {row["short_code"]: row for row in await workshop.links()}
    assert len(links) == 2 + others
    assert [row["short_code"] for row in links.values() if row["url_key"] is None] == [old]
    assert links[old]["status"] == Status.DELETED.value
    assert (links[new]["status"], links[new]["original_url"]) == (Status.ACTIVE.value, URL)
    assert [event["short_code"] for event in await workshop.events("url.deleted")] == [old]
    await workshop.check_each_link_was_announced_once()
    assert await workshop.code(URL) == new


@pytest.mark.parametrize("key", [None, "k"])
async def test_one_whose_url_was_freed_in_this_moment_gets_a_new_link(workshop: Workshop, key: str | None) -> None:
    old, whole = await workshop.code(URL), workshop.database
    workshop.database = between = Between(whole, old)
    answer = await workshop.shorten(URL, key=key)
    assert between.looked == 1
    assert answer.status == 201
    workshop.database = whole
    if key is not None:
        assert await workshop.shorten(URL, key=key) == answer
        assert len(await workshop.keys()) == 1
    await check_a_new_link_stands_for_the_url(workshop, old, json.loads(answer.body)["short_code"])


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_row_whose_url_was_freed_in_this_moment_gets_a_new_link(workshop: Workshop, key: str | None) -> None:
    old, whole = await workshop.code(URL), workshop.database
    workshop.database = between = Between(whole, old)
    rows = [OTHERS[0], URL, OTHERS[1], URL]
    results = await workshop.results(rows, key=key)
    assert between.looked == 1
    assert [result["status"] for result in results] == [201, 201, 201, 200]
    assert results[1]["short_code"] == results[3]["short_code"]
    workshop.database = whole
    if key is not None:
        assert await workshop.results(rows, key=key) == results
    await check_a_new_link_stands_for_the_url(workshop, old, results[1]["short_code"], others=2)
