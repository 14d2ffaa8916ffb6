"""The data directory of an embedded instance: its files, its secrets, and one process at a time."""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from refract.kernel.errors import Misconfigured
from refract.runtime.settings import SECRET_BYTES

SECRETS = ("JWT_SECRET", "CLICK_SALT")


class DataDirectory:
    """Where an embedded instance keeps everything; a copy of it, made while nothing runs, is a backup."""

    def __init__(self, path: Path) -> None:
        try:
            self.path = path.absolute()
        except OSError as error:  # a relative place in a directory that was removed
            raise _unusable(path, error.strerror) from None
        self._lock: IO[str] | None = None

    def database(self, name: str) -> Path:
        """The SQLite file of a service."""
        return self.path / f"{name}.sqlite3"

    @property
    def bus(self) -> Path:
        """The SQLite file of the event bus."""
        return self.path / "bus.sqlite3"

    @property
    def records(self) -> Path:
        """The SQLite file of the record log; not there before the first record."""
        return self.path / "records.sqlite3"

    @property
    def state(self) -> Path:
        """The SQLite file of the state store."""
        return self.path / "state.sqlite3"

    @property
    def spool(self) -> Path:
        """The folder of clicks that wait for their database."""
        return self.path / "spool"

    def prepare(self) -> None:
        """Make the directory, for its owner alone; a place that cannot be written to is said in one line."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except FileExistsError:
            raise _unusable(self.path, "Not a directory") from None
        except OSError as error:
            raise _unusable(self.path, error.strerror) from None

    def lock(self) -> None:
        """Claim the directory for this process until it ends, however it ends."""
        file = self.path / "refract.lock"
        try:
            lock = file.open("a")
            ours = _flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise _unlockable(file, error) from None
        if not ours:
            lock.close()
            raise Misconfigured(f'FATAL: data directory "{self.path}" is in use by another refract serve')
        self._lock = lock

    def unlock(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_locked(self) -> bool:
        """Whether a process has claimed it; nothing is made or changed."""
        file = self.path / "refract.lock"
        try:
            with file.open() as lock:
                return not _flock(lock, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unlockable(file, error) from None

    def secrets(self) -> Mapping[str, str]:
        """The instance's own secrets, made on first use and readable by nobody else."""
        kept = self.kept_secrets()
        missing = {name: secrets.token_urlsafe(48) for name in SECRETS if name not in kept}
        if missing:
            kept |= missing
            try:
                self._write_secrets(kept)
            except OSError as error:
                raise Misconfigured(f'FATAL: "{error.filename}" cannot be written: {error.strerror}') from None
        return kept

    def kept_secrets(self) -> dict[str, str]:
        """Those that were made before; none are made now."""
        try:
            kept = json.loads(self._secrets_file.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Misconfigured(f'FATAL: "{self._secrets_file}" cannot be read: {error.strerror}') from None
        except (ValueError, RecursionError):
            raise self._broken_secrets("is not JSON") from None
        if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
            raise self._broken_secrets("is not an object of texts")
        for name in SECRETS:
            if name in kept and not _is_secret(kept[name]):
                raise self._broken_secrets(f"has a {name} that is no text of at least {SECRET_BYTES} bytes")
        return kept

    @property
    def _secrets_file(self) -> Path:
        return self.path / "secrets.json"

    def _broken_secrets(self, trouble: str) -> Misconfigured:
        return Misconfigured(f'FATAL: "{self._secrets_file}" {trouble}; restore it from a backup or remove it')

    def _write_secrets(self, kept: Mapping[str, str]) -> None:
        file = self._secrets_file
        draft = file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as output:
            json.dump(kept, output)
            output.flush()
            os.fsync(output.fileno())
        draft.replace(file)


def _unusable(path: Path, reason: str | None) -> Misconfigured:
    return Misconfigured(f'FATAL: data directory "{path}" cannot be used: {reason}')


def _unlockable(file: Path, error: OSError) -> Misconfigured:
    return Misconfigured(f'FATAL: "{file}" cannot be locked: {error.strerror}')


def _is_secret(text: str) -> bool:
    try:
        return len(text.encode()) >= SECRET_BYTES
    except UnicodeEncodeError:
        return False


def _flock(file: IO[str], kind: int) -> bool:
    """Whether the lock could be had; it goes with the file's end."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
