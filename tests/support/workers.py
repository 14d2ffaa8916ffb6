"""The processes behind one port, as the kernel knows them."""

from pathlib import Path

from refract.apps.workers import VARIABLE


def children(pid: int) -> list[int]:
    """The processes that a process has started, oldest first."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_begun(pid: int) -> bool:
    """Whether a child is a program of its own already. One that is stopped before would keep its parent waiting."""
    return VARIABLE.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def sockets_that_listen(port: int) -> set[str]:
    """The sockets that take connections on a port of this machine, as they are called among open files."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    columns = (line.split() for line in lines)
    return {f"socket:[{each[9]}]" for each in columns if each[1].endswith(f":{port:04X}") and each[3] == "0A"}


def is_listening(pid: int, port: int) -> bool:
    """Whether a process has such a socket."""
    held = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    return not held.isdisjoint(sockets_that_listen(port))


def that_listen(parent: int, port: int, count: int) -> list[int]:
    """The workers of a parent, once there are so many and all of them listen; none before."""
    pids = children(parent)
    return pids if len(pids) == count and all(is_listening(pid, port) for pid in pids) else []
