"""Where private servers may live: a free loopback port, a folder that their user can enter, memory if there is any."""

import os
import random
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Below the range from which the kernel takes ports for outgoing connections: while a killed server is away, a client
# that keeps trying must not be given the server's own port, and so end up connected to itself.
PORTS = range(20_000, 32_000)


MEMORY = Path("/dev/shm")
ENOUGH = 8 * 1024**3


def free_port() -> int:
    """A loopback port that nothing listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def open_to_everyone(folder: Path) -> bool:
    """Whether any user can walk to the folder: every step to it may be entered by others."""
    return all(step.stat().st_mode & stat.S_IXOTH for step in (folder, *folder.parents))


def new_folder(name: str, user: str) -> Path:
    """A new temporary folder that belongs to the user (to us when that is empty)."""
    if not user:
        return Path(tempfile.mkdtemp(prefix=f"refract-{name}-"))
    candidates = [Path(place).resolve() for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")]
    parent = next((candidate for candidate in candidates if candidate.is_dir() and open_to_everyone(candidate)), None)
    if parent is None:
        raise PermissionError(f"user {user} can enter none of {', '.join(map(str, candidates))}")
    folder = Path(tempfile.mkdtemp(prefix=f"refract-{name}-", dir=parent))
    shutil.chown(folder, user, user)
    return folder


@contextmanager
def temporary_files_in_memory() -> Iterator[None]:
    """Keep everything temporary, of this process and of its children, in memory, if there is enough of it.

    Tests kill processes and never the machine: the promises are the same, and a disk would only make them wait.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH:
        yield
        return
    _remove_what_the_killed_left()
    folder = MEMORY / f"refract-tests-{os.getpid()}"
    folder.mkdir(mode=0o755)
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def _remove_what_the_killed_left() -> None:
    for folder in MEMORY.glob("refract-tests-*"):
        number = re.fullmatch(r"refract-tests-(\d+)", folder.name)
        if number and not Path(f"/proc/{number[1]}").exists():
            shutil.rmtree(folder, ignore_errors=True)
