"""A script: import every module of a package and print, as JSON, what any of them did to the world meanwhile."""

import importlib
import json
import os
import sys
import threading
from pathlib import Path

EFFECTS = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.mkdir",
        "os.posix_spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.system",
        "socket.__new__",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "sqlite3.connect",
        "subprocess.Popen",
    }
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_importing = ""
_seen: list[str] = []


def listen(event: str, arguments: tuple[object, ...]) -> None:
    """Note an effect, and which module was being imported at the time."""
    if event in EFFECTS:
        _seen.append(f"{_importing}: {event} {arguments!r}")
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING:
            _seen.append(f"{_importing}: opened {path!r} for writing")


def note_thread(thread: threading.Thread) -> None:
    """Stands in for Thread.start, of which Python 3.11 tells no audit hook."""
    _seen.append(f"{_importing}: started a thread, {thread.name}")


def modules(source: Path, package: str) -> list[str]:
    """Every module that is imported by name: not `__main__`, and not what Alembic runs as scripts."""
    files = sorted((source / package).rglob("*.py"))
    names = [".".join(file.relative_to(source).with_suffix("").parts) for file in files]
    return [
        name.removesuffix(".__init__") for name in names if not name.endswith("__main__") and ".migrations." not in name
    ]


def main(source: Path, package: str) -> None:
    """Import everything and print the effects."""
    global _importing  # noqa: PLW0603  # an audit hook is called with nothing of ours
    sys.path.insert(0, str(source))
    names = modules(source, package)
    sys.addaudithook(listen)
    setattr(threading.Thread, "start", note_thread)  # noqa: B010  # mypy lets no method be assigned
    for _importing in names:
        importlib.import_module(_importing)
    _importing = "the end"
    print(json.dumps({"imported": len(names), "effects": _seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
