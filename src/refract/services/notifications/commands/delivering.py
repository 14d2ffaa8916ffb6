"""Delivers what is due: takes it with a lease, sends it outside of any transaction, and writes down what became of it.

Nothing is lost by a kill, and nothing is sent twice while a lease holds. A process that dies between sending and
writing down leaves a delivery that is sent again after the lease, under the same id.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable
from datetime import datetime

from prometheus_client import Counter

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.correlation import correlated
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, Transaction
from refract.runtime.service import Task
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.adapters.webhooks import WebhookClient
from refract.services.notifications.commands.channels import Channel, MailChannel, Notice, WebhookChannel
from refract.services.notifications.commands.clearing import Clearing
from refract.services.notifications.domain.sending import (
    MAX_ATTEMPTS,
    Away,
    Delivery,
    NotDelivered,
    Postponed,
    Refused,
    pause_after,
    reason_of,
)
from refract.services.notifications.settings.sending import SendingSettings
from refract.services.notifications.store.deliveries import MARK_FAILED, MARK_SENT, POSTPONE, is_due, take_due

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LONGEST_REST = 60.0
LAST_SECONDS = 3.0
"""How long a process that ends waits for what is under way; the rest is sent again after the lease."""


class Lane:
    """One channel's worker. What is slow in one lane delays nothing in another."""

    def __init__(
        self,
        channel: Channel,
        database: Database,
        clock: Clock,
        ends: Counter,
        *,
        poll: float = POLL_SECONDS,
        last_seconds: float = LAST_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._channel = channel
        self._database = database
        self._clock = clock
        self._ends = ends
        self._poll = poll
        self._last_seconds = last_seconds
        self._chance = chance
        self._under_way: dict[asyncio.Task[None], Delivery] = {}
        self._rest = 0.0
        self._rests_until = -math.inf

    async def run(self) -> None:
        """Deliver for ever; a database that is away is tried again at the next round."""
        while True:
            try:
                begun = await self.begin()
            except Unavailable as error:
                log.warning("deliveries not read; will retry", extra={"error": str(error)})
                begun = 0
            if not begun or self._channel.room.left(self._under_way.values()) <= 0:
                await self._until_something_ends()

    async def begin(self) -> int:
        """Begin as many deliveries as are due and find a place; returns how many."""
        now, under_way = self._clock.now(), list(self._under_way.values())
        if self._channel.room.left(under_way) <= 0 or self._clock.monotonic() < self._rests_until:
            return 0
        if not await is_due(self._database, self._channel.name, now):
            return 0
        async with self._database.transaction() as tx:
            taken = await take_due(tx, self._channel.name, now, self._channel.room, under_way)
        for delivery in taken:
            task = asyncio.create_task(self._deliver(delivery))
            self._under_way[task] = delivery
            task.add_done_callback(self._ended)
        return len(taken)

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def drain(self) -> None:
        """Let what is under way come to its end, but not for long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._last_seconds)
        late = list(self._under_way)
        for task in late:
            task.cancel()
        if late:
            log.warning("deliveries cut off; they are repeated after their lease", extra={"deliveries": len(late)})
            await asyncio.wait(late)
        await self._channel.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        delivery = self._under_way.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours: the delivery stays as it is until its lease is over, and has its attempts.
            log.error("delivery not written down", extra={"delivery": delivery.id}, exc_info=error)

    async def _until_something_ends(self) -> None:
        """A place, or a recipient, becomes free, or the time has come to look for what is new."""
        if not self._under_way:
            await asyncio.sleep(self._poll)
            return
        await asyncio.wait(self._under_way, timeout=self._poll, return_when=asyncio.FIRST_COMPLETED)

    async def _deliver(self, delivery: Delivery) -> None:
        with correlated(delivery.correlation_id):
            copy_id, error = "", None
            try:
                copy_id = await self._send(delivery)
                self._rest = 0.0
            except NotDelivered as failure:
                error = failure
            except Unavailable as failure:
                error = Postponed(str(failure))
            except Exception as failure:
                log.exception("delivery failed in a way that nobody thought of", extra={"delivery": delivery.id})
                error = Postponed(f"internal error: {type(failure).__name__}")
            if isinstance(error, Away):
                self._take_a_rest()
            await self._write_down(delivery, copy_id, error)

    async def _send(self, delivery: Delivery) -> str:
        if delivery.attempts > MAX_ATTEMPTS:
            # Each attempt was counted before it was made, and none came to an end.
            raise Refused(f"given up: {MAX_ATTEMPTS} attempts were cut off")
        if delivery.expires_at is not None and delivery.expires_at <= self._clock.now():
            raise Refused("its time was over before it could be delivered")
        return await self._channel.send(delivery)

    def _take_a_rest(self) -> None:
        """The server serves nobody now: asking it for every delivery would cost each of them an attempt."""
        now = self._clock.monotonic()
        if now < self._rests_until:
            return  # it failed beside the one that was noticed first
        self._rest = min(LONGEST_REST, self._rest * 2 or 1.0)
        self._rests_until = now + self._rest

    async def _write_down(self, delivery: Delivery, copy_id: str, error: NotDelivered | None) -> None:
        """Keep what became of it, waiting for the database if need be: the delivery is made, and must not be again."""
        pause = 0.1
        while True:
            try:
                async with self._database.transaction() as tx:
                    outcome = await self._settle(tx, delivery, copy_id, error)
                break
            except Unavailable as trouble:
                log.warning("delivery not written down; will retry", extra={"error": str(trouble)})
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)
        self._ends.labels(self._channel.name, outcome).inc()
        extra = {
            "channel": self._channel.name,
            "delivery": delivery.id,
            "event_type": delivery.kind,
            "attempt": delivery.attempts,
            "outcome": outcome,
        }
        if error is None:
            log.info("delivered", extra=extra)
        else:
            log.warning("not delivered", extra={**extra, "reason": reason_of(error)})

    async def _settle(self, tx: Transaction, delivery: Delivery, copy_id: str, error: NotDelivered | None) -> str:
        """Write it down, if it is still ours; returns one word for it."""
        now = self._clock.now()
        held = {"id": delivery.id, "attempts": delivery.attempts}
        if error is None:
            if not await tx.execute(MARK_SENT, id=delivery.id, now=now, provider_message_id=copy_id):
                return "overtaken"
            await self._channel.settled(tx, delivery, now, None, for_good=True)
            return "sent"
        await self._channel.hold(tx, delivery)
        next_attempt_at = self._next_attempt_at(delivery, error, now)
        reason = reason_of(error)
        if next_attempt_at is None:
            done = await tx.execute(MARK_FAILED, **held, reason=reason)
        else:
            done = await tx.execute(POSTPONE, **held, reason=reason, next_attempt_at=next_attempt_at)
        if not done:
            return "overtaken"
        await self._channel.settled(tx, delivery, now, error, for_good=next_attempt_at is None)
        return "failed" if next_attempt_at is None else "postponed"

    def _next_attempt_at(self, delivery: Delivery, error: NotDelivered, now: datetime) -> datetime | None:
        """When it is tried again; None when it is not."""
        if not isinstance(error, Postponed) or delivery.attempts >= MAX_ATTEMPTS:
            return None
        moment = now + pause_after(delivery.attempts, self._chance(), error.at_least)
        return None if delivery.expires_at is not None and moment >= delivery.expires_at else moment


def build_delivering(
    database: Database, clock: Clock, metrics: Metrics, settings: SendingSettings, notice: Notice
) -> tuple[Task, ...]:
    """The tasks that deliver: webhooks always, mails where there is a mail server, and the one that clears up."""
    ends = Counter(
        "deliveries", "Attempts to deliver, by what became of them", ("channel", "outcome"), registry=metrics.registry
    )
    client = WebhookClient(allow_private=settings.allow_private)
    channels: list[Channel] = [WebhookChannel(client, database, clock, notice)]
    if settings.mail is not None:
        channels.append(MailChannel(MailServer(settings.mail), clock))
    lanes = [(channel.name, Lane(channel, database, clock, ends)) for channel in channels]
    return (
        *(Task(f"delivery by {name}", lane.run, lane.drain) for name, lane in lanes),
        Task("clearing of deliveries", Clearing(database, clock).run),
    )
