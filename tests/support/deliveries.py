"""Deliveries in one mode: a migrated database, lanes to deliver by, and what became of everything."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter

from refract.kernel.ids import new_event_id
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.notifications.adapters.smtp import MailServer
from refract.services.notifications.adapters.webhooks import WebhookClient
from refract.services.notifications.commands.channels import Channel, MailChannel, WebhookChannel
from refract.services.notifications.commands.delivering import Lane
from refract.services.notifications.domain.sending import Delivery, NotDelivered, Room
from refract.services.notifications.domain.webhooks import new_secret
from refract.services.notifications.settings.sending import MailSettings
from refract.services.notifications.store.deliveries import NewDelivery, add_deliveries
from tests.support.clocks import ManualClock
from tests.support.databases import Location, administer, open_database
from tests.support.mail_desk import _in_a_thread

USER = "550e8400-e29b-41d4-a716-446655440000"
TO = "alice@example.com"

ROWS = Statement("rows", "Reads the deliveries.", "SELECT * FROM deliveries ORDER BY id")
WEBHOOKS = Statement("webhooks", "Reads the webhooks.", "SELECT * FROM webhooks ORDER BY id")
TABLES = (
    "notifications",
    "recipients",
    "preferences",
    "digests",
    "webhooks",
    "deliveries",
    "outbox",
    "inbox",
    "inbox_attempts",
)
NOTIFICATIONS = Statement("notifications", "Reads the notifications.", "SELECT * FROM notifications ORDER BY id")
ADD_WEBHOOK = Statement(
    "add_webhook",
    "Keeps a webhook.",
    """
    INSERT INTO webhooks (id, user_id, url, secret, events, created_at, updated_at)
    VALUES (:id, :user_id, :url, :secret, :events, :now, :now)
    """,
)
ADD_NOTIFICATION = Statement(
    "add_notification",
    "Keeps a notification.",
    """
    INSERT INTO notifications (id, user_id, event_type, event_id, title, payload, status, created_at)
    VALUES (:id, :user_id, 'url.created', 'event', 'x', :payload, 'pending', :now)
    """,
)


class Sending:
    """A channel that does what it is told to, and notes it."""

    name = "email"

    def __init__(self, *errors: BaseException | None, places: int = 4) -> None:
        self.errors = list(errors)
        self.room = Room(places, places, one_each=False)
        self.sent: list[Delivery] = []
        self.settlements: list[tuple[str, NotDelivered | None, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0
        self.most_under_way = 0

    async def send(self, delivery: Delivery) -> str:
        self.sent.append(delivery)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return f"copy-{delivery.id}"

    async def hold(self, _tx: object, _delivery: Delivery) -> None:
        pass

    async def settled(
        self, _tx: object, delivery: Delivery, _now: object, error: NotDelivered | None, *, for_good: bool
    ) -> None:
        self.settlements.append((delivery.id, error, for_good))

    async def close(self) -> None:
        pass


@dataclass
class Deliveries:
    """The table of deliveries, and everything that works on it."""

    location: Location
    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    notices: list[Mapping[str, Any]] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    lanes: list[Lane] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = Counter("deliveries", "x", ("channel", "outcome"), registry=self.registry)

    async def notice(self, tx: Transaction, **notice: Any) -> None:
        """Where owners are told; kept whether or not the transaction is."""
        self.notices.append(notice)

    def mail_lane(self, settings: MailSettings, **patience: float) -> Lane:
        """A lane of mails that gives a server the time that a busy machine needs."""
        server = MailServer(settings, timeout=patience.get("timeout", 30.0), longest=patience.get("longest", 60.0))
        return self.lane(MailChannel(server, self.clock))

    def webhook_lane(self, *, timeout: float = 30.0, allow_private: bool = True) -> Lane:
        """A lane of webhooks, which may be on loopback."""
        client = WebhookClient(allow_private=allow_private, timeout=timeout)
        return self.lane(WebhookChannel(client, self.database, self.clock, self.notice))

    def lane(self, channel: Channel, **options: Any) -> Lane:
        """A lane whose pauses are not by chance."""
        settings: dict[str, Any] = {"poll": 0.02, "last_seconds": 0.2, "chance": lambda: 0.5} | options
        made = Lane(channel, self.database, self.clock, self.ends, **settings)
        self.lanes.append(made)
        return made

    async def add(self, recipient: str = TO, channel: str = "email", **changes: Any) -> str:
        """Put something on its way; returns its id."""
        given: dict[str, Any] = {
            "source_event_id": new_event_id(),
            "channel": channel,
            "kind": "url.created",
            "recipient": recipient,
            "user_id": USER,
            "correlation_id": "a-request",
            "subject": "Hello",
            "text": "Hello.\n",
            "html": "<p>Hello.</p>",
        }
        known = {row["id"] for row in await self.rows()}
        async with self.database.transaction() as tx:
            await add_deliveries(tx, [NewDelivery(**(given | changes))], self.clock.now())
        [added] = [row["id"] for row in await self.rows() if row["id"] not in known]
        return str(added)

    async def add_webhook(self, url: str, *, secret: str = "", user_id: str = USER) -> str:
        """A webhook of the user; returns its id."""
        webhook = new_event_id()
        async with self.database.transaction() as tx:
            secret = secret or new_secret()
            await tx.execute(
                ADD_WEBHOOK, id=webhook, user_id=user_id, url=url, secret=secret, events=[], now=self.clock.now()
            )
        return webhook

    async def add_notification(self) -> str:
        """A notification that waits for its mail; returns its id."""
        notification = new_event_id()
        async with self.database.transaction() as tx:
            await tx.execute(ADD_NOTIFICATION, id=notification, user_id=USER, payload={}, now=self.clock.now())
        return notification

    async def to_webhook(self, webhook: str, **changes: Any) -> str:
        """Put something on its way to a webhook."""
        payload = {"short_code": "abc", "occurred_at": "2026-03-01T12:00:00Z"}
        return await self.add(webhook, "webhook", **({"payload": payload} | changes))

    async def round(self, lane: Lane) -> int:
        """Deliver what is due once and wait for the end; returns how many."""
        begun = await lane.begin()
        await lane.finish()
        return begun

    async def rows(self) -> list[Row]:
        """All deliveries."""
        return await self.database.fetch(ROWS)

    async def row(self, delivery: str) -> Row:
        """One of them."""
        [found] = [row for row in await self.rows() if row["id"] == delivery]
        return found

    async def webhook(self, webhook: str) -> Row:
        """A webhook as it is."""
        [found] = [row for row in await self.database.fetch(WEBHOOKS) if row["id"] == webhook]
        return found

    async def notifications(self) -> list[Row]:
        """All notifications."""
        return await self.database.fetch(NOTIFICATIONS)

    async def run(self, sql: str, **parameters: Any) -> None:
        """Change something behind everybody's back."""
        async with self.database.transaction() as tx:
            await tx.execute(Statement("change", "Changes something.", sql), **parameters)

    async def turn_to(self, moment: datetime) -> None:
        """Let time pass until a moment."""
        self.clock.advance((moment - self.clock.now()).total_seconds())

    def counted(self, channel: str, outcome: str) -> float:
        """How many attempts ended so."""
        labels = {"channel": channel, "outcome": outcome}
        return self.registry.get_sample_value("deliveries_total", labels) or 0.0


@pytest.fixture(scope="session")
def notifications_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of notifications, to be copied."""
    path = tmp_path_factory.mktemp("notifications") / "notifications.db"
    _in_a_thread(migrate("notifications", path))
    return path


@pytest.fixture(scope="session")
def notifications_dsn(postgres_dsn: str) -> Iterator[str]:
    """A database of notifications for all tests, each of which leaves it empty."""
    name = f"test_{new_event_id().replace('-', '')}"
    dsn = urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()

    async def make() -> None:
        await administer(postgres_dsn, f"CREATE DATABASE {name} TEMPLATE template0")
        await migrate("notifications", dsn)

    _in_a_thread(make())
    yield dsn
    _in_a_thread(administer(postgres_dsn, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(params=["embedded", "distributed"])
def notifications_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A database of notifications in one mode."""
    if request.param == "distributed":
        dsn: str = request.getfixturevalue("notifications_dsn")
        return dsn
    copied = tmp_path / "notifications.db"
    shutil.copy(request.getfixturevalue("notifications_file"), copied)
    return copied


@pytest.fixture
async def deliveries(notifications_location: Location) -> AsyncIterator[Deliveries]:
    """Deliveries in both modes. The clock stands still until a test turns it."""
    async with AsyncExitStack() as stack:
        database = await open_database(notifications_location)
        stack.push_async_callback(database.close)
        stack.push_async_callback(empty, database)
        made = Deliveries(notifications_location, database)
        yield made
        for lane in made.lanes:
            await lane.drain()


async def empty(database: Database) -> None:
    """For the next test, which has the same database: to make one on a server takes a second."""
    async with database.transaction() as tx:
        for table in TABLES:
            await tx.execute(Statement("empty", "Empties a table.", f"DELETE FROM {table}"))
