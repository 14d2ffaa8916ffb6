"""The parent of workers: it spreads clients, replaces the dead, keeps their queue for a while, and ends in time."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from refract.apps.workers import VARIABLE, Crew, Place, WorkersFailed, bind
from refract.kernel.errors import Misconfigured
from tests.support.http import Client, fetch
from tests.support.servers.places import free_port
from tests.support.waiting import eventually


class Workers:
    """A crew of small workers on a port of its own."""

    def __init__(self, crew: Crew, port: int, folder: Path) -> None:
        self.crew = crew
        self.port = port
        self.folder = folder

    async def who(self) -> int:
        """The process that answers a new client."""
        return int((await fetch(self.port, "/")).body)

    async def all_answer(self, count: int) -> set[int]:
        """Wait until so many processes answer; the processes."""

        async def seen() -> set[int]:
            found = set(await asyncio.gather(*(self.who() for _ in range(16))))
            return found if found == set(self.crew.pids) and len(found) == count else set()

        return await eventually(seen, timeout=30)

    @property
    def started(self) -> int:
        """How many processes were ever started."""
        return len(list(self.folder.glob("started-*")))


@pytest.fixture
def habits(tmp_path: Path) -> Callable[[str], Path]:
    """Gives workers a bad habit; what it returns can be unlinked to cure them."""

    def make(name: str) -> Path:
        (tmp_path / name).touch()
        return tmp_path / name

    return make


@asynccontextmanager
async def workers(count: int, folder: Path, *, steady: float = 0.0, queue: float = 60.0) -> AsyncIterator[Workers]:
    port = free_port()
    command = (sys.executable, "-m", "tests.support.crew_worker", str(folder))
    crew = Crew(command, await bind("127.0.0.1", port, count), steady=steady, queue=queue)
    await crew.start()
    try:
        yield Workers(crew, port, folder)
    finally:
        await crew.stop(5.0)


@asynccontextmanager
async def answering(count: int, folder: Path, *, steady: float = 0.0, queue: float = 60.0) -> AsyncIterator[Workers]:
    async with workers(count, folder, steady=steady, queue=queue) as started:
        await started.crew.first_answers()
        started.crew.start_others()
        await started.all_answer(count)
        yield started


async def test_clients_are_spread_evenly(tmp_path: Path) -> None:
    async with answering(4, tmp_path) as started:
        clients = await asyncio.gather(*(Client.connect(started.port) for _ in range(200)))
        seen = Counter([(await client.get("/")).body for client in clients])
        for client in clients:
            client.close()
        assert len(seen) == 4
        assert min(seen.values()) >= 20  # fifty each, give or take what is out of all likelihood


async def test_one_that_dies_is_replaced_and_its_queue_is_kept(tmp_path: Path) -> None:
    async with answering(2, tmp_path) as started:
        victim, survivor = started.crew.pids
        os.kill(victim, signal.SIGKILL)
        # Some of these are given to the dead one's sockets: they wait for its successor.
        seen = await asyncio.gather(*(started.who() for _ in range(40)))
        assert survivor in seen
        assert victim not in seen
        assert len(set(seen)) == 2
        assert started.started == 3


async def test_while_a_successor_is_long_in_coming_the_others_get_everybody(
    tmp_path: Path, habits: Callable[[str], Path]
) -> None:
    async with answering(2, tmp_path, queue=0.1) as started:
        waiting = habits("wait-0")
        victim, survivor = started.crew.pids
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: started.started == 3, timeout=30)
        await eventually(lambda: alone(started, survivor), timeout=60)
        waiting.unlink()
        assert survivor in await started.all_answer(2)


async def alone(started: Workers, survivor: int) -> bool:
    """Whether forty clients at once reach the survivor, and without a wait."""
    async with asyncio.timeout(1.0):
        return set(await asyncio.gather(*(started.who() for _ in range(40)))) == {survivor}


async def test_one_that_dies_again_and_again_is_given_growing_pauses(
    tmp_path: Path, habits: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    habits("crash-1")
    async with workers(2, tmp_path, steady=60.0) as started:
        await started.crew.first_answers()
        [survivor] = started.crew.pids
        started.crew.start_others()

        def pauses() -> list[float]:
            return [record.__dict__["pause"] for record in caplog.records if "starting another" in record.message]

        await eventually(lambda: len(pauses()) >= 3, timeout=30)
        assert pauses()[:3] == [0.1, 0.2, 0.4]
        await eventually(lambda: alone(started, survivor), timeout=60)  # in one of the pauses, at the latest


async def test_one_that_was_steady_is_replaced_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with answering(2, tmp_path, steady=0.0) as started:
        for count in (3, 4):
            os.kill(started.crew.pids[1], signal.SIGKILL)
            await eventually(lambda count=count: started.started == count, timeout=30)  # type: ignore[misc]  # a default
            await started.all_answer(2)
        died = [record for record in caplog.records if "starting another" in record.message]
        assert [(record.__dict__["pause"], record.__dict__["status"]) for record in died] == [(0.0, -9)] * 2
        assert {record.levelno for record in died} == {logging.ERROR}


async def test_a_first_worker_that_finds_something_wrong_is_the_end(
    tmp_path: Path, habits: Callable[[str], Path]
) -> None:
    habits("fail")
    async with workers(3, tmp_path) as started:
        with pytest.raises(WorkersFailed) as failed:
            await started.crew.first_answers()
        assert failed.value.status == 3
        assert started.started == 1


async def test_a_first_worker_that_is_killed_is_started_again(tmp_path: Path, habits: Callable[[str], Path]) -> None:
    dying = habits("die-0")
    async with workers(1, tmp_path) as started:
        await eventually(lambda: started.started >= 2, timeout=30)
        dying.unlink()
        await started.crew.first_answers()
        assert [await started.who()] == started.crew.pids


async def test_workers_that_never_listened_leave_no_mark_on_their_socket(
    tmp_path: Path, habits: Callable[[str], Path]
) -> None:
    dying = habits("die-0")
    async with workers(1, tmp_path) as started, AsyncExitStack() as stack:
        await eventually(lambda: started.started >= 3, timeout=30)
        dying.unlink()
        await started.crew.first_answers()
        # All of them are accepted before they ask: there would be an end to read, and no request.
        clients = [await stack.enter_async_context(await Client.connect(started.port)) for _ in range(20)]
        await started.who()
        assert [(await client.get("/")).status for client in clients] == [200] * 20


async def test_later_failures_of_others_do_not_end_it(tmp_path: Path, habits: Callable[[str], Path]) -> None:
    failing = habits("fail-1")
    async with workers(2, tmp_path) as started:
        await started.crew.first_answers()
        started.crew.start_others()
        await eventually(lambda: started.started >= 3, timeout=30)
        failing.unlink()
        await started.all_answer(2)


async def test_what_cannot_be_started_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = tmp_path / "command"
    crew = Crew((str(command), str(tmp_path)), await bind("127.0.0.1", free_port(), 1))
    await crew.start()
    try:
        await eventually(lambda: "worker cannot be started" in caplog.text)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.crew_worker "$1"\n')
        command.chmod(0o700)
        await crew.first_answers()
    finally:
        await crew.stop(5.0)


async def test_those_that_do_not_end_are_killed_in_time(
    tmp_path: Path, habits: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    habits("ignore-1")
    async with answering(2, tmp_path) as started:
        pids = started.crew.pids
        begun = time.monotonic()
        await started.crew.stop(2.0)
        assert 1.0 < time.monotonic() - begun < 10.0
        killed = [record.__dict__["pid"] for record in caplog.records if "did not end in time" in record.message]
        assert killed == pids[1:]
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        with pytest.raises(OSError, match="refused"):
            await started.who()


@pytest.mark.parametrize(("habit", "status"), [("none", 0), ("wait", -signal.SIGTERM), ("stuck", -signal.SIGKILL)])
async def test_a_worker_ends_with_its_parent(
    tmp_path: Path, habits: Callable[[str], Path], habit: str, status: int
) -> None:
    """While it works, while it starts, and while it is stuck."""
    habits(habit)
    [[listening]] = await bind("127.0.0.1", free_port(), 1)
    ours, theirs = socket.socketpair()
    with listening, ours, theirs:
        descriptors = theirs.fileno(), listening.fileno()
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.crew_worker",
            str(tmp_path),
            env={**os.environ, VARIABLE: "0,{},{}".format(*descriptors)},
            pass_fds=descriptors,
        )
        theirs.close()
        await eventually(lambda: list(tmp_path.glob("started-*")), timeout=30)
        if habit != "wait":
            assert await asyncio.to_thread(ours.recv, 1) == b"l"
            ours.settimeout(0.1)
            with pytest.raises(TimeoutError):  # it does not listen without permission
                await asyncio.to_thread(ours.recv, 1)
            ours.settimeout(60)
            ours.send(b"g")
            assert await asyncio.to_thread(ours.recv, 1) == b"r"
        if habit == "stuck":
            await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        assert await worker.wait() == status


async def test_an_address_that_is_taken_is_one_line() -> None:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    line = f"FATAL: cannot listen on 127.0.0.1:{port}: Address already in use; check HOST and PORT"
    with pytest.raises(Misconfigured, match=line):
        await bind("127.0.0.1", port, 2)
    listening.close()


async def test_a_second_parent_does_not_join_the_first(tmp_path: Path) -> None:
    async with answering(2, tmp_path) as started:
        with pytest.raises(Misconfigured, match="already in use"):
            await bind("127.0.0.1", started.port, 2)


async def test_a_host_that_is_not_there_is_one_line() -> None:
    with pytest.raises(Misconfigured, match=r"^FATAL: cannot listen on nowhere\.invalid:80: .*; check HOST and PORT$"):
        await bind("nowhere.invalid", 80, 2)


@pytest.mark.parametrize("text", ["1", "one", "0,999", "0,1,2,x"])
def test_a_place_that_a_person_made_up_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(Misconfigured, match="not yours to set"):
        Place.taken()


def test_without_a_parent_there_is_no_place() -> None:
    assert Place.taken() is None
