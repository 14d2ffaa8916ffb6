"""How long a page of notifications takes, and how long it is from an event to its notification."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec

from benchmarks.asking import call, fetch
from benchmarks.cores import server_core
from benchmarks.figures import Rounds, json_line, percentile, table, verdict
from benchmarks.instances import Instance, answering
from benchmarks.links import EMAIL, OWNER, token
from benchmarks.workshop import EMBEDDED, MODES, Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, write_requests
from refract.kernel.ids import new_event_id
from refract.runtime.distributed.database import PostgresDatabase
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.messages import Message
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.links.api import UrlCreated
from refract.services.notifications.api import WIRE_NAME
from refract.services.notifications.domain.notices import notice_of
from refract.services.notifications.store.notifications import Kept, Meeting, add_notifications, meet_recipients
from tests.support.servers import PostgreSQL, RabbitMQ
from tests.support.servers.places import free_port
from tests.support.waiting import eventually

CONNECTIONS = 10
PAGES = 50
NOTIFICATIONS = 200_000
OWN = 20_000
OTHERS = 1_000
BATCH = 10_000
EVENTS = 300
EVENTS_A_SECOND = 100
PAGE_MILLISECONDS = 20.0
LAG_SECONDS = 2.0
SECONDS_TO_ARRIVE = 30.0

ARRIVED = Statement(
    "arrived",
    "Reads when events happened and when they became notifications.",
    "SELECT created_at, payload FROM notifications WHERE created_at >= :since",
)


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    options = workshop.options
    print(
        f"notifications: pages of GET /notifications, {OWN:,} of one owner among {NOTIFICATIONS:,}, {CONNECTIONS} "
        f"connections, {options.rounds} rounds of {options.seconds} s; then {EVENTS_A_SECOND} events a second, from "
        "the moment that they name to created_at (embedded: from POST /shorten on; distributed: from the broker on)"
    )
    pages: dict[str, list[Reached]] = {mode: [] for mode in MODES}
    lags: dict[str, list[float]] = {}
    for mode in MODES:
        with _ready(workshop, mode) as ready:
            file = write_requests(workshop.folder / f"notifications-{mode}", _walk(ready))
            for _ in range(options.rounds):
                pages[mode].append(send(ready, file, connections=CONNECTIONS, seconds=options.seconds))
            lags[mode] = _lags(workshop, mode, ready)
    tails = {mode: Rounds.of(reached.p99 for reached in pages[mode]) for mode in MODES}
    rates = {mode: Rounds.of(reached.rate for reached in pages[mode]) for mode in MODES}
    longest = {mode: percentile(lags[mode], 0.99) for mode in MODES}
    rows = [
        (
            mode,
            rates[mode].shown(",.0f"),
            tails[mode].shown(),
            *(f"{1000 * percentile(lags[mode], share):.1f}" for share in (0.5, 0.99)),
        )
        for mode in MODES
    ]
    print(table(("", "pages a second", "p99 ms", "event p50 ms", "event p99 ms"), rows))
    for mode in MODES:
        quick = tails[mode].median < PAGE_MILLISECONDS
        print(verdict(f"{mode}: p99 of a page under {PAGE_MILLISECONDS:g} ms", met=quick))
        print(verdict(f"{mode}: an event to its notification under {LAG_SECONDS:g} s", met=longest[mode] < LAG_SECONDS))
    figures = {
        mode: {
            "rps": rates[mode].as_json(),
            "p99_ms": tails[mode].as_json(),
            "event_p99_ms": round(1000 * longest[mode], 2),
        }
        for mode in MODES
    }
    print(json_line("notifications", figures))


@contextmanager
def _ready(workshop: Workshop, mode: str) -> Iterator[Ready]:
    """An instance in which there are notifications already."""
    with ExitStack() as stack:
        if mode == EMBEDDED:
            ready = stack.enter_context(workshop.embedded([]))
            assert isinstance(ready.database, Path)
            location = ready.database.with_name("notifications.sqlite3")
            asyncio.run(_seed(location))
            yield Ready(ready.instance, ready.token, ready.api, location)
            return
        dsn = stack.enter_context(_database(workshop.servers[PostgreSQL.variable]))
        asyncio.run(_seed(dsn))
        yield stack.enter_context(_service(workshop, dsn))


@contextmanager
def _database(server: str) -> Iterator[str]:
    name = f"bench_{secrets.token_hex(4)}"
    asyncio.run(_administer(server, f'CREATE DATABASE "{name}" TEMPLATE template0'))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        asyncio.run(_administer(server, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _administer(server: str, statement: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def _service(workshop: Workshop, dsn: str) -> Iterator[Ready]:
    port, secret = free_port(), secrets.token_urlsafe(48)
    environment = {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "SERVICE_NAME": WIRE_NAME,
        "DATABASE_DSN": dsn,
        "RABBITMQ_URL": workshop.servers[RabbitMQ.variable],
        "JWT_SECRET": secret,
    }
    errors = workshop.folder / "notifications-errors.log"
    with answering(Instance(("run", "notifications"), port, errors, environment, core=server_core())) as instance:
        yield Ready(instance, token(secret), "", dsn)


async def _open(location: str | Path) -> Database:
    if isinstance(location, Path):
        return await EmbeddedDatabase.open(location)
    return await PostgresDatabase.open(location, service="bench")


async def _seed(location: str | Path) -> None:
    """Many notifications, and every tenth of them the owner's."""
    await migrate("notifications", location)
    database = await _open(location)
    now = datetime.now(UTC) - timedelta(days=1)
    try:
        for first in range(0, NOTIFICATIONS, BATCH):
            events = [_event(number, now) for number in range(first, first + BATCH)]
            kept = [Kept(new_event_id(), notice_of(event), "sent") for event in events]
            async with database.transaction() as tx:
                await add_notifications(tx, kept, now + timedelta(seconds=first / BATCH))
        async with database.transaction() as tx:
            await meet_recipients(tx, [Meeting(OWNER, EMAIL, now, OWN)], now)
            await tx.execute(Statement("analyze", "Counts.", "ANALYZE"))
    finally:
        await database.close()


def _event(number: int, moment: datetime) -> UrlCreated:
    user = OWNER if number % (NOTIFICATIONS // OWN) == 0 else f"user-{number % OTHERS}"
    return UrlCreated(
        occurred_at=moment,
        event_id=new_event_id(),
        correlation_id=f"bench-{number}",
        short_code=f"{number:07x}",
        original_url=f"https://example.com/articles/{number}",
        user_id=user,
        user_email=EMAIL,
    )


def _walk(ready: Ready) -> Iterator[bytes]:
    """Requests for the first pages, as a client walks through them."""
    query = ""
    for _ in range(PAGES):
        target = f"{ready.api}/notifications{query}"
        yield call("GET", target, ready.token)
        query = f"?after={fetch(ready.port, 'GET', target, ready.token)['next_cursor']}"


def _lags(workshop: Workshop, mode: str, ready: Ready) -> list[float]:
    """Seconds from each event to its notification."""
    since = datetime.now(UTC)
    if mode == EMBEDDED:
        for number in range(EVENTS):
            fetch(ready.port, "POST", f"{ready.api}/shorten", ready.token, {"url": f"https://example.com/new/{number}"})
            time.sleep(1 / EVENTS_A_SECOND)
    else:
        asyncio.run(_publish(workshop.servers[RabbitMQ.variable]))
    return asyncio.run(_arrived(ready.database, since))


async def _publish(url: str) -> None:
    bus = RabbitBus(url)
    await bus.start()
    try:
        for number in range(EVENTS):
            await bus.publish(Message.of(_event(number, datetime.now(UTC))))
            await asyncio.sleep(1 / EVENTS_A_SECOND)
    finally:
        await bus.close()


async def _arrived(location: str | Path, since: datetime) -> list[float]:
    database = await _open(location)
    try:
        rows = await eventually(lambda: _all_arrived(database, since), timeout=SECONDS_TO_ARRIVE, interval=0.1)
    finally:
        await database.close()
    return [(row["created_at"] - _occurred_at(row["payload"])).total_seconds() for row in rows]


async def _all_arrived(database: Database, since: datetime) -> Sequence[Row]:
    rows = await database.fetch(ARRIVED, since=since)
    return rows if len(rows) >= EVENTS else ()


def _occurred_at(payload: Any) -> datetime:
    return msgspec.convert(payload["occurred_at"], datetime)
