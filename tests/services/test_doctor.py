"""What the doctor finds, through the command line: it is right about what it says, and changes nothing."""

import asyncio
import json
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from refract.apps.data_directory import DataDirectory
from refract.apps.directory import SERVICES
from refract.apps.doctor import examine
from refract.runtime.environment import Environment
from refract.runtime.migrations import head_revision, migrate
from refract.runtime.statements import Statement
from tests.support.commands import refract
from tests.support.databases import Location, open_database

AHEAD = Statement("ahead", "As a newer version would leave it.", "UPDATE alembic_version SET version_num = '9999'")
HEAD = head_revision("links")
SECONDS = 100.0
"""For all that one test asks, however often: less than a test has, so that it is the doctor's time that is over."""
KNOWS_LESS = f"wrong: the database of links is at revision 9999, and this version of Refract knows only up to {HEAD}"


@pytest.fixture(autouse=True)
def until(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a test may ask for so long."""
    monkeypatch.setattr(Patience, "until", time.monotonic() + SECONDS)


class Patience:
    """What is left of the time for questions."""

    until = 0.0

    @classmethod
    def left(cls) -> float:
        """In seconds."""
        return max(0.0, cls.until - time.monotonic())


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The directory of an instance that ran and was stopped."""
    directory = DataDirectory(tmp_path / "data")
    directory.prepare()
    directory.secrets()
    for name in (name for name, entry in SERVICES.items() if entry.has_database):
        await migrate(name, directory.database(name))
        await (await open_database(directory.database(name))).close()
    return directory.path


@pytest.fixture
async def neighbour() -> AsyncIterator[TestServer]:
    """A server that names itself as its path says; without one, it answers a lot that is not JSON."""

    async def named(request: web.Request) -> web.Response:
        return web.json_response({"service": request.match_info["name"]})

    async def unnamed(_: web.Request) -> web.Response:
        return web.Response(text="x" * 100_000)

    application = web.Application()
    application.router.add_get("/{name}/health", named)
    application.router.add_get("/health", unnamed)
    server = TestServer(application)
    await server.start_server()
    yield server
    await server.close()


async def ask(*arguments: str, variables: Mapping[str, str] | None = None) -> tuple[int, dict[str, str]]:
    """The doctor's status, and what it says of each subject: "ok" or "wrong", and the words."""
    done = await asyncio.to_thread(refract, "doctor", *arguments, variables=variables, timeout=Patience.left())
    assert done.stderr == ""
    found = {}
    for line in done.stdout.splitlines():
        mark, rest = line.split(maxsplit=1)
        subject, _, words = rest.partition("  ")
        found[subject] = f"{mark}: {words.strip()}"
    return done.returncode, found


async def ask_until(
    is_found: Callable[[Mapping[str, str]], bool], variables: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """The same of real servers, which a busy machine may make slower than the doctor has patience for: asked again."""
    while True:
        status, found = await ask(variables=variables)
        if is_found(found) or Patience.left() < SECONDS / 2:
            return status, found


async def lead(location: Location) -> None:
    database = await open_database(location)
    async with database.transaction() as tx:
        await tx.execute(AHEAD)
    await database.close()


def wrong(found: Mapping[str, str]) -> list[str]:
    return [subject for subject, words in found.items() if words.startswith("wrong")]


def is_well(found: Mapping[str, str]) -> bool:
    return wrong(found) == []


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


# --- an embedded instance ---


async def test_before_the_first_start(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet"
    status, found = await ask("--data-dir", str(place), "--host", "::1", "--port", "9000")
    assert status == 0, found
    assert found["data"].startswith(f"ok: {place} does not exist yet; refract serve makes it")
    assert found["settings"] == "ok: complete; refract serve listens on http://[::1]:9000"
    assert found["instance"] == "ok: not running"
    assert contents(tmp_path) == {}


async def test_settings_are_checked_before_the_first_start(tmp_path: Path) -> None:
    status, found = await ask("--data-dir", str(tmp_path / "data"), variables={"LOG_LEVEL": "loud"})
    assert status == 1
    assert wrong(found) == ["settings"]
    assert 'environment variable "LOG_LEVEL" is "loud"; expected' in found["settings"]


async def test_a_healthy_instance_is_left_as_it_is(data: Path) -> None:
    before = contents(data)
    status, found = await ask("--data-dir", str(data))
    assert status == 0, found
    assert found["database of links"] == f"ok: up to date at {HEAD}"
    assert contents(data) == before


async def test_an_instance_that_was_killed_is_left_as_it_is(data: Path) -> None:
    kill = "import os, sys, sqlite3; c = sqlite3.connect(sys.argv[1]); c.execute('DELETE FROM inbox'); "
    kill += "c.execute('CREATE TABLE more (x)'); c.commit(); os._exit(0)"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", kill, str(data / "links.sqlite3")], check=True)
    before = contents(data)
    assert "links.sqlite3-wal" in before
    status, found = await ask("--data-dir", str(data))
    assert status == 0, found
    assert contents(data) == before


async def test_what_another_start_has_to_take_in_first(data: Path) -> None:
    (data / "links.sqlite3-wal").write_bytes(b"")
    before = contents(data)
    status, found = await ask("--data-dir", str(data))
    assert (status, wrong(found)) == (1, ["database of links"])
    assert found["database of links"].endswith("before refract serve has taken in links.sqlite3-wal")
    assert contents(data) == before


async def test_a_database_that_is_ahead_is_found(data: Path) -> None:
    await lead(data / "links.sqlite3")
    status, found = await ask("--data-dir", str(data))
    assert (status, wrong(found)) == (1, ["database of links"])
    assert found["database of links"].startswith(KNOWS_LESS)


async def test_a_database_of_random_bytes_is_found(data: Path) -> None:
    (data / "links.sqlite3").write_bytes(secrets.token_bytes(5_000))
    status, found = await ask("--data-dir", str(data))
    assert (status, wrong(found)) == (1, ["database of links"])
    assert found["database of links"] == "wrong: links.sqlite3 is unavailable: file is not a database"


@pytest.mark.parametrize(("name", "subject"), [("links", "database of links"), ("bus", "bus")])
async def test_a_damaged_file_is_found(data: Path, name: str, subject: str) -> None:
    file = data / f"{name}.sqlite3"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE filler (x)")
    connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 3_000,) for _ in range(20)])
    connection.commit()
    connection.close()
    content = file.read_bytes()
    file.write_bytes(content[: -8 * 4096] + b"\x55" * 4096 + content[-7 * 4096 :])
    status, found = await ask("--data-dir", str(data))
    assert (status, wrong(found)) == (1, [subject])
    assert f"{name}.sqlite3 is " in found[subject]


@pytest.mark.parametrize(("name", "subject"), [("secrets.json", "secrets"), ("refract.lock", "instance")])
async def test_a_directory_in_the_place_of_a_file_is_found(data: Path, name: str, subject: str) -> None:
    (data / name).unlink(missing_ok=True)
    (data / name).mkdir()
    status, found = await ask("--data-dir", str(data))
    assert (status, wrong(found)) == (1, [subject])
    assert "Is a directory" in found[subject]


async def test_a_short_secret_is_found(data: Path) -> None:
    (data / "secrets.json").write_text(json.dumps({"JWT_SECRET": "short"}))
    _, found = await ask("--data-dir", str(data))
    assert wrong(found) == ["secrets"]
    assert f'"{data / "secrets.json"}" has a JWT_SECRET' in found["secrets"]


async def test_a_data_directory_that_is_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, found = await ask("--data-dir", str(tmp_path / "file"))
    assert status == 1
    assert found["data"].endswith("is not a directory")


async def test_a_spool_that_no_click_could_wait_in_is_found(data: Path, tmp_path: Path) -> None:
    _, well = await ask("--data-dir", str(data))
    assert well["click spool"] == f"ok: {data / 'spool'} does not exist yet; it is made for the first click that waits"
    (tmp_path / "file").write_text("")
    before = contents(data)
    status, found = await ask("--data-dir", str(data), variables={"CLICK_SPOOL_DIR": str(tmp_path / "file" / "spool")})
    assert (status, wrong(found)) == (1, ["click spool"])
    assert (
        f'"{tmp_path / "file" / "spool"}" cannot be used: {tmp_path / "file"} is no directory' in found["click spool"]
    )
    assert found["click spool"].endswith("check CLICK_SPOOL_DIR")
    assert contents(data) == before


async def test_another_program_in_the_place_of_the_instance_is_found(data: Path, neighbour: TestServer) -> None:
    directory = DataDirectory(data)
    directory.lock()
    try:
        status, found = await ask("--data-dir", str(data), "--port", str(neighbour.port))
    finally:
        directory.unlock()
    assert (status, wrong(found)) == (1, ["instance"])
    assert found["instance"].endswith(
        "is not gateway: its /health answers something else; check --host and --port, or HOST and PORT"
    )


async def test_a_wrong_option_is_blamed_on_the_option(tmp_path: Path) -> None:
    _, found = await ask("--data-dir", str(tmp_path), "--port", "99999", variables={"PORT": "80"})
    assert found["settings"] == 'wrong: option "--port" is "99999"; expected a whole number from 1 to 65535'


# --- a service of the distributed mode ---


async def test_what_a_service_needs_is_found(fresh_database: str, rabbitmq_url: str, redis_address: str) -> None:
    variables = {
        "SERVICE_NAME": "url-service",
        "PORT": "8081",
        "JWT_SECRET": "s" * 32,
        "DATABASE_DSN": fresh_database,
        "RABBITMQ_URL": rabbitmq_url,
        "REDIS_ADDR": redis_address,
        "BASE_URL": "https://sho.rt",
    }
    status, well = await ask_until(is_well, variables)
    assert status == 0
    assert well["database"].startswith("ok: PostgreSQL 1")
    assert well["schema"] == f"ok: empty; the next start brings it to {HEAD}"
    assert f" at amqp://{urlsplit(rabbitmq_url).hostname}:{urlsplit(rabbitmq_url).port}/" in well["rabbitmq"]
    assert f"at {redis_address}" in well["redis"]

    assert well["click spool"].startswith(f"ok: {Path.cwd() / 'spool'}")

    away = {
        "CLICK_SPOOL_DIR": "/dev/null",
        "DATABASE_DSN": "postgres://user:hunter2@127.0.0.1:9/links",
        "RABBITMQ_URL": "amqp://user:hunter2@127.0.0.1:9/",
        "REDIS_ADDR": "127.0.0.1:9",
    }
    status, ill = await ask(variables=variables | away)
    assert (status, wrong(ill)) == (1, ["click spool", "database", "schema", "redis", "rabbitmq"])
    assert "hunter2" not in str(ill)

    status, lost = await ask(variables=variables | {"PORT": "http"})
    assert (status, wrong(lost)) == (1, ["settings"])
    assert 'environment variable "PORT" is "http"; expected a whole number from 1 to 65535' in lost["settings"]


async def test_what_the_sms_gateway_needs_is_found(
    fresh_database: str, rabbitmq_url: str, redis_address: str, kafka_bootstrap: str
) -> None:
    variables = {
        "SERVICE_NAME": "sms-gateway",
        "PORT": "8085",
        "JWT_SECRET": "s" * 32,
        "DATABASE_DSN": fresh_database,
        "RABBITMQ_URL": rabbitmq_url,
        "REDIS_ADDR": redis_address,
        "KAFKA_BOOTSTRAP": kafka_bootstrap,
    }
    status, well = await ask_until(is_well, variables)
    assert (status, well["kafka"]) == (0, f"ok: Kafka of 1 broker at {kafka_bootstrap}")
    status, ill = await ask_until(
        lambda found: wrong(found) == ["kafka"], variables | {"KAFKA_BOOTSTRAP": "127.0.0.1:9"}
    )
    assert (status, wrong(ill)) == (1, ["kafka"])
    status, few = await ask_until(
        lambda found: wrong(found) == ["kafka"] and "REPLICATION" in found["kafka"],
        variables | {"KAFKA_REPLICATION": "3"},
    )
    assert (status, wrong(few)) == (1, ["kafka"])
    assert "KAFKA_REPLICATION asks for 3 brokers" in few["kafka"]
    status, lost = await ask(variables=variables | {"KAFKA_BOOTSTRAP": "kafka:9092,kafka"})
    assert (status, wrong(lost)) == (1, ["settings"])


@pytest.mark.parametrize(
    ("variable", "value"), [("PASSWORD_POLICY", "none"), ("RATE_LIMIT_SHORTEN", "many"), ("CODE_STRATEGY", "dice")]
)
async def test_what_only_one_service_reads_is_checked_too(tmp_path: Path, variable: str, value: str) -> None:
    status, found = await ask("--data-dir", str(tmp_path / "data"), variables={variable: value})
    assert (status, wrong(found)) == (1, ["settings"])
    assert f'environment variable "{variable}" is "{value}"; expected' in found["settings"]


async def test_a_user_service_that_cannot_tell_its_clients_apart_is_found() -> None:
    variables = {
        "SERVICE_NAME": "user-service",
        "PORT": "8083",
        "JWT_SECRET": "s" * 32,
        "DATABASE_DSN": "postgres://127.0.0.1:9/users",
        "RABBITMQ_URL": "amqp://127.0.0.1:9/",
        "REDIS_ADDR": "127.0.0.1:9",
    }
    incomplete = (await ask(variables=variables))[1]
    assert "click spool" not in incomplete
    assert incomplete["settings"] == 'wrong: required environment variable "BASE_URL" is not set'
    variables["BASE_URL"] = "https://sho.rt"
    blind = (await ask(variables=variables))[1]
    assert blind["proxies"].startswith("wrong: TRUSTED_PROXIES is not set")
    assert "proxies" not in (await ask(variables=variables | {"TRUSTED_PROXIES": "10.0.0.0/8"}))[1]


async def test_a_service_that_nobody_knows_is_found() -> None:
    status, found = await ask(variables={"SERVICE_NAME": "links-service"})
    assert status == 1
    assert 'environment variable "SERVICE_NAME" is "links-service"; expected one of url-service' in found["settings"]


async def test_a_schema_that_is_ahead_is_found(fresh_database: str, rabbitmq_url: str, redis_address: str) -> None:
    await migrate("links", fresh_database)
    await lead(fresh_database)
    variables = {"SERVICE_NAME": "url-service", "PORT": "8081", "JWT_SECRET": "s" * 32, "REDIS_ADDR": redis_address}
    variables |= {"DATABASE_DSN": fresh_database, "RABBITMQ_URL": rabbitmq_url, "BASE_URL": "https://sho.rt"}
    status, found = await ask_until(lambda found: wrong(found) == ["schema"], variables)
    assert (status, wrong(found)) == (1, ["schema"])
    assert found["schema"].startswith(KNOWS_LESS)


async def test_swapped_urls_are_found(neighbour: TestServer, redis_address: str) -> None:
    variables = {"SERVICE_NAME": "gateway", "PORT": "8080", "JWT_SECRET": "s" * 32, "REDIS_ADDR": redis_address}
    variables |= {
        entry.url_variable: f"http://127.0.0.1:{neighbour.port}/{entry.wire_name}"
        for entry in SERVICES.values()
        if entry.url_variable
    }
    variables["URL_SERVICE_URL"], variables["USER_SERVICE_URL"] = (
        variables["USER_SERVICE_URL"],
        variables["URL_SERVICE_URL"],
    )
    variables["SMS_GATEWAY_URL"] = f"http://127.0.0.1:{neighbour.port}"
    variables["PROJECT_SERVICE_URL"] = f"http://127.0.0.1:{neighbour.port}/no/such/path"
    status, found = await ask_until(lambda found: "Timeout" not in str(found), variables)
    assert (status, wrong(found)) == (1, ["url-service", "user-service", "sms-gateway", "project-service"])
    place = f"http://127.0.0.1:{neighbour.port}"
    assert found["analytics-service"] == f"ok: {place}/analytics-service answers as analytics-service"
    assert found["url-service"] == (
        f'wrong: {place}/user-service is not url-service: it answers as "user-service"; check URL_SERVICE_URL'
    )
    assert found["sms-gateway"].endswith("its /health answers something else; check SMS_GATEWAY_URL")
    assert found["project-service"].endswith("/health answers 404")


async def test_a_check_that_fails_itself_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("postgres://user:hunter2@db/links")

    monkeypatch.setattr("refract.apps.doctor.head_revision", fail)
    findings = {each.subject: each for each in await examine(Environment({}), None, tmp_path)}
    assert not findings["database of links"].ok
    assert findings["database of links"].words == "the check itself failed: RuntimeError"
