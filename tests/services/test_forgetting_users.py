"""Users who left: nothing is kept of them, nothing more is sent, and no late event brings them back; on both modes."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.events import Event
from refract.runtime.inbox import Inbox
from refract.runtime.metrics import Metrics
from refract.runtime.statements import Statement
from refract.services.identity.api import EmailVerificationRequested, Mail, UserDeleted
from refract.services.notifications.commands.forgetting import forget_users
from refract.services.notifications.commands.mailing import Mailing
from refract.services.notifications.reactions import QUEUES, USERS, departures
from tests.support.clocks import START
from tests.support.deliveries import TABLES
from tests.support.notices import ALICE, BOB, EMAILS, RECIPIENTS, NoticesWorld, Post, created, deleted, lines, reached
from tests.support.waiting import eventually
from tests.support.worlds import running

HERS = EMAILS[ALICE]
HOOK = "https://hooks.example.com/alices-hook"

pytestmark = pytest.mark.usefixtures("patient_bus", "patient_locks")


def farewell(user_id: str = ALICE) -> UserDeleted:
    return UserDeleted(occurred_at=START, event_id=UserDeleted.new_id(), user_id=user_id)


def asked(user_id: str = ALICE) -> EmailVerificationRequested:
    mail = Mail(
        recipient=EMAILS[user_id],
        subject="Confirm your email address",
        template="email_verification",
        link="https://sho.rt/verify#token=x",
        expires_at=START + timedelta(days=1),
    )
    return EmailVerificationRequested(
        occurred_at=START, event_id=EmailVerificationRequested.new_id(), user_id=user_id, data=mail
    )


async def forget(notices: NoticesWorld, *users: str) -> None:
    async with notices.database.transaction() as tx:
        await forget_users(tx, [farewell(user) for user in users or (ALICE,)])


async def ask(notices: NoticesWorld, *events: Event, has_server: bool = True) -> None:
    async with notices.database.transaction() as tx:
        await Mailing(notices.clock, has_server=has_server)(tx, events)


async def everything(notices: NoticesWorld, *but: str) -> dict[str, str]:
    """Every row of every table, as texts by table."""
    found = {}
    for table in sorted(set(TABLES) - set(but)):
        rows = await notices.database.fetch(Statement("all", "Reads all.", f"SELECT * FROM {table}"))
        found[table] = "\n".join(str(dict(row)) for row in rows)
    return found


async def settle(notices: NoticesWorld, user: str) -> None:
    """All that can be kept of somebody."""
    events: tuple[Any, ...] = (created(user), deleted(user), reached(user))
    await notices.prefer(user=user, digest="off", webhooks=[{"url": HOOK}])
    await notices.tell(*events, sends_mail=True)
    await notices.prefer(user=user, digest="daily")
    await notices.tell(created(user), sends_mail=True)
    await ask(notices, asked(user))


async def test_nothing_of_a_user_is_kept(notices: NoticesWorld) -> None:
    await settle(notices, ALICE)
    await settle(notices, BOB)
    filled = await everything(notices, "outbox", "inbox", "inbox_attempts")
    assert [table for table, rows in filled.items() if ALICE not in rows] == []
    await forget(notices)
    for table, rows in (await everything(notices)).items():
        assert HERS not in rows, table
        assert ALICE not in rows or table == "recipients"
        assert (BOB in rows) == (BOB in filled.get(table, "")), "what is Bob's stays"
    assert (await notices.unread())[ALICE] == 0
    assert {row["user_id"] for row in await notices.deliveries()} == {BOB}


async def test_late_events_bring_nobody_back(notices: NoticesWorld, caplog: pytest.LogCaptureFixture) -> None:
    await forget(notices)
    caplog.set_level("INFO")
    for sends_mail in (True, False):
        await notices.tell(created(), deleted(), reached(), created(BOB), sends_mail=sends_mail)
        await ask(notices, asked(), asked(BOB), has_server=sends_mail)
    assert HERS not in str(await everything(notices))
    assert [row["user_id"] for row in await notices.notifications()] == [BOB, BOB]
    assert {row["recipient"] for row in await notices.deliveries()} == {EMAILS[BOB]}
    assert {row["user_id"]: row["unread"] for row in await notices.database.fetch(RECIPIENTS)} == {ALICE: 0, BOB: 2}
    assert HERS not in caplog.text
    assert HERS not in str([vars(record) for record in caplog.records])
    assert len(lines(caplog)) == 1


async def test_only_hers_in_a_batch_is_no_trouble(notices: NoticesWorld) -> None:
    await forget(notices)
    await notices.tell(created(), deleted())
    await ask(notices, asked())
    assert (await notices.notifications(), await notices.deliveries()) == ([], [])


async def test_forgetting_again_and_forgetting_nobody_change_nothing(notices: NoticesWorld) -> None:
    await settle(notices, BOB)
    await forget(notices)
    before = await everything(notices)
    notices.clock.advance(60)
    await forget(notices, ALICE, "", ALICE)
    assert await everything(notices) == before


async def test_preferences_that_were_on_their_way_are_refused(notices: NoticesWorld) -> None:
    await notices.prefer(webhooks=[{"url": HOOK}])
    await forget(notices)
    answer = await notices.call("PUT", "/preferences", {"webhooks": [{"url": HOOK}], "digest": "daily"})
    assert (answer.status, answer.json) == (401, {"error": "unauthorized"})
    kept = await everything(notices)
    assert (kept["preferences"], kept["webhooks"], kept["digests"]) == ("", "", "")


async def test_a_digest_that_was_gathered_does_not_leave(notices: NoticesWorld) -> None:
    await settle(notices, ALICE)
    await forget(notices)
    notices.clock.advance(8 * 86_400)
    assert await notices.digesting().send_due() == 0
    assert await notices.deliveries() == []


@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
@pytest.mark.parametrize("first", ["told", "forgotten"])
async def test_whoever_comes_second_waits_for_the_first(notices: NoticesWorld, first: str) -> None:
    """A reader that does not see the farewell, and a farewell that does not see what it wrote, unless one waits."""

    async def tell() -> None:
        await notices.tell(created(), sends_mail=True)
        await ask(notices, asked())

    async with asyncio.timeout(60):
        async with notices.database.transaction() as tx:
            if first == "told":
                await Mailing(notices.clock, has_server=True)(tx, [asked()])
                second = asyncio.create_task(forget(notices))
            else:
                await forget_users(tx, [farewell()])
                second = asyncio.create_task(tell())
            await eventually(notices.somebody_waits)
        await second
    assert HERS not in str(await everything(notices))
    assert (await notices.notifications(), await notices.deliveries()) == ([], [])


async def test_over_the_bus_once_or_twice_among_others(notices: NoticesWorld) -> None:
    await settle(notices, ALICE)
    reaction = departures()
    queue = notices.buses.queue("users", *(binding.pattern for binding in reaction.queue.bindings))
    bus = await notices.buses.open()
    await bus.declare(queue)
    inbox = Inbox(
        queue,
        reaction.decoder,
        reaction.handle,
        database=notices.database,
        bus=bus,
        clock=notices.clock,
        metrics=Metrics(),
    )
    post, goodbye = Post(notices.buses, bus, queue), farewell()

    async def is_gone() -> bool:
        return HERS not in str(await everything(notices))

    async with notices.reading(sends_mail=True) as events, running(inbox.run):
        await post.send(goodbye, goodbye, farewell(BOB))
        await events.send(*(created() for _ in range(20)), deleted())
        await post.send_body("user.deleted", b"{}", "poison")
        await eventually(post.dead)
        await eventually(is_gone)
        assert await events.dead() == []
    assert [letter.message.message_id for letter in await post.dead()] == ["poison"]
    assert await notices.notifications() == []


def test_the_queue_is_bound_to_farewells() -> None:
    assert USERS in QUEUES
    assert [(one.exchange, one.pattern) for one in USERS.bindings] == [("smap.events", "user.deleted")]
