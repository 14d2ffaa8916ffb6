"""Idempotency-Key on both engines: one effect, one answer, for a day, for one caller and one body."""

import asyncio
import json
from datetime import timedelta

import pytest

from refract.kernel.errors import Invalid
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.commands.remembering import (
    PRUNE_BATCH,
    REMEMBERED,
    Answer,
    KeyedRequest,
    KeyReused,
    Memory,
    prune_idempotency_keys,
)
from refract.services.links.domain.drafts import Wish
from refract.services.links.domain.link import CodeTaken
from tests.support.patience import patient
from tests.support.row_locks import wait_for_waiting
from tests.support.shortening import ANNA, BORIS, Crash, FailingDatabase, Workshop, at_once

__all__ = ["patient"]

URL = "https://example.com/a"
FORCED = Wish(url=URL, force_new=True)
DAY = 24 * 3600
EXPIRE = Statement("expire", "Ends a link.", "UPDATE links SET expires_at = :moment WHERE short_code = :short_code")


@pytest.fixture
def workshop(database: Database) -> Workshop:
    return Workshop(database)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("wish", [Wish(url=URL), FORCED, Wish(url=URL, custom_code="spring")], ids=str)
async def test_a_hundred_at_once_have_one_effect_and_one_answer(workshop: Workshop, wish: Wish) -> None:
    answers = await at_once(*(workshop.shorten(wish, key="k") for _ in range(100)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert len(await workshop.links()) == 1
    await workshop.check_each_link_was_announced_once()
    assert workshop.hits("key") == 99
    [row] = await workshop.keys()
    assert (row["caller"], row["status"], row["answer"].encode()) == (ANNA.user_id, 201, answers[0].body)


async def test_a_repeated_request_gets_the_first_answer_again(workshop: Workshop) -> None:
    known = await workshop.shorten(URL)
    first = await workshop.shorten(URL, key="k")
    assert (first.status, first.body) == (200, known.body)
    workshop.safety.asked.clear()
    assert await workshop.shorten(URL, key="k") == first
    assert workshop.safety.asked == []


async def test_a_granted_wish_stays_granted_though_its_time_has_passed(workshop: Workshop) -> None:
    wish = Wish(url=URL, expires_at=(workshop.clock.now() + timedelta(hours=1)).isoformat())
    first = await workshop.shorten(wish, key="k")
    workshop.clock.advance(2 * 3600)
    assert await workshop.shorten(wish, key="k") == first


async def test_callers_do_not_share_keys(workshop: Workshop) -> None:
    answers = [await workshop.shorten(FORCED, owner, key="k") for owner in (ANNA, BORIS)]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].body != answers[1].body
    assert {row["created_by"] for row in await workshop.links()} == {ANNA.user_id, BORIS.user_id}


async def test_another_body_with_the_same_key_is_refused(workshop: Workshop) -> None:
    await workshop.shorten(URL, key="k")
    for wish in (Wish(url="https://example.com/b"), FORCED):
        with pytest.raises(KeyReused):
            await workshop.shorten(wish, key="k")
    with pytest.raises(KeyReused):
        await workshop.results([URL], key="k")
    assert len(await workshop.links()) == 1


@pytest.mark.usefixtures("patient")
async def test_one_of_two_bodies_at_once_is_refused(workshop: Workshop) -> None:
    async def attempt(number: int) -> int:
        try:
            return (await workshop.shorten(f"https://example.com/{number % 2}", key="k")).status
        except KeyReused:
            return 422

    statuses = await at_once(*map(attempt, range(20)))
    assert sorted(statuses) == [201] * 10 + [422] * 10
    assert len(await workshop.links()) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_an_empty_or_overlong_key_is_refused(workshop: Workshop, key: str) -> None:
    with pytest.raises(Invalid, match="Idempotency-Key must have 1 to 255 characters"):
        await workshop.shorten(URL, key=key)
    with pytest.raises(Invalid, match="Idempotency-Key must have 1 to 255 characters"):
        await workshop.results([URL], key=key)
    assert await workshop.links() == []


async def test_a_key_of_255_characters_is_taken(workshop: Workshop) -> None:
    key = "ü" * 255
    assert await workshop.shorten(FORCED, key=key) == await workshop.shorten(FORCED, key=key)


async def test_a_key_is_forgotten_after_a_day(workshop: Workshop) -> None:
    first = await workshop.shorten(FORCED, key="k")
    workshop.clock.advance(DAY - 1)
    assert await workshop.shorten(FORCED, key="k") == first
    workshop.clock.advance(1)
    other = await workshop.shorten(Wish(url="https://example.com/b"), key="k")
    assert other.status == 201
    assert other != first
    assert await workshop.shorten(Wish(url="https://example.com/b"), key="k") == other
    assert len(await workshop.keys()) == 1


async def test_a_failure_is_not_remembered(workshop: Workshop) -> None:
    wish = Wish(url=URL, custom_code="spring")
    await workshop.shorten(Wish(url=URL, custom_code="spring"), BORIS)
    with pytest.raises(CodeTaken):
        await workshop.shorten(wish, key="k")
    assert await workshop.keys() == []
    assert (await workshop.shorten(URL, key="k")).status == 201


async def test_key_and_link_are_kept_together_or_not_at_all(workshop: Workshop) -> None:
    whole = workshop.database
    workshop.database = FailingDatabase(whole, commits=0)
    with pytest.raises(Crash):
        await workshop.shorten(FORCED, key="k")
    workshop.database = whole
    assert (await workshop.links(), await workshop.keys(), await workshop.events()) == ([], [], [])
    assert (await workshop.shorten(FORCED, key="k")).status == 201


async def test_a_key_survives_that_an_expired_link_is_in_the_way(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    async with workshop.database.transaction() as tx:
        await tx.execute(EXPIRE, short_code=code, moment=workshop.clock.now())
    first = await workshop.shorten(URL, key="k")
    assert first.status == 201
    assert json.loads(first.body)["short_code"] != code
    assert await workshop.shorten(URL, key="k") == first


async def test_old_keys_are_pruned_in_batches(workshop: Workshop) -> None:
    now = workshop.clock.now()
    rows = [("c", f"k{number}", 0, b"f", 200, "{}", now) for number in range(2 * PRUNE_BATCH + 1)]
    columns = ("caller", "key", "part", "fingerprint", "status", "answer", "created_at")
    async with workshop.database.transaction() as tx:
        await tx.insert_many("idempotency_keys", columns, rows)
    workshop.clock.advance(1)
    kept = await workshop.shorten(URL, key="k0")
    workshop.clock.advance(DAY - 1)
    assert await prune_idempotency_keys(workshop.database, workshop.clock.now() - REMEMBERED) == len(rows)
    assert len(await workshop.keys()) == 1
    assert await workshop.shorten(URL, key="k0") == kept


@pytest.mark.usefixtures("patient")
async def test_a_key_that_is_taken_again_while_it_is_pruned_stays(workshop: Workshop) -> None:
    """On PostgreSQL the batch finds it while it is old, waits for its row, and sees then that it is not."""
    await workshop.shorten(FORCED, key="k")
    workshop.clock.advance(DAY)
    moment = workshop.clock.now()
    workshop.clock.advance(1)
    request = KeyedRequest.of(ANNA.user_id, "k", "shorten", FORCED)
    memory = Memory(workshop.database, workshop.clock)
    async with workshop.database.transaction() as tx:
        assert await memory.claim(tx, request) is None
        pruning = asyncio.create_task(prune_idempotency_keys(workshop.database, moment - REMEMBERED))
        await wait_for_waiting(workshop.database)
        await memory.keep(tx, request, Answer(201, b"{}"))
    assert await pruning == 0
    assert await workshop.shorten(FORCED, key="k") == Answer(201, b"{}")


def test_the_order_of_fields_does_not_matter_and_everything_else_does() -> None:
    def fingerprint(body: object, route: str = "shorten") -> bytes:
        return KeyedRequest.of("c", "k", route, body).fingerprint

    assert fingerprint([{"url": "a", "title": "b"}]) == fingerprint([{"title": "b", "url": "a"}])
    assert fingerprint(Wish(url="a")) == fingerprint(Wish(url="a", force_new=False))
    bodies: list[object] = [["a", "b"], ["b", "a"], ["a"], "a", {"a": "b"}, {"a": ["b"]}, Wish(url="a"), Wish(url="A")]
    assert len({fingerprint(body) for body in bodies}) == len(bodies)
    assert fingerprint("a") != fingerprint("a", "shorten/bulk")
