"""Searches take turns: nobody's hold up other people, lists, or redirects, and none goes on for ever."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from refract.kernel.errors import Limited
from refract.runtime.distributed.pool import TIDY_TIMEOUT
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.runtime.transactions import ACQUIRE_TIMEOUT
from refract.services.gateway.adapters.proxy import ANSWER_TIMEOUT
from refract.services.links.domain.destinations import URL_LENGTH
from refract.services.links.domain.link import Owner, Status
from refract.services.links.queries import searching
from refract.services.links.queries.links import LinkQueries
from refract.services.links.queries.paging import PageRequest, Sort
from refract.services.links.queries.searching import MOST_WAITING, SearchTooLong
from refract.services.links.queries.statements import LONGEST_PAGE, Shape, page_statement
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link
from tests.support.waiting import eventually

OWNERS = [Owner(f"550e8400-e29b-41d4-a716-4466554401{number:02}", "someone@example.com") for number in range(12)]
ENDLESS = Statement(
    "endless",
    "Counts for minutes.",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n",
    longest=0.2,
)


class Busy:
    """A database that keeps every list waiting until it is told to go on, and knows who is at work."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.go_on = asyncio.Event()
        self.at_work: list[str] = []
        self.order: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        self.at_work.append(parameters["workspace_id"])
        self.order.append(parameters["workspace_id"])
        try:
            await self.go_on.wait()
            return await self._database.fetch(statement, **parameters)
        finally:
            self.at_work.remove(parameters["workspace_id"])


def half_of(busy: Busy) -> int:
    return max(1, int(busy.reads_at_once) // 2)


def queries_of(links: LinksWorld, database: Any) -> LinkQueries:
    return LinkQueries(database, links.clock, links.views)


async def test_an_owner_searches_one_at_a_time_and_others_come_before_their_line(links: LinksWorld) -> None:
    await keep(links.database, some_link(1, title="found"), some_link(2, BOB, title="found"))
    busy = Busy(links.database)
    queries = queries_of(links, busy)
    search = PageRequest(text="found")
    crowd = [asyncio.create_task(queries.page(ALICE, search)) for _ in range(1 + MOST_WAITING)]
    await eventually(lambda: busy.at_work == [ALICE.workspace_id])
    with pytest.raises(Limited) as refused:
        await queries.page(ALICE, search)
    assert 0 < refused.value.retry_after <= 1
    other = asyncio.create_task(queries.page(BOB, search))
    if busy.reads_at_once > 2:
        await eventually(lambda: busy.at_work == [ALICE.workspace_id, BOB.workspace_id])
    walk = asyncio.create_task(queries.page(ALICE, PageRequest()))  # which is no search, and waits for none
    await eventually(lambda: busy.at_work.count(ALICE.workspace_id) == 2)
    assert busy.at_work.count(ALICE.workspace_id) == 2
    busy.go_on.set()
    assert [len((await each).urls) for each in (*crowd, other, walk)] == [1] * (len(crowd) + 2)
    assert busy.order.index(BOB.workspace_id) <= 3, "Bob waits for what is at work, and not for what waits"
    assert len((await queries.page(ALICE, search)).urls) == 1, "the line is empty again"


async def test_searches_leave_half_of_the_connections_to_others(links: LinksWorld) -> None:
    busy = Busy(links.database)
    queries = queries_of(links, busy)
    crowd = [asyncio.create_task(queries.page(owner, PageRequest(text="found"))) for owner in OWNERS]
    at_once = half_of(busy)
    await eventually(lambda: len(busy.at_work) == at_once)
    lists = [asyncio.create_task(queries.page(owner, PageRequest())) for owner in OWNERS]
    await eventually(lambda: len(busy.at_work) == at_once + len(lists))  # every list has had its chance, no search
    busy.go_on.set()
    assert [(await each).urls for each in (*crowd, *lists)] == [[]] * 24


@pytest.mark.parametrize(
    ("request_", "searches"),
    [
        (PageRequest(), False),
        (PageRequest(sort=Sort.CLICKS), False),
        (PageRequest(tag="red"), False),
        (PageRequest(tag="red", sort=Sort.CLICKS), True),
        (PageRequest(status=Status.EXPIRED), True),
        (PageRequest(status=Status.DISABLED, sort=Sort.CLICKS), True),
        (PageRequest(text="a"), True),
    ],
)
def test_what_may_look_at_many_links_is_a_search(request_: PageRequest, searches: bool) -> None:
    assert request_.searches is searches


async def test_a_search_that_takes_too_long_is_stopped(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(links.database, some_link(1, title="found"))
    for shape in (Shape.of(PageRequest()), Shape.of(PageRequest(text="found"))):
        assert page_statement(shape).longest == LONGEST_PAGE
    with monkeypatch.context() as patch:
        patch.setattr("refract.services.links.queries.links.page_statement", lambda _shape: ENDLESS)
        answer = await links.call("GET", "/urls?q=found")
        assert (answer.status, answer.json) == (422, {"error": SearchTooLong.message})
        assert (await links.call("GET", "/urls")).status == 503, "a list is no search, and nobody could ask for less"
    for _ in range(12):  # more than there are connections: each of them is good
        assert len((await links.queries.page(ALICE, PageRequest(text="found"))).urls) == 1


async def test_a_search_that_waits_for_its_turn_is_told_to_come_again(
    links: LinksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the gateway gives the service up, and takes it for broken."""
    assert searching.LONGEST_WAIT + ACQUIRE_TIMEOUT + LONGEST_PAGE + TIDY_TIMEOUT < ANSWER_TIMEOUT
    monkeypatch.setattr(searching, "LONGEST_WAIT", 0.2)
    busy = Busy(links.database)
    queries = queries_of(links, busy)
    at_work = asyncio.create_task(queries.page(ALICE, PageRequest(text="found")))
    await eventually(lambda: bool(busy.at_work))
    with pytest.raises(Limited):
        await queries.page(ALICE, PageRequest(text="found"))
    others = [asyncio.create_task(queries.page(owner, PageRequest(text="found"))) for owner in OWNERS]
    await eventually(lambda: sum(other.done() for other in others) == len(OWNERS) + 1 - half_of(busy))
    assert {type(other.exception()) for other in others if other.done()} == {Limited}
    assert not at_work.done(), "whoever has a turn has no more to wait for"
    busy.go_on.set()
    await at_work
    await asyncio.gather(*others, return_exceptions=True)
    assert len(await asyncio.gather(*(queries.page(owner, PageRequest(text="found")) for owner in OWNERS))) == 12


async def test_too_many_searches_are_a_429(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(links.database)
    monkeypatch.setattr(links.queries._searches, "_database", busy)
    crowd = [asyncio.create_task(links.queries.page(ALICE, PageRequest(text="found"))) for _ in range(1 + MOST_WAITING)]
    await eventually(lambda: bool(busy.at_work))
    answer = await links.call("GET", "/urls?q=found")
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    busy.go_on.set()
    await asyncio.gather(*crowd)
    assert (await links.call("GET", "/urls?q=found")).status == 200


async def test_more_letters_than_a_link_has_are_not_looked_for(links: LinksWorld) -> None:
    await keep(links.database, some_link(1, title="found"))
    nothing_may_ask = queries_of(links, Busy(links.database))
    assert (await nothing_may_ask.page(ALICE, PageRequest(text="k" * (URL_LENGTH + 1)))).urls == []
    for text in ("k" * URL_LENGTH, "ж" * 1_000, "*[" * 1_000, '"' * URL_LENGTH):
        answer = await links.call("GET", f"/urls?{urlencode({'q': text})}")
        assert (answer.status, answer.json) == (200, {"urls": []})
