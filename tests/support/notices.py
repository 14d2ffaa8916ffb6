"""Notifications in one mode: a migrated database, a bus, a clock that is turned, and a server when it is needed."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from refract.kernel.events import Event
from refract.kernel.ids import new_event_id
from refract.runtime.inbox import Inbox
from refract.runtime.messages import DeadLetter, Message, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, EventBus, Row
from refract.runtime.service import Foundation, Service
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.services.analytics.api import MilestoneReached
from refract.services.links.api import UrlCreated, UrlDeleted
from refract.services.notifications.commands.digesting import Digesting
from refract.services.notifications.commands.telling import Telling
from refract.services.notifications.domain.notices import notice_of
from refract.services.notifications.reactions import EVENTS, link_events
from refract.services.notifications.service import build_notifications
from refract.services.notifications.settings import NotificationSettings, SendingSettings
from refract.services.notifications.settings.sending import MailSettings
from tests.support.buses import Buses
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, open_database
from tests.support.deliveries import empty, notifications_dsn, notifications_file, notifications_location
from tests.support.http import Answer, Client
from tests.support.http import running as served
from tests.support.worlds import buses_beside, running

__all__ = ["notifications_dsn", "notifications_file", "notifications_location"]

SECRET = "the secret of notifications, 32 b"
BASE_URL = "https://sho.rt"
ALICE = "11111111-1111-4111-8111-111111111111"
BOB = "22222222-2222-4222-8222-222222222222"
EMAILS = {ALICE: "alice@example.com", BOB: "bob@example.com"}
URL = "https://example.com/a/long/path"

MAIL = MailSettings(
    host="127.0.0.1",
    port=1,
    tls="never",
    user="",
    password="",
    sender="no-reply@sho.rt",
    sender_address="no-reply@sho.rt",
)

NOTIFICATIONS = Statement("notifications", "Reads everything.", "SELECT * FROM notifications ORDER BY created_at, id")
DELIVERIES = Statement("deliveries", "Reads everything.", "SELECT * FROM deliveries ORDER BY id")
RECIPIENTS = Statement("recipients", "Reads everybody.", "SELECT * FROM recipients ORDER BY user_id")
MARKS = Statement("marks", "Reads the marks.", "SELECT event_id FROM inbox ORDER BY event_id")

WAITING = Statement(
    "waiting",
    "Finds who waits.",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)

ON_SQLITE = pytest.mark.parametrize("notifications_location", ["embedded"], indirect=True)
"""For tests of what does not depend on the engines."""

_numbers = itertools.count()


def created(user_id: str = ALICE, **changes: Any) -> UrlCreated:
    """An event of a link that was made."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "occurred_at": START,
        "event_id": new_event_id(),
        "correlation_id": f"correlation-{number}",
        "short_code": f"code{number}",
        "original_url": URL,
        "user_id": user_id,
        "user_email": EMAILS.get(user_id, ""),
    }
    return UrlCreated(**{**values, **changes})


def deleted(user_id: str = ALICE, **changes: Any) -> UrlDeleted:
    """An event of a link that was deleted."""
    made = created(user_id)
    values = {name: getattr(made, name) for name in UrlDeleted.__struct_fields__}
    return UrlDeleted(**{**values, **changes})


def reached(user_id: str = ALICE, milestone: int = 1_000, **changes: Any) -> MilestoneReached:
    """An event of a link that was followed often."""
    made = created(user_id)
    values = {name: getattr(made, name) for name in ("occurred_at", "event_id", "correlation_id", "short_code")}
    counts = {"milestone": milestone, "total_clicks": milestone}
    return MilestoneReached(
        **{**values, "user_id": user_id, "user_email": EMAILS.get(user_id, ""), **counts, **changes}
    )


@dataclass
class NoticesWorld:
    """A database with notifications, and from the first call on a server before it."""

    location: Location
    database: Database
    clock: ManualClock
    buses: Buses
    stack: AsyncExitStack = field(repr=False)
    service: Service = field(init=False, repr=False)
    port: int = 0

    def telling(self, *, sends_mail: bool = False) -> Telling:
        """What the reader does."""
        return Telling(self.clock, sends_mail=sends_mail, base_url=BASE_URL)

    def digesting(self, *, sends_mail: bool = True, database: Database | None = None) -> Digesting:
        """The job that sends digests."""
        return Digesting(database or self.database, self.clock, sends_mail=sends_mail)

    async def tell(self, *events: UrlCreated | UrlDeleted | MilestoneReached, sends_mail: bool = False) -> None:
        """Handle events in one transaction, past the bus."""
        async with self.database.transaction() as tx:
            await self.telling(sends_mail=sends_mail).tell(tx, [notice_of(event) for event in events])

    @asynccontextmanager
    async def reading(
        self, *, sends_mail: bool = False, prefetch: int = 500, database: Database | None = None
    ) -> AsyncIterator["Post"]:
        """The reader at work on a queue of this test's own."""
        queue = self.buses.queue("events", *(binding.pattern for binding in EVENTS.bindings), prefetch=prefetch)
        bus = await self.buses.open()
        await bus.declare(queue)
        reaction = link_events(self.telling(sends_mail=sends_mail))
        inbox = Inbox(
            queue,
            reaction.decoder,
            reaction.handle,
            database=database or self.database,
            bus=bus,
            clock=self.clock,
            metrics=Metrics(),
        )
        async with running(inbox.run):
            yield Post(self.buses, bus, queue)

    async def serve(self, *, bus: EventBus | None = None, **settings: Any) -> None:
        """Begin to serve, or begin anew with settings that differ."""
        foundation = Foundation(
            self.database,
            bus or await self.buses.open(),
            self.clock,
            Metrics(),
            TokenVerifier([SECRET], self.clock),
            timedelta(days=7),
        )
        self.service = build_notifications(foundation, NotificationSettings(**{"base_url": BASE_URL, **settings}))
        server = await self.stack.enter_async_context(served(self.service.application))
        self.port = server.port

    def token(self, user_id: str = ALICE) -> str:
        """A token that speaks for a user."""
        return TokenSigner(SECRET, self.clock).sign(user_id, EMAILS.get(user_id, "x@example.com")).token

    async def call(self, method: str, target: str, body: Any = None, *, user: str | None = ALICE) -> Answer:
        """One request on a connection of its own; bytes are sent as they are, anything else as JSON."""
        if not self.port:
            await self.serve()
        lines = [] if user is None else [f"Authorization: Bearer {self.token(user)}"]
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
            return await client.post(target, sent, *lines, method=method)

    async def page(self, query: str = "", *, user: str = ALICE) -> Any:
        """GET /notifications, which succeeds."""
        answer = await self.call("GET", f"/notifications{query}", user=user)
        assert answer.status == 200, answer.text
        return answer.json

    async def prefer(self, *, user: str = ALICE, **document: Any) -> Any:
        """PUT /preferences, which succeeds."""
        answer = await self.call("PUT", "/preferences", document, user=user)
        assert answer.status == 200, answer.text
        return answer.json

    async def notifications(self) -> list[Row]:
        """All rows, the oldest first."""
        return await self.database.fetch(NOTIFICATIONS)

    async def deliveries(self) -> list[Row]:
        """All that is on its way, the oldest first."""
        return await self.database.fetch(DELIVERIES)

    async def unread(self) -> dict[str, int]:
        """How much each user has not read."""
        return {row["user_id"]: row["unread"] for row in await self.database.fetch(RECIPIENTS)}

    async def somebody_waits(self) -> bool:
        """Whether somebody waits for a lock; of PostgreSQL alone."""
        return bool(await self.database.fetch(WAITING))

    async def marks(self) -> list[str]:
        """The events that were handled by a reader."""
        return [row["event_id"] for row in await self.database.fetch(MARKS)]


@dataclass
class Post:
    """How events come to the reader of a test."""

    buses: Buses
    bus: EventBus
    queue: Queue

    async def send(self, *events: Event) -> None:
        """Publish events."""
        await self.send_messages([replace(Message.of(event), exchange=self.buses.exchange) for event in events])

    async def send_body(self, routing_key: str, body: bytes, message_id: str = "") -> None:
        """Publish any bytes."""
        await self.send_messages([self.buses.message(routing_key, body, message_id=message_id)])

    async def send_messages(self, messages: Sequence[Message]) -> None:
        """Publish messages; all of them are taken."""
        assert await self.bus.publish_all(messages) == [None] * len(messages)

    async def dead(self) -> list[DeadLetter]:
        """What was given up."""
        return await self.bus.dead_letters(self.queue.name, 1_000)


def with_mail() -> SendingSettings:
    """Settings of an instance that sends mails; nobody listens at the server's address."""
    return SendingSettings(mail=MAIL)


def moment(text: str) -> datetime:
    """A moment of an answer."""
    return msgspec.convert(text, datetime)


@pytest.fixture
async def notices(notifications_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[NoticesWorld]:
    """Notifications in both modes. The clock stands still until a test turns it."""
    async with AsyncExitStack() as stack:
        database = await open_database(notifications_location)
        stack.push_async_callback(database.close)
        stack.push_async_callback(empty, database)
        buses = buses_beside(notifications_location, request)
        stack.push_async_callback(buses.close)
        yield NoticesWorld(notifications_location, database, ManualClock(), buses, stack)


LINE = "would send email to user"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines that stand for mails."""
    return [vars(record) for record in caplog.records if record.getMessage() == LINE]
