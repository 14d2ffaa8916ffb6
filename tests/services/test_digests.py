"""Digests: mails of a day or a week in one, sent once, whatever happens to whoever sends them."""

import asyncio
import logging
from datetime import timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.commands import digesting
from refract.services.notifications.commands.channels import MailChannel
from refract.services.notifications.commands.delivering import Lane
from refract.services.notifications.commands.digesting import Digesting
from refract.services.notifications.domain.notices import notice_of
from refract.services.notifications.domain.sending import Refused
from tests.support.databases import open_database
from tests.support.notices import ALICE, BOB, EMAILS, ON_SQLITE, NoticesWorld, created, deleted, reached
from tests.support.waiting import eventually

DIGESTS = Statement("digests", "Reads who gathers.", "SELECT * FROM digests ORDER BY user_id")
DAY = timedelta(days=1).total_seconds()
EVERYTHING = {"url.created": ["email"], "url.deleted": ["email"], "milestone.reached": ["email"]}

pytestmark = pytest.mark.usefixtures("patient_locks")


async def mails(world: NoticesWorld) -> list[Any]:
    return [row for row in await world.deliveries() if row["kind"] == "digest"]


async def next_at(world: NoticesWorld) -> list[str]:
    return [f"{row['next_at']:%a %d %H:%M}" for row in await world.database.fetch(DIGESTS)]


async def test_what_a_day_brought_comes_in_one_mail(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily", channels=EVERYTHING)
    await notices.tell(created(short_code="one"), created(short_code="two"), reached(short_code="hot"), sends_mail=True)
    await notices.tell(deleted(short_code="old"), sends_mail=True)
    assert await notices.deliveries() == [], "nothing at once"
    assert [row["status"] for row in await notices.notifications()] == ["pending"] * 4
    job = notices.digesting()
    assert await job.send_due() == 0, "not before its time"
    notices.clock.advance(DAY)
    assert await job.send_due() == 1
    [mail] = await mails(notices)
    assert (mail["recipient"], mail["user_id"], mail["channel"]) == (EMAILS[ALICE], ALICE, "email")
    assert mail["subject"] == "Your day: 1 milestone, 2 new links, 1 deleted link"
    order = ["Link hot reached 1,000 clicks", "New link one", "New link two", "Link old was deleted"]
    places = [mail["text"].index(line) for line in order]
    assert places == sorted(places)
    assert all(line in mail["html"] for line in order)
    for row in await notices.notifications():
        assert (row["status"], row["sent_at"], row["gathered"]) == ("pending", None, False), "the mail has not left"
    assert await job.send_due() == 0
    notices.clock.advance(DAY)
    assert await job.send_due() == 0, "a day on which nothing happened has no mail"
    assert len(await mails(notices)) == 1


async def test_a_week_ends_on_monday(notices: NoticesWorld) -> None:
    await notices.prefer(digest="weekly")
    assert await next_at(notices) == ["Mon 02 08:00"]  # the clock starts on a Sunday
    await notices.tell(reached(), sends_mail=True)
    notices.clock.advance(DAY)
    assert await notices.digesting().send_due() == 1
    assert (await mails(notices))[0]["subject"] == "Your week: 1 milestone"
    assert await next_at(notices) == ["Mon 09 08:00"]
    await notices.prefer(digest="daily")
    assert await next_at(notices) == ["Tue 03 08:00"]


async def test_only_what_its_owner_wants_by_mail_is_gathered(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily")
    await notices.tell(created(), reached(), created(BOB), reached(BOB), sends_mail=True)
    assert [(row["kind"], row["user_id"]) for row in await notices.deliveries()] == [("milestone.reached", BOB)]
    gathered = [row["event_type"] for row in await notices.notifications() if row["gathered"]]
    assert gathered == ["milestone.reached"]


async def test_whoever_was_away_sends_one_for_all_that_was_missed(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily")
    for _ in range(3):
        await notices.tell(reached(), sends_mail=True)
        notices.clock.advance(DAY)
    # Another process, after a restart: what is due stands in the database.
    other = await open_database(notices.location)
    try:
        assert await notices.digesting(database=other).send_due() == 1
    finally:
        await other.close()
    [mail] = await mails(notices)
    assert mail["subject"] == "Your day: 3 milestones"
    assert await next_at(notices) == ["Thu 05 08:00"]


async def test_many_processes_send_each_digest_once(notices: NoticesWorld) -> None:
    users = [f"user-{number}" for number in range(8)]
    for user in users:
        await notices.prefer(user=user, digest="daily")
    for _ in range(3):
        await notices.tell(*(reached(user, user_email=f"{user}@example.com") for user in users), sends_mail=True)
    notices.clock.advance(DAY)
    others = [await open_database(notices.location) for _ in range(3)]
    try:
        jobs = [notices.digesting(database=database) for database in (notices.database, *others)]
        assert sum(await asyncio.gather(*(job.send_due() for job in jobs))) == 8
    finally:
        for other in others:
            await other.close()
    sent = await mails(notices)
    assert sorted(mail["recipient"] for mail in sent) == [f"{user}@example.com" for user in users]
    assert {mail["subject"] for mail in sent} == {"Your day: 3 milestones"}


class Broken(Exception):
    """What a test breaks."""


async def test_a_process_that_dies_while_it_sends_leaves_it_to_the_next(
    notices: NoticesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await notices.prefer(digest="daily")
    await notices.tell(reached(), sends_mail=True)
    notices.clock.advance(DAY)

    async def dies(*_: object) -> None:
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(digesting, "add_deliveries", dies)
        with pytest.raises(Broken):
            await notices.digesting().send_due()
    assert await mails(notices) == []
    assert [row["gathered"] for row in await notices.notifications()] == [True]
    assert await notices.digesting().send_due() == 1
    assert len(await mails(notices)) == 1


class Letterbox:
    """A mail server that takes everything, or nothing."""

    sender = sender_address = "no-reply@sho.rt"

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def send(self, _mail: bytes, _recipient: str) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(("error", "status"), [(None, "sent"), (Refused("550 no such user"), "failed")])
async def test_what_becomes_of_the_mail_becomes_of_all_it_tells_of(
    notices: NoticesWorld, error: Exception | None, status: str
) -> None:
    await notices.prefer(digest="daily")
    await notices.tell(reached(), reached(), reached(BOB), sends_mail=True)
    notices.clock.advance(DAY)
    await notices.digesting().send_due()
    server = cast(MailServer, Letterbox(error))
    ends = Counter("ends", "x", ("channel", "outcome"), registry=CollectorRegistry())
    lane = Lane(MailChannel(server, notices.clock), notices.database, notices.clock, ends)
    assert await lane.begin() == 2
    await lane.finish()
    sent_at = notices.clock.now() if status == "sent" else None
    assert [(row["status"], row["sent_at"]) for row in await notices.notifications()] == [(status, sent_at)] * 3
    assert [row["payload"] for row in await notices.deliveries()] == [{}, {}]


async def test_a_clock_that_was_set_back_delays_no_digest_for_long(notices: NoticesWorld) -> None:
    notices.clock.advance(400 * DAY)
    await notices.prefer(digest="weekly")
    notices.clock.advance(-400 * DAY)
    await notices.tell(reached(), sends_mail=True)
    assert await notices.digesting().send_due() == 1
    assert await next_at(notices) == ["Mon 02 08:00"]
    await notices.tell(reached(), sends_mail=True)
    assert await notices.digesting().send_due() == 0


# Off.


async def test_switched_off_it_sends_what_it_has_and_no_more(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily")
    await notices.tell(reached(), sends_mail=True)
    await notices.prefer(digest="off")
    await notices.tell(reached(), sends_mail=True)
    assert [row["kind"] for row in await notices.deliveries()] == ["milestone.reached"], "at once again"
    assert await notices.digesting().send_due() == 1, "without waiting for the morning"
    assert (await mails(notices))[0]["subject"] == "Your links: 1 milestone"
    assert await next_at(notices) == []
    await notices.prefer(digest="off")
    assert await next_at(notices) == []


@pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True)
async def test_switching_off_waits_for_who_is_just_adding(notices: NoticesWorld) -> None:
    """Else what is added after the last digest would never be sent."""
    await notices.prefer(digest="daily")
    async with notices.database.transaction() as tx:
        await notices.telling(sends_mail=True).tell(tx, [notice_of(reached())])
        switching = asyncio.create_task(notices.prefer(digest="off"))
        sending = asyncio.create_task(notices.digesting().send_due())
        await eventually(notices.somebody_waits)
        assert not switching.done()
    await switching
    await sending
    await notices.digesting().send_due()
    assert len(await mails(notices)) == 1
    assert [row["gathered"] for row in await notices.notifications()] == [False]


# Corners.


async def test_a_flood_comes_in_several_mails_and_is_complete(
    notices: NoticesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digesting, "MOST_IN_ONE", 60)
    await notices.prefer(digest="daily", channels=EVERYTHING)
    await notices.tell(*(created(short_code=f"c{number}") for number in range(130)), sends_mail=True)
    notices.clock.advance(DAY)
    assert await notices.digesting().send_due() == 3
    sent = await mails(notices)
    assert sorted(mail["subject"] for mail in sent) == [
        "Your day: 10 new links",
        "Your day: 60 new links",
        "Your day: 60 new links",
    ]
    assert sum("… and 10 more" in mail["text"] for mail in sent) == 2
    assert not any(row["gathered"] for row in await notices.notifications())


@ON_SQLITE
async def test_without_a_mail_server_it_is_a_line(notices: NoticesWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    await notices.prefer(digest="daily")
    await notices.tell(created(), reached())
    assert not [record for record in caplog.records if record.getMessage() == "would send email to user"]
    notices.clock.advance(DAY)
    assert await notices.digesting(sends_mail=False).send_due() == 1
    [line] = [vars(record) for record in caplog.records if record.getMessage() == "would send email to user"]
    assert (line["event_type"], line["user_email"]) == ("digest", EMAILS[ALICE])
    assert line["text"] == "Your day: 1 milestone, 1 new link"
    assert await notices.deliveries() == []


@ON_SQLITE
async def test_the_job_goes_on_after_the_database_was_away(notices: NoticesWorld) -> None:
    await notices.prefer(digest="daily")
    await notices.tell(reached(), sends_mail=True)
    notices.clock.advance(DAY)
    rounds: list[float] = []

    class Away:
        """The database, away for the first call."""

        def __getattr__(self, name: str) -> Any:
            if name == "transaction" and not rounds:
                raise Unavailable("database", "away")
            return getattr(notices.database, name)

    async def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            raise Broken

    database: Database = Away()
    with pytest.raises(Broken):
        await Digesting(database, notices.clock, sends_mail=True, pause=pause).run()
    assert rounds == [30.0, 30.0]
    assert len(await mails(notices)) == 1
