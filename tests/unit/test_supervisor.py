"""The supervisor: order of start and stop, restarts, and ends that come in time."""

import asyncio
import os
import signal

import pytest

from refract.runtime import supervisor as supervisor_module
from refract.runtime.supervisor import Supervisor
from tests.support.waiting import eventually


class Port:
    """Something to open and close that keeps a journal."""

    def __init__(self, name: str, journal: list[str]) -> None:
        self.name = name
        self.journal = journal

    async def open(self) -> "Port":
        self.journal.append(f"open {self.name}")
        return self

    async def close(self) -> None:
        self.journal.append(f"close {self.name}")


async def nothing() -> None:
    """Starts at once."""


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_what_was_opened_last_is_closed_first() -> None:
    journal: list[str] = []
    async with Supervisor() as supervisor:
        database = await supervisor.open("database", Port("database", journal).open())
        await supervisor.open("bus", Port("bus", journal).open())
        assert database.name == "database"

    assert journal == ["open database", "open bus", "close bus", "close database"]


async def test_what_cannot_start_ends_the_block_and_closes_the_rest() -> None:
    journal: list[str] = []

    async def fail() -> None:
        raise OSError("port taken")

    async def stop(_seconds: float) -> None:
        journal.append("stop server")

    async def run() -> None:
        async with Supervisor() as supervisor:
            await supervisor.open("database", Port("database", journal).open())
            await supervisor.start("server", fail, stop)

    with pytest.raises(OSError, match="port taken"):
        await run()

    assert journal == ["open database", "close database"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_wait(number: signal.Signals) -> None:
    journal: list[str] = []
    async with Supervisor() as supervisor:
        await supervisor.open("bus", Port("bus", journal).open())
        os.kill(os.getpid(), number)
        await supervisor.wait()

    assert journal == ["open bus", "close bus"]


async def test_a_signal_during_a_slow_start_is_obeyed() -> None:
    journal: list[str] = []

    async def slow() -> Port:
        await for_ever()
        raise AssertionError

    async with Supervisor() as supervisor:
        await supervisor.open("database", Port("database", journal).open())
        asyncio.get_running_loop().call_soon(supervisor.request_stop)
        await supervisor.open("bus", slow())
        journal.append("never reached")

    assert journal == ["open database", "close database"]


async def test_a_task_that_dies_or_ends_is_restarted() -> None:
    lives = 0

    async with Supervisor(restart_pause=0) as supervisor:

        async def run() -> None:
            nonlocal lives
            lives += 1
            if lives == 1:
                raise RuntimeError("first life")
            if lives == 2:
                return
            if lives == 3:
                raise asyncio.CancelledError
            supervisor.request_stop()
            await for_ever()

        supervisor.watch("reader", run)
        await supervisor.wait()

    assert lives == 4


async def test_a_task_is_cancelled_and_then_drained_before_what_it_uses_is_closed() -> None:
    journal: list[str] = []

    async def run() -> None:
        journal.append("running")
        try:
            await for_ever()
        finally:
            journal.append("cancelled")

    async def drain() -> None:
        journal.append("drained")

    async with Supervisor() as supervisor:
        await supervisor.open("bus", Port("bus", journal).open())
        supervisor.watch("relay", run, drain=drain)
        await eventually(lambda: "running" in journal)

    assert journal == ["open bus", "running", "cancelled", "drained", "close bus"]


async def test_a_part_that_hangs_or_fails_does_not_keep_the_others_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal: list[str] = []

    async def hang(_seconds: float) -> None:
        await for_ever()

    async def fail(_seconds: float) -> None:
        raise RuntimeError("cannot stop")

    async with Supervisor(grace=0.3) as supervisor:
        await supervisor.open("database", Port("database", journal).open())
        await supervisor.start("server", nothing, hang)
        await supervisor.start("cache", nothing, fail)

    assert journal == ["open database", "close database"]
    said = [record.message for record in caplog.records if record.name == "refract.supervisor"]
    assert said == ["part failed to stop", "part did not stop in time"]


async def test_a_second_request_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = asyncio.Event()

    async def hang(_seconds: float) -> None:
        hanging.set()
        await for_ever()

    requests: list[Supervisor] = []

    async def run() -> None:
        async with Supervisor(grace=60) as supervisor:
            requests.append(supervisor)
            await supervisor.start("server", nothing, hang)
            supervisor.request_stop()
            await supervisor.wait()

    monkeypatch.setattr(supervisor_module, "SAME_REQUEST", -1)
    process = asyncio.create_task(run())
    await hanging.wait()
    requests[0].request_stop()

    await eventually(process.done)
    assert process.cancelled()


async def test_a_signal_that_came_twice_at_once_is_one() -> None:
    stopped: list[str] = []

    async def stop(_seconds: float) -> None:
        await asyncio.sleep(0)
        stopped.append("in peace")

    async with Supervisor() as supervisor:
        await supervisor.start("server", nothing, stop)
        supervisor.request_stop()
        supervisor.request_stop()

    assert stopped == ["in peace"]


async def test_the_grace_is_counted_from_the_signal() -> None:
    given: list[float] = []

    async def stop(seconds: float) -> None:
        given.append(seconds)

    async with Supervisor(grace=0.2) as supervisor:
        await supervisor.start("server", nothing, stop)
        supervisor.request_stop()
        await eventually(lambda: asyncio.get_running_loop().time() > supervisor._requested_at + 0.2)

    assert given == [0.1]  # the least that any part gets
