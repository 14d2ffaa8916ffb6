"""The embedded event bus under faults: a process that is killed, one beside it, a broken file."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from refract.kernel.errors import BusAway, Unavailable
from refract.runtime.embedded import sqlite_thread
from refract.runtime.embedded.bus_file import BATCH_BYTES
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.ports import EventBus
from tests.support.buses import EmbeddedBuses, bodies, take
from tests.support.waiting import eventually

PATIENCE = 40.0
"""Seconds that only what hangs takes."""


async def test_what_was_published_survives_a_kill(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    acknowledged = await asyncio.to_thread(_publish_in_a_process_until_killed, here.path)
    queue = Queue("reader", (Binding("events", "#"),))
    bus = await here.open()
    async with bus.reader(queue) as reader:
        await bus.publish(Message("events", "key", b"the end", "id"))
        found = {}
        while b"the end" not in found:
            for delivery in await reader.next_batch():
                found[delivery.message.body] = delivery.redelivered
                await reader.acknowledge([delivery])
    await here.close()
    assert set(acknowledged) <= set(found)
    assert [body for body, redelivered in found.items() if redelivered] == [b"0", b"1", b"2"]


async def test_what_another_process_does_is_noticed(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    serving, command_line = await here.open(), await here.open()
    queue = here.queue("reader", "#")
    gaps: list[None] = []
    await serving.listen([Binding(here.exchange, "#")], lambda _: None, lambda: gaps.append(None))
    async with serving.reader(queue) as reader:
        await serving.publish(here.message("key", b"dead"))
        await reader.bury((await take(reader, 1))[0], "poison")
        assert await command_line.replay(queue.name) == 1
        assert bodies(await asyncio.wait_for(take(reader, 1), PATIENCE)) == [b"dead"]
        await eventually(lambda: gaps)
        await eventually(lambda: _publishes(command_line, here.message("key", b"routed")))
        assert bodies(await asyncio.wait_for(take(reader, 1), PATIENCE)) == [b"routed"]
    await here.close()


async def test_a_batch_ends_where_it_would_keep_others_waiting(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    bus = await here.open()
    queue = here.queue("reader", "#")
    await bus.declare(queue)
    sizes = [10, BATCH_BYTES // 2, BATCH_BYTES, 2 * BATCH_BYTES, 10, 10]
    await bus.publish_all([here.message("key", bytes(size)) for size in sizes])
    seen: list[list[int]] = []
    async with bus.reader(queue) as reader:
        while sum(map(len, seen)) < len(sizes):
            batch = await asyncio.wait_for(reader.next_batch(), PATIENCE)
            seen.append([len(delivery.message.body) for delivery in batch])
            await reader.acknowledge(batch)
    await here.close()
    assert seen == [sizes[:3], sizes[3:4], sizes[4:]]


async def test_a_body_that_the_disk_has_spoilt_holds_up_nobody(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    bus = await here.open()
    queue = here.queue("reader", "#")
    await bus.declare(queue)
    sent = [b"%d" % number * 5_000 for number in range(3)]
    await bus.publish_all([here.message("key", body) for body in sent])
    with closing(sqlite3.connect(here.path)) as file, file:
        [(body,)] = file.execute("SELECT body FROM messages ORDER BY id LIMIT 1 OFFSET 1").fetchall()
        assert len(body) < len(sent[1]) / 10, "long bodies are packed"
        file.execute("UPDATE messages SET body = ? WHERE body = ?", (body[:-3], body))
    async with bus.reader(queue) as reader:
        assert bodies(await asyncio.wait_for(take(reader, 3), PATIENCE)) == [sent[0], body[:-3], sent[2]]
    await here.close()


async def test_a_file_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "bus.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        await EmbeddedBus.open(tmp_path / "bus.sqlite")


async def test_a_listener_that_fails_on_a_gap_is_told_of_the_next(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    serving, command_line = await here.open(), await here.open()
    gaps: list[None] = []

    def fail() -> None:
        gaps.append(None)
        raise ValueError("a broken listener")

    for _ in range(2):
        await serving.listen([Binding(here.exchange, "#")], lambda _: None, fail)
    for name, expected in (("first", 2), ("second", 4)):
        await command_line.declare(here.queue(name, "#"))
        await eventually(lambda expected=expected: len(gaps) == expected)  # type: ignore[misc]
    await here.close()


class TestLockedFile:
    async def test_all_who_wait_are_answered_together(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_thread, "BUSY_MILLISECONDS", 1_000)
        here = EmbeddedBuses(tmp_path)
        bus = await here.open()
        await bus.declare(here.queue("reader", "#"))
        with _locked(here.path):
            publishing = [bus.publish_all([here.message("key")]) for _ in range(100)]
            outcomes = await asyncio.wait_for(asyncio.gather(*publishing), PATIENCE)  # one by one it would take 100 s
        assert {type(outcome) for (outcome,) in outcomes} == {BusAway}
        await bus.publish(here.message("key"))
        await here.close()

    async def test_a_failing_job_does_not_make_the_others_wait_one_by_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_thread, "BUSY_MILLISECONDS", 1_000)
        file = sqlite_thread.SqliteThread(tmp_path / "file.sqlite", "CREATE TABLE IF NOT EXISTS t (n INTEGER)")
        await file.start()
        with closing(sqlite3.connect(file._path, isolation_level=None, check_same_thread=False)) as other:

            def fail(connection: sqlite3.Connection) -> None:
                connection.execute("ROLLBACK")
                other.execute("BEGIN IMMEDIATE")  # another process is faster
                raise ValueError("no")

            jobs = [file.run(fail), *(file.run(lambda _: None) for _ in range(100))]
            outcomes = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), PATIENCE)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        await file.close()

    async def test_reading_does_not_wait(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_thread, "BUSY_MILLISECONDS", 100)
        here = EmbeddedBuses(tmp_path)
        bus = await here.open()
        store = await EmbeddedStateStore.open(tmp_path / "state.sqlite")
        await store.write("key", {"field": 1}, ttl=60)
        with _locked(here.path), _locked(tmp_path / "state.sqlite"):
            await bus.ping()
            assert await bus.dead_letters("nowhere", 1) == []
            await store.ping()
            assert await store.read("key") == {"field": "1"}
        await store.close()
        await here.close()

    async def test_what_nobody_waits_for_is_not_done(self, tmp_path: Path) -> None:
        here = EmbeddedBuses(tmp_path)
        bus = await here.open()
        assert isinstance(bus, EmbeddedBus)
        async with bus.reader(here.queue("reader", "#")) as reader:
            with _locked(here.path):
                waiting = asyncio.create_task(bus.publish(here.message("key", b"waiting")))
                await asyncio.sleep(0)
                await eventually(bus._file._requests.empty)  # the thread waits for the lock
                given_up = asyncio.create_task(bus.publish(here.message("key", b"given up")))
                await asyncio.sleep(0)
                given_up.cancel()
                await asyncio.wait([given_up])
            await waiting
            await bus.publish(here.message("key", b"the end"))
            assert bodies(await take(reader, 2)) == [b"waiting", b"the end"]
        await here.close()

    async def test_a_process_ends_while_the_file_is_locked(self, tmp_path: Path) -> None:
        here = EmbeddedBuses(tmp_path)
        await (await here.open()).declare(here.queue("reader", "#"))
        await here.close()
        with _locked(here.path):
            command = [sys.executable, "-c", CLOSER, str(here.path), here.exchange]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            await asyncio.to_thread(subprocess.run, command, env=environment, check=True, timeout=PATIENCE)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file as another process that writes would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


CLOSER = """
import asyncio, sys, uvloop
from pathlib import Path
from refract.runtime.embedded import sqlite_thread
from refract.runtime.embedded.bus_file import BATCH_BYTES
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Message

async def main():
    bus = await EmbeddedBus.open(Path(sys.argv[1]))
    publishing = asyncio.create_task(bus.publish(Message(sys.argv[2], "key", b"{}", "id")))
    await asyncio.sleep(0.1)
    publishing.cancel()
    await bus.close()

sqlite_thread.BUSY_MILLISECONDS = 300_000
uvloop.run(main())
"""


async def _publishes(bus: EventBus, message: Message) -> bool:
    await bus.publish(message)
    return True


PUBLISHER = """
import asyncio, sys
from pathlib import Path
from refract.runtime.embedded.bus_file import BATCH_BYTES
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Binding, Message, Queue

async def main():
    bus = await EmbeddedBus.open(Path(sys.argv[1]))
    async with bus.reader(Queue("reader", (Binding("events", "#"),), prefetch=3)) as reader:
        for number in range(1_000_000):
            await bus.publish(Message("events", "key", b"%d" % number, str(number)))
            print(number, flush=True)
            if number == 2:
                held = 0
                while held < 3:
                    held += len(await reader.next_batch())

asyncio.run(main())
"""


def _publish_in_a_process_until_killed(path: Path) -> list[bytes]:
    """Publish one after the other in a process, kill it in the middle, and return what it said was published."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(300)]
    process.kill()
    said += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return [line.strip() for line in said if line.endswith(b"\n")]
