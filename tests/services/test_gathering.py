"""Links of concurrent requests in one transaction: each with its own event, and none at a neighbour's mercy."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from refract.kernel.errors import RefractError, Unavailable
from refract.runtime.correlation import correlated
from refract.runtime.ports import Database, Transaction
from refract.runtime.together import WRITERS
from refract.services.links.commands.gathering import LINKS_AT_ONCE, Gathering
from refract.services.links.domain.drafts import Wish
from refract.services.links.domain.link import Link
from refract.services.links.store import Links
from tests.support.outboxes import OUTBOX
from tests.support.patience import patient
from tests.support.row_locks import wait_for_waiting
from tests.support.shortening import ANNA, BORIS, LINKS, Crash, Workshop, at_once

__all__ = ["patient"]


class WatchedDatabase:
    """Counts transactions, and fails those that it is told to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.transactions = 0
        self.trouble: RefractError | None = None
        self.first_trouble: RefractError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            self.transactions += 1
            trouble, self.first_trouble = self.first_trouble or self.trouble, None
            yield tx
            if trouble is not None:
                raise trouble


@pytest.fixture
def watched(database: Database) -> WatchedDatabase:
    return WatchedDatabase(database)


@pytest.fixture
def workshop(watched: WatchedDatabase) -> Workshop:
    return Workshop(watched)


async def shorten(workshop: Workshop, number: int) -> None:
    with correlated(f"request-{number}"):
        await shortening(workshop).answer(ANNA if number % 2 else BORIS, Wish(url=f"https://example.com/{number}"))


def shortening(workshop: Workshop) -> Any:
    """One for all requests of a workshop, as in the service."""
    return vars(workshop).setdefault("kept", workshop.shortening)


async def test_those_that_come_together_are_one_transaction(workshop: Workshop, watched: WatchedDatabase) -> None:
    await asyncio.gather(*(shorten(workshop, number) for number in range(60)))
    rows = await watched.fetch(LINKS)
    assert sorted(row["original_url"] for row in rows) == sorted(f"https://example.com/{n}" for n in range(60))
    assert watched.transactions <= WRITERS + 1


async def test_a_transaction_is_bounded(workshop: Workshop, watched: WatchedDatabase) -> None:
    number = 3 * LINKS_AT_ONCE
    await asyncio.gather(*(shorten(workshop, n) for n in range(number)))
    assert len(await watched.fetch(LINKS)) == number
    assert watched.transactions >= 3


async def test_each_has_one_event_with_its_own_correlation_id(workshop: Workshop, watched: WatchedDatabase) -> None:
    await asyncio.gather(*(shorten(workshop, number) for number in range(40)))
    events = [json.loads(row["payload"]) for row in await watched.fetch(OUTBOX)]
    assert len({event["event_id"] for event in events}) == 40
    assert sorted((event["original_url"], event["correlation_id"]) for event in events) == sorted(
        (f"https://example.com/{number}", f"request-{number}") for number in range(40)
    )


async def test_who_waits_for_a_database_that_is_away_is_told(workshop: Workshop, watched: WatchedDatabase) -> None:
    watched.trouble = Unavailable("database", "gone")
    outcomes = await asyncio.gather(*(shorten(workshop, n) for n in range(10)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 10
    assert len({id(outcome) for outcome in outcomes}) == 10, "each has an error of its own"
    assert await watched.fetch(LINKS) == []
    watched.trouble = None
    await shorten(workshop, 1)
    assert len(await watched.fetch(LINKS)) == 1


async def test_what_fails_together_is_tried_alone(workshop: Workshop, watched: WatchedDatabase) -> None:
    watched.first_trouble = RefractError()
    await asyncio.gather(*(shorten(workshop, number) for number in range(5)))
    assert len(await watched.fetch(LINKS)) == 5
    assert len(await watched.fetch(OUTBOX)) == 5


async def test_one_that_hung_up_does_not_keep_the_others(workshop: Workshop, watched: WatchedDatabase) -> None:
    together = [asyncio.create_task(shorten(workshop, number)) for number in range(10)]
    await asyncio.sleep(0)
    together[3].cancel()
    outcomes = await asyncio.gather(*together, return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [3]


async def test_the_same_url_in_one_transaction_is_one_link(workshop: Workshop, watched: WatchedDatabase) -> None:
    answers = await asyncio.gather(
        *(shortening(workshop).answer(ANNA, Wish(url="https://example.com/same")) for _ in range(30))
    )
    assert sorted(answer.status for answer in answers) == [200] * 29 + [201]
    assert len({json.loads(answer.body)["short_code"] for answer in answers}) == 1
    assert len(await watched.fetch(LINKS)) == len(await watched.fetch(OUTBOX)) == 1


@pytest.mark.usefixtures("patient")
async def test_links_that_two_processes_gather_in_opposite_orders_do_not_wait_in_a_circle(database: Database) -> None:
    """Somebody holds the URL in the middle until both have begun: written as they came, each would hold an end."""
    maker = Workshop(database).maker

    def new(name: str) -> Link:
        return maker.link(ANNA, maker.draft(Wish(url=f"https://example.com/{name}")))

    def gathered(names: str) -> list[Any]:
        gathering = Gathering(database)
        return [gathering.add(new(name)) for name in names]

    with suppress(Crash):
        async with database.transaction() as tx:
            await Links().add(tx, new("m"))
            both = asyncio.create_task(at_once(*gathered("amz"), *gathered("zma")))
            await wait_for_waiting(database, 2)
            raise Crash
    assert sum(await both) == 3, "nobody was undone, to be tried alone"
    assert len(await database.fetch(LINKS)) == 3
