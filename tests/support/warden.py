"""Ends what a process has started once that process has ended, however it ended: `warden.py VARIABLE VALUE`.

A program of its own. All that the tests start carries the variable with this value, and so does what that starts in its
turn, whichever thread, session or group it was started in; nothing else does.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RUN_OF_TESTS"
"""In the environment of everything that a process of tests starts; the value is that process's own."""

ROUNDS = 50
PAUSE = 0.1
"""Some may start another while they are looked for: nobody must be found before it is over."""


def without_mark(environment: Mapping[str, str]) -> dict[str, str]:
    """The same for whoever is to outlive us, and has an end of its own."""
    return {name: value for name, value in environment.items() if name != VARIABLE}


def carriers(mark: bytes) -> list[int]:
    """The processes that were started with this in their environment and live; those of others cannot be read."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()  # of one that has ended it is empty
        except OSError:
            continue
        if mark in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def main(owner: int, variable: str, value: str) -> None:
    """Wait for the end of the owner, and end all that it has left."""
    ended = os.pidfd_open(owner)
    if os.getppid() == owner:  # else it ended before we looked, and the number may be another's
        select.select([ended], [], [])
    mark = f"{variable}={value}".encode()
    for _ in range(ROUNDS):
        left = carriers(mark)
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
