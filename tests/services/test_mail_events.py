"""Mails on the bus: the new exchange, the legacy one beside it, who must be bound, and what is forgotten after."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from refract.kernel.events import LEGACY_MAIL_EXCHANGE, PLATFORM_EXCHANGE
from refract.runtime.inbox import Inbox
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import Relay
from refract.runtime.ports import EventBus
from refract.runtime.statements import Statement
from refract.services.identity import reactions
from refract.services.identity.api import EmailPasswordResetRequested, EmailVerificationRequested
from refract.services.identity.commands.forgetting import SENT, Forgetting
from refract.services.identity.commands.mailing import Mails
from refract.services.identity.commands.verifying import ask_for_verification
from refract.services.identity.domain.mails import legacy_body, mail_event
from refract.services.identity.domain.one_time import OneTimeToken, Purpose
from refract.services.notifications.reactions import QUEUES as READERS
from tests.support.buses import Buses
from tests.support.clocks import START, ManualClock
from tests.support.databases import AwayAtFirst, Location
from tests.support.mail_desk import MailDesk, desk, mail_location, migrated_dsn, migrated_file, tokens_in
from tests.support.waiting import eventually
from tests.support.worlds import buses_beside, running

__all__ = ["desk", "mail_location", "migrated_dsn", "migrated_file"]

VERIFICATION = "email.verification.requested"
RESET = "email.password_reset.requested"


@dataclass
class Post:
    """The desk with a bus: what is announced travels, and test queues of their own take it."""

    desk: MailDesk
    bus: EventBus
    buses: Buses

    def queue(self, name: str, exchange: str, pattern: str) -> Queue:
        return self.buses.queue(name, pattern, exchange=exchange)

    def relay(self) -> Relay:
        return Relay("test", database=self.desk.database, bus=self.bus, clock=self.desk.clock, metrics=Metrics())

    async def move(self) -> None:
        """Publish what is due."""
        await self.relay().move()

    async def received(self, queue: Queue, recipient: str) -> list[Message]:
        """What lies in a queue for a recipient: others of this broker may write to the same exchanges."""
        marker = await self._marker(queue)
        found: list[Message] = []
        async with self.bus.reader(queue) as reader:
            while True:
                batch = await reader.next_batch()
                await reader.acknowledge(batch)
                messages = [delivery.message for delivery in batch]
                found += [message for message in messages if recipient.encode() in message.body]
                if any(message.message_id == marker for message in messages):
                    return found

    async def _marker(self, queue: Queue) -> str:
        """A last message, behind which nothing is."""
        binding = queue.bindings[0]
        marker = self.buses.message("email.marker")
        await self.bus.publish(replace(marker, exchange=binding.exchange))
        return marker.message_id

    async def unpublished(self) -> list[str]:
        return [row["exchange"] for row in await self.desk.outbox() if row["published_at"] is None]


@pytest.fixture
async def post(desk: MailDesk, mail_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[Post]:
    """The desk in both modes, with the bus that belongs to it."""
    async with AsyncExitStack() as stack:
        buses = buses_beside(mail_location, request)
        stack.push_async_callback(buses.close)
        yield Post(desk, await buses.open(), buses)


def mailbox(post: Post) -> str:
    """An address that no other test uses."""
    return f"{post.buses.prefix}@example.com"


# Two exchanges.


async def test_while_dual_publishing_both_are_saved_with_the_cause(desk: MailDesk) -> None:
    desk.dual_publish = True
    await desk.user("alice@example.com", mailed=True)
    new, legacy = await desk.outbox()
    assert (new["exchange"], new["event_type"], new["mandatory"]) == ("smap.events", VERIFICATION, True)
    assert (legacy["exchange"], legacy["mandatory"]) == ("smtp_send_email_exc", False)
    assert new["event_type"] == legacy["event_type"]
    assert new["message_id"] == legacy["message_id"]
    envelope, bare = json.loads(new["payload"]), json.loads(legacy["payload"])
    mail = envelope["payload"]["data"]
    assert bare["event_id"] == envelope["event_id"] == new["message_id"]
    assert (bare["recipient"], bare["subject"]) == (mail["recipient"], mail["subject"])
    assert f'<a href="{mail["link"]}">' in bare["body"]
    assert "2026-03-02 12:00 UTC" in bare["body"]
    assert set(bare) == {"event_id", "recipient", "subject", "body"}
    assert len(await desk.tokens()) == 1


async def test_a_crash_sends_neither(desk: MailDesk) -> None:
    desk.dual_publish = True
    user = await desk.user()

    async def crash() -> None:
        async with desk.database.transaction() as tx:
            await ask_for_verification(tx, desk.mails, user_id=user.id, email=user.email)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await crash()
    assert await desk.outbox() == []


async def test_resets_are_published_twice_too_and_wishes_are_not(desk: MailDesk) -> None:
    desk.dual_publish = True
    await desk.reset_token(await desk.user())
    exchanges = sorted((row["event_type"], row["exchange"]) for row in await desk.outbox())
    assert exchanges == [
        (RESET, "smap.events"),
        (RESET, "smtp_send_email_exc"),
        ("identity.reset.asked", "smap.events"),
    ]


async def test_without_it_the_legacy_exchange_gets_nothing(desk: MailDesk) -> None:
    await desk.user(mailed=True)
    await desk.reset_token(await desk.user("bob@example.com"))
    assert {row["exchange"] for row in await desk.outbox()} == {"smap.events"}


def test_that_it_is_on_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Mails(ManualClock(), "https://sho.rt", dual_publish=False)
    assert "deprecated" not in caplog.text
    Mails(ManualClock(), "https://sho.rt", dual_publish=True)
    assert caplog.text.count("deprecated exchange smtp_send_email_exc") == 1


def test_a_token_is_not_shown_where_somebody_logs_it() -> None:
    token = OneTimeToken.issue(Purpose.RESET, "user", START)
    assert token.text not in repr(token)
    assert "user" in repr(token)


def test_what_stands_in_a_legacy_mail_is_no_markup() -> None:
    token = OneTimeToken("<b>&\"'", Purpose.RESET, "user", START, START)
    event = mail_event(token, "alice@example.com", "https://sho.rt/", "")
    body = json.loads(legacy_body(event))["body"]
    assert event.data.link == "https://sho.rt/reset#token=<b>&\"'"
    assert "<b>" not in body
    assert "&lt;b&gt;&amp;&quot;&#x27;" in body


# On the bus.


async def test_both_readers_get_the_mail(post: Post) -> None:
    new = post.queue("new", PLATFORM_EXCHANGE, "email.#")
    old = post.queue("old", LEGACY_MAIL_EXCHANGE, "")
    for queue in (new, old):
        await post.bus.declare(queue)
    post.desk.dual_publish = True
    await post.desk.user(mailbox(post), mailed=True)
    await post.move()
    assert await post.unpublished() == []
    [enveloped] = await post.received(new, mailbox(post))
    [bare] = await post.received(old, mailbox(post))
    [token] = tokens_in([json.loads(enveloped.body)])
    assert enveloped.routing_key == bare.routing_key == VERIFICATION
    assert enveloped.message_id == bare.message_id
    assert token in json.loads(bare.body)["body"]


async def test_a_mail_waits_for_its_reader_and_its_legacy_copy_for_nobody(post: Post) -> None:
    post.desk.dual_publish = True
    await post.desk.user(mailbox(post), mailed=True)
    rows = await post.desk.outbox()
    # On exchanges of this test alone, because on a shared broker somebody else may be bound.
    exchanges = {PLATFORM_EXCHANGE: post.buses.exchange, LEGACY_MAIL_EXCHANGE: LEGACY_MAIL_EXCHANGE}
    messages = [
        Message(
            exchanges[row["exchange"]],
            row["event_type"],
            row["payload"].encode(),
            row["message_id"],
            mandatory=row["mandatory"],
        )
        for row in rows
    ]
    new, legacy = await post.bus.publish_all(messages)
    assert new is not None
    assert "no queue takes" in str(new)
    assert legacy is None
    await post.bus.declare(post.queue("new", post.buses.exchange, "email.#"))
    assert await post.bus.publish_all(messages) == [None, None]


def test_notifications_declares_the_queue_of_mails_and_it_takes_every_mail() -> None:
    [queue] = [queue for queue in READERS if queue.name == "smtp_send_email_v2"]
    assert queue.bindings == (Binding("smap.events", "email.#"),)
    for event in (EmailVerificationRequested, EmailPasswordResetRequested):
        assert event.needs_reader
        assert any(binding.matches(event.exchange, event.routing_key()) for binding in queue.bindings)


# From the wish to the mail.


async def test_a_wish_travels_and_is_answered_once(post: Post) -> None:
    desk = post.desk
    user = await desk.user(mailbox(post))
    reaction = reactions.reset_requests(desk.asking)
    assert reaction.queue is reactions.RESETS
    assert reactions.QUEUES == (reactions.RESETS,)
    assert reaction.queue.bindings == (Binding("smap.events", "identity.reset.asked"),)
    queue = post.buses.using(replace(reaction.queue, name=f"{post.buses.prefix}.resets"))
    mails = post.queue("mails", PLATFORM_EXCHANGE, "email.#")
    await post.bus.declare(mails)
    inbox = Inbox(
        queue,
        reaction.decoder,
        reaction.handle,
        database=desk.database,
        bus=post.bus,
        clock=desk.clock,
        metrics=Metrics(),
    )

    async def mailed() -> Any:
        return await desk.outbox(RESET)

    async with running(inbox.run):
        await post.bus.declare(queue)
        await desk.asking.ask(user.email, "192.0.2.1")
        await desk.asking.ask(f"nobody-{user.email}", "192.0.2.1")
        await post.move()
        [mail] = await eventually(mailed)
        # Delivered again, as a bus may, it has no second effect.
        [asked] = [row for row in await desk.outbox("identity.reset.asked") if "nobody" not in row["payload"]]
        again = Message(asked["exchange"], asked["event_type"], asked["payload"].encode(), asked["message_id"])
        await post.bus.publish(again)
        await desk.asking.ask(user.email, "192.0.2.1")
        await post.move()

        async def answered_twice() -> bool:
            return len(await mailed()) >= 2

        await eventually(answered_twice)
    assert len(await mailed()) == 2
    assert json.loads(mail["payload"])["payload"]["data"]["recipient"] == user.email


# What is forgotten.


async def test_mails_that_are_published_are_forgotten_and_nothing_else(post: Post) -> None:
    desk = post.desk
    user = await desk.user(mailbox(post), mailed=True)
    token = await desk.reset_token(user)
    await desk.resetting.confirm(token, "the password of after")
    for name, pattern in (("mails", "email.#"), ("resets", "identity.#")):
        await post.bus.declare(post.queue(name, PLATFORM_EXCHANGE, pattern))
    await post.move()
    await desk.user("waits@example.com", mailed=True)
    assert await Forgetting(desk.database).forget() == 3
    left = await desk.outbox()
    assert [(row["event_type"], row["published_at"] is None) for row in left] == [
        ("user.revoked", False),
        (VERIFICATION, True),
    ]
    assert await Forgetting(desk.database).forget() == 0
    assert user.email not in str([dict(row) for row in left])


async def test_mails_are_found_without_reading_the_audit_trail(desk: MailDesk) -> None:
    sent = SENT.replace(":batch", "500")
    plan = Statement("plan", "How mails are found.", f"EXPLAIN {sent}", sqlite=f"EXPLAIN QUERY PLAN {sent}")
    only_by_index = Statement("by_index", "A table this small.", "SET LOCAL enable_seqscan = off", sqlite="SELECT 1")
    async with desk.database.transaction() as tx:
        await tx.execute(only_by_index)
        found = str([dict(row) for row in await tx.fetch(plan)])
    assert "outbox_mails" in found


async def test_forgetting_goes_in_batches_and_survives_a_database_that_is_away(
    desk: MailDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.identity.commands.forgetting.BATCH", 2)
    moment = desk.clock.now()
    columns = ("id", "exchange", "event_type", "payload", "message_id", "published_at")
    rows = [(f"00000000-0000-7000-8000-00000000000{n}", "e", VERIFICATION, "{}", "m", moment) for n in range(5)]
    async with desk.database.transaction() as tx:
        await tx.insert_many("outbox", columns, rows)
    rounds, over = 0, asyncio.Event()

    async def pause(_seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            over.set()
            await asyncio.Event().wait()

    away: Any = AwayAtFirst(desk.database)
    async with asyncio.timeout(60), running(Forgetting(away, pause=pause).run):
        await over.wait()
    assert await desk.outbox() == []
