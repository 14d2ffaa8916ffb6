"""What analytics knows of links: their last version, whatever comes, how often and in which order; on both modes."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from refract.kernel.events import LINK_EXCHANGE, PLATFORM_EXCHANGE, Event, LinkEvent
from refract.runtime.messages import Binding
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.commands.following import follow_links, forget_user
from refract.services.analytics.reactions import LINKS, QUEUES, link_changes
from refract.services.identity.api import UserDeleted
from refract.services.links.api import UrlCreated, UrlDeleted, UrlUpdated
from tests.support.following import COUNT_UP, Between, analytics, moment
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["analytics"]

pytestmark = pytest.mark.usefixtures("patient_bus", "patient_locks")

OWNER: dict[str, Any] = {"user_id": "alice", "user_email": "alice@example.com"}
TOTALS = Statement("totals", "Reads the totals.", "SELECT short_code, clicks FROM totals")
SEEN_BY_CLICK = Statement(
    "seen_by_click",
    "Keeps a link that is known by a click alone.",
    "INSERT INTO links (short_code) VALUES (:short_code)",
)


def created(code: str, order: int = 1, **changes: Any) -> UrlCreated:
    fields = {"occurred_at": moment(order), "original_url": "https://example.com/", "title": "Made", **OWNER, **changes}
    return UrlCreated(event_id=UrlCreated.new_id(), short_code=code, order=order, **fields)


def updated(code: str, order: int, **changes: Any) -> UrlUpdated:
    title = f"Version {order}"
    fields = {"occurred_at": moment(order), "original_url": "https://example.com/", "title": title, **OWNER, **changes}
    return UrlUpdated(event_id=UrlUpdated.new_id(), short_code=code, order=order, **fields)


def deleted(code: str, order: int) -> UrlDeleted:
    return UrlDeleted(occurred_at=moment(order), event_id=UrlDeleted.new_id(), short_code=code, order=order, **OWNER)


def life(number: int) -> list[LinkEvent]:
    """Made, changed twice, and every third one deleted."""
    code = f"link-{number}"
    events = [created(code), updated(code, 2), updated(code, 3, stats_public=number % 2 == 0, status="disabled")]
    return [*events, deleted(code, 4)] if number % 3 == 0 else events


def at_the_end(number: int) -> dict[str, Any]:
    """What is to be known of such a link."""
    gone = number % 3 == 0
    return {
        "short_code": f"link-{number}",
        **OWNER,
        "order_number": 4 if gone else 3,
        "status": "deleted" if gone else "disabled",
        "deleted_at": moment(4) if gone else None,
    }


def without_details(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a deletion does not tell: it may be the only event that was taken."""
    return [{name: row[name] for name in at_the_end(0)} for row in rows]


async def follow(analytics: Between, *events: LinkEvent) -> None:
    async with analytics.database.transaction() as tx:
        await follow_links(tx, events)


def test_the_queue_is_bound_to_the_life_of_links() -> None:
    assert LINKS in QUEUES
    assert LINKS.name == "analytics.links"
    links = {Binding(LINK_EXCHANGE, f"url.{word}") for word in ("created", "updated", "deleted")}
    assert set(LINKS.bindings) == {*links, Binding(PLATFORM_EXCHANGE, "user.deleted")}


async def test_a_link_is_known_as_it_was_made_changed_and_deleted(analytics: Between) -> None:
    await follow(analytics, created("abc", stats_public=False))
    known = {"short_code": "abc", **OWNER, "title": "Made", "order_number": 1, "status": "active"}
    assert await analytics.rows() == [known | {"stats_public": False, "deleted_at": None}]
    await follow(analytics, updated("abc", 2, status="disabled", user_email="new@example.com"))
    known |= {"title": "Version 2", "order_number": 2, "status": "disabled", "user_email": "new@example.com"}
    assert await analytics.rows() == [known | {"stats_public": True, "deleted_at": None}]
    await follow(analytics, deleted("abc", 3))
    known |= {"order_number": 3, "status": "deleted", "user_email": "alice@example.com"}
    assert await analytics.rows() == [known | {"stats_public": True, "deleted_at": moment(3)}]


async def test_a_closed_link_stays_closed_when_it_is_deleted(analytics: Between) -> None:
    await follow(analytics, created("abc", stats_public=False))
    await follow(analytics, deleted("abc", 2))
    [row] = await analytics.rows()
    assert (row["stats_public"], row["status"], row["title"]) == (False, "deleted", "Made")


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "the other way round"])
async def test_a_link_made_and_deleted_in_one_batch_keeps_its_title(analytics: Between, order: int) -> None:
    events = [created("abc", title="Short-lived", stats_public=False), updated("abc", 2), deleted("abc", 3)]
    await follow(analytics, *events[::order])
    [row] = await analytics.rows()
    assert (row["title"], row["status"], row["order_number"]) == ("Version 2", "deleted", 3)
    await follow(analytics, created("def", stats_public=False), deleted("def", 2))
    assert [(row["title"], row["stats_public"]) for row in await analytics.rows()][1:] == [("Made", False)]


async def test_a_link_that_is_known_by_a_click_alone_is_completed(analytics: Between) -> None:
    async with analytics.database.transaction() as tx:
        await tx.execute(SEEN_BY_CLICK, short_code="abc")
    await follow(analytics, created("abc", 0))  # as an event without an order is read
    [row] = await analytics.rows()
    assert (row["user_id"], row["title"], row["order_number"]) == ("alice", "Made", 0)


@pytest.mark.parametrize("late", [created("abc", 1), updated("abc", 2), updated("abc", 3), deleted("abc", 3)])
async def test_what_is_not_above_the_last_version_changes_nothing(analytics: Between, late: LinkEvent) -> None:
    await follow(analytics, updated("abc", 3, title="The last"))
    before = await analytics.rows()
    await follow(analytics, late)
    assert await analytics.rows() == before


async def test_a_deletion_that_comes_first_is_the_last_word(analytics: Between) -> None:
    await follow(analytics, deleted("abc", 4))
    await follow(analytics, updated("abc", 3))
    await follow(analytics, created("abc", 1))
    assert without_details(await analytics.rows()) == [at_the_end(0) | {"short_code": "abc"}]


async def test_every_version_three_times_and_shuffled_ends_at_the_last(analytics: Between) -> None:
    events = [event for number in range(40) for event in life(number)]
    # As the bus gives them again, and as stale ones under ids that no reader has seen.
    events = [*events, *events, *(replace(event, event_id=event.new_id()) for event in events)]
    for seed in range(3):
        chance = random.Random(seed)
        chance.shuffle(events)
        rest = list(events)
        while rest:
            batch = chance.randrange(1, 60)
            await follow(analytics, *rest[:batch])
            del rest[:batch]
        expected = sorted((at_the_end(number) for number in range(40)), key=lambda row: str(row["short_code"]))
        assert without_details(await analytics.rows()) == expected


async def test_over_the_bus_each_three_times_by_two_readers(analytics: Between) -> None:
    reaction = link_changes()
    queue = analytics.queue_of(reaction)
    events = [event for number in range(60) for event in life(number)] * 3
    random.Random(1).shuffle(events)
    readers = [analytics.reader(reaction, queue), analytics.reader(reaction, queue)]
    await analytics.bus.declare(queue)
    async with running(*(reader.run for reader in readers)):
        for first in range(0, len(events), 50):
            await analytics.publish(*events[first : first + 50])
        await eventually(lambda: analytics.counted("inbox_handled_total") == len(events) / 3)
        await eventually(lambda: analytics.counted("inbox_repeated_total") == len(events) * 2 / 3)
    expected = sorted((at_the_end(number) for number in range(60)), key=lambda row: str(row["short_code"]))
    assert without_details(await analytics.rows()) == expected
    assert await analytics.dead(queue) == []


async def test_two_that_know_the_same_links_in_other_orders_do_not_block_each_other(analytics: Between) -> None:
    names = [f"link-{number}" for number in range(200)]

    async def go(codes: Sequence[str], order: int) -> None:
        await follow(analytics, *(updated(code, order) for code in codes))

    async with asyncio.timeout(60):
        for turn in range(5):
            await asyncio.gather(go(names, 2 * turn), go(names[::-1], 2 * turn + 1))
    assert {row["order_number"] for row in await analytics.rows()} == {9}


async def test_an_event_that_no_column_holds_is_buried_and_the_others_are_taken(analytics: Between) -> None:
    reaction = link_changes()
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    poison = created("poison", title="\x00")
    async with running(analytics.reader(reaction, queue).run):
        await analytics.publish(*(created(f"link-{number}") for number in range(50)), poison, created("last"))
        await eventually(lambda: analytics.dead(queue))
        await eventually(lambda: analytics.counted("inbox_handled_total") == 51)
    [letter] = await analytics.dead(queue)
    assert letter.message.message_id == poison.event_id
    assert "NUL" in letter.reason or "Invalid" in letter.reason
    assert len(await analytics.rows()) == 51


# A deleted account.


async def forget(analytics: Between, user: str) -> None:
    async with analytics.database.transaction() as tx:
        await forget_user(tx, user, analytics.clock.now())


async def test_a_deleted_account_leaves_counts_that_are_nobodys(analytics: Between) -> None:
    bob: dict[str, Any] = {"user_id": "bob", "user_email": "bob@example.com"}
    await follow(analytics, created("hers", stats_public=False), deleted("gone", 2), created("his", **bob))
    async with analytics.database.transaction() as tx:
        for code in ("hers", "gone", "his"):
            await tx.execute(COUNT_UP, short_code=code, clicks=7, at=moment(0))
    await forget(analytics, "alice")
    rows = {row["short_code"]: row for row in await analytics.rows()}
    for code in ("hers", "gone"):
        assert (rows[code]["user_id"], rows[code]["user_email"], rows[code]["title"]) == ("", "", "")
    assert rows["hers"]["stats_public"] is False
    assert rows["gone"]["status"] == "deleted"
    assert (rows["his"]["user_id"], rows["his"]["title"]) == ("bob", "Made")
    assert "alice@example.com" not in await analytics.everything()
    assert {(row["short_code"], row["clicks"]) for row in await analytics.rows(TOTALS)} == {
        ("hers", 7),
        ("gone", 7),
        ("his", 7),
    }


async def test_forgetting_again_and_forgetting_nobody_change_nothing(analytics: Between) -> None:
    await follow(analytics, created("abc"))
    await forget(analytics, "alice")
    before = await analytics.everything()
    analytics.clock.advance(5)
    await forget(analytics, "alice")
    await forget(analytics, "")
    assert await analytics.everything() == before


async def test_an_event_that_comes_after_the_deletion_of_the_account_names_nobody(analytics: Between) -> None:
    await follow(analytics, created("known"))
    await forget(analytics, "alice")
    await follow(analytics, updated("known", 2), created("new"), deleted("last", 3))
    assert [(row["short_code"], row["user_id"], row["user_email"], row["title"]) for row in await analytics.rows()] == [
        (code, "", "", "") for code in ("known", "last", "new")
    ]
    assert "alice@example.com" not in await analytics.everything()


async def test_farewells_over_the_bus_among_events_in_any_order(analytics: Between) -> None:
    reaction = link_changes()
    queue = analytics.queue_of(reaction)
    await analytics.bus.declare(queue)
    bob: dict[str, Any] = {"user_id": "bob", "user_email": "bob@example.com"}
    events: list[Event] = [event for number in range(30) for event in life(number)]
    events += [created(f"his-{number}", **bob) for number in range(10)]
    farewell = UserDeleted(occurred_at=moment(9), event_id=UserDeleted.new_id(), user_id="alice")
    nobody = UserDeleted(occurred_at=moment(9), event_id=UserDeleted.new_id(), user_id="")
    events = [*events, farewell, farewell, nobody] * 2
    random.Random(5).shuffle(events)
    async with running(analytics.reader(reaction, queue).run, analytics.reader(reaction, queue).run):
        for first in range(0, len(events), 20):
            await analytics.publish(*events[first : first + 20])
        known = len({event.event_id for event in events})
        await eventually(lambda: analytics.counted("inbox_handled_total") == known)
    rows = await analytics.rows()
    assert len(rows) == 40
    assert {row["user_email"] for row in rows if not row["short_code"].startswith("his")} == {""}
    assert {row["user_email"] for row in rows if row["short_code"].startswith("his")} == {"bob@example.com"}
    assert "alice@example.com" not in await analytics.everything()
    assert await analytics.dead(queue) == []


async def test_batches_with_farewells_and_links_do_not_block_each_other(analytics: Between) -> None:
    """Whoever writes a link and then keeps writers out waits for another who does the same, and that one for it."""

    async def take(name: str) -> None:
        farewell = UserDeleted(occurred_at=moment(9), event_id=UserDeleted.new_id(), user_id="alice")
        async with analytics.database.transaction() as tx:
            await link_changes().handle(tx, [created(f"{name}-1"), farewell, created(f"{name}-2")])

    async with asyncio.timeout(60):
        for turn in range(5):
            await asyncio.gather(*(take(f"{turn}-{name}") for name in "abc"))
    assert [row["user_id"] for row in await analytics.rows()] == [""] * 30
    assert "alice@example.com" not in await analytics.everything()


async def test_a_writer_that_began_before_the_account_was_deleted_leaves_no_name(analytics: Between) -> None:
    """It does not see that the user is forgotten, and whoever forgets does not see its link, unless one waits."""
    written, forgotten = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with analytics.database.transaction() as tx:
            await follow_links(tx, [created("early")])
            written.set()
            if analytics.database.dialect == "postgresql":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(forgotten.wait(), 0.2)

    async def remove() -> None:
        await written.wait()
        await forget(analytics, "alice")
        forgotten.set()

    async with asyncio.timeout(60):
        await asyncio.gather(write(), remove())
    assert "alice@example.com" not in await analytics.everything()


async def test_a_writer_that_waited_for_the_deletion_leaves_no_name(analytics: Between) -> None:
    async def write() -> None:
        await follow(analytics, created("late"))

    async def remove(tx: Transaction) -> asyncio.Task[None]:
        await forget_user(tx, "alice", moment(0))
        writing = asyncio.create_task(write())
        await asyncio.sleep(0.1)  # so that it waits for us, if it would see anything older
        return writing

    async with asyncio.timeout(60):
        async with analytics.database.transaction() as tx:
            writing = await remove(tx)
        await writing
    assert "alice@example.com" not in await analytics.everything()
    [row] = await analytics.rows()
    assert (row["short_code"], row["user_id"]) == ("late", "")
