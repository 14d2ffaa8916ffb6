"""Which processor does what: the server has one core for itself, and whoever asks has the other."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.support.servers.packages import MissingSoftware


def server_core() -> int:
    """Where nginx and Refract run, one at a time."""
    return _cores()[0]


def load_core() -> int:
    """Where the load comes from, and where the servers behind Refract run."""
    return _cores()[1]


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """The command with all its threads and children on one core."""
    return ["taskset", "--cpu-list", str(core), *command]


def pin(pid: int, core: int) -> None:
    """Move a running process to one core: its threads, its children, and what they start from now on."""
    for task in _tasks(pid):
        with suppress(ProcessLookupError):  # ended meanwhile
            os.sched_setaffinity(task, {core})


@contextmanager
def on_load_core() -> Iterator[None]:
    """This process and the threads that it starts meanwhile belong to the load."""
    cores = _cores()
    os.sched_setaffinity(0, {load_core()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@cache
def _cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise MissingSoftware("a second processor is missing: the server and the load must not share one")
    return cores


def _tasks(pid: int) -> Iterable[int]:
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield int(task.name)
            for child in (task / "children").read_text().split():
                yield from _tasks(int(child))
