"""How many URLs a user may send in bulk in a minute, on both engines: each request counts once, or has no effect."""

import asyncio
import tracemalloc

import msgspec
import pytest

from refract.kernel.errors import Invalid, Limited
from refract.runtime.ports import Database
from refract.services.links.commands.remembering import KeyReused
from refract.services.links.domain.drafts import Wish, WishRow
from refract.services.links.http.bodies import BulkBody, read_rows
from tests.support.links import BOB, LinksWorld, said
from tests.support.shortening import ANNA, BORIS, LINKS, Crash, FailingDatabase, Workshop, at_once

pytestmark = pytest.mark.usefixtures("patient_locks")

MINUTE = 63
"""Seconds after which a hit is forgotten for sure: it is remembered up to a twentieth longer than a minute."""


@pytest.fixture
def workshop(database: Database) -> Workshop:
    return Workshop(database, bulk_limit=250)


def forced(number: int) -> list[WishRow]:
    """Rows that make a link each, every time."""
    return [Wish(url=f"https://example.com/{each}", force_new=True) for each in range(number)]


async def status(workshop: Workshop, rows: list[WishRow], key: str | None = None) -> int:
    """What a client would be told."""
    try:
        return (await workshop.bulk.answer(ANNA, rows, key)).status
    except Limited:
        return 429
    except KeyReused:
        return 422


async def test_rows_count_against_the_users_limit(workshop: Workshop) -> None:
    workshop.bulk_limit = 5
    bulk = workshop.bulk
    urls = [f"https://example.com/limit/{number}" for number in range(6)]
    with pytest.raises(Invalid, match="6 URLs in one request are more than the 5 that may be sent in a minute"):
        await bulk.answer(ANNA, urls)  # not to be tried again: it would never fit
    assert (await bulk.answer(ANNA, urls[:5], "once")).status == 200
    assert (await bulk.answer(ANNA, urls[:5], "once")).status == 200, "what was done before is not counted again"
    with pytest.raises(Limited) as refused:
        await bulk.answer(ANNA, urls[5:])
    assert refused.value.retry_after > 0
    assert (await bulk.answer(BORIS, urls[:5])).status == 200, "each user has a limit of their own"
    assert len(await workshop.database.fetch(LINKS)) == 10


async def test_copies_that_come_together_are_counted_once(workshop: Workshop) -> None:
    assert await at_once(*(status(workshop, forced(250), "k") for _ in range(20))) == [200] * 20
    assert len(await workshop.links()) == 250
    assert await status(workshop, forced(1)) == 429, "and they were counted"
    assert await status(workshop, forced(250), "k") == 200


async def test_requests_without_a_key_are_counted_each(workshop: Workshop) -> None:
    told = await at_once(*(status(workshop, forced(100)) for _ in range(5)))
    assert sorted(told) == [200, 200, 429, 429, 429]
    assert len(await workshop.links()) == 200


async def test_what_is_refused_has_no_effect_and_may_be_tried_again(workshop: Workshop) -> None:
    assert await status(workshop, forced(200)) == 200
    assert await at_once(*(status(workshop, forced(51), "k") for _ in range(20))) == [429] * 20
    assert await workshop.keys() == []
    assert len(await workshop.links()) == 200
    assert await status(workshop, forced(50), "k") == 200, "the key is free, and nothing of the refused was counted"
    workshop.clock.advance(MINUTE)
    assert await status(workshop, forced(51), "k") == 422


async def test_a_request_that_can_never_fit_leaves_its_key_free(workshop: Workshop) -> None:
    with pytest.raises(Invalid, match="251 URLs in one request are more than the 250"):
        await workshop.bulk.answer(ANNA, forced(251), "k")
    assert await status(workshop, forced(250), "k") == 200


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_what_a_crash_has_left_undone_is_done_without_being_counted_again(
    workshop: Workshop, commits: int
) -> None:
    whole = workshop.database
    workshop.database = FailingDatabase(whole, commits=commits)
    with pytest.raises(Crash):
        await workshop.results(forced(250), key="k")
    workshop.database = whole
    assert len(await workshop.links()) == (commits - 1) * 100
    assert len(await workshop.results(forced(250), key="k")) == 250
    assert len(await workshop.links()) == 250
    await workshop.check_each_link_was_announced_once()


async def test_after_a_day_the_same_request_is_counted_anew(workshop: Workshop) -> None:
    assert await status(workshop, forced(200), "k") == 200
    workshop.clock.advance(24 * 3600)
    assert await status(workshop, forced(200), "k") == 200
    assert await status(workshop, forced(51)) == 429
    assert len(await workshop.links()) == 400


async def test_a_key_of_a_single_link_and_of_many_at_once_is_one_requests(workshop: Workshop) -> None:
    """Whoever has it keeps it: the same request gets the same answer again, and the other one never gets any."""

    async def single() -> int:
        try:
            return (await workshop.shorten("https://example.com/single", key="k")).status
        except KeyReused:
            return 422

    for _ in range(2):
        one, *many = await at_once(single(), *(status(workshop, forced(150), "k") for _ in range(5)))
        assert (one, set(many)) in [(201, {422}), (422, {200})]
    assert len(await workshop.links()) == (1 if one == 201 else 150)


async def test_what_is_beyond_a_thousand_rows_is_made_into_nothing() -> None:
    """A body of 4 MiB has room for two million: as many objects would be 144 MB, and a tenth of a second."""
    for row in (b"1", b'""', b"{}", b"[]", b'{"url":"https://example.com"}'):
        body = b'{"urls":[' + b",".join([row] * (4_000_000 // (len(row) + 1))) + b"]}"
        tracemalloc.start()
        try:
            with pytest.raises(Invalid, match="urls must have 1 to 1000 rows"):
                await read_rows(msgspec.json.decode(body, type=BulkBody))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000


async def test_others_have_their_turn_while_rows_are_read() -> None:
    body = msgspec.json.encode({"urls": [{"url": "https://example.com", "tags": ["a"] * 1_000}] * 1_000})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    rows = await read_rows(msgspec.json.decode(body, type=BulkBody))
    counting.cancel()
    assert len(rows) == 1_000
    assert turns > 100


async def test_a_row_may_be_as_long_as_a_body_of_its_own(workshop: Workshop) -> None:
    rows: list[object] = [{"url": "https://example.com/", "notes": " " * (64 * 1024)}, "https://example.com/"]
    refused, made = await workshop.results(rows)
    assert refused == {"row": 1, "status": 400, "error": "request body too large"}
    assert made["status"] == 201


async def test_a_client_over_the_limit_is_told_how_long_to_wait(links: LinksWorld) -> None:
    """Bad rows count like good ones, and cost less: ten requests of them are the ten thousand of a minute."""
    many, one = {"urls": [0] * 1_000}, {"urls": ["https://example.com/"]}
    for _ in range(10):
        assert (await links.call("POST", "/shorten/bulk", many)).status == 200
    refused = await links.call("POST", "/shorten/bulk", one)
    assert said(refused) == (429, "rate limit exceeded")
    assert refused.headers["content-type"] == "application/json"
    seconds = int(refused.headers["retry-after"])
    assert {name: value for name, value in refused.headers.items() if "ratelimit" in name} == {
        "x-ratelimit-limit": "10000",
        "x-ratelimit-remaining": "0",
        "ratelimit-policy": '"bulk";q=10000;w=60',
        "ratelimit": f'"bulk";r=0;t={seconds}',
    }
    assert (await links.call("POST", "/shorten/bulk", one, owner=BOB)).status == 200
    links.clock.advance(seconds - 1)
    early = await links.call("POST", "/shorten/bulk", one)
    assert (early.status, early.headers["retry-after"]) == (429, "1")
    links.clock.advance(1)
    assert (await links.call("POST", "/shorten/bulk", one)).status == 200
