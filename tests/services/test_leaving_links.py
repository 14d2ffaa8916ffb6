"""Links of a deleted account: each stops with its event, and none says whose it was; on both modes."""

import asyncio
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.caching import CacheEntry
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.services.analytics.api import LinkTotal, StatsTotals
from refract.services.identity.api import UserDeleted
from refract.services.links.commands import leaving
from refract.services.links.commands.leaving import LEFT_BEHIND, LOOK_AGAIN, POLL_SECONDS, Leaving
from refract.services.links.commands.totalling import keep_totals
from refract.services.links.domain.link import Link, Status
from refract.services.links.reactions import QUEUES, USERS, departures
from tests.support.clocks import START
from tests.support.following import Between, of_links
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link
from tests.support.patience import patient
from tests.support.row_locks import wait_for_waiting
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["of_links", "patient"]

LINKS = Statement("all_links", "Reads every link.", "SELECT * FROM links ORDER BY id")
TAGS = Statement("all_tags", "Reads every tag.", "SELECT link_id FROM link_tags")
KEYS = Statement("keys", "Reads who is remembered.", "SELECT caller FROM idempotency_keys ORDER BY caller")
HOLD = Statement("hold", "Holds a link.", "UPDATE links SET notes = '' WHERE short_code = :short_code")
DEPARTURES = Statement("departures", "Reads who left.", "SELECT user_id, looks, next_at FROM departures")
ADD_KEY = Statement(
    "add_key",
    "Remembers a request.",
    """
    INSERT INTO idempotency_keys (caller, key, part, fingerprint, status, answer, created_at)
    VALUES (:caller, :key, 0, :fingerprint, 201, '{}', :moment)
    """,
)


def farewell(user_id: str = ALICE.user_id) -> UserDeleted:
    return UserDeleted(occurred_at=START, event_id=UserDeleted.new_id(), user_id=user_id)


async def note(leaving: Leaving, links: LinksWorld, *events: UserDeleted) -> None:
    async with links.database.transaction() as tx:
        await leaving.note(tx, events)


def leaving_of(links: LinksWorld) -> Leaving:
    return Leaving(links.database, links.cache, links.clock)


async def rows(links: LinksWorld) -> dict[int, Row]:
    return {row["id"]: row for row in await links.database.fetch(LINKS)}


def hers(number: int, **changes: Any) -> Link:
    words = {"title": "her title", "notes": "her notes", "tags": ("her-tag",), "url_key": number.to_bytes(32, "big")}
    return some_link(number, **{**words, **changes})


async def test_every_link_stops_with_its_event_and_says_nothing_of_its_owner(links: LinksWorld) -> None:
    await keep(
        links.database,
        hers(1),
        hers(2, status=Status.DISABLED, version=4, url_key=None),
        hers(3, status=Status.EXPIRED, expires_at=START, url_key=None),
        hers(4, status=Status.DELETED, version=2, url_key=None),
        some_link(5, BOB, title="his"),
    )
    await links.cache.set_many([CacheEntry(f"url:code-{number}", 1, b"copy", 60.0) for number in (1, 4, 5)])
    before = await rows(links)
    leaving = leaving_of(links)
    await note(leaving, links, farewell())
    assert await leaving.clear_up() == 4
    after = await rows(links)
    for number, version in ((1, 2), (2, 5), (3, 2), (4, 2)):
        row = after[number]
        assert (row["status"], row["version"], row["url_key"]) == ("deleted", version, None)
        assert (row["owner_email"], row["title"], row["notes"]) == ("", "", "")
        assert row["original_url"] == f"https://example.com/{number}"
    assert after[5] == before[5]
    assert [row["link_id"] for row in await links.database.fetch(TAGS)] == []
    events = await links.events()
    assert {(event["event_type"], event["short_code"], event["order"]) for event in events} == {
        ("url.deleted", "code-1", 2),
        ("url.deleted", "code-2", 5),
        ("url.deleted", "code-3", 2),
    }
    assert {(event["user_id"], event["user_email"]) for event in events} == {(ALICE.user_id, "")}
    assert await links.cache.get_many([f"url:code-{number}" for number in (1, 4, 5)]) == [None, None, b"copy"]


async def test_many_links_go_in_batches(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "BATCH", 10)
    numbers = list(range(1, 36))
    random.Random(2).shuffle(numbers)  # codes and ids have different orders
    await keep(links.database, *(some_link(number, short_code=f"c{numbers[number - 1]}") for number in range(1, 36)))
    one = leaving_of(links)
    await note(one, links, farewell())
    assert await one.clear_up() == 35
    assert {row["status"] for row in (await rows(links)).values()} == {"deleted"}
    assert len(await links.events()) == 35


async def test_requests_of_the_user_are_forgotten(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "KEYS_BATCH", 2)
    async with links.database.transaction() as tx:
        for number in range(5):
            for caller in (ALICE.user_id, BOB.user_id):
                values = {"caller": caller, "key": f"key-{number}", "fingerprint": b"f", "moment": START}
                await tx.execute(ADD_KEY, **values)
    one = leaving_of(links)
    await note(one, links, farewell())
    await one.clear_up()
    assert [row["caller"] for row in await links.database.fetch(KEYS)] == [BOB.user_id] * 5


async def test_a_link_that_was_made_meanwhile_is_found_and_then_nothing_is_kept(links: LinksWorld) -> None:
    one = leaving_of(links)
    await keep(links.database, hers(1))
    await note(one, links, farewell())
    assert await one.clear_up() == 1
    await keep(links.database, hers(2))  # a request that had passed the gateway
    assert await one.clear_up() == 0
    links.clock.advance(LOOK_AGAIN[0].total_seconds())
    assert await one.clear_up() == 1
    await keep(links.database, hers(3))
    links.clock.advance(LOOK_AGAIN[1].total_seconds())
    assert await one.clear_up() == 1
    assert {row["owner_email"] for row in (await rows(links)).values()} == {""}
    assert await links.database.fetch(DEPARTURES) == []
    assert await one.clear_up() == 0


async def test_the_same_farewell_again_changes_nothing(links: LinksWorld) -> None:
    one = leaving_of(links)
    await keep(links.database, hers(1))
    await note(one, links, farewell(), farewell())
    await one.clear_up()
    before, announced = await rows(links), await links.events()
    await note(one, links, farewell())
    assert await one.clear_up() == 0
    assert (await rows(links), await links.events()) == (before, announced)


@pytest.mark.parametrize("user_id", ["", "nobody", ALICE.email])
async def test_a_farewell_of_somebody_without_links_is_no_trouble(links: LinksWorld, user_id: str) -> None:
    one = leaving_of(links)
    await keep(links.database, hers(1))
    await note(one, links, farewell(user_id))
    assert await one.clear_up() == 0
    assert (await rows(links))[1]["status"] == "active"


async def test_two_processes_announce_each_link_once(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number) for number in range(1, 300)))
    await keep(links.database, *(some_link(number, BOB) for number in range(300, 400)))
    one, other = leaving_of(links), leaving_of(links)
    await note(one, links, farewell(), farewell(BOB.user_id))
    assert sum(await asyncio.gather(one.clear_up(), other.clear_up())) == 399
    codes = [event["short_code"] for event in await links.events()]
    assert (len(codes), len(set(codes))) == (399, 399)


async def test_what_one_process_has_in_hand_is_no_other_ones(
    links: LinksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(links.database, hers(1))
    one, other = leaving_of(links), leaving_of(links)
    entered, left = asyncio.Event(), asyncio.Event()

    async def look(_user_id: str, _looks: int) -> int:
        entered.set()
        await left.wait()
        return 0

    monkeypatch.setattr(one, "_look", look)
    await note(one, links, farewell())
    task = asyncio.create_task(one.clear_up())
    await entered.wait()
    assert await other.clear_up() == 0
    left.set()
    await task
    links.clock.advance(leaving.LEASE.total_seconds())
    assert await other.clear_up() == 1, "it was too slow"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_who_comes_after_the_lease_of_one_that_still_works_waits_for_its_rows(links: LinksWorld) -> None:
    await keep(links.database, hers(1))
    one = leaving_of(links)
    await note(one, links, farewell())
    async with asyncio.timeout(60):
        async with links.database.transaction() as tx:
            assert len(await tx.fetch(LEFT_BEHIND, user_id=ALICE.user_id, after=-1, batch=10)) == 1
            clearing = asyncio.create_task(one.clear_up())
            await wait_for_waiting(links.database)
        assert await clearing == 1


@pytest.mark.usefixtures("patient")
async def test_a_departure_and_totals_of_the_same_links_do_not_wait_in_a_circle(links: LinksWorld) -> None:
    """Somebody holds the one in the middle until both have begun: in the order of ids, each would hold an end."""
    codes = {3: "Z", 2: "a", 1: "b"}  # as bytes are compared, and not as words are
    await keep(links.database, *(hers(number, short_code=code) for number, code in codes.items()))
    one = leaving_of(links)
    await note(one, links, farewell())

    async def count(*counted: str) -> None:
        told = tuple(LinkTotal(short_code=code, total_clicks=7, last_clicked_at=START) for code in counted)
        async with links.database.transaction() as tx:
            await keep_totals(tx, [StatsTotals(occurred_at=START, event_id=StatsTotals.new_id(), totals=told)])

    async with asyncio.timeout(60):
        async with links.database.transaction() as tx:
            await tx.execute(HOLD, short_code="a")
            clearing = asyncio.create_task(one.clear_up())
            await wait_for_waiting(links.database)
            counting = asyncio.create_task(count(*codes.values()))
            await wait_for_waiting(links.database, 2)
        await counting
        assert await clearing == 3
    after = (await rows(links)).values()
    assert {(row["status"], row["total_clicks"]) for row in after} == {("deleted", 7)}


class Away(EmbeddedCache):
    """A cache that takes no drop the first time: the process died there, as far as the database can tell."""

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    async def drop(self, orders: Mapping[str, int]) -> None:
        if not self._failed:
            self._failed = True
            raise Unavailable("cache", "gone")
        await super().drop(orders)


async def test_what_was_cut_off_is_taken_up_after_the_lease(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "BATCH", 2)
    await keep(links.database, *(hers(number) for number in range(1, 6)))
    one = Leaving(links.database, Away(), links.clock)
    await note(one, links, farewell())
    with pytest.raises(Unavailable):
        await one.clear_up()
    assert await one.clear_up() == 0, "it may be somebody else's still"
    links.clock.advance(leaving.LEASE.total_seconds())
    assert await one.clear_up() == 3
    assert {row["status"] for row in (await rows(links)).values()} == {"deleted"}
    assert len(await links.events()) == 5


async def test_over_the_bus_and_with_the_task_at_work(of_links: Between) -> None:
    await keep(of_links.database, hers(1), some_link(2, BOB))
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0.01)

    one = Leaving(of_links.database, EmbeddedCache(), of_links.clock, pause=pause)
    reaction = departures(one)
    queue = of_links.queue_of(reaction)
    await of_links.bus.declare(queue)

    async def stopped() -> bool:
        return [row["status"] for row in await of_links.rows(LINKS)] == ["deleted", "active"]

    async with running(of_links.reader(reaction, queue).run, one.run):
        await of_links.publish(farewell(), farewell())
        await eventually(stopped)
        await eventually(lambda: paused)  # the link may have stopped in the very first round
    assert set(paused) == {POLL_SECONDS}
    assert ALICE.email not in await of_links.everything()
    assert await of_links.dead(queue) == []


def test_the_queue_is_bound_to_farewells() -> None:
    assert USERS in QUEUES
    assert [(one.exchange, one.pattern) for one in USERS.bindings] == [("smap.events", "user.deleted")]
    assert LOOK_AGAIN[1] > timedelta(hours=25), "longer than any token of before"
