"""GET /notifications and POST /notifications/{id}/read: the owner's alone, newest first, page by page."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.statements import Statement
from refract.services.notifications.commands import reading
from refract.services.notifications.commands.reading import MARK_ALL_READ, Reading
from refract.services.notifications.commands.sweeping import Sweeper
from refract.services.notifications.queries.notifications import PAGE_OF_NOTIFICATIONS
from tests.support.clocks import START
from tests.support.databases import open_database
from tests.support.notices import ALICE, BOB, ON_SQLITE, NoticesWorld, created, deleted, moment, reached
from tests.support.patience import patient
from tests.support.waiting import eventually

__all__ = ["patient"]

PLAN = Statement("plan", "Shows how a page is read.", f"EXPLAIN {PAGE_OF_NOTIFICATIONS.sql}")


async def told(world: NoticesWorld, count: int, user: str = ALICE) -> list[str]:
    """So many notifications a second apart; their codes, the newest first."""
    codes = []
    for _ in range(count):
        event = created(user)
        await world.tell(event)
        world.clock.advance(1)
        codes.append(event.short_code)
    return codes[::-1]


def codes_of(page: Any) -> list[str]:
    return [notification["short_code"] for notification in page["notifications"]]


async def test_a_page_says_what_happened_and_keeps_the_payload_to_itself(notices: NoticesWorld) -> None:
    await notices.tell(reached(short_code="hot", milestone=10))
    page = await notices.page()
    [notification] = page["notifications"]
    assert moment(notification.pop("created_at")) == moment(notification.pop("sent_at")) == START
    assert len(notification.pop("id")) == 36
    assert notification == {
        "event_type": "milestone.reached",
        "title": "Link hot reached 10 clicks",
        "short_code": "hot",
        "status": "sent",
    }
    assert page["unread"] == 1
    assert set(page) == {"notifications", "unread"}, "no cursor on the last page"


async def test_who_was_told_nothing_has_an_empty_list(notices: NoticesWorld) -> None:
    assert await notices.page() == {"notifications": [], "unread": 0}


async def test_pages_cover_everything_once_and_end(notices: NoticesWorld) -> None:
    codes = await told(notices, 5)
    await told(notices, 2, BOB)
    first = await notices.page("?limit=2")
    await told(notices, 1)  # what comes meanwhile shifts nothing
    second = await notices.page(f"?limit=2&after={first['next_cursor']}")
    third = await notices.page(f"?limit=2&after={second['next_cursor']}")
    assert [codes_of(page) for page in (first, second, third)] == [codes[:2], codes[2:4], codes[4:]]
    assert "next_cursor" not in third
    assert [page["unread"] for page in (first, second, third)] == [5, 6, 6]


async def test_notifications_of_one_moment_are_paged_too(notices: NoticesWorld) -> None:
    await notices.tell(*(created() for _ in range(7)))
    found, query = [], "?limit=3"
    while True:
        page = await notices.page(query)
        found += [notification["id"] for notification in page["notifications"]]
        if "next_cursor" not in page:
            break
        query = f"?limit=3&after={page['next_cursor']}"
    assert len(set(found)) == len(found) == 7
    assert found == sorted(found, reverse=True)


async def test_nobody_sees_what_another_was_told(notices: NoticesWorld) -> None:
    await told(notices, 3)
    bobs = await told(notices, 2, BOB)
    assert codes_of(await notices.page(user=BOB)) == bobs
    alices = await notices.page("?limit=1")
    assert codes_of(await notices.page(f"?after={alices['next_cursor']}", user=BOB)) == [], "a cursor is a moment"
    assert codes_of(await notices.page(user="somebody else")) == []


async def test_the_limit_is_20_by_default_and_100_at_most(notices: NoticesWorld) -> None:
    await notices.tell(*(created() for _ in range(103)))
    assert len((await notices.page())["notifications"]) == 20
    for limit in ("100", "101", "%2B100", "0100", "9" * 30):
        assert len((await notices.page(f"?limit={limit}"))["notifications"]) == 100, limit


async def test_any_other_limit_is_refused(notices: NoticesWorld) -> None:
    for limit in ("0", "-1", "1.5", "ten", "00", "%00", "1%200", "%D9%A1", "1_0", "0x1", "%2B", "+1", "NaN"):
        answer = await notices.call("GET", f"/notifications?limit={limit}")
        assert (answer.status, answer.json) == (400, {"error": "limit must be a positive integer"}), limit


NO_CURSORS = (
    "x",
    "-",
    "a-",
    "-a",
    "a-b-c",
    "%00",
    "zzzzzzzzzzzz-1",
    f"1-{'Z' * 22}",
    f"1-{'1' * 500}",
    f"{'0' * 12}1-1",
    "1-01",
    new_event_id(),
    "..%2F..",
    "%F0%9F%98%80-1",
)


async def test_what_is_no_cursor_is_refused(notices: NoticesWorld) -> None:
    for after in NO_CURSORS:
        answer = await notices.call("GET", f"/notifications?after={after}")
        assert (answer.status, answer.json) == (400, {"error": "after is not a cursor"}), after


async def test_without_a_token_there_is_nothing(notices: NoticesWorld) -> None:
    for method, path in (
        ("GET", "/notifications"),
        ("POST", f"/notifications/{new_event_id()}/read"),
        ("POST", "/notifications/all/read"),
        ("GET", "/preferences"),
        ("PUT", "/preferences"),
    ):
        answer = await notices.call(method, path, b"{" if method == "PUT" else None, user=None)
        assert (answer.status, answer.json) == (401, {"error": "unauthorized"}), path


@ON_SQLITE
async def test_head_and_other_methods(notices: NoticesWorld) -> None:
    assert (await notices.call("HEAD", "/notifications")).status == 200
    assert (await notices.call("HEAD", "/preferences")).status == 200
    assert (await notices.call("DELETE", "/notifications")).status == 405
    assert (await notices.call("GET", f"/notifications/{new_event_id()}/read")).status == 405


# Reading.


async def test_what_is_read_is_no_longer_unread(notices: NoticesWorld) -> None:
    await notices.tell(created(), deleted())
    first, second = (await notices.page())["notifications"]
    notices.clock.advance(60)
    answer = await notices.call("POST", f"/notifications/{first['id']}/read")
    assert (answer.status, answer.body) == (204, b"")
    page = await notices.page()
    assert page["unread"] == 1
    assert moment(page["notifications"][0]["read_at"]) == START + timedelta(seconds=60)
    assert "read_at" not in page["notifications"][1]
    notices.clock.advance(60)
    assert (await notices.call("POST", f"/notifications/{first['id']}/read")).status == 204
    assert await notices.page() == page, "to read it again changes nothing"
    assert (await notices.call("POST", f"/notifications/{second['id']}/read", {"any": "body"})).status == 204
    assert (await notices.page())["unread"] == 0


async def test_nobody_reads_for_another(notices: NoticesWorld) -> None:
    await notices.tell(created(), created(BOB))
    [mine] = (await notices.page())["notifications"]
    answer = await notices.call("POST", f"/notifications/{mine['id']}/read", user=BOB)
    assert (answer.status, answer.json) == (403, {"error": "forbidden"})
    assert (await notices.call("POST", "/notifications/all/read", user=BOB)).status == 204
    assert await notices.unread() == {ALICE: 1, BOB: 0}
    assert "read_at" not in (await notices.page())["notifications"][0]


async def test_what_is_not_there_cannot_be_read(notices: NoticesWorld) -> None:
    await notices.tell(created())
    [mine] = (await notices.page())["notifications"]
    upper = mine["id"].upper()  # an id has one spelling
    for name in (new_event_id(), "x", "%00", "1", "ALL", "a" * 100, "%7B%7D", "%E2%80%A2", "%FF", upper):
        answer = await notices.call("POST", f"/notifications/{name}/read")
        assert (answer.status, answer.json) == (404, {"error": "not found"}), name
    assert (await notices.page())["unread"] == 1


async def test_all_at_once(notices: NoticesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BATCH", 4)
    await notices.tell(*(created() for _ in range(10)), created(BOB))
    [first, *_] = (await notices.page())["notifications"]
    await notices.call("POST", f"/notifications/{first['id']}/read")
    assert (await notices.call("POST", "/notifications/all/read")).status == 204
    assert await notices.unread() == {ALICE: 0, BOB: 1}
    assert "read_at" not in (await notices.page(user=BOB))["notifications"][0]
    assert all("read_at" in notification for notification in (await notices.page())["notifications"])
    await notices.tell(created())
    assert (await notices.page())["unread"] == 1


async def test_all_is_all_whatever_the_clock_says(notices: NoticesWorld) -> None:
    """Of two processes that keep notifications one is ahead; or the clock was set back."""
    notices.clock.advance(5)
    await notices.tell(created(), created())
    notices.clock.advance(-5)
    assert (await notices.call("POST", "/notifications/all/read")).status == 204
    assert (await notices.page())["unread"] == 0
    assert all("read_at" in notification for notification in (await notices.page())["notifications"])


@pytest.mark.usefixtures("patient")
async def test_two_who_read_all_at_once_count_each_once(notices: NoticesWorld) -> None:
    other = await open_database(notices.location)
    try:
        await notices.tell(*(created() for _ in range(40)))
        ids = [row["id"] for row in await notices.notifications()]
        desks = [Reading(database, notices.clock) for database in (notices.database, other)]
        await asyncio.gather(
            *(desk.read_all(ALICE) for desk in desks),
            *(desk.read(ALICE, name) for desk in desks for name in ids[:10]),
        )
        await notices.tell(*(created() for _ in range(3)))
        assert await notices.unread() == {ALICE: 3}
    finally:
        await other.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
async def test_what_somebody_else_just_reads_is_not_counted_twice(notices: NoticesWorld) -> None:
    await notices.tell(*(created() for _ in range(5)))
    async with notices.database.transaction() as tx:
        assert (
            await tx.execute(
                MARK_ALL_READ, user_id=ALICE, now=notices.clock.now(), until=notices.clock.now(), batch=1_000
            )
            == 5
        )
        other = asyncio.create_task(Reading(notices.database, notices.clock).read_all(ALICE))
        await eventually(notices.somebody_waits)
    assert await other == 0


# Keeping.


async def test_what_is_over_its_time_is_forgotten_and_no_longer_counted(notices: NoticesWorld) -> None:
    await notices.tell(created(), created(), created(BOB))
    [first, _] = (await notices.page())["notifications"]
    await notices.call("POST", f"/notifications/{first['id']}/read")
    notices.clock.advance(timedelta(days=10).total_seconds())
    await notices.tell(created())
    sweeper = Sweeper(notices.database, notices.clock, timedelta(days=9))
    assert await sweeper.sweep() == 3
    assert await sweeper.sweep() == 0
    assert await notices.unread() == {ALICE: 1, BOB: 0}
    assert len((await notices.page())["notifications"]) == 1


@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
async def test_a_page_is_a_walk_down_its_own_index(notices: NoticesWorld) -> None:
    """However many others were told since: no plan reads past their rows."""
    await notices.tell(*(created(f"user-{number % 50}") for number in range(2_000)))
    analyze = Statement("analyze", "Counts.", "ANALYZE notifications")
    async with notices.database.transaction() as tx:
        await tx.execute(analyze)
    rows = await notices.database.fetch(PLAN, user_id="user-7", created_at=START, id=new_event_id(), limit=21)
    plan = "\n".join(row["QUERY PLAN"] for row in rows)
    assert "Index Scan Backward using notifications_by_user" in plan
