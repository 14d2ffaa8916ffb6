"""The private servers: what they keep over a kill, and that nothing of them is left behind."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import aio_pika
import asyncpg
import pytest
from redis.asyncio import Redis as RedisClient

from refract.runtime.distributed.record_log import KafkaLog
from refract.runtime.records import Record, Topic
from tests.support.servers import Kafka, PostgreSQL, RabbitMQ, Redis, ServerError
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]

T = TypeVar("T")


async def test_postgresql_keeps_what_it_committed_over_a_kill() -> None:
    with await asyncio.to_thread(PostgreSQL().__enter__) as server:
        connection = await asyncpg.connect(server.address)
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        first_pid = server.pid
        await asyncio.to_thread(server.kill)
        assert not exists(first_pid)
        await asyncio.to_thread(server.start)
        connection.terminate()
        connection = await asyncpg.connect(server.address)
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        assert await connection.fetchval("SHOW fsync") == "on"
        await connection.close()


async def test_a_postgresql_that_was_killed_serves_nobody_any_more() -> None:
    """Neither by those of its children that were at work and had no moment to notice."""
    with await asyncio.to_thread(PostgreSQL().__enter__) as server:
        connection = await asyncpg.connect(server.address)
        child = await connection.fetchval("SELECT pg_backend_pid()")
        counting = asyncio.create_task(connection.fetchval("SELECT count(*) FROM generate_series(1, 40000000)"))
        await asyncio.sleep(0.2)
        assert not counting.done()
        await asyncio.to_thread(server.kill)
        # It leaves the shared memory and then ends; what it was told takes longer than that, even on a busy machine.
        await eventually(lambda: not exists(child), timeout=0.5)
        await asyncio.wait([counting])
        counting.exception()
        connection.terminate()


async def test_redis_keeps_its_append_only_file_over_a_restart() -> None:
    with await asyncio.to_thread(Redis(append_only=True).__enter__) as server:
        async with RedisClient(host="127.0.0.1", port=server.port) as client:
            await client.set("kept", "42")
        await asyncio.to_thread(server.restart)
        async with RedisClient(host="127.0.0.1", port=server.port) as client:
            assert await client.get("kept") == b"42"


async def test_rabbitmq_keeps_confirmed_messages_over_a_kill_and_takes_its_epmd_along() -> None:
    with await asyncio.to_thread(RabbitMQ().__enter__) as server:
        async with await aio_pika.connect(server.address) as connection, connection.channel() as channel:
            await channel.declare_queue("kept", durable=True)
        # A queue that is seconds old does not outlive every kill (ADR 0044); one that it was stopped with does.
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        async with await aio_pika.connect(server.address) as connection, connection.channel() as channel:
            message = aio_pika.Message(b"42", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "kept")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with await aio_pika.connect(server.address) as connection, connection.channel() as channel:
            queue = await channel.declare_queue("kept", durable=True, passive=True)
            async with queue.iterator(no_ack=True, timeout=30) as messages:
                assert (await anext(messages)).body == b"42"
        everything = family(os.getpid()) & processes_in(server.folder)
        assert {"beam.smp", "epmd"} <= {name_of(pid) for pid in everything}
        await asyncio.to_thread(server.stop)
        await eventually(lambda: not any(exists(pid) for pid in everything))


async def test_kafka_keeps_what_it_acknowledged_over_a_kill() -> None:
    with await asyncio.to_thread(Kafka().__enter__) as server:
        assert server.real
        topic = Topic("kept")
        log = KafkaLog(server.address)
        await log.declare(topic)
        await log.publish(Record(topic.name, "key", b"42"))
        await log.close()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        log = KafkaLog(server.address)
        async with log.reader(topic, "group") as reader:
            assert [record.value for record in await reader.next_batch()] == [b"42"]
        await log.close()


async def test_a_server_that_cannot_start_shows_its_log() -> None:
    server = Redis()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", server.port))
        with pytest.raises(ServerError, match=rf"(?s)Redis on port {server.port} ended while starting.*in use"):
            await asyncio.to_thread(server.start)


async def test_run_passes_on_the_status_and_names_the_servers_last(elsewhere: Path, some_named: dict[str, str]) -> None:
    words = 'echo "$TEST_REDIS_ADDR"; exit 3'
    runner = await command(elsewhere, some_named, "run", "--", "sh", "-c", words)
    output, errors = await runner.communicate()
    redis, *closing = output.decode().splitlines()
    assert (runner.returncode, errors) == (3, b"")
    assert redis.startswith("127.0.0.1:")
    assert [line.partition(" ")[0] for line in closing] == ["PostgreSQL", "Redis", "RabbitMQ", "Kafka"]
    assert [line.partition(" (")[2] for line in closing] == [
        "from TEST_POSTGRES_DSN)",
        "private)",
        "from TEST_RABBITMQ_URL)",
        "from TEST_KAFKA_BOOTSTRAP)",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_passes_a_signal_on_and_stops_its_servers_after_the_command(
    elsewhere: Path, some_named: dict[str, str], number: signal.Signals
) -> None:
    words = 'trap "echo heard; exit 7" INT TERM; echo ready; while :; do sleep 0.05; done'
    runner = await command(elsewhere, some_named, "run", "--", "bash", "-c", words)
    await line_of(runner, "ready")
    relatives, folders = everything_of(runner)
    runner.send_signal(number)
    output, _ = await runner.communicate()
    assert output.startswith(b"heard\nPostgreSQL ")
    assert runner.returncode == 7
    assert folders
    await gone(relatives, folders)


async def test_run_says_which_named_server_does_not_answer(elsewhere: Path, some_named: dict[str, str]) -> None:
    nowhere = f"127.0.0.1:{Redis().port}"
    runner = await command(elsewhere, {**some_named, "TEST_REDIS_ADDR": nowhere}, "run", "--", "true")
    output, errors = await runner.communicate()
    assert (runner.returncode, output) == (1, b"")
    assert errors.startswith(b"TEST_REDIS_ADDR names a Redis that does not answer: ")


async def test_nothing_outlives_a_runner_that_was_killed(elsewhere: Path) -> None:
    runner = await command(elsewhere, {}, "run", "--", "sh", "-c", "echo ready; exec cat >/dev/null", stdin=PIPE)
    await line_of(runner, "ready")
    relatives, folders = everything_of(runner)
    assert {"postgres", "redis-server", "beam.smp", "epmd", "java"} <= {name_of(pid) for pid in relatives}
    assert len(folders) == 4
    assert runner.stdin is not None
    runner.kill()
    runner.stdin.close()
    await runner.wait()
    await gone(relatives, folders)


async def test_servers_are_kept_up_until_they_are_told_to_stop(elsewhere: Path) -> None:
    first = await answer_of(elsewhere, "up")
    again = await answer_of(elsewhere, "up")
    assert first == again
    assert [line.partition("=")[0] for line in first.splitlines()] == [
        "export TEST_POSTGRES_DSN",
        "export TEST_REDIS_ADDR",
        "export TEST_RABBITMQ_URL",
        "export TEST_KAFKA_BOOTSTRAP",
    ]
    used = await answer_of(elsewhere, "run", "--", "true")
    assert used.count("(kept up by make servers)") == 4
    relatives = family(json.loads((elsewhere / ".servers" / "state.json").read_text())["pid"])
    assert {"postgres", "redis-server", "beam.smp", "epmd", "java"} <= {name_of(pid) for pid in relatives}
    assert await answer_of(elsewhere, "down") == "Servers stopped.\n"
    await eventually(lambda: not any(exists(pid) for pid in relatives))
    assert await answer_of(elsewhere, "down") == "No servers were up.\n"


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Path]:
    """A repository with nothing but the test support, so that servers kept up in the real one play no part."""
    shutil.copytree(REPOSITORY / "tests" / "support", tmp_path / "tests" / "support")
    shutil.copy(REPOSITORY / "tests" / "__init__.py", tmp_path / "tests")
    yield tmp_path
    await answer_of(tmp_path, "down")


@pytest.fixture
def some_named(postgres_dsn: str, rabbitmq_url: str, kafka_bootstrap: str) -> dict[str, str]:
    """All servers but Redis named in the environment: a quick start with one private server."""
    return {
        "TEST_POSTGRES_DSN": postgres_dsn,
        "TEST_RABBITMQ_URL": rabbitmq_url,
        "TEST_KAFKA_BOOTSTRAP": kafka_bootstrap,
    }


async def command(
    where: Path, named: Mapping[str, str], *arguments: str, stdin: int | None = asyncio.subprocess.DEVNULL
) -> Process:
    """Start `python -m tests.support.servers` in the other repository."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TEST_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.servers", *arguments),
        cwd=where,
        env={**environment, **named},
        stdin=stdin,
        stdout=PIPE,
        stderr=PIPE,
    )


async def answer_of(where: Path, *arguments: str) -> str:
    """What the command says when it succeeds."""
    runner = await command(where, {}, *arguments)
    output, errors = await runner.communicate()
    assert (runner.returncode, errors) == (0, b"")
    return output.decode()


async def line_of(runner: Process, expected: str) -> None:
    """Read the runner's output up to the expected line."""
    assert runner.stdout is not None
    async for line in runner.stdout:
        if line.decode().rstrip() == expected:
            return
    assert runner.stderr is not None
    pytest.fail(f"the runner ended without saying {expected!r}: {(await runner.stderr.read()).decode()}")


def everything_of(runner: Process) -> tuple[set[int], set[Path]]:
    """All processes below the runner, and the data folders they work in."""
    relatives = family(runner.pid) - {runner.pid}
    places = [place for pid in relatives if (place := _read(pid, _workplace))]
    return relatives, {step for place in places for step in (place, *place.parents) if step.name.startswith("refract-")}


async def gone(relatives: set[int], folders: set[Path]) -> None:
    """Wait until neither the processes nor the folders are there."""
    await eventually(lambda: not any(exists(pid) for pid in relatives))
    await eventually(lambda: not any(folder.exists() for folder in folders))


def exists(pid: int) -> bool:
    """Whether the process runs; one that only waits for its parent to notice its end does not."""
    return _read(pid, lambda entry: _stat(entry)[0]) not in (None, "Z")


def name_of(pid: int) -> str | None:
    """The name of the program it runs; servers have short-lived children that may be gone by now."""
    return _read(pid, lambda entry: (entry / "comm").read_text().strip())


def family(ancestor: int) -> set[int]:
    """The process and all that descend from it."""
    parents = {pid: _read(pid, _parent) for pid in _pids()}
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def processes_in(folder: Path) -> set[int]:
    """The processes that work in the folder or below it."""
    places = {pid: _read(pid, _workplace) for pid in _pids()}
    return {pid for pid, place in places.items() if place is not None and place.is_relative_to(folder)}


def _stat(entry: Path) -> list[str]:
    """What the kernel says of a process after its name: state, parent, and more."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _workplace(entry: Path) -> Path:
    return (entry / "cwd").readlink()


def _parent(entry: Path) -> int:
    return int(_stat(entry)[1])


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, reader: Callable[[Path], T]) -> T | None:
    """What the reader finds about a process, or nothing when it has just ended or is another user's."""
    try:
        return reader(Path(f"/proc/{pid}"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
