"""Where a private server may live: a free loopback port, and a folder that its user can enter."""

import fcntl
import os
import random
import shutil
import socket
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

# Below the range from which the kernel takes ports for outgoing connections: while a killed server is away, a client
# that keeps trying must not be given the server's own port, and so end up connected to itself.
PORTS = range(20_000, 32_000)

_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nothing listens on, and that nobody else is given for as long as this process lives.

    Whoever asks takes his time to listen there, and may stop and listen again.
    """
    while True:
        port = random.choice(PORTS)
        if port in _given or not _is_ours(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def _is_ours(port: int) -> bool:
    """Lay our hand on a port; the kernel takes it away when we end, however we do."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> IO[bytes]:
    """A file of which each byte stands for a port. It stays open: closing it would give up everything."""
    return (Path(tempfile.gettempdir()) / f"refract-ports-{os.getuid()}").open("ab")


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
