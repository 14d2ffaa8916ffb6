"""Servers kept up between runs: a process in the background owns them, and a state file says where they are."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".servers"
STATE = FOLDER / "state.json"
LOG = FOLDER / "holder.log"
SECONDS_TO_STOP = 60.0


class NotKept(Exception):
    """The servers could not be brought up or down."""


@dataclass(frozen=True)
class State:
    """Who holds the servers, and where they are by variable. The start time tells the holder from a later namesake."""

    pid: int
    start_time: str
    addresses: Mapping[str, str]


def addresses() -> Mapping[str, str]:
    """Addresses by variable of the servers that are kept up; empty when none are."""
    state = _state()
    return state.addresses if state else {}


def announce(where: Mapping[str, str]) -> None:
    """Called by the holder when its servers are ready."""
    state = State(os.getpid(), _start_time(os.getpid()) or "", where)
    draft = STATE.with_suffix(".new")
    draft.write_text(json.dumps(asdict(state)))
    draft.chmod(0o600)
    draft.replace(STATE)


def up() -> Mapping[str, str]:
    """Bring the servers up unless they are; give their addresses."""
    with _one_at_a_time():
        return addresses() or _start_holder()


def down() -> bool:
    """Stop the servers; False when none were up."""
    with _one_at_a_time():
        state = _state()
        if state is None:
            return False
        os.kill(state.pid, signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while _start_time(state.pid) == state.start_time:
            if time.monotonic() > deadline:
                raise NotKept(f"process {state.pid}, which holds the servers, did not stop; see {LOG}")
            time.sleep(0.05)
        STATE.unlink(missing_ok=True)
        return True


def _start_holder() -> Mapping[str, str]:
    STATE.unlink(missing_ok=True)
    with LOG.open("wb") as output:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers", "hold"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # No deadline here: the holder may be installing packages, and each start inside it has one.
    while not (where := addresses()):
        if holder.poll() is not None:
            raise NotKept(LOG.read_text().rstrip())
        time.sleep(0.05)
    return where


def _state() -> State | None:
    try:
        state = State(**json.loads(STATE.read_text()))
    except FileNotFoundError:
        return None
    return state if _start_time(state.pid) == state.start_time else None


def _start_time(pid: int) -> str | None:
    """When the process started, in the kernel's own count; None when it is gone or waits to be reaped."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else rest[18]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
