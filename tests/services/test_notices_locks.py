"""Who waits for whom in notifications: all lock in one order (ADR 0029), so that nobody is refused as deadlocked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from itertools import combinations_with_replacement, count, product
from typing import Any, cast

import pytest

from refract.kernel.errors import NotFound, Unauthenticated
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.adapters.webhooks import WebhookClient
from refract.services.notifications.commands import clearing
from refract.services.notifications.commands.channels import Channel, MailChannel, WebhookChannel
from refract.services.notifications.commands.delivering import Lane
from refract.services.notifications.commands.digesting import Digesting
from refract.services.notifications.commands.forgetting import forget_users
from refract.services.notifications.commands.preferring import Preferring, Wish
from refract.services.notifications.commands.reading import Reading
from refract.services.notifications.commands.sweeping import Sweeper
from refract.services.notifications.domain.notices import notice_of
from refract.services.notifications.domain.sending import Delivery, Gone, NotDelivered
from refract.services.notifications.store.deliveries import mark_notifications, take_due
from tests.services.test_digests import DAY, EVERYTHING
from tests.services.test_forgetting_users import farewell
from tests.support.deliveries import empty
from tests.support.notices import ALICE, BOB, WAITING, NoticesWorld, created, reached
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.usefixtures("patient_locks"),
    pytest.mark.parametrize("notifications_location", ["distributed"], indirect=True),
]

HOOK = "https://hooks.example.com/hook"
HOLD = Statement("hold", "Holds a notification.", "SELECT id FROM notifications WHERE id = :id FOR UPDATE")


class Stopping:
    """A database at which a transaction stands still before one of its statements, with the locks that it has."""

    def __init__(self, database: Database, before: int) -> None:
        self._database = database
        self._before = before
        self._numbers = count()
        self.stands = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield cast(Transaction, _Steps(self, tx))

    async def step(self) -> None:
        if next(self._numbers) == self._before:
            self.stands.set()
            await self.goes_on.wait()


class _Steps:
    """A transaction that tells of each of its statements before it is made."""

    def __init__(self, stopping: Stopping, tx: Transaction) -> None:
        self._stopping = stopping
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **parameters: Any) -> Any:
            await self._stopping.step()
            return await getattr(self._tx, name)(*args, **parameters)

        return call


class Workers:
    """Everything that writes: each its work once, at the database that it is given."""

    def __init__(self, notices: NoticesWorld) -> None:
        self._notices = notices
        self._clock = notices.clock
        self._calls: list[Delivery] = []
        self._mails: list[Delivery] = []

    async def furnish(self) -> None:
        """Something to do for everybody, of one user."""
        notices = self._notices
        await empty(notices.database)
        await notices.prefer(digest="off", channels=EVERYTHING, webhooks=[{"url": HOOK}])
        await notices.prefer(user=BOB, digest="weekly", channels=EVERYTHING)  # and so hers is due first
        await notices.tell(created(), created(BOB), sends_mail=True)
        await notices.prefer(digest="daily")
        await notices.tell(created(), reached(), sends_mail=True)
        notices.clock.advance(DAY)
        await notices.digesting().send_due()
        notices.clock.advance(8 * DAY)
        await notices.tell(created(), created(BOB), sends_mail=True)
        notices.clock.advance(DAY)
        async with notices.database.transaction() as tx:
            now = self._clock.now()
            self._calls = await take_due(tx, "webhook", now, WebhookChannel.room, [])
            self._mails = [
                one for one in await take_due(tx, "email", now, MailChannel.room, []) if one.user_id == ALICE
            ]

    async def tell(self, database: Database) -> None:
        told = [notice_of(created(BOB)), notice_of(created()), notice_of(reached())]
        async with database.transaction() as tx:
            await self._notices.telling(sends_mail=True).tell(tx, told)

    async def read_all(self, database: Database) -> None:
        await Reading(database, self._clock).read_all(ALICE)

    async def read(self, database: Database) -> None:
        newest = (await self._notices.notifications())[-2]
        await Reading(database, self._clock).read(newest["user_id"], newest["id"])

    async def prefer(self, database: Database) -> None:
        await Preferring(database, self._clock).change(ALICE, Wish(digest="weekly", webhooks=[]))

    async def digest(self, database: Database) -> None:
        await Digesting(database, self._clock, sends_mail=True).send_due()

    async def forget(self, database: Database) -> None:
        async with database.transaction() as tx:
            await forget_users(tx, [farewell(BOB), farewell(ALICE)])

    async def sweep(self, database: Database) -> None:
        await Sweeper(database, self._clock, timedelta(days=5)).sweep()

    async def disable(self, database: Database) -> None:
        channel = WebhookChannel(
            WebhookClient(allow_private=True), database, self._clock, self._notices.telling().notice
        )
        await self._settle(database, channel, self._calls, Gone("410"))

    async def deliver(self, database: Database) -> None:
        await self._settle(database, MailChannel(cast(MailServer, None), self._clock), self._mails, None)

    async def give_up(self, database: Database) -> None:
        async with database.transaction() as tx:
            await clearing._give_up(tx, self._clock.now() + 2 * clearing.TOO_OLD)

    async def _settle(
        self, database: Database, channel: Channel, deliveries: list[Delivery], error: NotDelivered | None
    ) -> None:
        lane = Lane(channel, database, self._clock, cast(Any, None))
        for delivery in deliveries[:2]:
            async with database.transaction() as tx:
                await lane._settle(tx, delivery, "", error)


async def ended(work: Awaitable[None]) -> None:
    """It came to its end, or found that its user had left; who is refused as deadlocked is Unavailable."""
    with suppress(Unauthenticated, NotFound):
        await work


WORK = ("tell", "read", "read_all", "prefer", "digest", "forget", "sweep", "disable", "deliver", "give_up")


@pytest.mark.parametrize(("one", "other"), list(combinations_with_replacement(WORK, 2)))
async def test_of_two_each_comes_to_its_end_wherever_one_of_them_stands(
    notices: NoticesWorld, one: str, other: str
) -> None:
    """Whoever stands still has locks that the other waits for; it must not need any that the other has."""
    workers = Workers(notices)
    for before in count():
        await workers.furnish()
        stopping = Stopping(notices.database, before)
        first = asyncio.create_task(getattr(workers, one)(cast(Database, stopping)))
        standing = asyncio.create_task(stopping.stands.wait())
        await asyncio.wait({first, standing}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            standing.cancel()
            await first
            assert before > 1, "it has nothing to do"
            return
        second = asyncio.create_task(ended(getattr(workers, other)(notices.database)))

        async def waits(second: asyncio.Task[None] = second) -> bool:
            return second.done() or await notices.somebody_waits()

        await eventually(waits, interval=0.003)
        stopping.goes_on.set()
        await ended(first)
        await second


@pytest.mark.parametrize("places", list(product(range(1, 4), repeat=3)))
async def test_a_digest_a_reader_and_a_teller_do_not_wait_in_a_ring(
    notices: NoticesWorld, places: tuple[int, int, int]
) -> None:
    """Each of the three has its first locks, as far as it comes, before any of them goes on."""
    workers = Workers(notices)
    await workers.furnish()
    async with asyncio.TaskGroup() as group:
        stops = [Stopping(notices.database, before) for before in places]
        for work, stop in zip((workers.digest, workers.read_all, workers.tell), stops, strict=True):
            task = group.create_task(work(cast(Database, stop)))

            async def stands(stop: Stopping = stop, task: asyncio.Task[None] = task) -> bool:
                return stop.stands.is_set() or task.done() or await notices.somebody_waits()

            await eventually(stands, interval=0.003)
        for stop in stops:
            stop.goes_on.set()
    unread = [row["user_id"] for row in await notices.notifications() if row["read_at"] is None]
    assert await notices.unread() == {ALICE: unread.count(ALICE), BOB: unread.count(BOB)}


async def test_who_marks_a_digest_goes_over_notifications_as_who_reads_them_all(notices: NoticesWorld) -> None:
    """Their ids grow, and the moments of the clock, by which both sort, need not."""
    await notices.tell(reached(), sends_mail=True)
    notices.clock.advance(-60)
    await notices.tell(reached(), sends_mail=True)
    older, newer = await notices.notifications()
    assert older["id"] > newer["id"]

    async def mark() -> None:
        async with notices.database.transaction() as tx:
            await mark_notifications(tx, [older["id"], newer["id"]], notices.clock.now())

    async def waiting(number: int) -> bool:
        return len(await notices.database.fetch(WAITING)) == number

    async with AsyncExitStack() as stack:
        tx = await stack.enter_async_context(notices.database.transaction())
        await tx.fetch(HOLD, id=newer["id"])
        marking = asyncio.create_task(mark())
        await eventually(lambda: waiting(1))
        reading = asyncio.create_task(Reading(notices.database, notices.clock).read_all(ALICE))
        await eventually(lambda: waiting(2))
    await marking
    assert await reading == 2
