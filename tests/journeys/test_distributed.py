"""Seven processes over real servers: names, readiness, correlation, and an end that comes in time."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiormq
import msgspec
import pytest

from refract.apps.builders import QUEUES
from refract.apps.directory import SERVICES
from tests.support.commands import Running, environment_without, logged_in, refract, running
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.stack import Stack, create_databases, drop_databases, health, variables
from tests.support.stack import running as stack_running
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def environments(postgres_dsn: str, redis_address: str, rabbitmq_url: str) -> Iterator[dict[str, dict[str, str]]]:
    """The environment of each service on free ports and fresh databases."""
    prefix = f"journey_{secrets.token_hex(4)}_"
    databases = asyncio.run(create_databases(postgres_dsn, prefix))
    servers = {
        PostgreSQL.variable: postgres_dsn,
        Redis.variable: redis_address,
        RabbitMQ.variable: rabbitmq_url,
    }
    yield variables(servers, {name: free_port() for name in SERVICES}, databases)
    asyncio.run(drop_databases(postgres_dsn, databases))


def ports_of(environments: dict[str, dict[str, str]]) -> dict[str, int]:
    return {name: int(values["PORT"]) for name, values in environments.items()}


@pytest.fixture(scope="module")
def stack(
    environments: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Path]]:
    logs = tmp_path_factory.mktemp("stack")
    with stack_running(environments, ports_of(environments), logs=logs) as started:
        yield started, logs


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_answers_with_its_name(stack: tuple[Stack, Path], name: str) -> None:
    assert health(stack[0].address(name)) == f'{{"status":"ok","service":"{SERVICES[name].wire_name}"}}'


@pytest.mark.parametrize("name", sorted(SERVICES))
async def test_every_service_is_ready(stack: tuple[Stack, Path], name: str) -> None:
    started = Running(stack[0].processes[name], stack[0].address(name), stack[1])
    expected = {"records" if need == "kafka" else need for need in SERVICES[name].needs}

    async def ready() -> bool:
        status, body = await asyncio.to_thread(started.get, "/ready")
        return (status, msgspec.json.decode(body)["checks"]) == (200, dict.fromkeys(expected, "ok"))

    await eventually(ready)  # a check has one second, which a busy server may need


async def test_a_request_is_one_story_in_two_logs(stack: tuple[Stack, Path]) -> None:
    started, logs = stack
    gateway = Running(started.processes["gateway"], started.address("gateway"), logs)
    answer = await asyncio.to_thread(gateway.get, "/r/absent", {"X-Correlation-ID": "journey-2"})
    assert answer[0] == 404

    def story(name: str) -> list[dict[str, Any]]:
        return [line for line in logged_in(logs / f"{name}.log") if line["correlation_id"] == "journey-2"]

    for name, path in (("gateway", "/r/absent"), ("links", "/absent")):
        [line] = await eventually(partial(story, name))
        assert (line["service"], line["path"], line["status"]) == (SERVICES[name].wire_name, path, 404)


def test_redirects_are_logged_as_often_as_is_asked(environments: dict[str, dict[str, str]], tmp_path: Path) -> None:
    ports = {name: free_port() for name in environments}
    asked = {"REDIRECT_LOG_SAMPLE": "0", "URL_SERVICE_URL": f"http://127.0.0.1:{ports['links']}"}
    fresh = {name: environments[name] | asked | {"PORT": str(ports[name])} for name in ("links", "gateway")}
    with stack_running(fresh, ports, logs=tmp_path) as started:
        gateway = Running(started.processes["gateway"], started.address("gateway"), tmp_path)
        for path in ("/absent", "/r/absent", "/%61bsent", "/r/%61bsent"):
            assert gateway.get(path)[0] == 404
        assert gateway.get("/api/urls")[0] == 401
        started.stop()
    told = {
        name: {line["path"] for line in logged_in(tmp_path / f"{name}.log") if line["msg"] == "request completed"}
        for name in fresh
    }
    assert {name: paths - {"/health"} for name, paths in told.items()} == {"links": set(), "gateway": {"/api/urls"}}


def test_metrics_are_inside(stack: tuple[Stack, Path]) -> None:
    started, logs = stack
    links = Running(started.processes["links"], started.address("links"), logs)
    gateway = Running(started.processes["gateway"], started.address("gateway"), logs)
    assert b"outbox_pending" in links.get("/metrics")[1]
    assert gateway.get("/metrics")[0] == 404


def test_the_gateway_describes_what_all_of_them_offer(stack: tuple[Stack, Path]) -> None:
    started, logs = stack
    status, body = Running(started.processes["gateway"], started.address("gateway"), logs).get("/docs/openapi.json")
    assert status == 200
    assert {"/api/shorten", "/api/stats/{code}", "/api/sms/send"} <= msgspec.json.decode(body)["paths"].keys()


async def test_the_bus_has_the_queues_of_the_specification(stack: tuple[Stack, Path], rabbitmq_url: str) -> None:
    async def is_there(name: str) -> bool:
        async with aiormq.connect(rabbitmq_url) as connection:
            await (await connection.channel()).queue_declare(name, passive=True)
        return True

    for queue in QUEUES:
        for name in (queue.name, queue.dead):
            await eventually(partial(is_there, name))  # a service answers before a slow broker has made its queues
    listed = await asyncio.to_thread(refract, "dead", "list", variables={"RABBITMQ_URL": rabbitmq_url})
    assert listed.returncode == 0, listed.stderr  # what is in them may be another test's


async def test_the_doctor_finds_everything_in_order(
    stack: tuple[Stack, Path], environments: dict[str, dict[str, str]]
) -> None:
    async def looked(name: str) -> str:
        seen = await asyncio.to_thread(refract, "doctor", variables=environments[name])
        return seen.stdout if seen.returncode == 0 else ""

    for name in ("links", "gateway"):
        seen = await eventually(partial(looked, name), timeout=60)  # it has few seconds for each, and may ask again
        assert "wrong" not in seen
    assert "answers as project-service" in seen


def test_all_of_it_stops_before_it_is_killed(
    environments: dict[str, dict[str, str]], tmp_path: Path, stack: tuple[Stack, Path]
) -> None:
    """Each has a grace of eight seconds, after which it leaves behind what does not stop."""
    fresh = {name: values | {"PORT": str(free_port())} for name, values in environments.items()}
    with stack_running(fresh, ports_of(fresh), logs=tmp_path) as second:
        statuses = second.stop()
    assert statuses == dict.fromkeys(SERVICES, 0)


REQUIRED = [
    (name, variable)
    for name, entry in SERVICES.items()
    for variable in (
        "PORT",
        "SERVICE_NAME",
        "JWT_SECRET",
        *(
            {
                "database": "DATABASE_DSN",
                "bus": "RABBITMQ_URL",
                "redis": "REDIS_ADDR",
                "kafka": "KAFKA_BOOTSTRAP",
            }[need]
            for need in sorted(entry.needs)
        ),
    )
]
REQUIRED += [("gateway", entry.url_variable) for entry in SERVICES.values() if entry.url_variable]


@pytest.mark.parametrize(("name", "variable"), REQUIRED)
def test_a_missing_variable_ends_it(environments: dict[str, dict[str, str]], name: str, variable: str) -> None:
    ended = refract("run", name, variables=environment_without(environments[name], variable))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f'FATAL: required environment variable "{variable}" is not set\n'


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "http"),
        ("SERVICE_NAME", "url"),
        ("JWT_SECRET", "short"),
        ("DATABASE_DSN", "mysql://user:hunter2@db/links"),
        ("RABBITMQ_URL", "hunter2"),
        ("REDIS_ADDR", "redis"),
        ("LOG_LEVEL", "trace"),
        ("TRUSTED_PROXIES", "proxy"),
        ("METRICS_ADDR", "on"),
        ("OUTBOX_RETENTION_DAYS", "a week"),
        ("REDIS_STATE_DB", "99"),
        ("JWT_SECRET_PREVIOUS", "hunter2"),
    ],
)
def test_a_wrong_variable_is_one_line(environments: dict[str, dict[str, str]], variable: str, value: str) -> None:
    ended = refract("run", "links", variables=environments["links"] | {variable: value})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f'FATAL: environment variable "{variable}" is ')
    assert "; expected " in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "hunter2" not in ended.stderr


def test_a_wrong_service_is_one_line(environments: dict[str, dict[str, str]]) -> None:
    ended = refract("run", "liks", variables=environments["links"])
    assert ended.returncode == 1
    assert ended.stderr.startswith('FATAL: there is no service "liks"; expected one of links, ')


def test_a_database_that_is_not_there_ends_it_after_five_attempts(environments: dict[str, dict[str, str]]) -> None:
    nowhere = f"postgres://user:hunter2@127.0.0.1:{free_port()}/nowhere"
    ended = refract("run", "links", variables=environments["links"] | {"DATABASE_DSN": nowhere})
    assert ended.returncode == 1
    assert "failed after 5 attempts" in ended.stderr
    assert "hunter2" not in ended.stdout + ended.stderr
    assert ended.stdout.count("DB connection attempt failed") == 5


def test_redis_and_the_broker_may_come_later(environments: dict[str, dict[str, str]], tmp_path: Path) -> None:
    port = free_port()
    redis, broker = Redis(), RabbitMQ()
    values = environments["projects"] | {
        "PORT": str(port),
        "REDIS_ADDR": redis.address,
        "RABBITMQ_URL": broker.address,
    }
    with (
        running("run", "projects", address=f"http://127.0.0.1:{port}", folder=tmp_path, variables=values) as service,
        redis,
        broker,
    ):
        deadline = time.monotonic() + 60
        while service.get("/ready")[0] != 200:
            assert time.monotonic() < deadline, service.get("/ready")
            time.sleep(0.1)
        warnings = [line["msg"] for line in service.log if line["level"] == "warn"]
        assert service.stop() == 0
    assert "redis unavailable; cache disabled" in warnings
    assert "rabbitmq unavailable; will retry in background" in warnings
