"""The data directory of an embedded instance: its files, its secrets, and one process at a time."""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from refract.kernel.errors import Misconfigured

SECRETS = ("JWT_SECRET", "CLICK_SALT")


class DataDirectory:
    """Where an embedded instance keeps everything; a copy of it, made while nothing runs, is a backup."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: IO[str] | None = None

    def database(self, name: str) -> Path:
        """The SQLite file of a service."""
        return self.path / f"{name}.sqlite3"

    @property
    def bus(self) -> Path:
        """The SQLite file of the event bus."""
        return self.path / "bus.sqlite3"

    @property
    def state(self) -> Path:
        """The SQLite file of the state store."""
        return self.path / "state.sqlite3"

    def prepare(self) -> None:
        """Make the directory, for its owner alone; a place that cannot be written to is said in one line."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise Misconfigured(f'FATAL: data directory "{self.path}" cannot be used: {error.strerror}') from None

    def lock(self) -> None:
        """Claim the directory for this process until it ends, however it ends."""
        lock = (self.path / "refract.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Misconfigured(f'FATAL: data directory "{self.path}" is in use by another refract serve') from None
        self._lock = lock

    def unlock(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def secrets(self) -> Mapping[str, str]:
        """The instance's own secrets, made on first use and readable by nobody else."""
        file = self.path / "secrets.json"
        kept = self._read_secrets(file) if file.exists() else {}
        missing = {name: secrets.token_urlsafe(48) for name in SECRETS if name not in kept}
        if missing:
            kept |= missing
            self._write_secrets(file, kept)
        return kept

    def _read_secrets(self, file: Path) -> dict[str, str]:
        try:
            kept = json.loads(file.read_bytes())
        except ValueError:
            raise Misconfigured(f'FATAL: "{file}" is not JSON; restore it from a backup or remove it') from None
        if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
            raise Misconfigured(f'FATAL: "{file}" is not an object of texts; restore it from a backup or remove it')
        return kept

    def _write_secrets(self, file: Path, kept: Mapping[str, str]) -> None:
        draft = file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as output:
            json.dump(kept, output)
            output.flush()
            os.fsync(output.fileno())
        draft.replace(file)
