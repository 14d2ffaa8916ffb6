"""Deliveries under faults: kills between sending and writing down, and databases that go away at the worst moment."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database, Transaction
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.commands.channels import MailChannel
from refract.services.notifications.commands.delivering import Lane
from refract.services.notifications.store.deliveries import LEASE
from tests.support.deliveries import (
    Deliveries,
    deliveries,
    notifications_dsn,
    notifications_file,
    notifications_location,
)
from tests.support.mail_servers import post_office
from tests.support.receivers import receiver
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["deliveries", "notifications_dsn", "notifications_file", "notifications_location"]


async def start_victim() -> asyncio.subprocess.Process:
    """A process that will deliver when it has its orders."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.delivery_victim", stdin=asyncio.subprocess.PIPE
    )


def order(process: asyncio.subprocess.Process, deliveries: Deliveries, channel: str, port: int = 0) -> None:
    """Have it deliver, on the same database."""
    embedded = isinstance(deliveries.location, Path)
    assert process.stdin is not None
    process.stdin.write(json.dumps([str(deliveries.location), embedded, channel, port]).encode())
    process.stdin.close()


async def killed(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL


async def test_a_mail_that_was_sent_and_not_written_down_is_known_by_its_id(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    with post_office() as office:
        process = await start_victim()
        office.on_mail = lambda: os.kill(process.pid, signal.SIGKILL)
        order(process, deliveries, "email", office.port)
        await killed(process)
        office.on_mail = None
        row = await deliveries.row(delivery)
        assert (row["status"], row["attempts"], len(office.mails)) == ("pending", 1, 1)
        lane = deliveries.mail_lane(office.settings())
        assert await deliveries.round(lane) == 0, "while the lease holds nobody sends it again"
        deliveries.clock.advance(LEASE.total_seconds())
        assert await deliveries.round(lane) == 1
    assert [mail["Message-ID"] for mail in office.mails] == [f"<{delivery}@sho.rt>"] * 2
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"]) == ("sent", 2)


async def test_so_is_a_webhook(deliveries: Deliveries) -> None:
    async with receiver() as receiving:
        delivery = await deliveries.to_webhook(await deliveries.add_webhook(receiving.url()))
        process = await start_victim()
        receiving.on_request = lambda: os.kill(process.pid, signal.SIGKILL)
        order(process, deliveries, "webhook")
        await killed(process)
        receiving.on_request = None
        lane = deliveries.webhook_lane()
        assert await deliveries.round(lane) == 0
        deliveries.clock.advance(LEASE.total_seconds())
        assert await deliveries.round(lane) == 1
    assert [request.headers["webhook-id"] for request in receiving.requests] == [delivery] * 2
    assert receiving.requests[0].body == receiving.requests[1].body
    assert (await deliveries.row(delivery))["status"] == "sent"


class Moody:
    """A database that is away whenever a transaction is wanted and its mood is bad."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.refusals = 0
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        if self.refusals:
            self.refusals -= 1
            self.refused += 1
            raise Unavailable("database", "away")
        async with self._database.transaction() as tx:
            yield tx


async def test_what_was_sent_is_written_down_when_the_database_is_back(deliveries: Deliveries) -> None:
    delivery = await deliveries.add()
    moody = Moody(deliveries.database)
    with post_office() as office:
        channel = MailChannel(MailServer(office.settings()), deliveries.clock)
        lane = Lane(channel, moody, deliveries.clock, deliveries.ends)
        deliveries.lanes.append(lane)

        def fall_ill() -> None:
            moody.refusals = 3

        office.on_mail = fall_ill
        await deliveries.round(lane)
    assert (moody.refused, len(office.mails)) == (3, 1)
    row = await deliveries.row(delivery)
    assert (row["status"], row["attempts"]) == ("sent", 1)


async def test_a_lane_outlives_an_absence_of_the_database(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture
) -> None:
    moody = Moody(deliveries.database)
    moody.refusals = 5
    with post_office() as office:
        channel = MailChannel(MailServer(office.settings()), deliveries.clock)
        lane = Lane(channel, moody, deliveries.clock, deliveries.ends, poll=0.01)
        deliveries.lanes.append(lane)
        await deliveries.add()
        async with running(lane.run):
            await eventually(lambda: office.mails)
            await eventually(lambda: deliveries.counted("email", "sent") == 1)
    assert caplog.text.count("deliveries not read; will retry") == 5
