"""Notifications as the service is built: from an event on the bus to the list, the mail and the webhook."""

import base64
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from refract.kernel.errors import NotPublished
from refract.kernel.events import Event
from refract.runtime.messages import Message, Queue
from refract.runtime.ports import EventBus, QueueReader
from refract.services.notifications.settings import SendingSettings
from refract.services.notifications.settings.sending import MailSettings
from tests.support.buses import Buses
from tests.support.mail_servers import HANG, bad_office, post_office
from tests.support.notices import ALICE, EMAILS, NoticesWorld, created, reached
from tests.support.receivers import OK, Request, receiver
from tests.support.waiting import eventually
from tests.support.worlds import running

pytestmark = pytest.mark.usefixtures("patient_bus")


class Corner:
    """A bus on which every name begins with this test's own: others read queues of the same names from the broker."""

    def __init__(self, bus: EventBus, buses: Buses) -> None:
        self._bus = bus
        self._buses = buses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def declare(self, queue: Queue) -> None:
        await self._bus.declare(self._buses.using(self._own(queue)))

    def reader(self, queue: Queue) -> AbstractAsyncContextManager[QueueReader]:
        return self._bus.reader(self._own(queue))

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        return await self._bus.publish_all([replace(one, exchange=self._named(one.exchange)) for one in messages])

    def _own(self, queue: Queue) -> Queue:
        bindings = tuple(replace(binding, exchange=self._named(binding.exchange)) for binding in queue.bindings)
        return replace(queue, name=self._named(queue.name), bindings=bindings)

    def _named(self, name: str) -> str:
        return f"{self._buses.prefix}.{name}"


@asynccontextmanager
async def at_work(world: NoticesWorld, mail: MailSettings | None = None) -> AsyncIterator[EventBus]:
    """The service with all its tasks, and the bus that it is on."""
    bus: Any = Corner(await world.buses.open(), world.buses)
    await world.serve(bus=bus, sending=SendingSettings(mail=mail, allow_private=True))
    await world.service.declare()
    async with running(*(task.run for task in world.service.tasks)):
        yield bus
    for task in world.service.tasks:
        if task.drain is not None:
            await task.drain()


async def publish(bus: EventBus, *events: Event) -> None:
    assert await bus.publish_all([Message.of(event) for event in events]) == [None] * len(events)


def is_ours(request: Request, secret: str) -> bool:
    """Whether a request is signed as Standard Webhooks says, by a receiver's own reckoning."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return request.headers["webhook-signature"] == f"v1,{expected}"


async def test_from_an_event_to_the_list_the_mail_and_the_webhook(notices: NoticesWorld) -> None:
    with post_office() as office:
        async with receiver(OK) as receiving, at_work(notices, office.settings()) as bus:
            [hook] = (await notices.prefer(webhooks=[{"url": receiving.url()}]))["webhooks"]
            event = reached(short_code="hot")
            await publish(bus, event, created())
            await eventually(lambda: len(receiving.requests) == 2 and office.mails)
            await eventually(lambda: _statuses(notices, ["sent", "sent"]))
    [mail] = office.mails
    assert (mail["To"], mail["Subject"]) == (EMAILS[ALICE], "Link hot reached 1,000 clicks")
    assert all(is_ours(request, hook["secret"]) for request in receiving.requests)
    [told] = [request.json for request in receiving.requests if request.json["type"] == "milestone.reached"]
    assert told["timestamp"] == "2026-03-01T12:00:00Z"
    assert isinstance(told["data"], dict)
    assert (told["data"]["short_code"], told["data"]["milestone"]) == ("hot", 1_000)
    assert "user_email" not in told["data"]


async def test_a_mail_server_that_hangs_delays_nothing_but_mail(notices: NoticesWorld) -> None:
    async with (
        bad_office(GREETING=HANG) as office,
        receiver(OK) as receiving,
        at_work(notices, office.settings()) as bus,
    ):
        await notices.prefer(webhooks=[{"url": receiving.url()}])
        await publish(bus, *(reached() for _ in range(20)))
        await eventually(lambda: len(receiving.requests) == 20)
        page = await notices.page("?limit=100")
        assert page["unread"] == 20
        assert {notification["status"] for notification in page["notifications"]} == {"pending"}
        for conversation in list(office.serving):
            conversation.cancel()  # so that the end need not wait for it


async def test_a_webhook_that_is_gone_is_switched_off_and_its_owner_told(notices: NoticesWorld) -> None:
    gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"
    async with receiver(gone) as receiving, at_work(notices) as bus:
        await notices.prefer(webhooks=[{"url": receiving.url()}])
        await publish(bus, created())
        page = await eventually(lambda: _page_of(notices, 2))
        notice = page["notifications"][0]
        assert notice["event_type"] == "webhook.disabled"
        assert receiving.url() in notice["title"]
        assert page["unread"] == 2
        [hook] = (await notices.call("GET", "/preferences")).json["webhooks"]
        assert hook["status"] == "disabled"


async def _statuses(world: NoticesWorld, wanted: list[str]) -> bool:
    return [row["status"] for row in await world.notifications()] == wanted


async def _page_of(world: NoticesWorld, count: int) -> Any:
    page = await world.page()
    return page if len(page["notifications"]) == count else {}
