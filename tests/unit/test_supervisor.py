"""The supervisor: order of start and stop, restarts, and ends that come in time."""

import asyncio
import os
import signal

import pytest

from refract.runtime.supervisor import Part, Supervisor
from tests.support.waiting import eventually


def recorded(name: str, journal: list[str]) -> Part:
    async def start() -> None:
        journal.append(f"start {name}")

    async def stop(_seconds: float) -> None:
        journal.append(f"stop {name}")

    return Part(name, start, stop)


async def test_parts_start_in_order_and_stop_in_reverse() -> None:
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add(recorded("database", journal))
    supervisor.add(recorded("server", journal))

    await supervisor.run(ready=supervisor.request_stop)

    assert journal == ["start database", "start server", "stop server", "stop database"]


async def test_a_part_that_cannot_start_stops_the_others_and_says_why() -> None:
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add(recorded("database", journal))

    async def fail() -> None:
        raise OSError("port taken")

    supervisor.add(Part("server", fail))

    with pytest.raises(OSError, match="port taken"):
        await supervisor.run()
    assert journal == ["start database", "stop database"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_everything(number: signal.Signals) -> None:
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add(recorded("server", journal))

    await supervisor.run(ready=lambda: os.kill(os.getpid(), number))

    assert journal == ["start server", "stop server"]


async def test_a_signal_during_a_slow_start_is_obeyed() -> None:
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add(recorded("database", journal))
    supervisor.add(Part("broker", asyncio.Event().wait))  # type: ignore[arg-type]
    supervisor.add(recorded("server", journal))
    asyncio.get_running_loop().call_soon(supervisor.request_stop)

    await supervisor.run()

    assert journal == ["start database", "stop database"]


async def test_a_task_that_dies_or_ends_is_restarted() -> None:
    supervisor = Supervisor(restart_pause=0)
    lives = 0

    async def run() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise RuntimeError("first life")
        if lives == 2:
            return
        supervisor.request_stop()
        await asyncio.Event().wait()

    supervisor.watch("reader", run)
    await supervisor.run()

    assert lives == 3


async def test_a_task_is_cancelled_and_then_drained() -> None:
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add(recorded("bus", journal))

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            journal.append("cancelled")

    async def drain() -> None:
        journal.append("drained")

    supervisor.watch("relay", run, drain=drain)

    def stop_when_running() -> None:
        asyncio.get_running_loop().call_soon(supervisor.request_stop)

    await supervisor.run(ready=stop_when_running)

    assert journal == ["start bus", "cancelled", "drained", "stop bus"]


async def test_a_part_that_hangs_or_fails_does_not_keep_the_others_from_stopping() -> None:
    journal: list[str] = []
    supervisor = Supervisor(grace=0.3)
    supervisor.add(recorded("database", journal))

    async def hang(_seconds: float) -> None:
        await asyncio.Event().wait()

    async def fail(_seconds: float) -> None:
        raise RuntimeError("cannot stop")

    supervisor.add(Part("server", stop=hang))
    supervisor.add(Part("cache", stop=fail))

    await supervisor.run(ready=supervisor.request_stop)

    assert journal == ["start database", "stop database"]


async def test_a_second_request_waits_for_nothing() -> None:
    supervisor = Supervisor(grace=60)
    hanging = asyncio.Event()

    async def hang(_seconds: float) -> None:
        hanging.set()
        await asyncio.Event().wait()

    supervisor.add(Part("server", stop=hang))
    run = asyncio.create_task(supervisor.run(ready=supervisor.request_stop))
    await hanging.wait()
    supervisor.request_stop()

    await eventually(run.done)
    assert run.cancelled()
