"""What a request to shorten writes is whole wherever a crash comes: links and their events, keys and their links."""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.commands.making import clear_away
from refract.services.links.domain.drafts import Wish
from refract.services.links.store import link_of
from tests.support.shortening import Crash, FailingDatabase, Workshop

EXPIRE = Statement("expire", "Ends a link.", "UPDATE links SET expires_at = :moment WHERE short_code = :short_code")

Ask = Callable[[Workshop, int], Awaitable[Any]]
"""A request of a client who makes several, by its number."""


def url(number: int) -> str:
    return f"https://example.com/{number}/"


def aliased(number: int) -> Wish:
    return Wish(url=url(number), custom_code=f"spring-{number}", tags=["a"])


def rows(number: int) -> list[object]:
    return [url(number), {"url": f"{url(number)}2", "custom_code": f"summer-{number}"}]


PLAIN: dict[str, Ask] = {
    "plain": lambda workshop, number: workshop.shorten(url(number)),
    "key": lambda workshop, number: workshop.shorten(url(number), key=f"k{number}"),
    "bulk": lambda workshop, number: workshop.results(rows(number)),
    "bulk and key": lambda workshop, number: workshop.results(rows(number), key=f"k{number}"),
}
ALL: dict[str, Ask] = {
    **PLAIN,
    "options": lambda workshop, number: workshop.shorten(Wish(url=url(number), force_new=True, title="A title")),
    "alias": lambda workshop, number: workshop.shorten(aliased(number)),
    "alias and key": lambda workshop, number: workshop.shorten(aliased(number), key=f"k{number}"),
}


@pytest.fixture
def workshop(database: Database) -> Workshop:
    return Workshop(database)


async def crashes(workshop: Workshop, ask: Ask, number: int) -> bool:
    """Whether a request met its end on a database that keeps so many transactions as its number says, and no more."""
    whole = workshop.database
    workshop.database = FailingDatabase(whole, commits=number)
    try:
        await ask(workshop, number)
    except Crash:
        return True
    finally:
        workshop.database = whole
    return False


async def made(workshop: Workshop, number: int) -> int:
    """How many links a request has made; all there are were announced once, and nothing else was."""
    await workshop.check_each_link_was_announced_once()
    return sum(row["original_url"].startswith(url(number)) for row in await workshop.links())


async def remembered(workshop: Workshop, number: int) -> bool:
    """Whether an answer with a link is kept for a request."""
    return any(row["key"] == f"k{number}" and "short_code" in (row["answer"] or "") for row in await workshop.keys())


@pytest.mark.parametrize("way", ALL)
async def test_links_are_kept_with_their_events_or_not_at_all(workshop: Workshop, way: str) -> None:
    ask, all_of_them = ALL[way], 2 if "bulk" in way else 1
    for number in count():  # the first time no transaction is kept, then one, until there is no crash any more
        crashed = await crashes(workshop, ask, number)
        links = await made(workshop, number)
        assert links in {0, all_of_them}
        assert await remembered(workshop, number) == ("key" in way and links > 0)
        if not crashed:
            break
        assert number or not links
        await ask(workshop, number)  # the client tries again
        assert await made(workshop, number) == all_of_them
        assert await remembered(workshop, number) == ("key" in way)
    assert number
    assert links == all_of_them


async def expired_link(workshop: Workshop, number: int) -> str:
    """The code of a link whose time is over, and which nobody has marked yet."""
    code = await workshop.code(url(number))
    async with workshop.database.transaction() as tx:
        await tx.execute(EXPIRE, short_code=code, moment=workshop.clock.now())
    return code


async def is_marked(workshop: Workshop, code: str) -> bool:
    """Whether a link is marked as expired: in its row and in one event, or in neither."""
    [status] = [row["status"] for row in await workshop.links() if row["short_code"] == code]
    updates = [event for event in await workshop.events("url.updated") if event["short_code"] == code]
    assert [event["status"] for event in updates] == (["expired"] if status == "expired" else [])
    return bool(updates)


@pytest.mark.parametrize("way", PLAIN)
async def test_a_link_that_makes_room_is_marked_with_its_event_or_not_at_all(workshop: Workshop, way: str) -> None:
    ask, all_of_them = PLAIN[way], 3 if "bulk" in way else 2
    for number in count():
        code = await expired_link(workshop, number)
        crashed = await crashes(workshop, ask, number)
        marked = await is_marked(workshop, code)
        links = await made(workshop, number)
        assert links in {1, all_of_them}
        assert marked or links == 1, "there is another link for a URL that was not free"
        if not crashed:
            break
        assert number or not marked
        await ask(workshop, number)
        assert await is_marked(workshop, code)
        assert await made(workshop, number) == all_of_them
    assert number
    assert (marked, links) == (True, all_of_them)


async def test_links_are_cleared_away_with_their_events_or_not_at_all(workshop: Workshop) -> None:
    async def clear(workshop: Workshop, number: int) -> None:
        of_number = [link_of(row) for row in await workshop.links() if row["original_url"] == url(number)]
        await clear_away(of_number, database=workshop.database, cache=workshop.cache, clock=workshop.clock)

    for number in count():
        code = await expired_link(workshop, number)
        workshop.dropped.clear()
        crashed = await crashes(workshop, clear, number)
        marked = await is_marked(workshop, code)
        assert workshop.dropped == ([] if crashed else [f"url:{code}"])  # dropped only after a commit
        if not crashed:
            break
        assert number or not marked
        await clear(workshop, number)
        assert await is_marked(workshop, code)
    assert number
    assert marked
