"""The spool: clicks on the local disk while the database is away, found again whatever happens to the process."""

import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

logger = logging.getLogger("refract.clicks")

SUFFIX = ".spool"
SEGMENT_BYTES = 8 * 1024 * 1024
"""A file that is larger is not continued: it is removed as a whole, and sent again as a whole after a kill."""

_CHECK_LENGTH = 9


class Segment:
    """One file of the spool, locked as long as a living process holds it.

    Each line is a checksum and a click. What a kill tore off has no whole line, and what a disk spoilt does not match
    its checksum: such a line is passed over, and those around it are not.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.replayed = 0
        """How many of its clicks are committed, so that what went wrong in the middle goes on there."""
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def made(cls, directory: Path) -> "Segment":
        """A new file with a name that nobody else has."""
        while True:
            path = directory / f"{secrets.token_hex(8)}{SUFFIX}"
            segment = cls._locked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if segment is not None:
                break
        try:
            _sync_directory(directory)
        except OSError:
            segment.remove()
            raise
        return segment

    @classmethod
    def adopted(cls, path: Path) -> "Segment | None":
        """A file of a process that is gone; None if somebody holds it or has just removed it."""
        try:
            return cls._locked(path, os.O_RDWR)
        except FileNotFoundError:
            return None

    @classmethod
    def _locked(cls, path: Path, flags: int) -> "Segment | None":
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had the lock before us may have removed the file between our opening and our locking.
            segment = cls(path, descriptor) if os.fstat(descriptor).st_nlink else None
        except BlockingIOError:
            segment = None
        except BaseException:
            os.close(descriptor)
            raise
        if segment is None:
            os.close(descriptor)
        return segment

    def append(self, lines: bytes) -> None:
        """Write whole lines and wait until the disk has them; what fails leaves nothing behind."""
        try:
            written = 0
            while written < len(lines):
                written += os.pwrite(self._descriptor, memoryview(lines)[written:], self.size + written)
            os.fdatasync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(lines)

    def clicks(self) -> list[bytes]:
        """What is in it and not yet committed, in order."""
        lines = [line for line in _read(self._descriptor).split(b"\n") if line]
        clicks = [line[_CHECK_LENGTH:] for line in lines if _is_whole(line)]
        if torn := len(lines) - len(clicks):
            logger.warning("lines of the click spool are torn", extra={"file": self.path.name, "lines": torn})
        return clicks[self.replayed :]

    def remove(self) -> None:
        """Delete the file: everything in it is committed."""
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.close()  # or our own lock would keep us from finding it again

    def close(self) -> None:
        """Let go of the file, for the next process."""
        os.close(self._descriptor)


class Spool:
    """The files of one process in a directory that several may share. All calls block, and any thread may make them."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._open: Segment | None = None
        self._sealed: list[Segment] = []
        self._unreadable: set[str] = set()
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether this process holds no clicks that wait; what others left behind is found by `adopt`."""
        return not self._sealed and self._open is None

    def check(self) -> None:
        """Raise OSError if clicks could not be kept here. Nothing is made until there are some."""
        existing = self._directory
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is no directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(f"{existing} cannot be written to")

    def append(self, clicks: Sequence[bytes]) -> int:
        """Keep clicks until they are replayed; returns how many found room, from the first on.

        They are on the disk then. Raises OSError if the disk does not take them, and none of them is kept.
        """
        with self._lock:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept, lines = _fitting(clicks, self._limit - self._occupied())
            if kept:
                self._write(lines)
            return kept

    def adopt(self) -> int:
        """Take over the files of processes that are gone; returns how many."""
        with self._lock:
            before = len(self._sealed)
            for path in self._paths():
                try:
                    segment = Segment.adopted(path)
                except OSError as error:
                    self._complain(path, error)
                else:
                    self._sealed += [segment] if segment is not None else []
            return len(self._sealed) - before

    def next_segment(self) -> Segment | None:
        """The file to replay next, to which nothing is added any more; None when there is nothing left."""
        with self._lock:
            if not self._sealed and self._open is not None:
                self._seal()
            return self._sealed[0] if self._sealed else None

    def remove(self, segment: Segment) -> None:
        """Forget a file whose clicks are all committed."""
        with self._lock:
            if segment in self._sealed:
                self._sealed.remove(segment)
                segment.remove()

    def set_aside(self, segment: Segment, error: OSError) -> None:
        """Let go of a file that cannot be read, so that it does not hold up the others; it will be adopted again."""
        with self._lock:
            if segment in self._sealed:
                self._complain(segment.path, error)
                self._sealed.remove(segment)
                segment.close()

    def close(self) -> None:
        """Let go of everything; what is left is for the next process."""
        with self._lock:
            if self._open is not None:
                self._seal()
            while self._sealed:
                self._sealed.pop().close()

    def _write(self, lines: bytes) -> None:
        if self._open is None:
            self._open = Segment.made(self._directory)
        try:
            self._open.append(lines)
        except OSError:
            self._discard_or_seal(self._open)
            raise
        if self._open.size >= SEGMENT_BYTES:
            self._seal()

    def _discard_or_seal(self, segment: Segment) -> None:
        """Do not go on in a file that failed: nobody knows what a second attempt would find in it."""
        self._open = None
        if segment.size:
            self._sealed.append(segment)
            return
        with suppress(OSError):
            segment.remove()

    def _complain(self, path: Path, error: OSError) -> None:
        """Once for each file: it is tried again and again."""
        if path.name not in self._unreadable:
            self._unreadable.add(path.name)
            logger.error("a file of the click spool cannot be read", extra={"file": path.name, "error": str(error)})

    def _seal(self) -> None:
        assert self._open is not None
        self._sealed.append(self._open)
        self._open = None

    def _paths(self) -> Iterator[Path]:
        if self._directory.is_dir():
            held = {segment.path for segment in (*self._sealed, self._open) if segment is not None}
            yield from sorted(path for path in self._directory.glob(f"*{SUFFIX}") if path not in held)

    def _occupied(self) -> int:
        """The bytes of all files here, those of other processes too: they share one disk."""
        occupied = 0
        for path in self._directory.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                occupied += path.stat().st_size
        return occupied


def _fitting(clicks: Sequence[bytes], room: int) -> tuple[int, bytes]:
    """The lines of as many clicks as there is room for, and how many these are."""
    lines: list[bytes] = []
    for click in clicks:
        # Outside of its texts, where it would be written as \n, a line feed is as good as a blank to JSON.
        line = _line(click.replace(b"\n", b" "))
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    return len(lines), b"".join(lines)


def _line(click: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(click), click)


def _is_whole(line: bytes) -> bool:
    return len(line) > _CHECK_LENGTH and line[:_CHECK_LENGTH] == b"%08x " % crc32(line[_CHECK_LENGTH:])


def _read(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    position = 0
    while position < size and (part := os.pread(descriptor, size - position, position)):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _sync_directory(directory: Path) -> None:
    """Let the name of a new file survive a power cut, too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
