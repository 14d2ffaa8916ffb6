"""What operators do by hand, through the command line, in both modes."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refract.apps.data_directory import DataDirectory
from refract.kernel.events import LINK_EXCHANGE
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Delivery, Message
from refract.runtime.migrations import current_revision, head_revision, migrate
from refract.runtime.ports import EventBus, QueueReader
from refract.runtime.statements import Statement
from refract.services.analytics.reactions import CLICKS
from tests.support.commands import refract
from tests.support.databases import Location, open_database
from tests.support.servers import RabbitMQ

SERVICES = ["links", "analytics", "identity", "notifications", "sms", "projects"]
COUNT = Statement("count", "How many rows wait.", "SELECT count(*) AS waiting FROM outbox WHERE published_at IS NULL")
PUBLISH = Statement("publish", "Marks all rows as published.", "UPDATE outbox SET published_at = created_at")

HEAD = head_revision("links")


@dataclass(frozen=True)
class Place:
    """An instance as the command line is told of it."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    database: Location

    async def run(self, *command: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(refract, *command, *self.arguments, variables=self.variables)
        return done.returncode, done.stdout, done.stderr

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[EventBus]:
        if url := self.variables.get("RABBITMQ_URL"):
            rabbit = RabbitBus(url)
            await rabbit.start()
            bus: EventBus = rabbit
        else:
            bus = await EmbeddedBus.open(DataDirectory(Path(self.arguments[-1])).bus)
        try:
            yield bus
        finally:
            await bus.close()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[str]:
    """A broker of these tests alone: on the shared one, other instances may read the same queues."""
    with RabbitMQ() as server:
        yield server.address


@pytest.fixture(params=["embedded", "distributed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        directory = DataDirectory(tmp_path / "data")
        directory.prepare()
        return Place(("--data-dir", str(directory.path)), {}, directory.database("links"))
    dsn: str = request.getfixturevalue("fresh_database")
    url: str = request.getfixturevalue("own_broker")
    return Place((), {"DATABASE_DSN": dsn, "RABBITMQ_URL": url}, dsn)


async def bury(bus: EventBus, *reasons: str) -> list[str]:
    """Put messages into the dead letters of the clicks."""
    names = [secrets.token_hex(8) for _ in reasons]
    async with bus.reader(CLICKS) as reader:
        for name, reason in zip(names, reasons, strict=True):
            await bus.publish(Message(LINK_EXCHANGE, "url.clicked", b"{}", name))
            await reader.bury(await taken(reader, name), reason)
    return names


async def taken(reader: QueueReader, name: str) -> Delivery:
    """Take a message out of the queue, past what other tests have left in it."""
    async with asyncio.timeout(60):
        while True:
            batch = await reader.next_batch()
            own = [delivery for delivery in batch if delivery.message.message_id == name]
            await reader.acknowledge([delivery for delivery in batch if delivery not in own])
            if own:
                return own[0]


async def read_back(bus: EventBus, names: Collection[str]) -> None:
    """Take messages out of the queue of the clicks; each has to be there."""
    missing = set(names)
    async with bus.reader(CLICKS) as reader, asyncio.timeout(60):
        while missing:
            batch = await reader.next_batch()
            missing -= {delivery.message.message_id for delivery in batch}
            await reader.acknowledge(batch)


async def test_dead_letters_are_listed_with_their_reason_and_replayed(place: Place) -> None:
    async with place.bus() as bus:
        first, second = await bury(bus, "short_code is missing", "it always fails")
    status, listed, _ = await place.run("dead", "list", CLICKS.name)
    assert status == 0
    assert [line.split("  ")[1:] for line in listed.splitlines()] == [
        [CLICKS.name, first, "url.clicked", "short_code is missing"],
        [CLICKS.name, second, "url.clicked", "it always fails"],
    ]

    assert (await place.run("dead", "replay", CLICKS.name, "--id", second))[:2] == (0, f"1 replayed to {CLICKS.name}\n")
    assert (await place.run("dead", "replay", CLICKS.name))[:2] == (0, f"1 replayed to {CLICKS.name}\n")
    async with place.bus() as bus:
        await read_back(bus, [first, second])
    assert (await place.run("dead", "list"))[:2] == (0, "No dead letters.\n")


async def test_a_queue_that_nobody_knows_is_refused(place: Place) -> None:
    async with place.bus():
        status, _, said = await place.run("dead", "replay", "analytics.click")
    assert status == 1
    assert said == (
        'FATAL: there is no queue "analytics.click"; '
        "expected one of links.invalidations, links.totals, links.users, analytics.clicks, analytics.links, "
        "identity.resets, notifications.events, smtp_send_email_v2, notifications.users\n"
    )


async def test_the_outbox_of_a_period_is_sent_again(place: Place) -> None:
    await migrate("links", place.database)
    database = await open_database(place.database)
    today = f"{datetime.now(UTC):%Y-%m-%d}"  # before the message, should it be midnight
    try:
        async with database.transaction() as tx:
            await tx.post(Message(LINK_EXCHANGE, "url.created", b"{}", "one"))
        async with database.transaction() as tx:
            await tx.execute(PUBLISH)
        before = await place.run("outbox", "replay", "links", "--since", "2026-01-01", "--until", today)
        assert before[:2] == (0, "0 will be published again\n")
        assert (await place.run("outbox", "replay", "links", "--since", today))[:2] == (
            0,
            "1 will be published again\n",
        )
        row = await database.fetch_one(COUNT)
    finally:
        await database.close()
    assert row == {"waiting": 1}


async def test_migrate_brings_a_database_up_to_date_once(place: Place) -> None:
    assert await place.run("migrate", "links") == (0, f"links migrated from nothing to {HEAD}\n", "")
    assert await place.run("migrate", "url-service") == (0, f"links is up to date at {HEAD}\n", "")
    assert await current_revision(place.database) == HEAD


async def test_migrate_brings_an_embedded_instance_up_to_date(tmp_path: Path) -> None:
    done = await asyncio.to_thread(refract, "migrate", "--data-dir", str(tmp_path))
    assert done.stdout.splitlines() == [f"{name} migrated from nothing to {head_revision(name)}" for name in SERVICES]


async def test_migrate_asks_whose_database_it_is(fresh_database: str) -> None:
    done = await asyncio.to_thread(refract, "migrate", variables={"DATABASE_DSN": fresh_database})
    assert done.returncode == 1
    assert done.stderr.startswith("FATAL: DATABASE_DSN is set; name the service")


@pytest.mark.parametrize("command", [("dead", "list"), ("outbox", "replay", "links", "--since", "2026-01-01")])
async def test_an_instance_that_is_not_there_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(refract, *command, "--data-dir", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr == f'FATAL: there is no instance in "{tmp_path / "none"}"; name its place with --data-dir\n'
    assert not (tmp_path / "none").exists()


async def test_the_gateway_has_no_outbox(place: Place) -> None:
    status, _, said = await place.run("outbox", "replay", "gateway", "--since", "2026-01-01")
    assert (status, said) == (1, "FATAL: gateway has no database, so it has no events to publish again\n")


@pytest.mark.parametrize("variable", ["DATABASE_DSN", "RABBITMQ_URL"])
async def test_a_connection_string_without_a_host_is_said_in_one_line(variable: str) -> None:
    command = ("migrate", "links") if variable == "DATABASE_DSN" else ("dead", "list")
    scheme = "postgres" if variable == "DATABASE_DSN" else "amqp"
    done = await asyncio.to_thread(refract, *command, variables={variable: f"{scheme}://user:hunter2@a..b/"})
    assert done.returncode == 1
    assert done.stderr.startswith(f'FATAL: environment variable "{variable}" is a hidden value of ')
    assert done.stderr.count("\n") == 1


async def test_migrate_says_in_one_line_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "links.sqlite3").write_bytes(secrets.token_bytes(5_000))
    done = await asyncio.to_thread(refract, "migrate", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "FATAL: database is unavailable: links.sqlite3: file is not a database\n"


@pytest.mark.parametrize("name", ["migrating.lock", "links.sqlite3"])
async def test_migrate_says_in_one_line_that_a_file_is_a_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    done = await asyncio.to_thread(refract, "migrate", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("FATAL: ")
    assert name in done.stderr
    assert done.stderr.count("\n") == 1


def test_migrate_makes_files_for_their_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    refract("migrate", "links", "--data-dir", str(tmp_path))
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}
